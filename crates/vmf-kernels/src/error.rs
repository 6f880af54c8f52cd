//! The errors of the kernels.

/// Why a kernel refused its arguments. When it returns such an error, it has written no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice does not have the length that the shape requires.
    #[error("`{name}` has {actual} elements, but the shape requires {expected}")]
    Length {
        /// The argument's name.
        name: &'static str,
        /// Its length.
        actual: usize,
        /// The length it should have.
        expected: usize,
    },

    /// A dimension is zero: there is nothing to normalize.
    #[error("the shape {shape} has an empty dimension; every dimension must be at least 1")]
    EmptyShape {
        /// The shape, as text.
        shape: String,
    },

    /// A noise sample has more elements than the counter of the noise can number.
    #[error(
        "{elements} elements in one noise sample; the counter numbers at most 2^34, split the tensor"
    )]
    TooManyElements {
        /// How many elements one noise sample has.
        elements: u64,
    },

    /// The batch cannot be cut into whole noise samples.
    #[error(
        "{elements} elements cannot be cut into noise samples of {per_sample}; \
         use a positive divisor, for example the elements of one image times the images of one sample"
    )]
    Folding {
        /// Elements in the tensor.
        elements: usize,
        /// Elements of one sample, as given.
        per_sample: u64,
    },

    /// The number of noise scales does not divide the number of channels.
    #[error(
        "{groups} noise scales for {channels} channels; give one scale, or a number that divides the channels"
    )]
    SigmaGroups {
        /// How many scales were given.
        groups: usize,
        /// How many channels there are.
        channels: usize,
    },

    /// A number is outside the range for which the operation is defined.
    #[error("`{name}` is {value}; it must be {requirement}")]
    Value {
        /// The argument's name.
        name: &'static str,
        /// Its value, as text.
        value: String,
        /// What it should be.
        requirement: &'static str,
    },

    /// The processes that share the batch could not add their sums up.
    #[error("the processes that share the batch cannot reach each other: {reason}")]
    Across {
        /// What went wrong, in the words of the library that connects them.
        reason: String,
    },
}

/// Checks that a slice has the length that the shape requires.
pub(crate) fn check_length(
    name: &'static str,
    actual: usize,
    expected: usize,
) -> Result<(), Error> {
    if actual == expected { Ok(()) } else { Err(Error::Length { name, actual, expected }) }
}
