//! What a forward pass is told about itself.
//!
//! A variational network needs to know whether to use batch or running statistics, whether to add
//! noise, and which noise; Candle's `train: bool` cannot say all that. A [`Pass`] does. Noise is a
//! function of (seed, layer, step, sample, element) and not a state, so two equal passes give equal
//! results.

use crate::error::{Error, check_setting, check_shape};
use crate::moments::Moments;
use crate::ranks::Share;
use candle_core::{Result, Tensor};
use vmf_kernels::across::Across;
use vmf_kernels::noise::{Noise, NoiseKey};

/// What one forward pass computes with: which statistics, and which noise.
///
/// | constructor | statistics | noise | for |
/// |---|---|---|---|
/// | [`Pass::train`] | batch (and updates the running ones) | yes | training |
/// | [`Pass::train_noiseless`] | batch (and updates the running ones) | no | training the same network without noise |
/// | [`Pass::expected`] | running, noisy set | as expected activations | prediction in one deterministic pass |
/// | [`Pass::mean`] | running, noise-free set | no | the network at the mean of its weights |
/// | [`Pass::mean_as_trained`] | running, noisy set | no | measuring what [`reestimate`](crate::predict::reestimate) gains |
/// | [`Pass::sample`] | running, noisy set | yes | one Monte Carlo sample |
/// | [`Pass::folded`] | running, noisy set | yes | several samples in one batch |
/// | [`Pass::estimate`] | batch (and records the noise-free set) | no | [`reestimate`](crate::predict::reestimate) |
/// | [`Pass::estimate_noisy`] | batch (and records the noisy set) | yes | [`reestimate`](crate::predict::reestimate) |
/// | [`Pass::measure`] | running, noisy set | yes (and records inherited variances) | [`reestimate`](crate::predict::reestimate) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    mode: Mode,
    /// This process has only some examples of the batch.
    share: Option<Share>,
    /// Layers add no noise, although the pass has some.
    is_quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Train { seed: u64, step: u32 },
    TrainNoiseless,
    Expected,
    Mean,
    MeanAsTrained,
    Sample { seed: u64, batch: u32, first: u32, count: u32 },
    Estimate { batch: u32 },
    EstimateNoisy { seed: u64, batch: u32 },
    Measure { seed: u64, batch: u32, count: u32 },
}

/// Which statistics a normalization uses in a pass, and which running statistics it updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StatisticsSource {
    /// Those of the batch, which also move both sets of running statistics.
    Batch,
    /// Those of the batch, which are also averaged into one of the two sets.
    Recorded {
        /// Whether they go into the noisy set, and not into the noise-free one.
        noisy: bool,
        /// The weight of this batch: `1 / (batches so far, this one included)` makes the
        /// cumulative average.
        weight: f64,
    },
    /// The running statistics that were collected under noise.
    RunningNoisy,
    /// The running statistics that fit a pass without noise.
    RunningNoiseFree,
}

/// The `sample` word of the noise counter keeps the uses of a seed apart: 0 is training, `k + 1` is
/// Monte Carlo sample `k`, and the last value is reserved for initialisation.
const TRAINING: u32 = 0;
/// See [`TRAINING`].
pub(crate) const INITIALISATION: u32 = u32::MAX;

impl Pass {
    fn new(mode: Mode) -> Self {
        Self { mode, share: None, is_quiet: false }
    }

    /// A training step: batch statistics, noise, running statistics updated.
    ///
    /// Each `step` of a run has its own noise. A run that is resumed at a step continues with the
    /// noise of that step.
    pub fn train(seed: u64, step: u32) -> Self {
        Self::new(Mode::Train { seed, step })
    }

    /// A training step without noise: the deterministic network to compare the variational one
    /// with.
    pub fn train_noiseless() -> Self {
        Self::new(Mode::TrainNoiseless)
    }

