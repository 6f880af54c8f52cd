//! Calibration and uncertainty metrics: [`Calibration`] of tensors, and all of
//! [`vmf_core::metrics`], which computes on slices of probabilities.

pub use vmf_core::metrics::*;

use crate::error::{Error, Result, check_shape};
use crate::predict::Prediction;
use candle_core::{DType, Device, Tensor};
use std::fmt;

/// How good the probabilities of a set of examples are; [`Predictions`] has the definitions, and
/// more metrics.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use vmf_candle::prelude::*;
/// # fn main() -> vmf_candle::Result<()> {
/// let probs = Tensor::new(&[[0.9f32, 0.1], [0.8, 0.2], [0.3, 0.7]], &Device::Cpu)?;
/// let labels = Tensor::new(&[0u32, 1, 1], &Device::Cpu)?;
/// let calibration = Calibration::of(&probs, &labels)?;
/// println!("{calibration}"); // accuracy 0.667   confidence 0.800   NLL 0.690   ECE 0.400   3 examples
/// # assert_eq!(calibration.to_string(), "accuracy 0.667   confidence 0.800   NLL 0.690   ECE 0.400   3 examples");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// The share of examples whose most probable class is the right one.
    pub accuracy: f64,
    /// The mean probability of the most probable class. If it is above the accuracy the network is
    /// overconfident, if it is below it the network is underconfident.
    pub confidence: f64,
    /// The mean of `-ln p(right class)`, in nats.
    pub nll: f64,
    /// The mean squared distance between the probabilities and the truth.
    pub brier: f64,
    /// The expected calibration error over 15 equal bins: the mean distance between confidence and
    /// accuracy. It is 0 if predictions made with confidence 0.8 are right four times in five.
    pub ece: f64,
    /// How many examples.
    pub examples: usize,
}

impl Calibration {
    /// Of probabilities (N, classes), such as [`Prediction::probs`], against labels (N) of any
    /// integer type; or of (N, T, classes) against (N, T), and so on.
    ///
    /// For a data set that was predicted in batches, join them first: `Tensor::cat(&probs, 0)`.
    pub fn of(probs: &Tensor, labels: &Tensor) -> Result<Self> {
        let classes = probs.dims().last().copied().unwrap_or(0);
        let valid = probs.rank() >= 2 && probs.dims()[..probs.rank() - 1] == *labels.dims();
        check_shape(valid, "calibration", || {
            let (probs, labels) = (probs.dims(), labels.dims());
            format!("probabilities of shape {probs:?} (.., classes), labels of shape {labels:?}")
        })?;
        let (examples, labels) = (labels.elem_count(), labels.flatten_all()?);
        let probs: Vec<f64> =
            probs.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        let valid = probs.iter().all(|p| (-1e-6..=1.0 + 1e-6).contains(p));
        check_shape(valid, "calibration", || {
            "expected probabilities, got numbers outside of 0 to 1: apply `candle_nn::ops::softmax(&logits, 1)` to logits".into()
        })?;
        let largest = |row: &[f64]| row.iter().copied().fold(0.0, f64::max);
        let confidence: f64 = probs.chunks_exact(classes.max(1)).map(largest).sum();
        let labels: Vec<u32> = labels.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_vec1()?;
        let predictions = Predictions::new(&probs, &labels, classes).map_err(Error::from)?;
        Ok(Self {
            accuracy: predictions.accuracy(),
            confidence: confidence / examples as f64,
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
        let Self { accuracy, confidence, nll, ece, examples, .. } = self;
        write!(
            f,
            "accuracy {accuracy:.3}   confidence {confidence:.3}   NLL {nll:.3}   ECE {ece:.3}   {examples} examples"
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
        let error = |probs: &Tensor, labels: &Tensor| {
            let refused = Calibration::of(probs, labels);
            refused.unwrap_err().to_string()
        };
        let message = error(&probs, &labels(&[0])?);
        assert!(message.contains("shape [2, 2] (.., classes), labels of shape [1]"), "{message}");
        let logits = Tensor::new(&[[5f32, -5.0], [1.0, 2.0]], &Device::Cpu)?;
        let message = error(&logits, &labels(&[0, 1])?);
        assert!(message.contains("softmax(&logits, 1)"), "{message}");
        Ok(())
    }
}
