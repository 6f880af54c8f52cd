//! Mean negative log-likelihoods: the term of the objective that depends on the data.

use crate::dtype::stable_dtype;
use crate::error::{Error, check_setting, check_shape};
use crate::warning::warn;
use candle_core::{D, DType, Result, Tensor};
use std::f64::consts::TAU;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The mean cross-entropy of class labels under the softmax of `logits`.
///
/// # Shapes
/// `logits` (N, classes) and `labels` (N), or (N, T, classes) and (N, T) for sequences, and so on;
/// labels are integers. The result is a scalar, the mean over all labels.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    cross_entropy_smoothed(logits, labels, 0.0)
}

/// [`cross_entropy`] of logits (N, classes), and how many of the N predictions are right, an `f32`
/// scalar. On a GPU neither has to be read to compute the other.
pub fn cross_entropy_counted(logits: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if is_for_cuda(logits, labels) {
        check_shape(logits.dims()[0] == labels.dims()[0], "cross-entropy", || {
            let (logits, labels) = (logits.dims(), labels.dims());
            format!("logits of shape {logits:?} (.., classes), labels of shape {labels:?}")
        })?;
        return super::loss_cuda::cross_entropy(logits, labels, 0.0);
    }
    let loss = cross_entropy(logits, labels)?;
    let right = logits.detach().argmax(D::Minus1)?.eq(&labels.to_dtype(DType::U32)?)?;
    Ok((loss, right.to_dtype(DType::F32)?.sum_all()?))
}

/// Whether the CUDA kernel computes the cross-entropy of a matrix of logits.
#[cfg(feature = "cuda")]
fn is_for_cuda(logits: &Tensor, labels: &Tensor) -> bool {
    let is_plain = logits.rank() == 2 && labels.rank() == 1 && labels.elem_count() > 0;
    let on_one_device = labels.device().same_device(logits.device());
    is_plain && on_one_device && crate::cuda::has_kernels(logits) && labels.dtype() == DType::U32
}

/// [`cross_entropy`] with label smoothing: the target is the label with weight `1 - smoothing` and
/// the uniform distribution over all classes with weight `smoothing`.
pub fn cross_entropy_smoothed(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    let valid = (0.0..1.0).contains(&smoothing);
    check_setting(valid, "label smoothing", smoothing, "it must lie in [0, 1)")?;
    let valid = logits.rank() >= 2 && logits.dims()[..logits.rank() - 1] == *labels.dims();
    check_shape(valid, "cross-entropy", || {
        let (logits, labels) = (logits.dims(), labels.dims());
        format!("logits of shape {logits:?} (.., classes), labels of shape {labels:?}")
    })?;
    let classes = logits.dim(D::Minus1)?;
    let (logits, labels) = (&logits.flatten_to(D::Minus2)?, labels.flatten_all()?);
    check_shape(labels.dtype().is_int(), "cross-entropy", || {
        format!("labels must be integers, not {:?}", labels.dtype())
    })?;
    check_shape(labels.elem_count() > 0, "cross-entropy", || {
        "the batch is empty: it has no examples".into()
    })?;
    #[cfg(feature = "cuda")]
    if is_for_cuda(logits, &labels) {
        return Ok(super::loss_cuda::cross_entropy(logits, &labels, smoothing)?.0);
    }
    warn_of_probabilities(logits)?;
    let log_probs = log_softmax(logits)?;
    let labels = labels.to_dtype(DType::U32)?.unsqueeze(1)?;
    let of_label = match log_probs.gather(&labels, 1) {
        Ok(of_label) => of_label.mean_all()?.neg()?,
        Err(error) => Err(describe_labels(&labels, classes).unwrap_or(error))?,
    };
    if smoothing == 0.0 {
        return Ok(of_label);
    }
    let of_all = log_probs.mean_all()?.neg()?;
    (of_label * (1.0 - smoothing))? + (of_all * smoothing)?
}

/// Whether the rows of a matrix are probabilities of two or more classes: numbers from 0 to 1 that
/// add up to 1. Logits are that by a rare accident only.
pub(crate) fn are_probabilities(outputs: &Tensor) -> Result<bool> {
    let outputs = outputs.flatten_to(D::Minus2)?;
    let (examples, classes) = outputs.dims2()?;
    if examples == 0 || classes < 2 {
        return Ok(false);
    }
    // A few rows tell, and a segmentation has millions.
    let outputs = outputs.detach().narrow(0, 0, examples.min(16))?.to_dtype(DType::F32)?;
    let outputs = outputs.to_vec2::<f32>()?;
    Ok(outputs.iter().all(|row| {
        row.iter().all(|p| (0.0..=1.0).contains(p)) && (row.iter().sum::<f32>() - 1.0).abs() < 1e-3
    }))
}

/// Warns once in a program of a model that is trained on the softmax of a softmax. To look at
/// values on a GPU would mean to wait for them.
fn warn_of_probabilities(logits: &Tensor) -> Result<()> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if logits.device().is_cpu() && are_probabilities(logits)? && !WARNED.swap(true, Relaxed) {
        warn(
            "the outputs of the model are probabilities, but `cross_entropy` expects logits and \
             takes the softmax of them once more: remove the softmax from the model",
        );
    }
    Ok(())
}

