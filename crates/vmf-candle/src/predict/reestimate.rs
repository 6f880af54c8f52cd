//! What prediction needs to know about a trained network, measured on training inputs.

use super::samples::output;
use crate::error::{Error, check_setting};
use crate::finite::check_inputs;
use crate::pass::{Forward, Pass};
use crate::posterior::Posterior;
use crate::ranks::{Ranks, Share};
use crate::warning::warn;
use candle_core::{DType, Result, Tensor};

/// Examples on which variances are measured: each channel's is an average over all of them, and
/// over positions.
const EXAMPLES: usize = 256;
/// Monte Carlo samples of each.
const SAMPLES: u32 = 8;
/// Rows of a pass, all samples together.
const ROWS: usize = 256;
/// The seed of those samples. It is fixed, so that a measurement is a function of the network.
const SEED: u64 = 0x7661_7269_616e_6365;
/// The seed of the noise under which statistics are measured.
const NOISY_SEED: u64 = 0x6e6f_6973_7921_7374;
/// Beyond this many standard deviations between the expected pass and the mean of the samples
/// something is amiss: the mean of eight samples alone is off by 0.35 of them.
const SUSPICIOUS: f64 = 1.0;

/// What [`reestimate`] found.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reestimated {
    /// The batches it was given.
    pub batches: usize,
    /// How far the outputs of the expected pass are from the mean over the Monte Carlo samples, as
    /// a root mean square in standard deviations of the output. About 0.35 is due to the
    /// samples. A value above 1 means that the model's own code has an activation or a maximum
    /// between variational layers, which the expected pass cannot see.
    pub discrepancy: f64,
}

/// Measures what prediction needs, on batches of training inputs as training sees them (augmented,
/// if training augments). Call it at the end of training, before [`predict`](super::predict). A few
/// thousand examples are enough.
///
/// - For [`Pass::sample`] and [`Pass::expected`]: the statistics of each normalization under noise.
///   Those that training collects are an average over about the last ten batches, and so over
///   weights that have moved on since.
/// - For [`Pass::mean`]: the statistics of each normalization with noise off. Without noise the
///   activations of all layers but the first have a smaller variance.
/// - For [`Pass::expected`]: how much the input of each unit, and the output of the model, vary
///   over draws of the weights. The first 256 examples suffice for that, with 8 noisy samples of
///   each.
///
/// A network that is never used with noise needs [`reestimate_mean`] alone. A pass that fails has no
/// effect; those before it do.
pub fn reestimate<M: Forward + ?Sized>(
    model: &M,
    posterior: &Posterior,
    batches: impl IntoIterator<Item = Result<Tensor>>,
) -> Result<Reestimated> {
    reestimate_across(model, posterior, batches, Ranks::alone())
}

/// [`reestimate`] on several ranks, all of which are given the same whole batches. Each of them
/// computes its share of the statistics; variances, which need few examples, are measured by all.
pub fn reestimate_across<M: Forward + ?Sized>(
    model: &M,
    posterior: &Posterior,
    batches: impl IntoIterator<Item = Result<Tensor>>,
    ranks: Ranks,
) -> Result<Reestimated> {
    // What training changed stays, whatever becomes of this.
    posterior.last_pass().keep();
    let measured = measure(model, posterior, batches, ranks);
    if measured.is_err() {
        posterior.undo_statistics()?;
    }
    measured
}

fn measure<M: Forward + ?Sized>(
    model: &M,
    posterior: &Posterior,
    batches: impl IntoIterator<Item = Result<Tensor>>,
    ranks: Ranks,
) -> Result<Reestimated> {
    let mut examples = Vec::new();
    let mut wanted = EXAMPLES;
    let batches = each(batches, |batch, xs| {
        estimate(model, xs, Pass::estimate_noisy(NOISY_SEED, batch), ranks)?;
        estimate(model, xs, Pass::estimate(batch), ranks)?;
        let rows = wanted.min(xs.dim(0)?);
        if rows > 0 {
            examples.push(xs.narrow(0, 0, rows)?);
        }
        wanted -= rows;
        Ok(())
    })?;
    // Variances depend on the noisy statistics, which are complete only now.
    let mut measurement = Measurement::of(EXAMPLES);
    for xs in &examples {
        measurement.add(model, xs)?;
    }
    let discrepancy = measurement.finish(model, posterior)?;
    if discrepancy > SUSPICIOUS {
        warn(format_args!(
            "the expected pass is off by {discrepancy:.1} standard deviations of the output: an \
             activation or maximum pooling in the model's own code is not part of a variational \
             layer. Use `.relu()`, `forward_residual`, `relu_layer` and `ConvStack::max_pool`, or \
             predict with Monte Carlo samples"
        ));
    }
    Ok(Reestimated { batches, discrepancy })
}

/// Measures only the statistics of [`Pass::mean`], for a network that was trained without noise or
/// is never used with it. Returns the number of batches.
pub fn reestimate_mean<M: Forward + ?Sized>(
    model: &M,
    batches: impl IntoIterator<Item = Result<Tensor>>,
) -> Result<usize> {
    each(batches, |batch, xs| model.forward(xs, &Pass::estimate(batch)).map(|_| ()))
}

