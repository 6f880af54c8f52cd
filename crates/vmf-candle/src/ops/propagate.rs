//! The variational unit for means and variances: the `full` grade of the expected pass.
//!
//! ```text
//! m = (x_mean * w - mean) rstd             v = (x_variance * w^2) rstd^2 + sigma^2
//! y = mean and variance of pool(relu(m + sqrt(v) z))
//! ```
//!
//! In f32 on the CPU it is one node. An operation of Candle has one output, so mean and variance
//! are the two halves of one tensor, from node to node. Elsewhere, and for gradients, it is made of
//! Candle's operations.

use super::bn_noise::Statistics;
use super::conv2d::conv2d;
use super::fused_unit::output_shape;
use super::layout::Images;
use super::unit::{Inputs, Unit, is_fused};
use crate::error::Error;
use crate::moments::Moments;
use crate::storage::{contiguous_slice, unwritten};
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, Var};
use vmf_kernels::conv::ConvShape;
use vmf_kernels::expected as kernel;
use vmf_kernels::unit as unit_kernel;

/// Images with a mean and a variance.
#[derive(Clone, Debug)]
pub(crate) struct UncertainImages {
    mean: Images,
    /// `None` if they are certain.
    variance: Option<Images>,
    /// Both, (2, H, W, N, C) or (2, N, C), if a node has made them.
    halves: Option<Tensor>,
    /// Whether normalizations use the statistics of this batch.
    is_training: bool,
}

impl UncertainImages {
    /// Of moments of (N, C, H, W) or (N, C).
    pub(crate) fn new(moments: &Moments) -> Self {
        Self {
            mean: Images::nchw(moments.mean().clone()),
            variance: moments.known_variance().cloned().map(Images::nchw),
            halves: None,
            is_training: moments.is_training(),
        }
    }

    pub(crate) fn is_training(&self) -> bool {
        self.is_training
    }

    /// Of the two halves of a node's output.
    fn of_halves(halves: Tensor) -> Result<Self> {
        let half = |i: usize| Ok::<_, candle_core::Error>(Images::hwnc(halves.get(i)?));
        let (mean, variance) = (half(0)?, Some(half(1)?));
        Ok(Self { mean, variance, halves: Some(halves), is_training: false })
    }

    pub(crate) fn moments(&self) -> Result<Moments> {
        let variance = self.variance.as_ref().map(Images::to_nchw).transpose()?;
        Ok(Moments::from_parts(self.mean.to_nchw()?, variance, self.is_training))
    }

    pub(crate) fn mean(&self) -> &Images {
        &self.mean
    }

    /// The input of a node: the mean in HWNC, and if there is a variance both as halves.
    fn to_node(&self) -> Result<Tensor> {
        match (&self.halves, &self.variance) {
            (Some(halves), _) => Ok(halves.clone()),
            (None, None) => self.mean.to_hwnc()?.contiguous(),
            (None, Some(variance)) => {
                Tensor::stack(&[self.mean.to_hwnc()?, variance.to_hwnc()?], 0)
            }
        }
    }

    /// Applies what [`Moments`] do to the values as NCHW.
    pub(crate) fn map(&self, f: impl FnOnce(Moments) -> Result<Moments>) -> Result<Self> {
        Ok(Self::new(&f(self.moments()?)?))
    }

    /// `gain * x + shift`, with one gain and one shift per channel.
    pub(crate) fn scale_and_shift(&self, gain: &Tensor, shift: &Tensor) -> Result<Self> {
        let (gain, shift) = (self.mean.channel_shape(gain)?, self.mean.channel_shape(shift)?);
        self.map(|moments| moments.scale_and_shift(&gain, &shift))
    }
}

impl Unit {
    /// Mean and variance of the unit's output, where `own` is the standard deviation of its noise,
    /// one value per channel.
    pub(crate) fn propagate(
        &self,
        own: &Tensor,
        statistics: &Statistics,
        xs: &UncertainImages,
        w: &Tensor,
    ) -> Result<UncertainImages> {
        if !is_fused(&xs.mean) {
            return self.propagate_reference(own, statistics, xs, w);
        }
        let node = PropagatedUnit {
            unit: *self,
            statistics: statistics.clone(),
            certain: xs.variance.is_none(),
        };
        let own = own.to_dtype(DType::F32)?.contiguous()?;
        let halves = xs.to_node()?.apply_op3(&w.contiguous()?, &own, node)?;
        UncertainImages::of_halves(halves)
    }

