//! The variational unit as an operation of the graph.
//!
//! ```text
//! u = x * w                                                   a convolution or matrix product
//! y = pool(act(gain * ((u - mean) / sqrt(var + eps) + sigma z) + shift + skip))
//! ```
//!
//! In f32 on the CPU it is one node ([`fused_unit`](super::fused_unit)), computed by one kernel in
//! HWNC. Candle's own convolution is some ten times slower there, and each further node would cost
//! two passes over its gradient. Elsewhere u is Candle's product, which has its own gradients, the
//! node of [`bn_noise`] follows, and the rest are Candle's operations.

use super::bn_noise::{Statistics, bn_noise, bn_noise_eval, check_batch};
use super::conv2d::candle_conv2d;
use super::fused_unit::{self, Mode};
use super::layout::Images;
use candle_core::{DType, Result, Tensor};
use std::sync::Arc;
use vmf_kernels::bn_noise as norm;
use vmf_kernels::noise::Noise;
use vmf_kernels::unit::{self as kernel, Saved};

/// A variational unit, apart from its tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// Convolution, normalization, activation and pooling.
    pub(crate) kernel: kernel::Unit,
    /// The noise, or none.
    pub(crate) noise: Option<Noise>,
}

/// The tensors that a unit computes with, besides its statistics.
///
/// # Shapes
/// `w` (M, C / groups, k, k), or (M, C) for a linear layer; `sigma` one value per group of channels;
/// gain and shift (M); `skip` as the output, of a unit without pooling.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) xs: &'a Images,
    pub(crate) w: &'a Tensor,
    pub(crate) sigma: &'a Tensor,
    /// Gain and shift.
    pub(crate) affine: Option<&'a (Tensor, Tensor)>,
    /// A skip connection, added before the activation.
    pub(crate) skip: Option<&'a Images>,
}

impl Unit {
    /// Normalizes with the statistics of the batch, which it also returns.
    pub(crate) fn forward_train(&self, inputs: Inputs) -> Result<(Images, Statistics)> {
        if !is_fused(inputs.xs) {
            let u = self.product(inputs.xs, inputs.w)?;
            let (ys, batch) = bn_noise(&u, inputs.sigma, &self.norm(&inputs), self.noise)?;
            return Ok((self.finish(ys, &inputs)?, batch));
        }
        check_batch(self.kernel.norm())?;
        let saved = Arc::default();
        let ys = fused_unit::apply(self, &inputs, inputs.sigma, Mode::Train(Arc::clone(&saved)))?;
        match saved.get() {
            Some(Saved { statistics, .. }) => {
                Ok((ys, Statistics::from_kernel(statistics, inputs.w)?))
            }
            None => candle_core::bail!("the unit's forward pass saved no statistics"),
        }
    }

    /// Normalizes with given statistics.
    pub(crate) fn forward_eval(&self, statistics: &Statistics, inputs: Inputs) -> Result<Images> {
        if !is_fused(inputs.xs) {
            let (u, norm) = (self.product(inputs.xs, inputs.w)?, self.norm(&inputs));
            let ys = bn_noise_eval(&u, inputs.sigma, statistics, &norm, self.noise)?;
            return self.finish(ys, &inputs);
        }
        fused_unit::apply(self, &inputs, inputs.sigma, Mode::Eval(statistics.to_kernel()?))
    }

    /// Normalizes with given statistics and returns the expected activation, where `deviation` is
    /// the standard deviation in front of the activation, one value per channel. There is no noise,
    /// and sigma is not used.
    pub(crate) fn forward_expected(
        &self,
        deviation: &Tensor,
        statistics: &Statistics,
        inputs: Inputs,
    ) -> Result<Images> {
        #[cfg(feature = "cuda")]
        if let Some(ys) = self.expected_on_cuda(deviation, statistics, &inputs)? {
            return Ok(ys);
        }
        let relu = self.kernel.norm().relu;
        if !is_fused(inputs.xs) || (self.kernel.pool().is_some() && !relu) {
            return self.expected_reference(deviation, statistics, inputs);
        }
        fused_unit::apply(self, &inputs, deviation, Mode::Expected(statistics.clone()))
    }

    /// [`forward_expected`](Self::forward_expected) in two steps, the second from Candle's own
    /// operations, which Candle differentiates.
    pub(super) fn expected_reference(
        &self,
        deviation: &Tensor,
        statistics: &Statistics,
        inputs: Inputs,
    ) -> Result<Images> {
        let relu = self.kernel.norm().relu;
        let kernel = kernel::Unit::new(*self.kernel.conv()).eps(self.kernel.norm().eps).relu(false);
        let mean = Self { kernel, noise: None };
        let sigma = deviation.zeros_like()?;
        let m = mean.forward_eval(statistics, Inputs { sigma: &sigma, ..inputs })?;
        match self.kernel.pool() {
            Some(pool) => m.expected_max_pool(deviation, pool.shape().stride, relu),
            None if relu => m.expected_relu(deviation),
            None => Ok(m),
        }
    }

    /// u, by Candle.
    pub(super) fn product(&self, xs: &Images, w: &Tensor) -> Result<Tensor> {
        let xs = xs.to_nchw()?;
        match w.rank() {
            2 => xs.matmul(&w.t()?),
            _ => candle_conv2d(&xs, w, self.kernel.conv().shape()),
        }
    }

    /// What follows Candle's product, which is NCHW. Gain, shift and skip connection come before
    /// the activation, so where they exist the activation is not part of it.
    pub(super) fn norm(&self, inputs: &Inputs) -> norm::Config {
        let norm::Config { shape, relu, .. } = *self.kernel.norm();
        let shape = norm::Shape::nchw(shape.batch, shape.channels, shape.positions);
        let relu = relu && inputs.affine.is_none() && inputs.skip.is_none();
        norm::Config { shape, relu, ..*self.kernel.norm() }
    }

    /// What follows the normalization.
    fn finish(&self, ys: Tensor, inputs: &Inputs) -> Result<Images> {
        let mut ys = Images::nchw(ys);
        if let Some((gain, shift)) = inputs.affine {
            ys = ys.scale_and_shift(gain, shift)?;
        }
        if let Some(skip) = inputs.skip {
            ys = ys.add(skip)?;
        }
        if self.kernel.norm().relu && !self.norm(inputs).relu {
            ys = ys.map(|ys| ys.relu())?;
        }
        match self.kernel.pool() {
            Some(pool) => ys.max_pool(pool.shape().window[0]),
            None => Ok(ys),
        }
    }
}

/// Whether the unit is one node for these images.
pub(super) fn is_fused(xs: &Images) -> bool {
    xs.tensor().device().is_cpu() && xs.tensor().dtype() == DType::F32
}
