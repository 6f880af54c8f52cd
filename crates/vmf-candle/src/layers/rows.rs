//! The variational unit on layer, RMS and group normalization, and without one.
//!
//! ```text
//! y = act(gain * (norm(u) + sigma_eff * z) + shift + skip),      u = w~ * x
//! y = act(gain * (u + sigma_eff * rms(u) * z) + skip)            without a normalization
//! ```
//! These normalizations take their statistics from the example itself, so that all passes compute
//! the same but for the noise. In the *expected* pass u is the mean over draws of the weights in
//! front of the unit. Under noise the statistics would contain the variance that u inherits as
//! well: the mean of the normalized value is smaller by `sqrt(1 - h)`, where h is the share of that
//! variance, which [`reestimate`](crate::predict::reestimate) measures.

use super::config::{Activation, Norm};
use super::unit::Unit;
use crate::error::Error;
use crate::ops::{
    self, Given, Images, Rows, expected_activation, expected_relu, linear_norm, norm_rows,
};
use crate::pass::Pass;
use candle_core::{D, Result, Tensor};
use vmf_kernels::conv::ConvShape;
use vmf_kernels::row_norm;

/// Points of the quadrature over a smooth activation.
const POINTS: usize = 8;

impl Unit {
    /// [`forward`](Self::forward) for every normalization but that over the batch.
    pub(super) fn forward_rows(
        &self,
        conv: &ConvShape,
        xs: &Images,
        skip: Option<&Images>,
        pool: Option<usize>,
        pass: &Pass,
    ) -> Result<Images> {
        let [height, width] = conv.output();
        if let Some((samples, weight)) = pass.measurement() {
            let bare = Given { gain: None, shift: None, noise: None };
            let normalized =
                self.in_place(&self.normalized(conv, &xs.map(|xs| Ok(xs.detach()))?, bare)?)?;
            let var = Images::nchw(normalized.detach()).variance_across(samples)?;
            self.record_inherited(&var, weight, xs)?;
        }
        if pass.is_expected() {
            return self.expected_rows(conv, xs, skip, pool);
        }
        let sigma = self.sigma.sigma()?;
        let noise = pass.noise(self.stream, &[conv.batch, conv.out_channels, height, width])?;
        let (gain, shift) = self.gain_and_shift();
        let given = Given { gain, shift, noise: noise.map(|noise| (noise, &sigma)) };
        let ys = Images::nchw(self.in_place(&self.normalized(conv, xs, given)?)?);
        let ys = skip.map_or(Ok(ys.clone()), |skip| ys.add(skip))?;
        let ys = ys.map(|ys| self.config.activation.apply(ys))?;
        pool.map_or(Ok(ys.clone()), |window| ys.max_pool(window))
    }

    /// Gain and shift, as far as the normalization has them.
    fn gain_and_shift(&self) -> (Option<&Tensor>, Option<&Tensor>) {
        let affine = self.norm.affine();
        let has_shift = !matches!(self.config.norm, Norm::Rms | Norm::None);
        (affine.map(|(gain, _)| gain), affine.map(|(_, shift)| shift).filter(|_| has_shift))
    }

    /// u with normalization, noise, gain and shift. Where rows are the units of a position the
    /// units are along the last dimension: (N, H, W, C).
    fn normalized(&self, conv: &ConvShape, xs: &Images, given: Given) -> Result<Tensor> {
        let (w, eps, norm) = (self.weight.effective()?, self.config.eps, self.config.norm);
        let rows = |u: &Tensor| match norm {
            Norm::Group(groups) => Rows::grouped(u, groups, eps),
            Norm::Rms => Rows::last_dim("RMS normalization", u, row_norm::Norm::Rms, eps),
            Norm::None => Rows::last_dim("a variational unit", u, row_norm::Norm::None, eps),
            Norm::Layer | Norm::Batch => {
                Rows::last_dim("layer normalization", u, row_norm::Norm::Layer, eps)
            }
        };
        let xs = xs.to_nchw()?;
        if w.rank() == 2 {
            return linear_norm(&xs, &w, rows, given);
        }
        let ConvShape { padding, stride, dilation, groups, .. } = *conv;
        let mut u = ops::conv2d(&xs, &w, padding, stride, dilation, groups)?;
        if !matches!(norm, Norm::Group(_)) {
            u = u.permute((0, 2, 3, 1))?.contiguous()?;
        }
        norm_rows(&u, &rows(&u)?, given)
    }

