//! Whether probabilities can be believed.

use crate::error::{Error, Result};
use crate::predict::Prediction;
use candle_core::{DType, Device, Tensor};
use std::fmt;
use vmf_core::metrics::Predictions;

/// How good the probabilities of a set of examples are; see [`metrics`](crate::metrics) for the definitions and for more.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use vmf_candle::Calibration;
/// # fn main() -> vmf_candle::Result<()> {
/// let probs = Tensor::new(&[[0.9f32, 0.1], [0.8, 0.2], [0.3, 0.7]], &Device::Cpu)?;
/// let labels = Tensor::new(&[0u32, 1, 1], &Device::Cpu)?;
/// let calibration = Calibration::of(&probs, &labels)?;
/// println!("{calibration}"); // accuracy 0.667   NLL 0.690   ECE 0.400   3 examples
/// # assert_eq!(calibration.to_string(), "accuracy 0.667   NLL 0.690   ECE 0.400   3 examples");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// The share of examples whose most probable class is the right one.
    pub accuracy: f64,
    /// The mean of `-ln p(right class)`, in nats.
    pub nll: f64,
    /// The mean squared distance between the probabilities and the truth.
    pub brier: f64,
    /// The expected calibration error over 15 equal bins: how far confidence and accuracy are apart. A network that says
    /// 0.8 and is right four times in five has 0.
    pub ece: f64,
    /// How many examples.
    pub examples: usize,
}

impl Calibration {
    /// Of probabilities (N, classes), such as [`Prediction::probs`], against labels (N) of any integer type.
    ///
    /// For a data set that was predicted in batches, join them first: `Tensor::cat(&probs, 0)`.
    pub fn of(probs: &Tensor, labels: &Tensor) -> Result<Self> {
        let (_, classes) = probs.dims2()?;
        let probs: Vec<f64> = probs
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1()?;
        let labels: Vec<u32> = labels
            .to_device(&Device::Cpu)?
            .to_dtype(DType::U32)?
            .to_vec1()?;
        let predictions = Predictions::new(&probs, &labels, classes).map_err(Error::from)?;
        Ok(Self {
            accuracy: predictions.accuracy(),
            nll: predictions.nll(),
            brier: predictions.brier(),
            ece: predictions.ece(),
            examples: predictions.len(),
        })
    }
}

impl Prediction {
    /// How good the prediction is, against labels (N) of any integer type.
    pub fn calibration(&self, labels: &Tensor) -> Result<Calibration> {
        Calibration::of(&self.probs, labels)
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            accuracy,
            nll,
            ece,
            examples,
            ..
        } = self;
        write!(
            f,
            "accuracy {accuracy:.3}   NLL {nll:.3}   ECE {ece:.3}   {examples} examples"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_do_not_fit_are_refused() -> Result<()> {
        let probs = Tensor::new(&[[0.5f32, 0.5], [0.1, 0.9]], &Device::Cpu)?;
        let labels = |labels: &[u32]| Tensor::new(labels, &Device::Cpu);
        assert!(Calibration::of(&probs, &labels(&[0, 1])?).is_ok());
        assert!(Calibration::of(&probs, &labels(&[0, 2])?).is_err());
        assert!(Calibration::of(&probs, &labels(&[0])?).is_err());
        let logits = Tensor::new(&[[5f32, -5.0], [1.0, 2.0]], &Device::Cpu)?;
        assert!(Calibration::of(&logits, &labels(&[0, 1])?).is_err());
        Ok(())
    }
}
