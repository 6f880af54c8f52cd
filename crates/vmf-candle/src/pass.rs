//! What a forward pass is told about itself.
//!
//! Candle's `train: bool` cannot say what a variational network needs to know: whether to use batch
//! or running statistics, whether to add noise, and which noise. A [`Pass`] says it, and because
//! noise is a function of (seed, layer, step, sample, element) and not a state, two passes with the
//! same context give the same result.

use crate::error::Error;
use candle_core::{Result, Tensor};
use vmf_kernels::noise::NoiseKey;

/// The context of one forward pass.
///
/// | constructor | statistics | noise | for |
/// |---|---|---|---|
/// | [`Pass::train`] | batch (and updates the running ones) | yes | training |
/// | [`Pass::train_noiseless`] | batch (and updates the running ones) | no | training the same network without noise |
/// | [`Pass::mean`] | running, noise-free set | no | deterministic inference |
/// | [`Pass::mean_as_trained`] | running, noisy set | no | seeing what [`reestimate`](crate::reestimate) is worth |
/// | [`Pass::sample`] | running, noisy set | yes | one Monte Carlo sample |
/// | [`Pass::folded`] | running, noisy set | yes | several samples in one batch |
/// | [`Pass::estimate`] | batch (and records the noise-free set) | no | [`reestimate`](crate::reestimate) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Train { seed: u64, step: u32 },
    TrainNoiseless,
    Mean,
    MeanAsTrained,
    Sample(Draw),
    Estimate { batch: u32 },
}

/// Which Monte Carlo samples a pass draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Draw {
    seed: u64,
    batch: u32,
    first: u32,
    count: u32,
}

/// Which statistics a normalization uses in a pass, and what it does with those of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistics {
    /// Normalize by the batch; move both sets of running statistics towards it.
    Batch,
    /// Normalize by the batch; average it into the noise-free set, with this weight.
    Recorded {
        /// `1 / (batches seen so far, this one included)`: the cumulative average.
        weight: f64,
    },
    /// Normalize by the running statistics collected under noise.
    RunningNoisy,
    /// Normalize by the running statistics that fit a pass without noise.
    RunningNoiseFree,
}

/// The noise of one layer in one pass.
#[derive(Clone, Copy, Debug)]
pub struct LayerNoise {
    /// Where the layer's noise begins.
    pub key: NoiseKey,
    /// How many Monte Carlo samples are folded into the batch, one block of rows after the other.
    pub folded: usize,
}

/// The `sample` word of the noise counter tells the uses of a seed apart: 0 is training, `k + 1` is
/// Monte Carlo sample `k`, and the last value is kept for initialisation.
const TRAINING: u32 = 0;
/// See [`TRAINING`].
pub(crate) const INITIALISATION: u32 = u32::MAX;

impl Pass {
    /// A training step: batch statistics, noise, running statistics updated.
    ///
    /// Each `step` of a run draws fresh noise; a run that is resumed at step `s` draws what it
    /// would have drawn.
    pub fn train(seed: u64, step: u32) -> Self {
        let mode = Mode::Train { seed, step };
        Self { mode }
    }

    /// A training step without noise: the deterministic network that the variational one is
    /// compared with.
    pub fn train_noiseless() -> Self {
        let mode = Mode::TrainNoiseless;
        Self { mode }
    }

    /// The network at the mean directions: running statistics, no noise.
    pub fn mean() -> Self {
        Self { mode: Mode::Mean }
    }

    /// The network at the mean directions, normalized by the statistics that training collected
    /// under noise. They do not fit: this is deterministic inference as it would be without
    /// [`reestimate`](crate::reestimate), to compare with.
    pub fn mean_as_trained() -> Self {
        let mode = Mode::MeanAsTrained;
        Self { mode }
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
        let draw = Draw { seed, batch: 0, first, count: count.max(1) };
        let mode = Mode::Sample(draw);
        Self { mode }
    }

    /// Batch statistics without noise, averaged into the noise-free set; `batch` counts from 0.
    pub fn estimate(batch: u32) -> Self {
        let mode = Mode::Estimate { batch };
        Self { mode }
    }