    /// [`propagate`](Self::propagate) with the statistics of the batch, which it also returns.
    ///
    /// Over examples, positions and draws of the weights, with v_u = x_variance * w^2,
    /// ```text
    /// var = Var(x_mean * w) + Mean(v_u)
    /// ```
    pub(crate) fn propagate_batch(
        &self,
        own: &Tensor,
        xs: &UncertainImages,
        w: &Tensor,
    ) -> Result<(UncertainImages, Statistics)> {
        let ConvShape { padding, stride, dilation, groups, .. } = *self.kernel.conv().shape();
        let product = |images: &Images, w: &Tensor| match w.rank() {
            2 => images.to_tensor()?.matmul(&w.t()?),
            _ => conv2d(&images.to_tensor()?, w, padding, stride, dilation, groups),
        };
        let over = |t: &Tensor| match t.rank() {
            2 => t.mean_keepdim(0),
            _ => t.mean_keepdim((0, 2, 3)),
        };
        let u = product(&xs.mean, w)?;
        let mean = over(&u)?;
        let centred = u.broadcast_sub(&mean)?;
        let mut var = over(&centred.sqr()?)?;
        let mut u_var = None;
        if let Some(variance) = &xs.variance {
            // Rounding in the convolution can leave less than nothing of a small variance.
            let v = product(variance, &w.sqr()?)?.relu()?;
            var = (var + over(&v)?)?;
            u_var = Some(v);
        }
        let scale = (&var + self.kernel.norm().eps)?.recip()?;
        let m = centred.broadcast_mul(&scale.sqrt()?)?;
        let own = Images::nchw(m.clone()).channel_shape(&own.sqr()?)?.to_dtype(m.dtype())?;
        let v = match u_var {
            None => own.broadcast_as(m.shape())?,
            Some(v) => v.broadcast_mul(&scale)?.broadcast_add(&own)?,
        };
        let statistics =
            Statistics { mean: mean.detach().flatten_all()?, var: var.detach().flatten_all()? };
        let moments = Moments::from_parts(m, Some(v), true);
        Ok((UncertainImages::new(&moments), statistics))
    }

    /// The same from Candle's own operations, which Candle differentiates.
    fn propagate_reference(
        &self,
        own: &Tensor,
        statistics: &Statistics,
        xs: &UncertainImages,
        w: &Tensor,
    ) -> Result<UncertainImages> {
        let (norm, pool) = (*self.kernel.norm(), self.kernel.pool());
        let plain = unit_kernel::Unit::new(*self.kernel.conv()).eps(norm.eps).relu(false);
        let plain = Self { kernel: plain, noise: None };
        let none = own.zeros_like()?;
        let inputs = Inputs { xs: &xs.mean, w, sigma: &none, affine: None, skip: None };
        let mean = plain.forward_eval(statistics, inputs)?.to_nchw()?;
        let images = Images::nchw(mean.clone());
        let own = images.channel_shape(&own.sqr()?)?;
        let variance = match &xs.variance {
            None => own.broadcast_as(mean.shape())?,
            Some(variance) => {
                let scale = images.channel_shape(&(&statistics.var + norm.eps)?.recip()?)?;
                // Rounding in the convolution can leave less than nothing of a small variance.
                let product = self.product(variance, &w.sqr()?)?.relu()?;
                product.broadcast_mul(&scale)?.broadcast_add(&own)?
            }
        };
        let mut moments = Moments::new(mean, variance)?;
        if let Some(pool) = pool {
            moments = moments.max_pool(pool.shape().stride)?;
        }
        if norm.relu {
            moments = moments.relu()?;
        }
        Ok(UncertainImages::new(&moments))
    }
}

/// The node over (x, w, own). x is a mean, or mean and variance as halves.
struct PropagatedUnit {
    unit: Unit,
    statistics: Statistics,
    certain: bool,
}

impl CustomOp3 for PropagatedUnit {
    fn name(&self) -> &'static str {
        "propagated-unit"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        own: &CpuStorage,
        own_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?);
        let own = contiguous_slice(own, own_layout)?;
        let unit = &self.unit.kernel;
        // SAFETY: the pass writes all of y; after an error nobody reads it.
        let mut y = unsafe { unwritten(2 * unit.output_len()) };
        let x = if self.certain {
            kernel::Moments { mean: x, variance: None }
        } else {
            let (mean, variance) = x.split_at(x.len() / 2);
            kernel::Moments { mean, variance: Some(variance) }
        };
        let (mean, variance) = y.split_at_mut(unit.output_len());
        let moments = kernel::MomentsMut { mean, variance };
        unit.propagate(own, &self.statistics.to_kernel()?, x, w, moments).map_err(Error::from)?;
        let shape = output_shape(&self.unit, w_layout.dims().len());
        let halves: Vec<usize> = [2].into_iter().chain(shape.dims().iter().copied()).collect();
        Ok((CpuStorage::F32(y), halves.into()))
    }

    /// The gradients of the same function from Candle's operations. Whoever trains through this
    /// pass pays for it; a prediction does not.
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        own: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [x, w, own] = [x, w, own].map(|tensor| Var::from_tensor(&tensor.detach()));
        let (x, w, own) = (x?, w?, own?);
        let xs = match self.certain {
            true => {
                let mean = Images::hwnc(x.as_tensor().clone());
                UncertainImages { mean, variance: None, halves: None, is_training: false }
            }
            false => UncertainImages::of_halves(x.as_tensor().clone())?,
        };
        // A weight that is no variable, so that its gradient comes back and is not delivered.
        let weight = w.affine(1.0, 0.0)?;
        let y = self.unit.propagate_reference(&own, &self.statistics, &xs, &weight)?.to_node()?;
        let mut gradients = (y * dy)?.sum_all()?.backward()?;
        Ok((gradients.remove(&x), gradients.remove(&w), gradients.remove(&own)))
    }
}
