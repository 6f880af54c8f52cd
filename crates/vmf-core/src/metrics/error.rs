//! Why the inputs of a metric were refused.

use thiserror::Error;

/// Why a set of predictions, scores or logits was refused.
///
/// Every input is checked once, when its view is built; the metrics themselves cannot fail.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// There is nothing to average over.
    #[error("no examples were given; a mean over nothing is undefined, give at least one")]
    Empty,

    /// A row of zero classes is not a distribution.
    #[error("the number of classes is zero; it must be at least 1")]
    NoClasses,

    /// The flat slice is not a whole matrix of the stated shape.
    #[error("{values} values do not fill {rows} rows of {classes} classes ({rows} x {classes})")]
    Shape {
        /// Number of values in the slice.
        values: usize,
        /// Number of rows expected, one per label (or per label and Monte Carlo sample).
        rows: usize,
        /// Number of columns expected.
        classes: usize,
    },

    /// Two slices that describe the same examples differ in length.
    #[error("{left} values were paired with {right} outcomes; one outcome per value is needed")]
    LengthMismatch {
        /// Length of the first slice.
        left: usize,
        /// Length of the second slice.
        right: usize,
    },

    /// Monte Carlo values that cannot be cut into equally sized samples.
    #[error("{values} values cannot be split into {samples} samples of rows of {classes} classes")]
    Samples {
        /// Number of values in the slice.
        values: usize,
        /// Number of Monte Carlo samples stated.
        samples: usize,
        /// Number of classes stated.
        classes: usize,
    },

    /// A label that names no class.
    #[error("row {row}: label {label} is outside 0..{classes}")]
    Label {
        /// Row of the label, from 0.
        row: usize,
        /// The label as it was given.
        label: String,
        /// Number of classes.
        classes: usize,
    },

    /// A class that does not exist.
    #[error("class {class} is outside 0..{classes}")]
    NoSuchClass {
        /// The class asked for.
        class: usize,
        /// Number of classes.
        classes: usize,
    },

    /// A value that is NaN, infinite, negative or above one.
    #[error(
        "row {row}, class {class}: {value} is not a probability; if these are logits, pass them \
         through `Temperature::ONE.softmax` first"
    )]
    NotAProbability {
        /// Row of the value, from 0.
        row: usize,
        /// Column of the value, from 0.
        class: usize,
        /// The value.
        value: f64,
    },

    /// A row whose probabilities are not those of a distribution.
    #[error(
        "row {row} sums to {sum}, not to 1 within {tolerance}; divide each row by its sum if that \
         is what is meant",
        tolerance = super::SUM_TOLERANCE
    )]
    RowSum {
        /// The row, from 0.
        row: usize,
        /// Its sum.
        sum: f64,
    },

    /// A logit that is NaN, infinite or so large that differences overflow.
    #[error("row {row}, class {class}: logit {value} is not finite, or beyond half the f64 range")]
    Logit {
        /// Row of the value, from 0.
        row: usize,
        /// Column of the value, from 0.
        class: usize,
        /// The value.
        value: f64,
    },

    /// A score without a place in any order.
    #[error("score {index} is NaN; scores must be ordered (infinities are allowed)")]
    NanScore {
        /// Position of the score, from 0.
        index: usize,
    },

    /// A confidence outside the unit interval.
    #[error("confidence {index} is {value}; it must be between 0 and 1")]
    Confidence {
        /// Position of the confidence, from 0.
        index: usize,
        /// The value.
        value: f64,
    },

    /// Separation of two groups needs both groups.
    #[error(
        "separating positives from negatives needs at least one of each; there are {positives} \
         positives and {negatives} negatives"
    )]
    OneSided {
        /// Number of positives.
        positives: usize,
        /// Number of negatives.
        negatives: usize,
    },

    /// A histogram needs a bin.
    #[error("the number of bins is zero; it must be at least 1")]
    NoBins,

    /// A rate that no threshold can be asked to reach.
    #[error("the target rate {value} is not in (0, 1]")]
    Rate {
        /// The value.
        value: f64,
    },

    /// A share, such as a risk, outside of the unit interval.
    #[error("the {what} {value} is not in [0, 1]")]
    Share {
        /// What it is a share of.
        what: &'static str,
        /// The value.
        value: f64,
    },

    /// A penalty that is negative or not finite.
    #[error("the penalty {value} is not a finite number of at least 0")]
    Penalty {
        /// The value.
        value: f64,
    },

    /// A temperature that is negative or NaN.
    #[error("the temperature {value} is not in [0, infinity]")]
    Temperature {
        /// The value.
        value: f64,
    },
}
