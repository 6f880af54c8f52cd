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
use crate::ops::Statistics;
use crate::pass::StatisticsSource;
use crate::posterior::LastPass;
use candle_core::{Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};

/// The weight of a batch in the running statistics, as in PyTorch.
pub(super) const MOMENTUM: f64 = 0.1;

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

    /// `running <- (1 - weight) running + weight batch`, with the unbiased variance of the batch, as
    /// PyTorch does.
    fn update(&self, batch: &Batch, weight: f64, last_pass: &LastPass) -> Result<()> {
        let Batch { statistics, count, are_finite } = batch;
        let unbiased = *count as f64 / (*count as f64 - 1.0);
        for (running, new, scale) in
            [(&self.mean, &statistics.mean, 1.0), (&self.var, &statistics.var, unbiased)]
        {
            let mut value = mixed(running, new, scale, weight)?;
            if let Some(are_finite) = are_finite {
                let condition = are_finite.broadcast_as(value.shape())?.contiguous()?;
                value = condition.where_cond(&value, &running.as_detached_tensor())?;
            }
            last_pass.set(running, &value)?;
        }
        Ok(())
    }
}

/// What a pass has measured about a batch.
pub(super) struct Batch {
    pub(super) statistics: Statistics,
    /// How many values there are per channel.
    pub(super) count: usize,
    /// A scalar that is 1 if the statistics are finite, unless it is known that they are. Otherwise
    /// the running statistics stay.
    pub(super) are_finite: Option<Tensor>,
}

/// `(1 - weight) running + weight scale new`. With weight 1 nothing of the old value is left, not
/// even a NaN.
pub(super) fn mixed(running: &Var, new: &Tensor, scale: f64, weight: f64) -> Result<Tensor> {
    let new = (new.to_dtype(running.dtype())? * (weight * scale))?;
    if weight == 1.0 {
        return Ok(new);
    }
    (running.as_detached_tensor() * (1.0 - weight))? + new
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

    /// Batch normalization without gain and shift at the builder's path, with PyTorch's momentum,
    /// for a layer of a model's own: [`running_for`](Self::running_for) says which statistics a pass
    /// uses, and [`record`](Self::record) takes those of a batch in.
    pub fn batch(channels: usize, vb: &VarBuilder) -> Result<Self> {
        Self::new(channels, MOMENTUM, false, vb)
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
    pub(super) fn record_inherited(
        &self,
        var: &Tensor,
        weight: f64,
        last_pass: &LastPass,
    ) -> Result<()> {
        last_pass.set(&self.inherited_var, &mixed(&self.inherited_var, var, 1.0, weight)?)
    }

    /// Gain and shift per channel, if the layer has them.
    pub fn affine(&self) -> Option<&(Tensor, Tensor)> {
        self.affine.as_ref()
    }

    /// The running statistics that a pass uses. `None` if it uses those of the batch.
    pub fn running_for(&self, source: StatisticsSource) -> Option<Statistics> {
        match source {
            StatisticsSource::RunningNoisy => Some(self.running()),
            StatisticsSource::RunningNoiseFree => Some(self.noise_free()),
            StatisticsSource::Batch | StatisticsSource::Recorded { .. } => None,
        }
    }

    /// Moves the running statistics towards those of a batch with `count` values per channel, for a
    /// layer of a model's own. They stay as they are if those of the batch are not finite.
    pub fn record(&self, source: StatisticsSource, batch: &Statistics, count: usize) -> Result<()> {
        let are_finite = Some(batch.are_finite()?);
        let batch = Batch { statistics: batch.clone(), count, are_finite };
        self.update(source, &batch, &LastPass::default())
    }

    /// What follows the batches of training, for a kernel that writes it: both sets of mean and
    /// variance, and the weight of a batch in them. The pass can still be undone.
    #[cfg(feature = "cuda")]
    pub(super) fn following(&self, last_pass: &LastPass) -> Result<([[&Tensor; 2]; 2], f64)> {
        let Self { noisy, noise_free, momentum, .. } = self;
        for running in [noisy, noise_free] {
            last_pass.remember(&running.mean)?;
            last_pass.remember(&running.var)?;
        }
        Ok(([[&noisy.mean, &noisy.var], [&noise_free.mean, &noise_free.var]], *momentum))
    }

    /// Moves the running statistics towards those of a batch.
    pub(super) fn update(
        &self,
        source: StatisticsSource,
        batch: &Batch,
        last_pass: &LastPass,
    ) -> Result<()> {
        match source {
            StatisticsSource::Batch => {
                self.noisy.update(batch, self.momentum, last_pass)?;
                self.noise_free.update(batch, self.momentum, last_pass)
            }
            StatisticsSource::Recorded { noisy, weight } => {
                let set = if noisy { &self.noisy } else { &self.noise_free };
                set.update(batch, weight, last_pass)
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