    /// One deterministic pass in place of many noisy ones: each unit hands on the *expectation* of
    /// its activation over the noise.
    ///
    /// [`reestimate`](crate::predict::reestimate) must have measured how large the noise is that
    /// each unit inherits from the units before it.
    pub fn expected() -> Self {
        Self::new(Mode::Expected)
    }

    /// The network at the mean directions: running statistics, no noise.
    pub fn mean() -> Self {
        Self::new(Mode::Mean)
    }

    /// The network at the mean directions, normalized with the statistics that training collected
    /// under noise. They do not fit a pass without noise: this is what deterministic inference
    /// would be without [`reestimate`](crate::predict::reestimate).
    pub fn mean_as_trained() -> Self {
        Self::new(Mode::MeanAsTrained)
    }

    /// Monte Carlo sample `k`: running statistics, noise. The noise never coincides with that of
    /// training.
    pub fn sample(seed: u64, k: u32) -> Self {
        Self::folded(seed, k, 1)
    }

    /// Monte Carlo samples `first .. first + count` in one batch: the input holds `count` copies of
    /// the examples, one after the other, as [`Pass::repeat`] makes them.
    ///
    /// Each copy sees exactly the noise that [`Pass::sample`] would give it.
    pub fn folded(seed: u64, first: u32, count: u32) -> Self {
        Self::new(Mode::Sample { seed, batch: 0, first, count: count.max(1) })
    }

    /// Batch statistics without noise, averaged into the noise-free set; `batch` counts from 0.
    pub fn estimate(batch: u32) -> Self {
        Self::new(Mode::Estimate { batch })
    }

    /// Batch statistics under noise, averaged into the noisy set; `batch` counts from 0.
    pub fn estimate_noisy(seed: u64, batch: u32) -> Self {
        Self::new(Mode::EstimateNoisy { seed, batch })
    }

    /// Monte Carlo samples `0 .. count` in one batch, as in [`Pass::folded`], from which each unit
    /// records the variance that its input brings along; `batch` counts from 0.
    pub fn measure(seed: u64, batch: u32, count: u32) -> Self {
        Self::new(Mode::Measure { seed, batch, count: count.max(2) })
    }

    /// The same Monte Carlo samples for batch `number` of a data set. Each batch has its own
    /// noise. Other passes are unchanged.
    pub fn at_batch(mut self, number: u32) -> Self {
        if let Mode::Sample { batch, .. } = &mut self.mode {
            *batch = number;
        }
        self
    }

    /// The same pass of a batch that this rank has a share of. The statistics are those of the whole
    /// batch, and the noise of an example is that of its place in it.
    ///
    /// It matters where the batch does: in training, and where statistics are measured. Other passes
    /// are unchanged.
    pub fn shared(self, share: &Share) -> Self {
        let whole = share.ranks().is_alone();
        Self { share: (self.uses_batch() && !whole).then_some(*share), ..self }
    }

    /// The same pass for layers that must not add noise, with the same statistics: for a model
    /// whose own layers are the random ones, such as dropout. Those layers get the pass itself.
    pub fn without_noise(self) -> Self {
        Self { is_quiet: true, ..self }
    }

    /// The processes over which the statistics of the batch are merged.
    pub(crate) fn across(&self) -> Across {
        self.share.map_or(Across::ALONE, |share| share.across())
    }

    /// How many elements a statistic of the batch is taken over, if so many of them are here.
    pub(crate) fn elements_of_batch(&self, here: usize) -> usize {
        self.share.map_or(here, |share| share.elements(here))
    }

    /// Whether layers add noise.
    pub fn is_noisy(&self) -> bool {
        matches!(
            self.mode,
            Mode::Train { .. }
                | Mode::Sample { .. }
                | Mode::EstimateNoisy { .. }
                | Mode::Measure { .. }
        )
    }

    /// Whether layers hand on expected activations, for layers of a model's own with an activation.
    pub fn is_expected(&self) -> bool {
        self.mode == Mode::Expected
    }

