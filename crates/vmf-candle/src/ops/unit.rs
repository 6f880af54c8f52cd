//! The variational unit as an operation of the graph.
//!
//! ```text
//! u = x * w                                                   a convolution or matrix product
//! y = pool(act((u - mean) / sqrt(var + eps) + sigma z))
//! ```
//!
//! In f32 on the CPU it is one node over (x, w, sigma), computed by one kernel in HWNC. Candle's
//! own convolution is some ten times slower there, and each further node would cost two passes over
//! its gradient. Elsewhere u is Candle's product, which has its own gradients, and all that follows
//! is the node of [`bn_noise`].

use super::bn_noise::{Statistics, bn_noise, bn_noise_eval, check_batch};
use super::conv2d::{candle_conv2d, is_tracked};
use super::layout::Images;
use crate::error::Error;
use crate::storage::{contiguous_slice, cpu_slice, unwritten};
use crate::train::deliver;
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor, Var};
use std::sync::{Arc, OnceLock};
use vmf_kernels::bn_noise::{self as norm, NoiseTerm};
use vmf_kernels::noise::Noise;
use vmf_kernels::unit::{self as kernel, Gradients, Operands, Saved};

/// A variational unit, apart from its tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// Convolution, normalization, activation and pooling.
    pub(crate) kernel: kernel::Unit,
    /// The noise, or none.
    pub(crate) noise: Option<Noise>,
}

impl Unit {
    /// Normalizes with the statistics of the batch, which it also returns.
    ///
    /// # Shapes
    /// `w` (M, C / groups, k, k), or (M, C) for a linear layer; `sigma` one value per group of
    /// channels.
    pub(crate) fn forward_train(
        &self,
        xs: &Images,
        w: &Tensor,
        sigma: &Tensor,
    ) -> Result<(Images, Statistics)> {
        if !is_fused(xs) {
            let u = self.product(xs, w)?;
            let (ys, batch) = bn_noise(&u, sigma, &self.norm(), self.noise)?;
            return Ok((self.pooled(ys)?, batch));
        }
        check_batch(self.kernel.norm())?;
        let saved = Arc::default();
        let ys = self.fused(xs, w, sigma, Mode::Train(Arc::clone(&saved)))?;
        match saved.get() {
            Some(Saved { statistics, .. }) => Ok((ys, Statistics::from_kernel(statistics, w)?)),
            None => candle_core::bail!("the unit's forward pass saved no statistics"),
        }
    }

    /// Normalizes with given statistics.
    pub(crate) fn forward_eval(
        &self,
        statistics: &Statistics,
        xs: &Images,
        w: &Tensor,
        sigma: &Tensor,
    ) -> Result<Images> {
        if !is_fused(xs) {
            let u = self.product(xs, w)?;
            return self.pooled(bn_noise_eval(&u, sigma, statistics, &self.norm(), self.noise)?);
        }
        self.fused(xs, w, sigma, Mode::Eval(statistics.to_kernel()?))
    }

    /// Normalizes with given statistics and returns the expected activation, where `deviation` is
    /// the standard deviation in front of the activation, one value per channel. There is no noise.
    pub(crate) fn forward_expected(
        &self,
        deviation: &Tensor,
        statistics: &Statistics,
        xs: &Images,
        w: &Tensor,
    ) -> Result<Images> {
        #[cfg(feature = "cuda")]
        if let Some(ys) = self.expected_on_cuda(deviation, statistics, xs, w)? {
            return Ok(ys);
        }
        let relu = self.kernel.norm().relu;
        if !is_fused(xs) || (self.kernel.pool().is_some() && !relu) {
            return self.expected_reference(deviation, statistics, xs, w);
        }
        let xs = xs.to_hwnc()?.contiguous()?;
        let node = ExpectedUnit { unit: *self, statistics: statistics.clone() };
        let deviation = deviation.to_dtype(DType::F32)?.contiguous()?;
        Ok(Images::hwnc(xs.apply_op3(&w.contiguous()?, &deviation, node)?))
    }

    /// [`forward_expected`](Self::forward_expected) in two steps, the second from Candle's own
    /// operations, which Candle differentiates.
    fn expected_reference(
        &self,
        deviation: &Tensor,
        statistics: &Statistics,
        xs: &Images,
        w: &Tensor,
    ) -> Result<Images> {
        let relu = self.kernel.norm().relu;
        let kernel = kernel::Unit::new(*self.kernel.conv()).eps(self.kernel.norm().eps).relu(false);
        let mean = Self { kernel, noise: None };
        let m = mean.forward_eval(statistics, xs, w, &deviation.zeros_like()?)?;
        match self.kernel.pool() {
            Some(pool) => m.expected_max_pool(deviation, pool.shape().stride, relu),
            None if relu => m.expected_relu(deviation),
            None => Ok(m),
        }
    }

    fn fused(&self, xs: &Images, w: &Tensor, sigma: &Tensor, mode: Mode) -> Result<Images> {
        let xs = xs.to_hwnc()?;
        let node = FusedUnit { unit: *self, mode, needs_dx: is_tracked(&xs) };
        let sigma = sigma.to_dtype(DType::F32)?.contiguous()?;
        Ok(Images::hwnc(xs.contiguous()?.apply_op3(&w.contiguous()?, &sigma, node)?))
    }

