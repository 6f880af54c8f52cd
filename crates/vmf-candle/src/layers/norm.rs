//! What the normalization of a noisy network remembers: two sets of running statistics, the noise
//! that it inherits, and its gain and shift.
//!
//! Statistics that were collected under noise do not fit a pass without it: noise in one layer
//! widens the distribution of the next layer's inputs. So each normalization keeps two sets.
//! `running_mean` and `running_var` serve the passes with noise, Monte Carlo and expected;
//! `noise_free_mean` and `noise_free_var` serve the mean pass. Both follow training until
//! [`reestimate`](crate::predict::reestimate) measures each of them in its own kind of pass.
//!
//! The third thing a normalization remembers is `inherited_var`: how much its output varies over
//! draws of the weights *in front of* this layer, one value per channel. The expected pass needs
//! it. `reestimate` measures it too.

use super::config::Norm;
use crate::dtype::stable_dtype;
use crate::error::check_setting;
use crate::finite::is_finite;
use crate::ops::Statistics;
use crate::pass::StatisticsSource;
use candle_core::{Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};

/// The tensors of a layer's normalization, apart from those of the noise.
#[derive(Clone, Debug)]
pub struct NormStats {
    noisy: Running,
    noise_free: Running,
    inherited_var: Var,
    affine: Option<(Tensor, Tensor)>,
    momentum: f64,
}

#[derive(Clone, Debug)]
struct Running {
    mean: Var,
    var: Var,
}

impl Running {
    fn new(channels: usize, mean: &str, var: &str, vb: &VarBuilder) -> Result<Self> {
        let dtype = stable_dtype(vb.dtype());
        let get = |name: &str, initial: f64| {
            let tensor = vb.get_with_hints_dtype(channels, name, Init::Const(initial), dtype)?;
            Var::from_tensor(&tensor)
        };
        Ok(Self { mean: get(mean, 0.0)?, var: get(var, 1.0)? })
    }

    /// Mean 0 and variance 1, which are no variables of the model.
    fn constant(channels: usize, vb: &VarBuilder) -> Result<Self> {
        let (dtype, device) = (stable_dtype(vb.dtype()), vb.device());
        let (mean, var) =
            (Var::zeros(channels, dtype, device)?, Var::ones(channels, dtype, device)?);
        Ok(Self { mean, var })
    }

    fn statistics(&self) -> Statistics {
        let Self { mean, var } = self;
        Statistics { mean: mean.as_detached_tensor(), var: var.as_detached_tensor() }
    }

    /// `running <- (1 - weight) running + weight batch`, with the unbiased variance of `count`
    /// values per channel, as PyTorch does.
    fn update(&self, batch: &Statistics, count: usize, weight: f64) -> Result<()> {
        let count = count as f64;
        mix(&self.mean, &batch.mean, 1.0, weight)?;
        mix(&self.var, &batch.var, count / (count - 1.0), weight)
    }

    /// The statistics of a batch, with these in the channels where they are not finite.
    fn where_not_finite(&self, batch: &Statistics) -> Result<Statistics> {
        // 0 x is 0 for every number, and NaN for what is none.
        let zero = ((&batch.mean * 0.0)? + (&batch.var * 0.0)?)?;
        let is_finite = zero.eq(0.0)?;
        let choose = |new: &Tensor, old: &Var| {
            is_finite.where_cond(new, &old.as_detached_tensor().to_dtype(new.dtype())?)
        };
        Ok(Statistics {
            mean: choose(&batch.mean, &self.mean)?,
            var: choose(&batch.var, &self.var)?,
        })
    }
}

/// `running <- (1 - weight) running + weight scale new`. With weight 1 nothing of the old value is
/// left, not even a NaN.
pub(super) fn mix(running: &Var, new: &Tensor, scale: f64, weight: f64) -> Result<()> {
    let new = (new.to_dtype(running.dtype())? * (weight * scale))?;
    if weight == 1.0 {
        return running.set(&new);
    }
    running.set(&((running.as_detached_tensor() * (1.0 - weight))? + new)?)
}

impl NormStats {
    pub(super) fn new(
        channels: usize,
        momentum: f64,
        affine: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let affine = match affine {
            false => None,
            true => Some((
                vb.get_with_hints(channels, "weight", Init::Const(1.0))?,
                vb.get_with_hints(channels, "bias", Init::Const(0.0))?,
            )),
        };
        Ok(Self {
            noisy: Running::new(channels, "running_mean", "running_var", vb)?,
            noise_free: Running::new(channels, "noise_free_mean", "noise_free_var", vb)?,
            inherited_var: inherited_var(channels, vb)?,
            affine,
            momentum,
        })
    }

