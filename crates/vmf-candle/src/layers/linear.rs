//! A linear layer of variational units.

use super::config::VmfConfig;
use super::norm::{Activations, BatchNorm, Normalize, norm_builder};
use super::weight::Weight;
use crate::error::Error;
use crate::ops::{Activation, UnitArguments};
use crate::pass::{Forward, Pass};
use crate::posterior::{LayerSpec, Posterior};
use crate::sigma::Sigma;
use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;
use vmf_kernels::conv::ConvShape;

/// `y = act(BN(w~ . x) + sigma_eff * eps)`: M units with unit-norm weights in D = `in_dim`
/// dimensions.
///
/// # Shapes
/// Input (N, in_dim) or (N, ..., in_dim); output the same with `out_dim` in the last place.
/// Statistics are over all but the last dimension.
#[derive(Clone, Debug)]
pub struct VmfLinear {
    weight: Weight,
    unit: Unit,
}

/// Builds a [`VmfLinear`] at the builder's path, and registers it with the posterior.
pub fn vmf_linear(
    in_dim: usize,
    out_dim: usize,
    config: VmfConfig,
    posterior: &Posterior,
    vb: VarBuilder,
) -> Result<VmfLinear> {
    config.check()?;
    let weight = Weight::new(&[out_dim, in_dim], config.constraint, &vb)?;
    let unit = Unit::new(in_dim, out_dim, &weight, config, posterior, &vb)?;
    Ok(VmfLinear { weight, unit })
}

impl VmfLinear {
    /// The weight (out_dim, in_dim).
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

impl Forward for VmfLinear {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let weight = self.weight.effective()?;
        let (out_dim, in_dim) = weight.dims2()?;
        if xs.rank() < 2 || xs.dims().last() != Some(&in_dim) {
            Err(Error::Shape {
                what: format!("layer {:?}", self.unit.name),
                reason: format!("expected (batch, ..., {in_dim}), got {:?}", xs.dims()),
            })?
        }
        check_dtype(&self.unit.name, xs, &weight)?;
        let rows = xs.reshape(((), in_dim))?;
        let sigma = self.unit.sigma.sigma()?;
        let y = if is_fast(&rows, &weight) {
            // A linear layer is the convolution of images of one pixel.
            let batch = rows.dim(0)?;
            let input = UnitArguments {
                xs: &rows.reshape((1, 1, batch, in_dim))?,
                weight: &weight,
                sigma: &sigma,
                conv: ConvShape::same(batch, in_dim, out_dim, [1, 1], 1),
                pool: None,
            };
            self.unit.forward(&input, pass)?
        } else {
            let u = &rows.matmul(&weight.t()?)?;
            self.unit.forward(&Activations { u, sigma: &sigma }, pass)?
        };
        let mut shape = xs.dims().to_vec();
        shape[xs.rank() - 1] = out_dim;
        y.reshape(shape)
    }
}

/// What follows the product of weight and input: the same in a linear and in a convolutional layer.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) norm: BatchNorm,
    pub(super) sigma: Sigma,
    stream: u32,
    activation: Activation,
}

impl Unit {
    pub(super) fn new(
        dim: usize,
        units: usize,
        weight: &Weight,
        config: VmfConfig,
        posterior: &Posterior,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let sigma = match config.shared {
            Some(sigma) => sigma,
            None => Sigma::new(config.sigma, vb.clone())?,
        };
        let norm_vb = norm_builder(vb, config.norm_at.as_deref())?;
        let norm = BatchNorm::new(units, config.eps, config.momentum, config.affine, &norm_vb)?;
        let name = vb.prefix();
        let stream = posterior.register(LayerSpec {
            name: name.clone(),
            dim,
            units,
            sigma: sigma.clone(),
            sphere_weight: weight.sphere(),
        })?;
        Ok(Self { name, norm, sigma, stream, activation: config.activation })
    }

    pub(super) fn forward(&self, input: &impl Normalize, pass: &Pass) -> Result<Tensor> {
        self.norm.forward(input, self.stream, self.activation, pass)
    }
}

/// Input and weights must be of one type; the layer's name is in the error.
pub(super) fn check_dtype(name: &str, xs: &Tensor, weight: &Tensor) -> Result<()> {
    if xs.dtype() != weight.dtype() {
        Err(Error::Shape {
            what: format!("layer {name:?}"),
            reason: format!(
                "its weights are {:?}, its input is {:?}: convert one of them with `to_dtype`",
                weight.dtype(),
                xs.dtype()
            ),
        })?
    }
    Ok(())
}

/// Whether the fused unit of the CPU serves these tensors. Elsewhere Candle's own product comes
/// first.
pub(super) fn is_fast(xs: &Tensor, weight: &Tensor) -> bool {
    xs.device().is_cpu() && xs.dtype() == DType::F32 && weight.dtype() == DType::F32
}
