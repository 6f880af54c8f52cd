//! A convolution of variational units.

use super::config::VmfConv2dConfig;
use super::linear::{Unit, check_dtype, is_fast};
use super::norm::{Activations, BatchNorm};
use super::weight::Weight;
use crate::error::Error;
use crate::ops::{UnitArguments, candle_conv2d, from_fast, to_fast};
use crate::pass::{Forward, Pass};
use crate::posterior::Posterior;
use crate::sigma::Sigma;
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use vmf_kernels::conv::ConvShape;

/// `y = act(BN(w~ * x) + sigma_eff * eps)`: M = `out_channels` units with unit-norm kernels in
/// D = `in_channels / channel_groups * kernel^2` dimensions.
///
/// # Shapes
/// Input (N, in_channels, H, W); output (N, out_channels, H', W').
#[derive(Clone, Debug)]
pub struct VmfConv2d {
    weight: Weight,
    unit: Unit,
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

/// Builds a [`VmfConv2d`] with square kernels at the builder's path, and registers it with the
/// posterior.
pub fn vmf_conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    config: impl Into<VmfConv2dConfig>,
    posterior: &Posterior,
    vb: VarBuilder,
) -> Result<VmfConv2d> {
    let VmfConv2dConfig { unit, padding, stride, dilation, groups } = config.into();
    unit.check()?;
    if kernel == 0 || stride == 0 || dilation == 0 {
        Err(Error::Setting {
            name: "kernel, stride and dilation",
            value: format!("{kernel}, {stride}, {dilation}"),
            requirement: "each must be at least 1",
        })?
    }
    if groups == 0 || !in_channels.is_multiple_of(groups) || !out_channels.is_multiple_of(groups) {
        Err(Error::Setting {
            name: "the number of channel groups",
            value: groups.to_string(),
            requirement: "it must divide the input and the output channels",
        })?
    }
    let shape = [out_channels, in_channels / groups, kernel, kernel];
    let weight = Weight::new(&shape, unit.constraint, &vb)?;
    let dim = shape[1..].iter().product();
    let unit = Unit::new(dim, out_channels, &weight, unit, posterior, &vb)?;
    Ok(VmfConv2d { weight, unit, padding, stride, dilation, groups })
}

impl VmfConv2d {
    /// The weight (out_channels, in_channels / channel_groups, kernel, kernel).
    pub fn weight(&self) -> &Tensor {
        self.weight.raw()
    }

    /// The noise parameter.
    pub fn sigma(&self) -> &Sigma {
        &self.unit.sigma
    }

    /// The normalization, with its running statistics.
    pub fn norm(&self) -> &BatchNorm {
        &self.unit.norm
    }
}

impl Forward for VmfConv2d {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.check(xs.dims())?;
        check_dtype(&self.unit.name, xs, self.weight.raw())?;
        if self.is_fast(xs) {
            return from_fast(&self.forward_fast(&to_fast(xs)?, None, pass)?);
        }
        let weight = self.weight.effective()?;
        let (batch, _, height, width) = xs.dims4()?;
        let shape = self.shape(batch, [height, width])?;
        let u = &candle_conv2d(xs, &weight, &shape)?;
        let sigma = &self.unit.sigma.sigma()?;
        self.unit.forward(&Activations { u, sigma }, pass)
    }
}

impl VmfConv2d {
    /// Whether [`forward_fast`](Self::forward_fast) serves this input.
    pub(super) fn is_fast(&self, xs: &Tensor) -> bool {
        xs.rank() == 4 && is_fast(xs, self.weight.raw())
    }

    /// Whether a pooling can be part of the fused unit: nothing may stand between it and the
    /// activation.
    pub(super) fn can_pool(&self) -> bool {
        self.unit.norm.affine().is_none()
    }

    /// The same in the layout (H, W, N, C), with maximum pooling over windows of this side behind
    /// it.
    pub(super) fn forward_fast(
        &self,
        xs: &Tensor,
        pool: Option<usize>,
        pass: &Pass,
    ) -> Result<Tensor> {
        let weight = self.weight.effective()?;
        let (height, width, batch, channels) = xs.dims4()?;
        self.check(&[batch, channels, height, width])?;
        let conv = self.shape(batch, [height, width])?;
        let input =
            UnitArguments { xs, weight: &weight, sigma: &self.unit.sigma.sigma()?, conv, pool };
        self.unit.forward(&input, pass)
    }

    fn shape(&self, batch: usize, input: [usize; 2]) -> Result<ConvShape> {
        let (out_channels, group_inputs, kernel_height, kernel_width) =
            self.weight.raw().dims4()?;
        Ok(ConvShape {
            batch,
            in_channels: group_inputs * self.groups,
            out_channels,
            input,
            kernel: [kernel_height, kernel_width],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        })
    }

    /// Whether these are the dimensions of images (N, C, H, W) that it takes.
    fn check(&self, dims: &[usize]) -> Result<()> {
        let expected = self.weight.raw().dim(1)? * self.groups;
        if dims.len() == 4 && dims[1] == expected {
            return Ok(());
        }
        let hint = match dims {
            [channels, _, _] if *channels == expected => "; a single image needs `unsqueeze(0)`",
            _ => "",
        };
        Err(Error::Shape {
            what: format!("layer {:?}", self.unit.name),
            reason: format!("expected images (N, {expected}, H, W), got {dims:?}{hint}"),
        })?
    }
}