    /// In a pass that measures variances: how many samples are folded into the batch, and the
    /// weight of the batch in the average.
    pub(crate) fn measurement(&self) -> Option<(usize, f64)> {
        match self.mode {
            Mode::Measure { batch, count, .. } => {
                Some((count as usize, 1.0 / (f64::from(batch) + 1.0)))
            }
            _ => None,
        }
    }

    /// Whether this is a training step. A model's own layers can ask this, such as dropout.
    pub fn is_training(&self) -> bool {
        matches!(self.mode, Mode::Train { .. } | Mode::TrainNoiseless)
    }

    /// Whether normalizations change what they remember.
    pub(crate) fn changes_statistics(&self) -> bool {
        self.uses_batch() || self.measurement().is_some()
    }

    /// Whether normalizations use the statistics of the batch.
    fn uses_batch(&self) -> bool {
        matches!(self.statistics(), StatisticsSource::Batch | StatisticsSource::Recorded { .. })
    }

    /// Which statistics a normalization uses.
    pub fn statistics(&self) -> StatisticsSource {
        match self.mode {
            Mode::Train { .. } | Mode::TrainNoiseless => StatisticsSource::Batch,
            Mode::Mean => StatisticsSource::RunningNoiseFree,
            Mode::Expected | Mode::MeanAsTrained | Mode::Sample { .. } | Mode::Measure { .. } => {
                StatisticsSource::RunningNoisy
            }
            Mode::Estimate { batch } | Mode::EstimateNoisy { batch, .. } => {
                let noisy = self.is_noisy();
                StatisticsSource::Recorded { noisy, weight: 1.0 / (f64::from(batch) + 1.0) }
            }
        }
    }

    /// The noise of the layer with this stream, for a tensor with examples along its first
    /// dimension. `None` in a pass without noise.
    pub fn noise(&self, stream: u32, dims: &[usize]) -> Result<Option<Noise>> {
        if self.is_quiet {
            return Ok(None);
        }
        let (seed, step, sample, folded) = match self.mode {
            Mode::TrainNoiseless
            | Mode::Expected
            | Mode::Mean
            | Mode::MeanAsTrained
            | Mode::Estimate { .. } => return Ok(None),
            Mode::Train { seed, step } => (seed, step, TRAINING, 1),
            Mode::EstimateNoisy { seed, batch } => (seed, batch, 1, 1),
            Mode::Measure { seed, batch, count } => (seed, batch, 1, count as usize),
            Mode::Sample { seed, batch, first, count } => {
                let (name, last) =
                    ("the last Monte Carlo sample", u64::from(first) + u64::from(count));
                let valid = last < u64::from(INITIALISATION);
                check_setting(valid, name, last, "it must be below 2^32 - 1")?;
                (seed, batch, first + 1, count as usize)
            }
        };
        let batch = dims.first().copied().unwrap_or(1);
        check_shape(batch.is_multiple_of(folded), "a pass of folded samples", || {
            format!(
                "a batch of {batch} cannot hold {folded} Monte Carlo samples: repeat the input with `Pass::repeat`"
            )
        })?;
        let elements: usize = dims.iter().product();
        let key = NoiseKey { seed, stream, step, sample };
        if let Some(share) = self.share {
            // A tensor may have several rows for each example.
            check_shape(batch.is_multiple_of(share.count()), "a pass of a shared batch", || {
                format!("this rank has {} examples of the batch, not {batch}", share.count())
            })?;
            let first = (elements / share.count() * share.first()) as u64;
            return Ok(Some(Noise::new(key).starting_at(first)));
        }
        Ok(Some(Noise::folded(key, (elements / folded) as u64)))
    }

    /// The input of this pass: `xs` itself, or as many copies of it along the first dimension as
    /// samples are folded.
    pub fn repeat(&self, xs: &Tensor) -> Result<Tensor> {
        match self.mode {
            Mode::Sample { count, .. } | Mode::Measure { count, .. } if count > 1 => {
                let mut copies = vec![1; xs.rank()];
                copies[0] = count as usize;
                xs.repeat(copies)
            }
            _ => Ok(xs.clone()),
        }
    }
}

