//! The variational unit as a layer: it owns weight, normalization, sigma and noise stream. Linear
//! and convolutional layers are this unit with inputs of different shapes.
//!
//! ```text
//! y = pool(act(gain * (normalize(w~ * x) + sigma_eff * z) + shift)),   w~ = w / |w|,  z ~ N(0, 1)
//! ```

use super::config::{Activation, VmfConfig};
use super::norm::{NormStats, norm_builder};
use super::weight::Weight;
use crate::error::{Error, check_shape};
use crate::ops::{self, Images};
use crate::pass::Pass;
use crate::posterior::{LayerSpec, Posterior, Sigma};
use candle_core::Result;
use candle_nn::VarBuilder;
use vmf_kernels::conv::{Conv2d, ConvShape};
use vmf_kernels::unit as kernel;

/// The units of one layer.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) norm: NormStats,
    pub(super) sigma: Sigma,
    stream: u32,
    config: VmfConfig,
}

impl Unit {
    /// Units with a weight of this shape, (M, D) or (M, C / groups, k, k), at the builder's path.
    /// Registers them with the posterior.
    pub(super) fn new(
        shape: &[usize],
        config: VmfConfig,
        posterior: &Posterior,
        vb: &VarBuilder,
    ) -> Result<Self> {
        config.check()?;
        let weight = Weight::new(shape, config.constraint, vb)?;
        let sigma = match &config.shared {
            Some(sigma) => sigma.clone(),
            None => Sigma::new(config.sigma.clone(), vb.clone())?,
        };
        let norm_vb = norm_builder(vb, config.norm_at.as_deref())?;
        let norm = NormStats::new(shape[0], config.momentum, config.affine, &norm_vb)?;
        let name = vb.prefix();
        let stream = posterior.register(LayerSpec {
            name: name.clone(),
            dim: shape[1..].iter().product(),
            units: shape[0],
            sigma: sigma.clone(),
            sphere_weight: weight.sphere(),
        })?;
        Ok(Self { name, weight, norm, sigma, stream, config })
    }

    /// The units' output for these images, pooled over square windows of this side if there is one.
    pub(super) fn forward(&self, xs: &Images, pool: Option<usize>, pass: &Pass) -> Result<Images> {
        let conv = self.conv(xs)?;
        let relu = self.config.activation == Activation::Relu;
        // The node has no gain and shift. They come before the activation, so where they exist
        // activation and pooling follow the node too.
        let affine = self.norm.affine();
        let mut unit = kernel::Unit::new(conv).eps(self.config.eps).relu(relu && affine.is_none());
        if let (Some(window), None) = (pool, affine) {
            unit = unit.max_pool(window).map_err(Error::from)?;
        }
        let ConvShape { batch, out_channels, .. } = *conv.shape();
        let [height, width] = conv.shape().output();
        let noise = pass.noise(self.stream, &[batch, out_channels, height, width])?;
        let op = ops::Unit { kernel: unit, noise };

        let (w, sigma, source) = (self.weight.effective()?, self.sigma.sigma()?, pass.statistics());
        let ys = match self.norm.running_for(source) {
            Some(statistics) => op.forward_eval(&statistics, xs, &w, &sigma)?,
            None => {
                let (ys, batch) = op.forward_train(xs, &w, &sigma)?;
                self.norm.update(source, &batch, unit.norm().shape.elements_per_channel())?;
                ys
            }
        };
        let Some((gain, shift)) = affine else {
            return Ok(ys);
        };
        let ys = ys.scale_and_shift(gain, shift)?;
        let ys = if relu { ys.map(|ys| ys.relu())? } else { ys };
        match pool {
            Some(window) => ys.max_pool(window),
            None => Ok(ys),
        }
    }

    /// The convolution for these images. A linear layer is one of images of a single pixel.
    fn conv(&self, xs: &Images) -> Result<Conv2d> {
        let (weight, dims, what) = (self.weight.raw(), xs.dims(), format!("layer {:?}", self.name));
        let VmfConfig { padding, stride, dilation, groups, .. } = self.config;
        let (out_channels, in_channels) = (weight.dim(0)?, weight.dim(1)? * groups);
        let (batch, input, kernel) = match (&*dims, weight.dims()) {
            (&[n, c], [_, _]) if c == in_channels => (n, [1, 1], [1, 1]),
            (&[n, c, h, w], &[_, _, kh, kw]) if c == in_channels => (n, [h, w], [kh, kw]),
            _ => {
                let hint = match *dims {
                    [c, _, _] if c == in_channels => "; a single image needs `unsqueeze(0)`",
                    _ => "",
                };
                let reason =
                    format!("expected images (N, {in_channels}, H, W), got {dims:?}{hint}");
                return Err(Error::shape(what, reason).into());
            }
        };
        check_shape(xs.tensor().dtype() == weight.dtype(), what, || {
            let (ours, theirs) = (weight.dtype(), xs.tensor().dtype());
            format!(
                "its weights are {ours:?}, its input is {theirs:?}: convert one of them with `to_dtype`"
            )
        })?;
        let shape = ConvShape {
            batch,
            in_channels,
            out_channels,
            input,
            kernel,
            stride,
            padding,
            dilation,
            groups,
        };
        Ok(Conv2d::new(shape).map_err(Error::from)?)
    }
}
