//! Predictions and their uncertainty.
//!
//! The predictive distribution is the mean over draws of the weights: `p = 1/K sum_k p_k` over
//! Monte Carlo samples, or the [expected pass](Samples::expected) in one. Its entropy is the total
//! uncertainty. The mean entropy of the samples is the part that more data of the same kind would
//! not remove. Their difference, the mutual information between label and weights, is the part that
//! comes from not knowing the weights.

mod expected;
mod reestimate;
mod samples;
mod temperature;

pub(crate) use reestimate::measure_roughly;
pub use reestimate::{Reestimated, reestimate, reestimate_across, reestimate_mean};
pub use samples::{Folding, Samples};
pub use temperature::match_temperature;

use crate::error::check_shape;
use crate::finite::check_inputs;
use crate::pass::Forward;
use crate::train::{are_probabilities, log_softmax};
use crate::warning::warn;
use candle_core::{D, Result, Tensor};

/// Class probabilities for a batch of N examples, with their uncertainty in nats. For sequences, N
/// stands for (N, T): probabilities (N, T, classes), entropies (N, T).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prediction {
    /// Predictive probabilities (N, classes).
    pub probs: Tensor,
    /// Standard deviation of each class's probability over draws of the weights (N, classes); 0 in
    /// the mean pass.
    pub deviation: Tensor,
    /// Entropy of the predictive distribution (N): the total uncertainty.
    pub entropy: Tensor,
    /// Mean entropy over draws of the weights (N): the uncertainty that would remain if they were
    /// known.
    pub expected_entropy: Tensor,
    /// Their difference (N): the uncertainty that comes from not knowing the weights; 0 in
    /// the mean pass.
    pub mutual_information: Tensor,
}

/// Class probabilities for `xs`, whose examples lie along the first dimension; the model returns
/// logits (N, classes), or (N, T, classes) for sequences.
pub fn predict<M: Forward + ?Sized>(
    model: &M,
    xs: &Tensor,
    samples: Samples,
) -> Result<Prediction> {
    predict_batch(model, xs, &samples, 0)
}

/// Predictions for a stream of batches, one at a time, so that memory does not grow with the data
/// set. Each batch has its own noise.
pub fn predict_stream<'a, M, I>(
    model: &'a M,
    batches: I,
    samples: Samples,
) -> impl Iterator<Item = Result<Prediction>> + use<'a, M, I>
where
    M: Forward + ?Sized,
    I: IntoIterator<Item = Result<Tensor>>,
{
    batches
        .into_iter()
        .enumerate()
        .map(move |(batch, xs)| predict_batch(model, &xs?, &samples, batch as u32))
}

fn predict_batch<M: Forward + ?Sized>(
    model: &M,
    xs: &Tensor,
    samples: &Samples,
    batch: u32,
) -> Result<Prediction> {
    check_batch(xs)?;
    if let Some((posterior, logits)) = samples.expected_output(model, xs)? {
        warn_of_probabilities(&logits, batch)?;
        return expected::classify(posterior, &logits);
    }
    let mut probs = Welford::default();
    let mut entropies = Welford::default();
    samples.run(model, xs, batch, |logits| {
        check_shape(logits.rank() >= 2, "prediction", || {
            format!("expected logits (N, .., classes), got {:?}", logits.dims())
        })?;
        warn_of_probabilities(&logits, batch + probs.count as u32)?;
        let log_probs = log_softmax(&logits)?;
        let sample = log_probs.exp()?;
        entropies.add(&(&sample * log_probs)?.sum(D::Minus1)?.neg()?)?;
        probs.add(&sample)
    })?;
    let deviation = probs.deviation()?;
    let probs = probs.mean()?;
    // 0 ln 0 is 0: the logarithm is taken of the smallest positive number instead of 0.
    let entropy =
        (&probs * probs.maximum(f64::from(f32::MIN_POSITIVE))?.log()?)?.sum(D::Minus1)?.neg()?;
    // Of a single pass both entropies are the same number. Computed in two ways, they would differ
    // by rounding.
    let expected_entropy = if samples.is_single() { entropy.clone() } else { entropies.mean()? };
    Ok(Prediction {
        mutual_information: (&entropy - &expected_entropy)?.maximum(0.0)?,
        probs,
        deviation,
        entropy,
        expected_entropy,
    })
}

/// Refuses a batch from which nothing can be predicted.
fn check_batch(xs: &Tensor) -> Result<()> {
    check_shape(xs.dims().first().is_some_and(|&rows| rows > 0), "prediction", || {
        format!("the batch {:?} is empty: it has no examples", xs.dims())
    })?;
    Ok(check_inputs(xs)?)
}

/// Warns, in the first pass of the first batch, of a model whose outputs are probabilities.
fn warn_of_probabilities(outputs: &Tensor, pass: u32) -> Result<()> {
    if pass == 0 && are_probabilities(outputs)? {
        warn(
            "the outputs of the model are probabilities, but `predict` expects logits and takes the \
             softmax of them once more: remove the softmax from the model",
        );
    }
    Ok(())
}