/// A layer or model whose forward pass depends on its [`Pass`].
///
/// Closures implement it, so that [`predict`](crate::predict::predict) takes a model without a type
/// of its own:
///
/// ```
/// # use candle_core::{Device, Result, Tensor};
/// use vmf_candle::prelude::*;
/// let model = |xs: &Tensor, _pass: &Pass| xs.relu();
/// # let xs = Tensor::new(&[[-1f32, 2.]], &Device::Cpu)?;
/// assert_eq!(model.forward(&xs, &Pass::mean())?.to_vec2::<f32>()?, [[0., 2.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait Forward {
    /// Computes the output for a batch with examples along the first dimension.
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor>;

    /// Computes mean and variance of the output over draws of the weights, from those of the input:
    /// the expected pass in its `full` grade, [`Samples::full`](crate::predict::Samples::full).
    ///
    /// All layers of this crate have it. A model of one's own hands the moments from layer to
    /// layer, as its `forward` hands on tensors; [`Moments`] has methods for what is in between. An
    /// implementation of `Forward` without it is refused:
    ///
    /// ```
    /// # use candle_core::{Device, Module, Result, Tensor};
    /// # use vmf_candle::{ops, prelude::*};
    /// struct Block {
    ///     first: VmfConv2d,
    ///     second: VmfConv2d,
    ///     head: candle_nn::Linear,
    /// }
    ///
    /// impl Forward for Block {
    ///     fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
    ///         let ys = self.first.forward(xs, pass)?;
    ///         let ys = self.second.forward_residual(&ys, xs, pass)?;
    ///         self.head.forward(&ops::mean_over_positions(&ys)?)
    ///     }
    ///
    ///     fn propagate(&self, xs: &Moments) -> Result<Moments> {
    ///         let ys = self.first.propagate(xs)?;
    ///         let ys = self.second.propagate_residual(&ys, xs)?;
    ///         ys.mean_over((2, 3))?.linear(&self.head)
    ///     }
    /// }
    /// ```
    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        let _ = xs;
        Err(Error::NotPropagated { what: std::any::type_name::<Self>() })?
    }
}

impl<F: Fn(&Tensor, &Pass) -> Result<Tensor>> Forward for F {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        self(xs, pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_a_seed_do_not_overlap() -> Result<()> {
        let counter = |pass: Pass| {
            let noise = pass.noise(7, &[4, 3])?;
            Result::Ok(noise.map(|noise| (noise.key.step, noise.key.sample)))
        };
        assert_eq!(counter(Pass::train(1, 5))?, Some((5, 0)));
        assert_eq!(counter(Pass::sample(1, 0))?, Some((0, 1)));
        assert_eq!(counter(Pass::sample(1, 4).at_batch(3))?, Some((3, 5)));
        assert_eq!(counter(Pass::train_noiseless())?, None);
        assert_eq!(counter(Pass::measure(1, 3, 2))?, Some((3, 1)));
        assert_eq!(counter(Pass::mean())?, None);
        assert_eq!(counter(Pass::expected())?, None);
        assert_eq!(counter(Pass::mean_as_trained())?, None);
        assert_eq!(counter(Pass::estimate(0))?, None);
        assert!(Pass::sample(1, u32::MAX - 1).noise(7, &[4, 3]).is_err());
        assert!(Pass::folded(1, 0, 3).noise(7, &[4, 3]).is_err());
        Ok(())
    }

    #[test]
    fn repeats_the_batch_sample_after_sample() -> Result<()> {
        let xs = Tensor::new(&[[1f32, 2.], [3., 4.]], &candle_core::Device::Cpu)?;
        let repeated = Pass::folded(0, 0, 2).repeat(&xs)?;
        assert_eq!(repeated.to_vec2::<f32>()?, [[1., 2.], [3., 4.], [1., 2.], [3., 4.]]);
        Ok(())
    }
}
