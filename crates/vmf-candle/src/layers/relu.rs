//! ReLU as a layer, for sums that a model's own code makes.

use super::norm::{inherited_var, mixed};
use crate::moments::Moments;
use crate::ops::Images;
use crate::pass::{Forward, Pass};
use candle_core::{Result, Tensor, Var};
use candle_nn::VarBuilder;

/// `relu(x)`, which in the expected pass is `E relu(x + s z)`.
///
/// In a model's own code a plain `xs.relu()` cannot know how uncertain its input is. This layer
/// measures that, one value per channel, in [`reestimate`](crate::predict::reestimate). Units with
/// `.relu()` and [`forward_residual`](super::VmfConv2d::forward_residual) do it themselves.
///
/// # Shapes
/// (N, C) or (N, C, H, W), input and output.
#[derive(Clone, Debug)]
pub struct ReluLayer {
    inherited_var: Var,
}

/// Builds a [`ReluLayer`] for so many channels at the builder's path.
pub fn relu_layer(channels: usize, vb: VarBuilder) -> Result<ReluLayer> {
    Ok(ReluLayer { inherited_var: inherited_var(channels, &vb)? })
}

impl Forward for ReluLayer {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        if let Some((samples, weight)) = pass.measurement() {
            let var = Images::of(&xs.detach())?.variance_across(samples)?;
            self.inherited_var.set(&mixed(&self.inherited_var, &var, 1.0, weight)?)?;
        }
        if !pass.is_expected() {
            return Images::of(xs)?.map(|xs| xs.relu())?.to_tensor();
        }
        let s = self.inherited_var.as_detached_tensor().sqrt()?;
        Images::of(xs)?.expected_relu(&s)?.to_tensor()
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        xs.relu()
    }
}