    /// The shape of the fused output: HWNC, or a matrix if the weight is one.
    pub(super) fn output_shape(&self, w: &Layout) -> Shape {
        let (conv, [height, width]) = (self.kernel.conv().shape(), self.kernel.output());
        match w.dims().len() {
            2 => (conv.batch, conv.out_channels).into(),
            _ => (height, width, conv.batch, conv.out_channels).into(),
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

    /// What follows Candle's product, which is NCHW.
    pub(super) fn norm(&self) -> norm::Config {
        let norm::Config { shape, .. } = *self.kernel.norm();
        let shape = norm::Shape::nchw(shape.batch, shape.channels, shape.positions);
        norm::Config { shape, ..*self.kernel.norm() }
    }

    fn pooled(&self, ys: Tensor) -> Result<Images> {
        let ys = Images::nchw(ys);
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

enum Mode {
    /// Normalizes with the batch, and leaves here what the backward pass needs.
    Train(Arc<OnceLock<Saved>>),
    /// Normalizes with these statistics.
    Eval(norm::Statistics),
}

/// The node.
struct FusedUnit {
    unit: Unit,
    mode: Mode,
    /// Whether anybody needs the gradient with respect to x. The images that a network sees have
    /// none.
    needs_dx: bool,
}

impl FusedUnit {
    fn noise<'a>(&self, sigma: &'a [f32]) -> Option<NoiseTerm<'a, f32>> {
        self.unit.noise.map(|noise| NoiseTerm { noise, sigma })
    }
}

impl CustomOp3 for FusedUnit {
    fn name(&self) -> &'static str {
        "variational-unit"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        sigma: &CpuStorage,
        sigma_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?);
        let noise = self.noise(contiguous_slice(sigma, sigma_layout)?);
        let unit = &self.unit.kernel;
        // SAFETY: both passes write all of y; after an error nobody reads it.
        let mut y = unsafe { unwritten(unit.output_len()) };
        match &self.mode {
            Mode::Eval(statistics) => {
                unit.forward_eval(noise, statistics, x, w, &mut y).map_err(Error::from)?;
            }
            Mode::Train(saved) => {
                let mut fresh = Saved::default();
                unit.forward_train(noise, x, w, &mut y, &mut fresh).map_err(Error::from)?;
                // A graph evaluates a node once; a second evaluation would save the same.
                let _ = saved.set(fresh);
            }
        }
        Ok((CpuStorage::F32(y), self.unit.output_shape(w_layout)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        sigma: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let storages = [x, w, sigma, y, &dy].map(Tensor::storage_and_layout);
        let [xs, ws, sigmas, ys, dys] = [0, 1, 2, 3, 4].map(|i| cpu_slice::<f32>(&storages[i]));
        let (xs, ws, sigmas, ys, dys) = (xs?, ws?, sigmas?, ys?, dys?);
        // SAFETY: the backward pass writes every gradient that it is given; after an error nobody
        // reads them.
        let (mut dw, mut dx) = unsafe {
            let dx = self.needs_dx.then(|| unwritten(xs.len()));
            (unwritten(ws.len()), dx)
        };
        let gradients = Gradients { dx: dx.as_deref_mut(), dw: &mut dw };
        let (unit, noise) = (&self.unit.kernel, self.noise(sigmas));
        let dsigma = match &self.mode {
            Mode::Eval(statistics) => unit.backward_eval(noise, statistics, xs, ws, dys, gradients),
            Mode::Train(saved) => {
                let Some(saved) = saved.get() else {
                    candle_core::bail!("the unit's backward pass came before its forward pass")
                };
                let operands = Operands { x: xs, w: ws, y: ys };
                unit.backward_train(noise, operands, saved, dys, gradients)
            }
        };
        let mut dsigma = dsigma.map_err(Error::from)?;
        // Without noise the kernel returns no dsigma.
        dsigma.resize(sigmas.len(), 0.0);
        Ok((
            dx.map(|dx| Tensor::from_vec(dx, x.shape(), &Device::Cpu)).transpose()?,
            deliver(w, Tensor::from_vec(dw, w.shape(), &Device::Cpu)?),
            Some(Tensor::from_vec(dsigma, sigma.shape(), &Device::Cpu)?),
        ))
    }
}

/// The expected pass as a node over (x, w, deviation).
struct ExpectedUnit {
    unit: Unit,
    statistics: Statistics,
}

impl CustomOp3 for ExpectedUnit {
    fn name(&self) -> &'static str {
        "expected-unit"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        deviation: &CpuStorage,
        deviation_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?);
        let deviation = contiguous_slice(deviation, deviation_layout)?;
        let unit = &self.unit.kernel;
        // SAFETY: the pass writes all of y; after an error nobody reads it.
        let mut y = unsafe { unwritten(unit.output_len()) };
        unit.forward_expected(deviation, &self.statistics.to_kernel()?, x, w, &mut y)
            .map_err(Error::from)?;
        Ok((CpuStorage::F32(y), self.unit.output_shape(w_layout)))
    }

    /// The gradients of the same function from Candle's operations. Whoever trains through the
    /// expected pass pays for it; a prediction does not.
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        deviation: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [x, w, deviation] = [x, w, deviation].map(|tensor| Var::from_tensor(&tensor.detach()));
        let (x, w, deviation) = (x?, w?, deviation?);
        let xs = Images::hwnc(x.as_tensor().clone());
        // A weight that is no variable, so that its gradient comes back and is not delivered.
        let weight = w.affine(1.0, 0.0)?;
        let y = self.unit.expected_reference(&deviation, &self.statistics, &xs, &weight)?;
        let y = y.to_hwnc()?;
        let mut gradients = (y * dy)?.sum_all()?.backward()?;
        Ok((gradients.remove(&x), gradients.remove(&w), gradients.remove(&deviation)))
    }
}