/// Real-valued predictions for a batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Values {
    /// The mean over draws of the weights, in the shape of the model's output.
    pub mean: Tensor,
    /// The standard deviation over draws of the weights. It does not include the noise of the
    /// observations. In the expected pass it is the same for all inputs, an average over training
    /// inputs: where it has to grow away from the data, use Monte Carlo samples.
    pub deviation: Tensor,
}

/// The model's outputs for `xs` with their deviation, for regression.
pub fn predict_values<M: Forward + ?Sized>(
    model: &M,
    xs: &Tensor,
    samples: Samples,
) -> Result<Values> {
    check_batch(xs)?;
    if let Some((posterior, mean)) = samples.expected_output(model, xs)? {
        return Ok(Values { deviation: expected::deviation(posterior, &mean)?, mean });
    }
    let mut values = Welford::default();
    samples.run(model, xs, 0, |output| values.add(&output))?;
    Ok(Values { deviation: values.deviation()?, mean: values.mean()? })
}

/// Mean and variance of a stream of tensors (Welford 1962).
#[derive(Default)]
struct Welford {
    count: usize,
    sums: Option<(Tensor, Tensor)>,
}

impl Welford {
    fn add(&mut self, value: &Tensor) -> Result<()> {
        self.count += 1;
        self.sums = Some(match self.sums.take() {
            None => (value.copy()?, value.zeros_like()?),
            Some((mean, squares)) => {
                let before = (value - &mean)?;
                let mean = (mean + (&before / self.count as f64)?)?;
                let after = (value - &mean)?;
                (mean, (squares + (before * after)?)?)
            }
        });
        Ok(())
    }

    fn mean(self) -> Result<Tensor> {
        match self.sums {
            Some((mean, _)) => Ok(mean),
            None => candle_core::bail!("the mean of no samples"),
        }
    }

    fn deviation(&self) -> Result<Tensor> {
        match &self.sums {
            Some((_, squares)) => (squares / (self.count - 1).max(1) as f64)?.sqrt(),
            None => candle_core::bail!("the deviation of no samples"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::Pass;
    use candle_core::{DType, Device};
    use std::cell::Cell;

    /// A model whose samples are known: the k-th pass gives the logits `ln [a, 1 - a]` with the
    /// k-th a of a list.
    fn scripted(script: &[f64]) -> impl Fn(&Tensor, &Pass) -> Result<Tensor> + '_ {
        let next = Cell::new(0);
        move |xs: &Tensor, _: &Pass| {
            let a = script[next.get() % script.len()];
            next.set(next.get() + 1);
            Tensor::new(&[[a.ln(), (1.0 - a).ln()]], &Device::Cpu)?.repeat((xs.dim(0)?, 1))
        }
    }

    #[test]
    fn uncertainty_is_decomposed() -> Result<()> {
        let script = [0.9, 0.5, 0.1, 0.3];
        let xs = Tensor::zeros((2, 1), DType::F64, &Device::Cpu)?;
        let samples = Samples::monte_carlo(4, 0).folding(Folding::Loop);
        let prediction = predict(&scripted(&script), &xs, samples)?;
        let entropy = |p: f64| -p * p.ln() - (1.0 - p) * (1.0 - p).ln();
        let mean = script.iter().sum::<f64>() / 4.0;
        let expected = script.iter().map(|p| entropy(*p)).sum::<f64>() / 4.0;
        let deviation = (script.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / 3.0).sqrt();
        for (tensor, value) in [
            (prediction.probs.narrow(1, 0, 1)?, mean),
            (prediction.deviation.narrow(1, 1, 1)?, deviation),
            (prediction.entropy, entropy(mean)),
            (prediction.expected_entropy, expected),
            (prediction.mutual_information, entropy(mean) - expected),
        ] {
            for actual in tensor.flatten_all()?.to_vec1::<f64>()? {
                assert!((actual - value).abs() < 1e-14, "{actual} {value}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_single_pass_has_no_deviation() -> Result<()> {
        let xs = Tensor::zeros((2, 1), DType::F64, &Device::Cpu)?;
        let prediction = predict(&scripted(&[0.5]), &xs, Samples::mean())?;
        assert_eq!(prediction.deviation.sum_all()?.to_scalar::<f64>()?, 0.0);
        let information = prediction.mutual_information.to_vec1::<f64>()?;
        assert_eq!(information, [0.0; 2]);
        let once = predict(&scripted(&[0.3]), &xs, Samples::monte_carlo(1, 0))?;
        assert_eq!(once.mutual_information.to_vec1::<f64>()?, [0.0; 2]);
        assert_eq!(once.entropy.to_vec1::<f64>()?, once.expected_entropy.to_vec1::<f64>()?);
        assert!(predict(&scripted(&[0.5]), &xs, Samples::monte_carlo(0, 0)).is_err());
        Ok(())
    }
}
