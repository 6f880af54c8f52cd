//! Batch normalization without affine parameters, with the two sets of running statistics that a
//! noisy network needs.
//!
//! Statistics collected under noise do not fit a pass without it: noise in one layer widens the
//! inputs of the next. So each normalization keeps two sets. `running_mean` and `running_var` are
//! collected in training and serve Monte Carlo passes. `noise_free_mean` and `noise_free_var` serve
//! the mean pass: [`reestimate`](crate::reestimate) measures them with noise off, and until it has,
//! they follow training like the others.

use crate::error::Error;
use crate::ops::{Activation, BatchStatistics, BnNoise, UnitArguments, bn_noise, bn_noise_eval};
use crate::pass::{Pass, Statistics};
use crate::sigma::stable_dtype;
use candle_core::{Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};

/// A normalization over the batch and all positions of a channel, followed by noise.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    noisy: Running,
    noise_free: Running,
    affine: Option<(Tensor, Tensor)>,
    eps: f64,
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

    /// `running <- (1 - weight) running + weight batch`, with the unbiased variance, as PyTorch
    /// does.
    fn update(&self, batch: &BatchStatistics, weight: f64) -> Result<()> {
        let count = batch.count as f64;
        let mix = |running: &Var, batch: &Tensor, scale: f64| -> Result<()> {
            let batch = (batch.to_dtype(running.dtype())? * (weight * scale))?;
            let kept = (running.as_detached_tensor() * (1.0 - weight))?;
            running.set(&(kept + batch)?)
        };
        mix(&self.mean, &batch.mean, 1.0)?;
        mix(&self.var, &batch.var, count / (count - 1.0))
    }
}

impl BatchNorm {
    pub(super) fn new(
        channels: usize,
        eps: f64,
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
            affine,
            eps,
            momentum,
        })
    }

    /// Running mean and unbiased variance collected under noise.
    pub fn running(&self) -> (Tensor, Tensor) {
        let Running { mean, var } = &self.noisy;
        (mean.as_detached_tensor(), var.as_detached_tensor())
    }

    /// Running mean and unbiased variance for the mean pass.
    pub fn noise_free(&self) -> (Tensor, Tensor) {
        let Running { mean, var } = &self.noise_free;
        (mean.as_detached_tensor(), var.as_detached_tensor())
    }

    /// Gain and shift a channel, where the layer has them.
    pub fn affine(&self) -> Option<&(Tensor, Tensor)> {
        self.affine.as_ref()
    }

    /// `act(gain * (normalize(u) + sigma * noise) + shift)`, by the statistics that the pass asks
    /// for.
    pub(super) fn forward(
        &self,
        input: &impl Normalize,
        stream: u32,
        activation: Activation,
        pass: &Pass,
    ) -> Result<Tensor> {
        let op = BnNoise {
            eps: self.eps,
            // An affine map stands between the noise and the activation.
            activation: match self.affine {
                None => activation,
                Some(_) => Activation::Identity,
            },
            noise: pass.noise(stream)?,
        };
        let y = match pass.statistics() {
            Statistics::RunningNoisy => input.by_given(&self.noisy.mean, &self.noisy.var, &op)?,
            Statistics::RunningNoiseFree => {
                input.by_given(&self.noise_free.mean, &self.noise_free.var, &op)?
            }
            Statistics::Batch => {
                let (y, batch) = input.by_batch(&op)?;
                self.noisy.update(&batch, self.momentum)?;
                self.noise_free.update(&batch, self.momentum)?;
                y
            }
            Statistics::Recorded { weight } => {
                let (y, batch) = input.by_batch(&op)?;
                self.noise_free.update(&batch, weight)?;
                y
            }
        };
        let Some((gain, shift)) = &self.affine else {
            return Ok(y);
        };
        let mut channels = vec![1; y.rank()];
        channels[input.channel_dim()] = gain.elem_count();
        let y = y
            .broadcast_mul(&gain.reshape(&*channels)?)?
            .broadcast_add(&shift.reshape(&*channels)?)?;
        match activation {
            Activation::Identity => Ok(y),
            Activation::Relu => y.relu(),
        }
    }
}

/// Something that can be normalized: a tensor, or a convolution that is fused with its
/// normalization.
pub(super) trait Normalize {
    /// By the statistics of its own batch.
    fn by_batch(&self, op: &BnNoise) -> Result<(Tensor, BatchStatistics)>;

    /// By given statistics.
    fn by_given(&self, mean: &Tensor, var: &Tensor, op: &BnNoise) -> Result<Tensor>;

    /// Where the channels are in the result.
    fn channel_dim(&self) -> usize;
}

/// A tensor (N, C, ...) with the sigma of its noise.
pub(super) struct Activations<'a> {
    pub(super) u: &'a Tensor,
    pub(super) sigma: &'a Tensor,
}

impl Normalize for Activations<'_> {
    fn by_batch(&self, op: &BnNoise) -> Result<(Tensor, BatchStatistics)> {
        bn_noise(self.u, self.sigma, op)
    }

    fn by_given(&self, mean: &Tensor, var: &Tensor, op: &BnNoise) -> Result<Tensor> {
        bn_noise_eval(self.u, self.sigma, mean, var, op)
    }

    fn channel_dim(&self) -> usize {
        1
    }
}

impl Normalize for UnitArguments<'_> {
    fn by_batch(&self, op: &BnNoise) -> Result<(Tensor, BatchStatistics)> {
        self.by_batch(op)
    }

    fn by_given(&self, mean: &Tensor, var: &Tensor, op: &BnNoise) -> Result<Tensor> {
        self.by_given(mean, var, op)
    }

    fn channel_dim(&self) -> usize {
        3
    }
}

/// The builder at which a layer's normalization keeps its tensors.
pub(super) fn norm_builder<'a>(
    vb: &VarBuilder<'a>,
    beside: Option<&str>,
) -> Result<VarBuilder<'a>> {
    let Some(name) = beside else {
        return Ok(vb.pp("norm"));
    };
    let path = vb.prefix();
    let own = path.rsplit('.').next().unwrap_or_default();
    if name.is_empty() || name == own {
        Err(Error::Setting {
            name: "the place of the normalization",
            value: format!("{name:?}"),
            requirement: "it must be a name beside the layer, other than the layer's own",
        })?
    }
    Ok(match path.rsplit_once('.') {
        Some((parent, _)) => vb.set_prefix(parent).pp(name),
        None => vb.root().pp(name),
    })
}