    /// A result of [`normalized`](Self::normalized) as (N, C) or (N, C, H, W).
    fn in_place(&self, ys: &Tensor) -> Result<Tensor> {
        match (ys.rank(), self.config.norm) {
            (4, Norm::Layer | Norm::Rms | Norm::None) => ys.permute((0, 3, 1, 2))?.contiguous(),
            _ => Ok(ys.clone()),
        }
    }

    /// The expected pass.
    fn expected_rows(
        &self,
        conv: &ConvShape,
        xs: &Images,
        skip: Option<&Images>,
        pool: Option<usize>,
    ) -> Result<Images> {
        let activation = self.config.activation;
        let bare = Given { gain: None, shift: None, noise: None };
        let normalized = self.normalized(conv, xs, bare)?;
        let m = Images::nchw(self.in_place(&normalized)?);
        let (dtype, inherited) = (normalized.dtype(), self.norm.inherited_var());
        let inherited = inherited.to_dtype(dtype)?;
        let total = inherited.mean_all()?;
        // The variance in front of the gain: what is inherited, and the unit's own.
        let own = self.sigma_per_channel()?.to_dtype(dtype)?.sqr()?;
        let (m, var) = match self.config.norm {
            Norm::None => {
                let square = normalized.sqr()?.mean_keepdim(D::Minus1)?.broadcast_add(&total)?;
                let var = square.broadcast_mul(&own)?.broadcast_add(&inherited)?;
                (m, self.in_place(&var)?)
            }
            _ => {
                let shrink = total.affine(-1.0, 1.0)?.maximum(0.0)?.sqrt()?;
                let var = m.per_channel(&(inherited + own)?)?;
                (m.map(|m| m.broadcast_mul(&shrink))?, var)
            }
        };
        let (gain, shift) = self.gain_and_shift();
        let mut deviation = var.sqrt()?;
        let mut ys = m;
        if let Some(gain) = gain {
            let gain = ys.per_channel(gain)?;
            ys = ys.map(|ys| ys.broadcast_mul(&gain))?;
            deviation = deviation.broadcast_mul(&gain.abs()?)?;
        }
        if let Some(shift) = shift {
            let shift = ys.per_channel(shift)?;
            ys = ys.map(|ys| ys.broadcast_add(&shift))?;
        }
        let unknown = match (skip.is_some() && activation != Activation::Identity, pool) {
            (true, _) => Some("how uncertain the sum with a skip connection is"),
            (_, Some(_)) => Some("the expected maximum of a window"),
            _ => None,
        };
        if let Some(unknown) = unknown {
            let what = format!("layer {:?} in the expected pass", self.name);
            let reason = format!(
                "a unit without batch normalization does not know {unknown}: predict with `Samples::monte_carlo`"
            );
            Err(Error::shape(what, reason))?
        }
        let ys = skip.map_or(Ok(ys.clone()), |skip| ys.add(skip))?;
        ys.map(|m| activation.expected(m, &deviation))
    }
}

impl Activation {
    /// The activation of every element.
    fn apply(self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Identity => Ok(xs.clone()),
            Activation::Relu => xs.relu(),
            Activation::Gelu => ops::gelu(xs),
            Activation::Silu => ops::silu(xs),
        }
    }

    /// Its expectation over Gaussians of mean `m` and deviation `s`, which broadcasts.
    fn expected(self, m: &Tensor, s: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Identity => Ok(m.clone()),
            Activation::Relu => expected_relu(m, s),
            smooth => expected_activation(m, s, POINTS, |xs| smooth.apply(xs)),
        }
    }
}
