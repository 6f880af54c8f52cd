//! A prediction from the moments of the model's outputs.
//!
//! The expected pass gives the mean of the logits. Their covariance over draws of the weights is
//! nearly the same for all inputs, and was measured once. From both follow the expected softmax and
//! its entropies, as [`vmf_core::expected::softmax`] derives them.

use super::Prediction;
use crate::error::{Error, check_shape};
use crate::posterior::Posterior;
use candle_core::{DType, Device, Result, Tensor};
use vmf_core::expected::GaussHermite;
use vmf_core::expected::softmax::Logits;

/// Points of the quadrature over each class's log-odds.
const POINTS: usize = 8;

/// Class probabilities from the mean of the logits (N, .., classes).
pub(super) fn classify(posterior: &Posterior, logits: &Tensor) -> Result<Prediction> {
    let (dims, classes) = (logits.dims(), logits.dims().last().copied().unwrap_or(0));
    check_shape(dims.len() >= 2 && classes > 0, "prediction", || {
        format!("expected logits (N, .., classes), got {dims:?}")
    })?;
    let rows = &dims[..dims.len() - 1];
    let covariance = measured(posterior, classes)?;
    let rule = GaussHermite::new(POINTS);
    let means = logits.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let (mut probs, mut deviation) = (Vec::new(), Vec::new());
    let mut entropies = [const { Vec::new() }; 3];
    for mean in means.chunks(classes) {
        let logits = Logits::correlated(mean, &covariance).map_err(Error::from)?;
        let prediction = logits.predict(&rule);
        deviation.extend(
            logits
                .log_odds()
                .into_iter()
                .map(|odds| rule.expect(odds, |x| 1.0 / (1.0 + (-x).exp())).deviation()),
        );
        let total =
            [prediction.entropy, prediction.expected_entropy, prediction.mutual_information];
        entropies.iter_mut().zip(total).for_each(|(all, value)| all.push(value));
        probs.extend(prediction.probabilities);
    }
    let tensor = |values: Vec<f64>, dims: &[usize]| {
        let tensor = Tensor::from_vec(values, dims, &Device::Cpu)?;
        tensor.to_dtype(logits.dtype())?.to_device(logits.device())
    };
    let [entropy, expected_entropy, mutual_information] = entropies;
    Ok(Prediction {
        probs: tensor(probs, dims)?,
        deviation: tensor(deviation, dims)?,
        entropy: tensor(entropy, rows)?,
        expected_entropy: tensor(expected_entropy, rows)?,
        mutual_information: tensor(mutual_information, rows)?,
    })
}

/// The standard deviation of outputs (.., P), in their shape.
pub(super) fn deviation(posterior: &Posterior, outputs: &Tensor) -> Result<Tensor> {
    let count = outputs.dims().last().copied().unwrap_or(1);
    let covariance = measured(posterior, count)?;
    let deviation: Vec<f64> = (0..count).map(|i| covariance[i * (count + 1)].sqrt()).collect();
    let deviation = Tensor::from_vec(deviation, count, &Device::Cpu)?;
    deviation.to_dtype(outputs.dtype())?.to_device(outputs.device())?.broadcast_as(outputs.shape())
}

/// The covariance of `count` outputs, row by row.
fn measured(posterior: &Posterior, count: usize) -> Result<Vec<f64>> {
    let Some(covariance) = posterior.output_covariance() else { Err(Error::Unmeasured)? };
    check_shape(covariance.dims() == [count, count], "the expected pass", || {
        let dims = covariance.dims();
        format!("the model has {count} outputs, but their covariance was measured as {dims:?}")
    })?;
    covariance.flatten_all()?.to_vec1()
}