    /// The same Monte Carlo samples for another batch of a data set, with noise of its own. Other
    /// passes are unchanged.
    pub fn at_batch(self, batch: u32) -> Self {
        match self.mode {
            Mode::Sample(draw) => Self { mode: Mode::Sample(Draw { batch, ..draw }) },
            _ => self,
        }
    }

    /// Whether layers add noise.
    pub fn is_noisy(&self) -> bool {
        matches!(self.mode, Mode::Train { .. } | Mode::Sample(_))
    }

    /// Whether this is a training step. Dropout and the like, in a model's own layers, can ask
    /// this.
    pub fn is_training(&self) -> bool {
        matches!(self.mode, Mode::Train { .. } | Mode::TrainNoiseless)
    }

    /// Which statistics a normalization uses.
    pub fn statistics(&self) -> Statistics {
        match self.mode {
            Mode::Train { .. } | Mode::TrainNoiseless => Statistics::Batch,
            Mode::Mean => Statistics::RunningNoiseFree,
            Mode::MeanAsTrained | Mode::Sample(_) => Statistics::RunningNoisy,
            Mode::Estimate { batch } => {
                Statistics::Recorded { weight: 1.0 / (f64::from(batch) + 1.0) }
            }
        }
    }

    /// The noise of the layer with this stream, or nothing where the pass has none.
    pub fn noise(&self, stream: u32) -> Result<Option<LayerNoise>> {
        let (seed, step, sample, folded) = match self.mode {
            Mode::TrainNoiseless | Mode::Mean | Mode::MeanAsTrained | Mode::Estimate { .. } => {
                return Ok(None);
            }
            Mode::Train { seed, step } => (seed, step, TRAINING, 1),
            Mode::Sample(draw) => {
                let last = u64::from(draw.first) + u64::from(draw.count);
                if last >= u64::from(INITIALISATION) {
                    Err(Error::Setting {
                        name: "the last Monte Carlo sample",
                        value: last.to_string(),
                        requirement: "it must be below 2^32 - 1",
                    })?
                }
                (draw.seed, draw.batch, draw.first + 1, draw.count as usize)
            }
        };
        let key = NoiseKey { seed, stream, step, sample };
        Ok(Some(LayerNoise { key, folded }))
    }

    /// The input of this pass: `xs` itself, or as many copies of it along the first dimension as
    /// samples are folded.
    pub fn repeat(&self, xs: &Tensor) -> Result<Tensor> {
        match self.mode {
            Mode::Sample(Draw { count, .. }) if count > 1 => {
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
/// Closures implement it, so a model needs no type of its own to be given to
/// [`predict`](crate::predict):
///
/// ```
/// # use candle_core::{Device, Result, Tensor};
/// use vmf_candle::{Forward, Pass};
/// let model = |xs: &Tensor, _pass: &Pass| xs.relu();
/// # let xs = Tensor::new(&[[-1f32, 2.]], &Device::Cpu)?;
/// assert_eq!(model.forward(&xs, &Pass::mean())?.to_vec2::<f32>()?, [[0., 2.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait Forward {
    /// Computes the output for a batch, whose examples lie along the first dimension.
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor>;
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
        let counter =
            |pass: Pass| pass.noise(7).map(|noise| noise.map(|n| (n.key.step, n.key.sample)));
        assert_eq!(counter(Pass::train(1, 5))?, Some((5, 0)));
        assert_eq!(counter(Pass::sample(1, 0))?, Some((0, 1)));
        assert_eq!(counter(Pass::sample(1, 4).at_batch(3))?, Some((3, 5)));
        assert_eq!(counter(Pass::train_noiseless())?, None);
        assert_eq!(counter(Pass::mean())?, None);
        assert_eq!(counter(Pass::mean_as_trained())?, None);
        assert_eq!(counter(Pass::estimate(0))?, None);
        assert!(Pass::sample(1, u32::MAX - 1).noise(7).is_err());
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