/// A pass that records the statistics of a batch, on this rank's share of it.
fn estimate<M: Forward + ?Sized>(model: &M, xs: &Tensor, pass: Pass, ranks: Ranks) -> Result<()> {
    let examples = xs.dim(0)?;
    // With fewer examples than ranks, each rank takes all of them.
    let share: Option<Share> = match ranks.is_alone() || examples < ranks.size() {
        true => None,
        false => Some(ranks.share(examples)?),
    };
    match share {
        None => model.forward(xs, &pass)?,
        Some(share) => {
            let here = xs.narrow(0, share.first(), share.count())?;
            model.forward(&here, &pass.shared(&share))?
        }
    };
    Ok(())
}

/// Hands on batches that are finite, with their numbers, and counts them.
fn each(
    batches: impl IntoIterator<Item = Result<Tensor>>,
    mut measure: impl FnMut(u32, &Tensor) -> Result<()>,
) -> Result<usize> {
    let mut seen = 0;
    for (batch, xs) in batches.into_iter().enumerate() {
        let xs = xs?;
        check_inputs(&xs)?;
        measure(batch as u32, &xs)?;
        seen = batch + 1;
    }
    let name = "the number of batches to re-estimate statistics from";
    check_setting(seen > 0, name, seen, "it must be at least 1")?;
    Ok(seen)
}

/// Measures what the expected pass needs, roughly, for a signal during training: the noisy
/// statistics on one batch of training inputs, and variances on its first 32 examples. The price is
/// that of one step.
pub(crate) fn measure_roughly<M: Forward + ?Sized>(
    model: &M,
    posterior: &Posterior,
    xs: &Tensor,
) -> Result<()> {
    check_inputs(xs)?;
    model.forward(xs, &Pass::estimate_noisy(NOISY_SEED, 0))?;
    let mut measurement = Measurement::of(ROWS / SAMPLES as usize);
    measurement.add(model, xs)?;
    measurement.finish(model, posterior)?;
    Ok(())
}

/// The covariance of the outputs over draws of the weights, averaged over examples.
struct Measurement {
    /// How many examples are wanted, and how many there are.
    wanted: usize,
    examples: usize,
    passes: u32,
    covariance: Option<Tensor>,
    /// The last inputs, with the mean of their outputs.
    last: Option<(Tensor, Tensor)>,
}

impl Measurement {
    fn of(wanted: usize) -> Self {
        Self { wanted, examples: 0, passes: 0, covariance: None, last: None }
    }

    fn add<M: Forward + ?Sized>(&mut self, model: &M, xs: &Tensor) -> Result<()> {
        let samples = SAMPLES as usize;
        let mut first = 0;
        while first < xs.dim(0)? && self.examples < self.wanted {
            let rows = (ROWS / samples).min(xs.dim(0)? - first);
            let inputs = xs.narrow(0, first, rows)?;
            let pass = Pass::measure(SEED, self.passes, SAMPLES);
            let outputs = output(model, &pass.repeat(&inputs)?, &pass)?.to_dtype(DType::F64)?;
            let count = outputs.dims().last().copied().unwrap_or(1);
            let outputs = outputs.reshape((samples, (), count))?;
            let mean = outputs.mean_keepdim(0)?;
            let centred = outputs.broadcast_sub(&mean)?.reshape(((), count))?;
            let degrees = (centred.dim(0)? * (samples - 1)) as f64 / samples as f64;
            let covariance = (centred.t()?.matmul(&centred)? / degrees)?;
            self.passes += 1;
            self.covariance = Some(match self.covariance.take() {
                None => covariance,
                Some(before) => {
                    let weight = 1.0 / f64::from(self.passes);
                    ((before * (1.0 - weight))? + (covariance * weight)?)?
                }
            });
            self.last = Some((inputs, mean.squeeze(0)?));
            self.examples += rows;
            first += rows;
        }
        Ok(())
    }

    /// Hands the covariance to the posterior and returns how far off the expected pass is.
    fn finish<M: Forward + ?Sized>(self, model: &M, posterior: &Posterior) -> Result<f64> {
        let (Some(covariance), Some((inputs, mean))) = (self.covariance, self.last) else {
            Err(Error::setting("the number of examples", 0, "it must be at least 1"))?
        };
        let expected = output(model, &inputs, &Pass::expected())?.to_dtype(DType::F64)?;
        let count = covariance.dim(0)?;
        let difference = (expected.reshape(((), count))? - mean)?;
        let squares = difference.sqr()?.mean(0)?.to_vec1::<f64>()?;
        posterior.set_output_covariance(&covariance)?;
        let covariance = covariance.to_vec2::<f64>()?;
        // Without noise there is nothing to be off from.
        let relative = (0..count).filter(|&i| covariance[i][i] > 1e-12);
        let relative: Vec<f64> = relative.map(|i| squares[i] / covariance[i][i]).collect();
        Ok((relative.iter().sum::<f64>() / relative.len().max(1) as f64).sqrt())
    }
}
