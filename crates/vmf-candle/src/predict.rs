//! Predictions and their uncertainty.
//!
//! The predictive distribution is the mean over Monte Carlo samples, `p = 1/K sum_k p_k`. Its
//! entropy is the total uncertainty. The mean entropy of the samples is the part that more data of
//! the same kind would not remove. Their difference, the mutual information between label and
//! weights, is the part that comes from not knowing the weights.

use crate::dtype::stable_dtype;
use crate::error::{check_setting, check_shape};
use crate::pass::{Forward, Pass};
use crate::train::log_softmax;
use candle_core::{D, Result, Tensor};

/// Which passes make a prediction.
///
/// ```
/// use vmf_candle::prelude::*;
/// let deterministic = Samples::mean();
/// let monte_carlo = Samples::monte_carlo(16, 42);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    draw: Option<Draw>,
    folding: Folding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Draw {
    seed: u64,
    count: u32,
}

/// How Monte Carlo samples are run. The noise is the same in each way, and so is the result up to
/// rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    /// Folds as many samples into a pass as keep it at a few hundred rows: small batches fold,
    /// large ones loop.
    #[default]
    Automatic,
    /// One pass per sample, which takes the least memory.
    Loop,
    /// All samples in one pass.
    Fold,
}

/// The number of rows in a pass up to which [`Folding::Automatic`] folds. A matrix product of a few
/// hundred rows runs at full speed, so that more rows only cost memory.
const FOLDED_ROWS: usize = 256;

impl Samples {
    /// One pass at the mean directions, without noise.
    pub fn mean() -> Self {
        Self { draw: None, folding: Folding::Automatic }
    }

    /// `count` noisy passes.
    pub fn monte_carlo(count: u32, seed: u64) -> Self {
        Self { draw: Some(Draw { seed, count }), folding: Folding::Automatic }
    }

    /// Sets how the samples are run.
    pub fn folding(self, folding: Folding) -> Self {
        Self { folding, ..self }
    }

    /// Runs the model and passes the output of each sample to `visit`.
    fn run<M: Forward + ?Sized>(
        &self,
        model: &M,
        xs: &Tensor,
        batch: u32,
        mut visit: impl FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let Some(Draw { seed, count }) = self.draw else {
            return visit(output(model, xs, &Pass::mean())?);
        };
        let requirement = "it must be at least 1";
        check_setting(count > 0, "the number of Monte Carlo samples", count, requirement)?;
        let rows = xs.dim(0)?;
        let together = match self.folding {
            Folding::Loop => 1,
            Folding::Fold => count,
            Folding::Automatic => (FOLDED_ROWS / rows.max(1)).clamp(1, count as usize) as u32,
        };
        for first in (0..count).step_by(together as usize) {
            let together = together.min(count - first);
            let pass = Pass::folded(seed, first, together).at_batch(batch);
            let outputs = output(model, &pass.repeat(xs)?, &pass)?;
            for sample in 0..together as usize {
                visit(outputs.narrow(0, sample * rows, rows)?)?;
            }
        }
        Ok(())
    }
}

/// The output of a pass, without the graph behind it.
fn output<M: Forward + ?Sized>(model: &M, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
    let output = model.forward(xs, pass)?.detach();
    let rows = xs.dim(0)?;
    check_shape(output.dims().first() == Some(&rows), "prediction", || {
        let dims = output.dims();
        format!(
            "the model made {dims:?} of {rows} examples, which must stay along the first dimension"
        )
    })?;
    output.to_dtype(stable_dtype(output.dtype()))
}

/// Class probabilities for a batch of N examples, with their uncertainty in nats.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prediction {
    /// Predictive probabilities (N, classes).
    pub probs: Tensor,
    /// Standard deviation of each class's probability between samples (N, classes); 0 for a single
    /// pass.
    pub deviation: Tensor,
    /// Entropy of the predictive distribution (N): the total uncertainty.
    pub entropy: Tensor,
    /// Mean entropy of the samples (N): the uncertainty that would remain if the weights were
    /// known.
    pub expected_entropy: Tensor,
    /// Their difference (N): the uncertainty that comes from not knowing the weights; 0 for a
    /// single pass.
    pub mutual_information: Tensor,
}

/// Class probabilities for `xs`, whose examples lie along the first dimension; the model returns
/// logits (N, classes).
pub fn predict<M: Forward + ?Sized>(
    model: &M,
    xs: &Tensor,
    samples: Samples,
) -> Result<Prediction> {
    predict_batch(model, xs, samples, 0)
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
        .map(move |(batch, xs)| predict_batch(model, &xs?, samples, batch as u32))
}

fn predict_batch<M: Forward + ?Sized>(
    model: &M,
    xs: &Tensor,
    samples: Samples,
    batch: u32,
) -> Result<Prediction> {
    let mut probs = Welford::default();
    let mut entropies = Welford::default();
    samples.run(model, xs, batch, |logits| {
        let (_rows, _classes) = logits.dims2()?;
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
    let expected_entropy = entropies.mean()?;
    Ok(Prediction {
        mutual_information: (&entropy - &expected_entropy)?.maximum(0.0)?,
        probs,
        deviation,
        entropy,
        expected_entropy,
    })
}

/// Real-valued predictions for a batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Values {
    /// The mean over samples, in the shape of the model's output.
    pub mean: Tensor,
    /// The standard deviation between samples, which comes from not knowing the weights. It does
    /// not include the noise of the observations.
    pub deviation: Tensor,
}

/// The model's outputs for `xs` with their deviation, for regression.
pub fn predict_values<M: Forward + ?Sized>(
    model: &M,
    xs: &Tensor,
    samples: Samples,
) -> Result<Values> {
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

/// Measures the statistics of the mean pass: runs the model over batches of training inputs with
/// noise off, and averages each normalization's statistics over them. Returns the number of
/// batches.
///
/// The statistics that training collects belong to noisy activations and serve Monte Carlo passes.
/// Without noise the activations of all layers but the first have a smaller variance. So call this
/// at the end of training, before `Pass::mean()` is used. A few thousand examples are enough.
///
/// The statistics of Monte Carlo passes do not change. They are an average over about the last ten
/// batches of training, and fit only if the weights hardly moved during those. Let the learning
/// rate fall to zero, or run some batches with `Pass::train` without a step of the optimizer.
pub fn reestimate<M: Forward + ?Sized>(
    model: &M,
    batches: impl IntoIterator<Item = Result<Tensor>>,
) -> Result<usize> {
    let mut seen = 0;
    for (batch, xs) in batches.into_iter().enumerate() {
        model.forward(&xs?, &Pass::estimate(batch as u32))?;
        seen = batch + 1;
    }
    let name = "the number of batches to re-estimate statistics from";
    check_setting(seen > 0, name, seen, "it must be at least 1")?;
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(information.iter().all(|value| *value < 1e-15));
        assert!(predict(&scripted(&[0.5]), &xs, Samples::monte_carlo(0, 0)).is_err());
        Ok(())
    }
}
