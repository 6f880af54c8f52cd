//! A convolution of variational units.

use super::config::VmfConfig;
use super::norm::NormStats;
use super::unit::Unit;
use crate::error::Error;
use crate::moments::Moments;
use crate::ops::{Images, UncertainImages};
use crate::pass::{Forward, Pass};
use crate::posterior::{Posterior, Sigma};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// `y = act(BN(w~ * x) + sigma_eff * z)`: M = `out_channels` units with unit-norm kernels in
/// D = `in_channels / groups * kernel^2` dimensions.
///
/// # Shapes
/// Input (N, in_channels, H, W); output (N, out_channels, H', W').
#[derive(Clone, Debug)]
pub struct VmfConv2d {
    pub(super) unit: Unit,
}

/// Builds a [`VmfConv2d`] with square kernels at the builder's path, and registers it with the
/// posterior.
pub fn vmf_conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    config: VmfConfig,
    posterior: &Posterior,
    vb: VarBuilder,
) -> Result<VmfConv2d> {
    let unit = config.check_conv2d(in_channels, out_channels, kernel).and_then(|()| {
        let shape = [out_channels, in_channels / config.groups, kernel, kernel];
        Unit::new(&shape, config, posterior, &vb)
    });
    Ok(VmfConv2d { unit: unit.map_err(|error| Error::in_layer(&vb.prefix(), error))? })
}

impl VmfConv2d {
    /// `act(BN(w~ * x) + sigma_eff * z + skip)`: the layer with a skip connection added before its
    /// activation, as at the end of a residual block.
    ///
    /// It computes what the sum and the activation in the model's own code would, and knows in the
    /// expected pass how uncertain the sum is.
    pub fn forward_residual(&self, xs: &Tensor, skip: &Tensor, pass: &Pass) -> Result<Tensor> {
        let (xs, skip) = (Images::of(xs)?, Images::of(skip)?);
        self.unit.forward(&xs, Some(&skip), None, pass)?.to_tensor()
    }

    /// [`forward_residual`](Self::forward_residual) for means and variances. The skip connection
    /// counts as independent of what is added to it.
    pub fn propagate_residual(&self, xs: &Moments, skip: &Moments) -> Result<Moments> {
        let (xs, skip) = (UncertainImages::new(xs), UncertainImages::new(skip));
        self.unit.propagate(&xs, Some(&skip), None)?.moments()
    }

    /// The weight (out_channels, in_channels / groups, kernel, kernel).
    pub fn weight(&self) -> &Tensor {
        self.unit.weight.raw()
    }

    /// The noise parameter.
    pub fn sigma(&self) -> &Sigma {
        &self.unit.sigma
    }

    /// The running statistics of the normalization.
    pub fn norm(&self) -> &NormStats {
        &self.unit.norm
    }
}

impl Forward for VmfConv2d {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.unit.forward(&Images::of(xs)?, None, None, pass)?.to_tensor()
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        self.unit.propagate(&UncertainImages::new(xs), None, None)?.moments()
    }
}
