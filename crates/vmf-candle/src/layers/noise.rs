//! Noise for models that have a normalization already.

use crate::dtype::stable_dtype;
use crate::error::{Error, check_shape};
use crate::moments::Moments;
use crate::ops::{Statistics, bn_noise_config, bn_noise_eval};
use crate::pass::{Forward, Pass};
use crate::posterior::{LayerSpec, Posterior, Sigma, SigmaConfig};
use crate::watch;
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// `y = x + sigma_eff * z`: the noise of a variational unit by itself.
///
/// It belongs right after a normalization (batch, layer, group or RMS), before its gain and shift
/// if it has any, because sigma_eff is relative to values of unit variance. The posterior is over
/// the directions of the weight in front of the normalization: D and M are those of that weight.
///
/// # Shapes
/// The input may have any shape; the output has the same. The channels are in dimension
/// [`NoiseLayerConfig::channel_dim`].
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
    /// The dimension of the units: 1 for images (N, C, H, W), 2 for sequences (N, T, C). It
    /// matters for sigma groups only.
    pub channel_dim: usize,
    /// How the noise is parameterized.
    pub sigma: SigmaConfig,
    /// A parameter that is shared with other layers, instead of one of the layer's own.
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
            dims => {
                let reason = format!("expected (units, inputs, ...), got {dims:?}");
                Err(Error::shape("the weight before a noise layer", reason))?
            }
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

    fn check_input(&self, xs: &Tensor) -> Result<()> {
        let Self { units, channel_dim, .. } = *self;
        let valid = xs.dims().get(channel_dim) == Some(&units);
        Ok(check_shape(valid, format_args!("noise layer {:?}", self.name), || {
            format!("expected {units} channels in dimension {channel_dim}, got {:?}", xs.dims())
        })?)
    }
}

impl Forward for NoiseLayer {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.sigma.mark_used();
        let Some(noise) = pass.noise(self.stream, xs.dims())? else {
            return Ok(xs.clone());
        };
        let Self { units, channel_dim, .. } = *self;
        self.check_input(xs)?;
        // Noise is numbered by the row-major index, which does not change when neighbouring
        // dimensions are merged.
        let before: usize = xs.dims()[..channel_dim].iter().product();
        let flat = xs.reshape((before, units, ()))?;
        // With mean 0, variance 1 and eps 0 the operation adds noise and does nothing else.
        let mean = Tensor::zeros(units, stable_dtype(xs.dtype()), xs.device())?;
        let statistics = Statistics { var: mean.ones_like()?, mean };
        let (sigma, config) = (self.sigma.sigma()?, bn_noise_config(&flat)?.eps(0.0));
        let ys = bn_noise_eval(&flat, &sigma, &statistics, &config, Some(noise))?;
        watch::observe(&self.name, &ys)?;
        ys.reshape(xs.shape())
    }

    /// The variance grows by sigma_eff^2.
    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        self.check_input(xs.mean())?;
        let sigma = self.sigma.sigma()?;
        let groups = sigma.elem_count();
        let own = sigma.sqr()?.reshape((groups, 1))?;
        let own = own.broadcast_as((groups, self.units / groups))?.flatten_all()?;
        let mut dims = vec![1; xs.mean().rank()];
        dims[self.channel_dim] = self.units;
        let own = own.reshape(dims)?.to_dtype(xs.mean().dtype())?;
        Moments::new(xs.mean().clone(), xs.variance()?.broadcast_add(&own)?)
    }
}