/// An error that names the first label that is not a class, if there is one.
fn describe_labels(labels: &Tensor, classes: usize) -> Option<candle_core::Error> {
    let labels: Vec<u32> = labels.flatten_all().ok()?.to_vec1().ok()?;
    let label = labels.into_iter().find(|label| *label as usize >= classes)?;
    let last = classes.max(1) - 1;
    let reason =
        format!("a label is {label}, but the logits are of {classes} classes, 0 to {last}");
    Some(Error::shape("cross-entropy", reason).into())
}

/// `ln softmax` over the last dimension, in at least single precision, differentiable.
pub(crate) fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    let logits = logits.to_dtype(stable_dtype(logits.dtype()))?;
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log_sum)
}

/// The mean Gaussian negative log-likelihood of `targets` around `predictions`, with noise of known
/// deviation: `ln(2 pi s^2) / 2 + (y - f)^2 / (2 s^2)`.
///
/// # Shapes
/// Predictions and targets have one shape; the result is a scalar, the mean over all elements.
pub fn gaussian_nll(predictions: &Tensor, targets: &Tensor, deviation: f64) -> Result<Tensor> {
    let (name, valid) = ("the deviation of the observation noise", deviation > 0.0);
    check_setting(
        valid && deviation.is_finite(),
        name,
        deviation,
        "it must be positive and finite",
    )?;
    same_shape(predictions, targets)?;
    let squares = (predictions - targets)?.sqr()?.mean_all()?;
    squares.affine(0.5 / (deviation * deviation), 0.5 * TAU.ln() + deviation.ln())
}

/// [`gaussian_nll`] with learned noise: `log_deviation` is `ln s`, a single parameter or an output
/// of the network, of any shape that broadcasts to the predictions.
pub fn gaussian_nll_learned(
    predictions: &Tensor,
    targets: &Tensor,
    log_deviation: &Tensor,
) -> Result<Tensor> {
    same_shape(predictions, targets)?;
    let precision = log_deviation.affine(-2.0, 0.0)?.exp()?;
    let squares = (predictions - targets)?.sqr()?.broadcast_mul(&precision)?;
    (squares * 0.5)?.broadcast_add(log_deviation)?.mean_all()?.affine(1.0, 0.5 * TAU.ln())
}

fn same_shape(predictions: &Tensor, targets: &Tensor) -> Result<()> {
    // (N) against (N, 1) would silently broadcast to (N, N): the most common mistake with
    // regression losses.
    let (predictions, targets) = (predictions.dims(), targets.dims());
    Ok(check_shape(predictions == targets, "Gaussian likelihood", || {
        format!("predictions {predictions:?} and targets {targets:?} must have one shape")
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    /// Against PyTorch's numbers, one row of which would overflow without the shift by the maximum.
    #[test]
    fn cross_entropy_is_that_of_pytorch() -> Result<()> {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/golden/golden.json")).unwrap();
        for (case, smoothing) in [("cross_entropy", 0.0), ("cross_entropy_smoothed", 0.1)] {
            let golden = &golden[case];
            let logits = Var::new(&[[1f64, -2., 0.5], [1000., 0., -1000.]], &Device::Cpu)?;
            let labels = Tensor::new(&[2u32, 0], &Device::Cpu)?;
            let loss = cross_entropy_smoothed(&logits, &labels, smoothing)?;
            let value = loss.to_scalar::<f64>()?;
            assert!((value - golden["loss"].as_f64().unwrap()).abs() < 1e-12);
            let gradient = loss.backward()?;
            let gradient = gradient.get(&logits).unwrap().flatten_all()?.to_vec1::<f64>()?;
            for (ours, theirs) in gradient.iter().zip(golden["gradient"].as_array().unwrap()) {
                assert!((ours - theirs.as_f64().unwrap()).abs() < 1e-14);
            }
        }
        Ok(())
    }

    /// The density written out: `-ln N(y | f, s^2)`.
    #[test]
    fn gaussian_nll_is_minus_the_log_density() -> Result<()> {
        let (f, y) = ([0.3f64, -1.2], [0.5f64, 0.9]);
        let predictions = Tensor::new(&f, &Device::Cpu)?;
        let targets = Tensor::new(&y, &Device::Cpu)?;
        let deviation: f64 = 0.7;
        let density = |f: f64, y: f64| {
            (-0.5 * ((y - f) / deviation).powi(2)).exp() / (deviation * TAU.sqrt())
        };
        let expected = -(density(f[0], y[0]).ln() + density(f[1], y[1]).ln()) / 2.0;
        let fixed = gaussian_nll(&predictions, &targets, deviation)?.to_scalar::<f64>()?;
        let log = Tensor::new(&[deviation.ln()], &Device::Cpu)?;
        let learned = gaussian_nll_learned(&predictions, &targets, &log)?.to_scalar::<f64>()?;
        assert!((fixed - expected).abs() < 1e-14 && (learned - expected).abs() < 1e-14);
        assert!(gaussian_nll(&predictions.unsqueeze(1)?, &targets, 1.0).is_err());
        Ok(())
    }
}
