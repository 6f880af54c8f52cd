//! Why a distribution or a sphere cannot be built.

/// An argument that a distribution or a sphere cannot be built from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sphere needs at least two dimensions to have directions.
    #[error("dimension {dim} is too small: directions exist from dimension 2 on")]
    DimensionTooSmall {
        /// The dimension given.
        dim: usize,
    },
    /// A concentration is a finite number that is not negative.
    #[error("concentration kappa = {kappa} is not a finite number >= 0")]
    BadConcentration {
        /// The concentration given.
        kappa: f64,
    },
    /// A vector holds a NaN or an infinity.
    #[error("entry {index} of the vector is {value}, not a finite number")]
    NotFinite {
        /// Its index.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// A direction must have length one.
    #[error("the vector has norm {norm}, not 1: divide it by its norm first")]
    NotUnit {
        /// Its Euclidean norm.
        norm: f64,
    },
    /// Two lengths that must agree do not.
    #[error("{what} has length {actual}, expected {expected}")]
    LengthMismatch {
        /// The name of the argument.
        what: &'static str,
        /// The length it should have.
        expected: usize,
        /// The length it has.
        actual: usize,
    },
    /// A softmax needs at least one class.
    #[error("there are no logits: a softmax needs at least one class")]
    NoClasses,
    /// A variance must not be negative.
    #[error("the variance of class {class} is {variance}, a negative number")]
    BadVariance {
        /// The class, from 0.
        class: usize,
        /// The variance given.
        variance: f64,
    },
    /// A fit needs at least one observation.
    #[error("no observations to fit")]
    NoObservations,
    /// The observations cancel, so every mean direction fits them equally well.
    #[error("the observations have mean resultant length {resultant}: they have no mean direction")]
    NoMeanDirection {
        /// The norm of their mean.
        resultant: f64,
    },
    /// The observations coincide, so the likelihood grows without bound in the concentration.
    #[error(
        "the observations all point the same way: the maximum-likelihood concentration is infinite"
    )]
    UnboundedConcentration,
}
