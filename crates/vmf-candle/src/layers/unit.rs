//! The variational unit as a layer: it owns weight, normalization, sigma and noise stream. Linear
//! and convolutional layers are this unit with inputs of different shapes.
//!
//! ```text
//! y = pool(act(gain * (normalize(w~ * x) + sigma_eff * z) + shift + skip)),
//! w~ = w / |w|,   z ~ N(0, 1)
//! ```

use super::config::{Activation, Norm, VmfConfig};
use super::norm::{Batch, NormStats, norm_builder};
use super::weight::Weight;
use crate::error::{Error, check_shape};
use crate::ops::{self, Images, Inputs};
use crate::pass::Pass;
use crate::posterior::{LastPass, LayerSpec, Posterior, Sigma};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vmf_kernels::conv::{Conv2d, ConvShape};
use vmf_kernels::unit as kernel;

/// The units of one layer.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) norm: NormStats,
    pub(super) sigma: Sigma,
    pub(super) stream: u32,
    pub(super) config: VmfConfig,
    /// Whether the statistics of the mean pass lag behind training, in any layer of the model.
    pub(super) lag: Arc<AtomicBool>,
    /// What the last pass changed, in all layers of the model.
    pub(super) last_pass: LastPass,
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
        let norm = match config.norm {
            Norm::Batch => NormStats::new(shape[0], config.momentum, config.affine, &norm_vb)?,
            other => NormStats::without_running(shape[0], other, config.affine, &norm_vb)?,
        };
        let name = vb.prefix();
        let stream = posterior.register(LayerSpec {
            name: name.clone(),
            dim: shape[1..].iter().product(),
            units: shape[0],
            sigma: sigma.clone(),
            sphere_weight: weight.sphere(),
        })?;
        let (lag, last_pass) = (posterior.lag(), posterior.last_pass().clone());
        Ok(Self { name, weight, norm, sigma, stream, config, lag, last_pass })
    }

    /// [`forward`](Self::forward) without its checks.
    pub(super) fn compute(
        &self,
        xs: &Images,
        skip: Option<&Images>,
        pool: Option<usize>,
        pass: &Pass,
    ) -> Result<Images> {
        let conv = self.conv(xs)?;
        if self.config.norm != Norm::Batch {
            return self.forward_rows(conv.shape(), xs, skip, pool, pass);
        }
        if let Some((samples, weight)) = pass.measurement() {
            self.measure(conv, xs, skip, samples, weight)?;
        }
        let relu = self.config.activation == Activation::Relu;
        let mut unit = kernel::Unit::new(conv).eps(self.config.eps).relu(relu);
        unit = unit.across(pass.across());
        if let Some(window) = pool {
            unit = unit.max_pool(window).map_err(Error::from)?;
        }
        let ConvShape { batch, out_channels, .. } = *conv.shape();
        let [height, width] = conv.shape().output();
        let noise = pass.noise(self.stream, &[batch, out_channels, height, width])?;
        let op = ops::Unit { kernel: unit, noise };

        #[cfg(feature = "cuda")]
        if let Some(ys) = self.train_on_cuda(&op, xs, skip, pass)? {
            return Ok(ys);
        }
        let (w, sigma, source) = (self.weight.effective()?, self.sigma.sigma()?, pass.statistics());
        let inputs = Inputs { xs, w: &w, sigma: &sigma, affine: self.norm.affine(), skip };
        if pass.is_expected() {
            return op.forward_expected(&self.deviation()?, &self.norm.running(), inputs);
        }
        match self.norm.running_for(source) {
            Some(statistics) => op.forward_eval(&statistics, inputs),
            None => {
                let (ys, batch) = op.forward_train(inputs)?;
                let elements = pass.elements_of_batch(unit.norm().shape.elements_per_channel());
                let are_finite = self.check_statistics(&batch, xs, &w)?;
                let batch = Batch { statistics: batch, count: elements, are_finite };
                self.norm.update(source, &batch, &self.last_pass)?;
                Ok(ys)
            }
        }
    }

    /// The output in training by the CUDA kernels, which also move the running statistics; `None` if
    /// they cannot compute it.
    #[cfg(feature = "cuda")]
    fn train_on_cuda(
        &self,
        op: &ops::Unit,
        xs: &Images,
        skip: Option<&Images>,
        pass: &Pass,
    ) -> Result<Option<Images>> {
        let is_batch = matches!(pass.statistics(), crate::pass::StatisticsSource::Batch);
        if skip.is_some() || self.norm.affine().is_some() || pass.is_expected() || !is_batch {
            return Ok(None);
        }
        let (running, momentum) = self.norm.following(&self.last_pass)?;
        let (w, rho) = (self.weight.effective()?, self.sigma.rho());
        let parameterization = self.sigma.config().parameterization;
        let training = ops::Training { w: &w, rho: &rho, parameterization, running, momentum };
        let ys = op.train_on_cuda(xs, &training)?;
        if ys.is_some() {
            self.sigma.mark_used();
        }
        Ok(ys)
    }

    /// The standard deviation in front of the activation, one value per channel: what the unit
    /// inherits, and its own noise,
    /// ```text
    /// s = sqrt(inherited_var + (gain sigma)^2)
    /// ```
    fn deviation(&self) -> Result<Tensor> {
        let inherited = self.norm.inherited_var();
        let sigma = self.sigma_per_channel()?.to_dtype(inherited.dtype())?;
        let own = match self.norm.affine() {
            Some((gain, _)) => (sigma * gain.to_dtype(inherited.dtype())?)?,
            None => sigma,
        };
        (inherited + own.sqr()?)?.sqrt()
    }

    /// sigma_eff, one value per channel.
    pub(super) fn sigma_per_channel(&self) -> Result<Tensor> {
        let (groups, units) = (self.sigma.config().groups, self.weight.raw().dim(0)?);
        let sigma = self.sigma.sigma()?.reshape((groups, 1))?;
        sigma.broadcast_as((groups, units / groups))?.flatten_all()
    }

    /// Records how much the value in front of this unit's noise varies across the samples that are
    /// folded into the batch.
    fn measure(
        &self,
        conv: Conv2d,
        xs: &Images,
        skip: Option<&Images>,
        samples: usize,
        weight: f64,
    ) -> Result<()> {
        let kernel = kernel::Unit::new(conv).eps(self.config.eps).relu(false);
        let (w, sigma) = (self.weight.effective()?.detach(), self.sigma.sigma()?.detach());
        let op = ops::Unit { kernel, noise: None };
        let inputs = Inputs { xs, w: &w, sigma: &sigma, affine: self.norm.affine(), skip };
        let ys = op.forward_eval(&self.norm.running(), inputs)?;
        self.record_inherited(&ys.variance_across(samples)?, weight, xs)
    }

    /// The convolution for these images. A linear layer is one of images of a single pixel.
    pub(super) fn conv(&self, xs: &Images) -> Result<Conv2d> {
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
        check_shape(batch > 0, &what, || "the batch is empty: it has no examples".into())?;
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
