//! What can go wrong. Each message says what to do about it.

use candle_core::DType;
use std::fmt::Display;
use std::path::PathBuf;

/// The result of an operation that is not a plain Candle computation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
///
/// Layers and operations return `candle_core::Result`, so that they compose with a Candle model; an
/// `Error` converts into `candle_core::Error` with `?`, keeping its message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is outside the range in which it means something.
    #[error("{name} is {value}, but {requirement}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value, as given.
        value: String,
        /// What it must satisfy.
        requirement: &'static str,
    },

    /// Two layers were registered under one name.
    #[error(
        "a layer named {name:?} is in the posterior already: give each layer its own path with `vb.pp(..)`"
    )]
    DuplicateLayer {
        /// The name.
        name: String,
    },

    /// Two layer names hash to one noise stream.
    #[error(
        "the layers {first:?} and {second:?} would draw the same noise, because their names hash to the same stream: rename one of them"
    )]
    StreamCollision {
        /// The layer registered first.
        first: String,
        /// The layer that collides with it.
        second: String,
    },

    /// A tensor has a shape that the operation cannot use.
    #[error("{what}: {reason}")]
    Shape {
        /// The operation or layer.
        what: String,
        /// What is wrong with the shape.
        reason: String,
    },

    /// A value that must be a number is NaN or infinite.
    #[error(
        "{what} is not finite: the step was not taken and no parameter has changed. The usual remedies are a lower learning rate, gradient clipping or a KL warm-up"
    )]
    NonFinite {
        /// The tensor, by name.
        what: String,
    },

    /// Inputs that are NaN or infinite.
    #[error(
        "example {example} of the inputs holds NaN or infinity: look for it in the data and in what prepares it. No setting of training helps against that"
    )]
    NonFiniteInput {
        /// Its place in the batch.
        example: usize,
    },

    /// The statistics of a batch in a layer are NaN or infinite.
    #[error("layer {layer:?}: {reason}. Its running statistics have not changed")]
    NonFiniteLayer {
        /// The layer.
        layer: String,
        /// Where the values come from, and what helps.
        reason: &'static str,
    },

    /// The model's outputs are NaN or infinite.
    #[error(
        "the outputs of the model are not finite, though its inputs are: {place}. Look at its weights and statistics, or restore an earlier checkpoint"
    )]
    NonFiniteOutput {
        /// The first layer concerned, as a sentence.
        place: String,
    },

    /// A value of a checkpoint or a measurement is NaN or infinite, or a variance is negative.
    #[error("{what} {reason}")]
    NonFiniteValue {
        /// The value, by name.
        what: String,
        /// What is wrong with it, and what follows.
        reason: String,
    },

    /// A posterior without layers, where one is needed.
    #[error(
        "the posterior has no layers: pass the one that the model's variational layers were built with. {instead}"
    )]
    EmptyPosterior {
        /// What to use for a model without variational layers.
        instead: &'static str,
    },

    /// A posterior that belongs to another model.
    #[error(
        "the posterior does not belong to this model: {reason}. Pass the one that the model's layers were built with"
    )]
    ForeignPosterior {
        /// How that shows.
        reason: String,
    },

    /// An error of Candle or of a kernel inside a layer.
    #[error("layer {layer:?}: {reason}")]
    Layer {
        /// The layer.
        layer: String,
        /// The message of the error.
        reason: String,
    },

    /// The expected pass was asked for before anything was measured.
    #[error(
        "the expected pass does not know yet how much the outputs vary: call `reestimate` with training inputs first, or restore a checkpoint that was written after it"
    )]
    Unmeasured,

    /// A model or layer does not say what it makes of variances.
    #[error(
        "{what} does not propagate variances: implement `Forward::propagate` for it (in a `Chain`, give it as `add_map`), or predict with `Samples::expected`, whose variances are measured"
    )]
    NotPropagated {
        /// Its type.
        what: &'static str,
    },

    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },

    /// A file is not a checkpoint, or is damaged.
    #[error("{} is not a usable checkpoint: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },

    /// A checkpoint whose checksum is not that of its contents.
    #[error(
        "{} is damaged: its SHA-256 is not the one that was saved with it. Use a copy or an earlier checkpoint",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },

    /// A checkpoint was written by a version of the format that this version cannot read.
    #[error(
        "the checkpoint has format version {found}; this version of vmf-candle reads 1 to {supported}"
    )]
    Version {
        /// The version in the file.
        found: u64,
        /// The newest version that this crate reads.
        supported: u64,
    },

    /// Values that are valid but belong to another model.
    #[error("the values do not fit the model, which has not changed: {0}")]
    Mismatch(String),

    /// A state dict cannot be converted.
    #[error("cannot convert {name:?}: {reason}")]
    Convert {
        /// The tensor or layer in question.
        name: String,
        /// Why.
        reason: String,
    },

    /// A dtype that the operation does not compute in.
    #[error("{what} computes in f32, f64, bf16 or f16, not in {dtype:?}")]
    DType {
        /// The operation.
        what: &'static str,
        /// The dtype given.
        dtype: DType,
    },

    /// The ranks of a training do not fit together, or cannot reach each other.
    #[error("{reason}")]
    Ranks {
        /// What is wrong.
        reason: String,
    },

    /// Probabilities or labels that no metric is defined for.
    #[error(transparent)]
    Metrics(#[from] vmf_core::metrics::MetricsError),

    /// Moments that no distribution has.
    #[error(transparent)]
    Core(#[from] vmf_core::Error),

    /// An error of Candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),

    /// An error of a kernel on the CPU.
    #[error(transparent)]
    Kernel(#[from] vmf_kernels::Error),

    /// An error of a kernel on a GPU.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] vmf_kernels::bn_noise::cuda::Error),
}

impl Error {
    pub(crate) fn setting(
        name: &'static str,
        value: impl Display,
        requirement: &'static str,
    ) -> Self {
        Self::Setting { name, value: value.to_string(), requirement }
    }

    /// An error inside a layer, with the name of the layer in front unless it has it.
    pub(crate) fn in_layer(layer: &str, error: candle_core::Error) -> candle_core::Error {
        let reason = error.to_string();
        if reason.contains(&format!("{layer:?}")) {
            return error;
        }
        Self::Layer { layer: layer.into(), reason }.into()
    }

    pub(crate) fn shape(what: impl Display, reason: impl Into<String>) -> Self {
        Self::Shape { what: what.to_string(), reason: reason.into() }
    }
}

/// Refuses a setting that is not valid.
pub(crate) fn check_setting(
    valid: bool,
    name: &'static str,
    value: impl Display,
    requirement: &'static str,
) -> Result<()> {
    if valid { Ok(()) } else { Err(Error::setting(name, value, requirement)) }
}

/// Refuses a tensor whose shape is not valid. The reason is made only where it is needed.
pub(crate) fn check_shape(
    valid: bool,
    what: impl Display,
    reason: impl FnOnce() -> String,
) -> Result<()> {
    if valid { Ok(()) } else { Err(Error::shape(what, reason())) }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(inner) => inner,
            other => candle_core::Error::wrap(other),
        }
    }
}
