//! A linear layer of variational units.

use super::config::VmfConfig;
use super::norm::NormStats;
use super::unit::Unit;
use crate::error::{Error, check_shape};
use crate::moments::Moments;
use crate::ops::{Images, UncertainImages};
use crate::pass::{Forward, Pass};
use crate::posterior::{Posterior, Sigma};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// `y = act(BN(w~ . x) + sigma_eff * z)`: M units with unit-norm weights in D = `in_dim`
/// dimensions.
///
/// # Shapes
/// Input (N, in_dim) or (N, ..., in_dim); output the same with `out_dim` as the last dimension.
/// Statistics are over all dimensions but the last.
#[derive(Clone, Debug)]
pub struct VmfLinear {
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
    let unit = config
        .check_linear()
        .and_then(|()| Unit::new(&[out_dim, in_dim], config, posterior, &vb))
        .map_err(|error| Error::in_layer(&vb.prefix(), error))?;
    Ok(VmfLinear { unit })
}

impl VmfLinear {
    /// The weight (out_dim, in_dim).
    pub fn weight(&self) -> &Tensor {
        self.unit.weight.raw()
    }

    /// The dimensions of the output for this input.
    fn output_dims(&self, xs: &Tensor) -> Result<Vec<usize>> {
        let (out_dim, in_dim) = self.weight().dims2()?;
        let valid = xs.rank() >= 2 && xs.dims().last() == Some(&in_dim);
        check_shape(valid, format_args!("layer {:?}", self.unit.name), || {
            format!("expected (batch, ..., {in_dim}), got {:?}", xs.dims())
        })?;
        let mut dims = xs.dims().to_vec();
        dims[xs.rank() - 1] = out_dim;
        Ok(dims)
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

impl Forward for VmfLinear {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let dims = self.output_dims(xs)?;
        let rows = Images::nchw(xs.reshape(((), self.weight().dim(1)?))?);
        self.unit.forward(&rows, None, None, pass)?.to_nchw()?.reshape(dims)
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        let (dims, in_dim) = (self.output_dims(xs.mean())?, self.weight().dim(1)?);
        let rows = xs.rearrange(|xs| xs.reshape(((), in_dim)))?;
        let ys = self.unit.propagate(&UncertainImages::new(&rows), None, None)?;
        ys.moments()?.rearrange(|ys| ys.reshape(dims.as_slice()))
    }
}