    /// Of a normalization that needs no running statistics; they are constants then, mean 0 and
    /// variance 1, and no variables. RMS normalization, and a unit without one, have no shift.
    pub(super) fn without_running(
        channels: usize,
        norm: Norm,
        affine: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let affine = match affine || norm == Norm::None {
            false => None,
            true => {
                let gain = vb.get_with_hints(channels, "weight", Init::Const(1.0))?;
                let shift = match norm {
                    Norm::Rms | Norm::None => gain.detach().zeros_like()?,
                    _ => vb.get_with_hints(channels, "bias", Init::Const(0.0))?,
                };
                Some((gain, shift))
            }
        };
        Ok(Self {
            noisy: Running::constant(channels, vb)?,
            noise_free: Running::constant(channels, vb)?,
            inherited_var: inherited_var(channels, vb)?,
            affine,
            momentum: 1.0,
        })
    }

    /// Running mean and unbiased variance, collected under noise.
    pub fn running(&self) -> Statistics {
        self.noisy.statistics()
    }

    /// Running mean and unbiased variance for the mean pass.
    pub fn noise_free(&self) -> Statistics {
        self.noise_free.statistics()
    }

    /// The variance of the normalized value over draws of the weights in front of this layer, one
    /// value per channel; 0 before [`reestimate`](crate::predict::reestimate).
    pub fn inherited_var(&self) -> Tensor {
        self.inherited_var.as_detached_tensor()
    }

    /// Averages a measurement of the inherited variance in.
    pub(super) fn record_inherited(&self, var: &Tensor, weight: f64) -> Result<()> {
        mix(&self.inherited_var, var, 1.0, weight)
    }

    /// Gain and shift per channel, if the layer has them.
    pub fn affine(&self) -> Option<&(Tensor, Tensor)> {
        self.affine.as_ref()
    }

    /// The running statistics that a pass uses. `None` if it uses those of the batch.
    pub(super) fn running_for(&self, source: StatisticsSource) -> Option<Statistics> {
        match source {
            StatisticsSource::RunningNoisy => Some(self.running()),
            StatisticsSource::RunningNoiseFree => Some(self.noise_free()),
            StatisticsSource::Batch | StatisticsSource::Recorded { .. } => None,
        }
    }

    /// What follows the batches of training, for a kernel that writes it: both sets of mean and
    /// variance, and the weight of a batch in them.
    #[cfg(feature = "cuda")]
    pub(super) fn following(&self) -> ([[&Tensor; 2]; 2], f64) {
        let Self { noisy, noise_free, momentum, .. } = self;
        ([[&noisy.mean, &noisy.var], [&noise_free.mean, &noise_free.var]], *momentum)
    }

    /// Moves the running statistics towards those of a batch with `count` values per channel.
    /// Returns false, and changes nothing, if those are not finite: a single NaN would stay in the
    /// running statistics for good.
    ///
    /// To look at a value on a GPU means to wait for it. There the channels that are not finite are
    /// left out without looking, and the loss tells.
    pub(super) fn update(
        &self,
        source: StatisticsSource,
        batch: &Statistics,
        count: usize,
    ) -> Result<bool> {
        if batch.mean.device().is_cpu() {
            if !(is_finite(&batch.mean)? && is_finite(&batch.var)?) {
                return Ok(false);
            }
            self.move_towards(source, batch, count)?;
        } else {
            let batch = self.noisy.where_not_finite(batch)?;
            self.move_towards(source, &batch, count)?;
        }
        Ok(true)
    }

    fn move_towards(
        &self,
        source: StatisticsSource,
        batch: &Statistics,
        count: usize,
    ) -> Result<()> {
        match source {
            StatisticsSource::Batch => {
                self.noisy.update(batch, count, self.momentum)?;
                self.noise_free.update(batch, count, self.momentum)
            }
            StatisticsSource::Recorded { noisy, weight } => {
                let set = if noisy { &self.noisy } else { &self.noise_free };
                set.update(batch, count, weight)
            }
            StatisticsSource::RunningNoisy | StatisticsSource::RunningNoiseFree => Ok(()),
        }
    }
}

/// The inherited variance at the builder's path. Files from before there was one have none.
pub(super) fn inherited_var(channels: usize, vb: &VarBuilder) -> Result<Var> {
    let (name, dtype) = ("inherited_var", stable_dtype(vb.dtype()));
    match vb.get_with_hints_dtype(channels, name, Init::Const(0.0), dtype) {
        Ok(tensor) => Var::from_tensor(&tensor),
        Err(_) if !vb.contains_tensor(name) => Var::zeros(channels, dtype, vb.device()),
        Err(error) => Err(error),
    }
}

/// The builder for the tensors of a layer's normalization: inside the layer under `norm`, or beside
/// the layer under a name.
pub(super) fn norm_builder<'a>(
    vb: &VarBuilder<'a>,
    beside: Option<&str>,
) -> Result<VarBuilder<'a>> {
    let Some(name) = beside else {
        return Ok(vb.pp("norm"));
    };
    let path = vb.prefix();
    let own = path.rsplit('.').next().unwrap_or_default();
    check_setting(
        !name.is_empty() && name != own,
        "the place of the normalization",
        format_args!("{name:?}"),
        "it must be a name beside the layer, other than the layer's own",
    )?;
    Ok(match path.rsplit_once('.') {
        Some((parent, _)) => vb.set_prefix(parent).pp(name),
        None => vb.root().pp(name),
    })
}
