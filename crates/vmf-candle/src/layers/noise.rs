//! Noise to put after a normalization that a model already has.

use crate::error::Error;
use crate::ops::{Activation, BnNoise, bn_noise_eval};
use crate::pass::{Forward, Pass};
use crate::posterior::{LayerSpec, Posterior};
use crate::sigma::{Sigma, SigmaConfig, stable_dtype};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// `y = x + sigma_eff * eps`: the noise of a variational unit by itself.
///
/// It belongs right after a normalization (batch, layer, group or RMS) without affine parameters,
/// or before them, because sigma_eff is measured against values of unit variance. Behind the
/// normalization stands a weight whose scale it removes, and the posterior is over that weight's
/// directions: D and M are those of that weight.
///
/// # Shapes
/// Any; the output is as the input. Only groups of channels ask where the channels are: in
/// dimension [`NoiseLayerConfig::channel_dim`].
#[derive(Clone, Debug)]
pub struct NoiseLayer {
    name: String,
    sigma: Sigma,
    stream: u32,
    units: usize,
    channel_dim: usize,
}

/// The settings of a [`NoiseLayer`].
#[derive(Clone, Debug)]
pub struct NoiseLayerConfig {
    /// D: the inputs of one unit of the weight before the normalization.
    pub dim: usize,
    /// M: how many units that weight has.
    pub units: usize,
    /// The dimension along which the units lie: 1 for images (N, C, H, W), the last one for (N, T,
    /// C). Matters only where sigma has groups.
    pub channel_dim: usize,
    /// How the noise is parameterized.
    pub sigma: SigmaConfig,
    /// A parameter shared with other layers, in place of one of the layer's own.
    pub shared: Option<Sigma>,
}

impl NoiseLayerConfig {
    /// For a weight with `units` units of `dim` inputs each.
    pub fn new(dim: usize, units: usize) -> Self {
        Self { dim, units, channel_dim: 1, sigma: SigmaConfig::default(), shared: None }
    }

    /// For the weight of a linear layer (out, in) or a convolution (out, in, k, ..): M is the first
    /// dimension, D the product of the others.
    pub fn behind(weight: &Tensor) -> Result<Self> {
        match weight.dims() {
            [units, inputs @ ..] if !inputs.is_empty() => {
                Ok(Self::new(inputs.iter().product(), *units))
            }
            dims => Err(Error::Shape {
                what: "the weight before a noise layer".into(),
                reason: format!("expected (units, inputs, ...), got {dims:?}"),
            })?,
        }
    }
}

/// Builds a [`NoiseLayer`] at the builder's path, and registers it with the posterior.
pub fn noise_layer(
    config: NoiseLayerConfig,
    posterior: &Posterior,
    vb: VarBuilder,
) -> Result<NoiseLayer> {
    let name = vb.prefix();
    let sigma = match config.shared {
        Some(sigma) => sigma,
        None => Sigma::new(config.sigma, vb)?,
    };
    let stream = posterior.register(LayerSpec {
        name: name.clone(),
        dim: config.dim,
        units: config.units,
        sigma: sigma.clone(),
        sphere_weight: None,
    })?;
    Ok(NoiseLayer { name, sigma, stream, units: config.units, channel_dim: config.channel_dim })
}

impl NoiseLayer {
    /// The noise parameter.
    pub fn sigma(&self) -> &Sigma {
        &self.sigma
    }
}

impl Forward for NoiseLayer {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let Some(noise) = pass.noise(self.stream)? else {
            return Ok(xs.clone());
        };
        if xs.dims().get(self.channel_dim) != Some(&self.units) {
            Err(Error::Shape {
                what: format!("noise layer {:?}", self.name),
                reason: format!(
                    "expected {} channels in dimension {}, got {:?}",
                    self.units,
                    self.channel_dim,
                    xs.dims()
                ),
            })?
        }
        let batch = xs.dim(0)?;
        if !batch.is_multiple_of(noise.folded) {
            Err(Error::Shape {
                what: format!("noise layer {:?}", self.name),
                reason: format!(
                    "a batch of {batch} cannot hold {} Monte Carlo samples",
                    noise.folded
                ),
            })?
        }
        // Noise is numbered by the row-major index, which does not change when neighbouring
        // dimensions are merged.
        let before: usize = xs.dims()[..self.channel_dim].iter().product();
        let dtype = stable_dtype(xs.dtype());
        let zeros = Tensor::zeros(self.units, dtype, xs.device())?;
        let ones = zeros.ones_like()?;
        // With mean 0, variance 1 and eps 0 the fused operation adds noise and does nothing else.
        let op = BnNoise { eps: 0.0, activation: Activation::Identity, noise: Some(noise) };
        let sigma = self.sigma.sigma()?;
        let flat = xs.reshape((before, self.units, ()))?;
        bn_noise_eval(&flat, &sigma, &zeros, &ones, &op)?.reshape(xs.shape())
    }
}
