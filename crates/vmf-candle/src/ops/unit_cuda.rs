//! The variational unit in training as one node on a CUDA device: convolution, normalization, noise,
//! ReLU and pooling.
//!
//! Candle adds every gradient that an operation returns to a tensor of zeros. One node has one such
//! sum where three nodes have three, each a launch and three passes over memory. The node takes rho
//! and not sigma, and delivers its gradient together with that of the KL, so that the exponential
//! and its gradient cost no launches of their own.

use super::conv2d::is_tracked;
use super::conv2d_cuda::{Direction, convolve};
use super::layout::Images;
use super::pool_cuda;
use super::unit::Unit;
use crate::cuda::{Ready, by_storage, cuda, failed, has_kernels, tensor, view, with};
use crate::train::{deliver, take_delivered};
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};
use std::sync::Arc;
use vmf_core::Parameterization;
use vmf_kernels::bn_noise::cuda::{
    self as kernel, CudaElement, NoiseTerm, RunningEstimates, Statistics,
};
use vmf_kernels::bn_noise::launches::ScaleKind;
use vmf_kernels::bn_noise::{Config, Shape as NormShape};
use vmf_kernels::noise::Noise;
use vmf_kernels::pool::{PoolShape, cuda as pool};

/// The tensors of a unit in training, besides its input.
pub(crate) struct Training<'a> {
    pub(crate) w: &'a Tensor,
    /// The free parameter of sigma, and what it is to sigma.
    pub(crate) rho: &'a Tensor,
    pub(crate) parameterization: Parameterization,
    /// Two sets of running mean and variance, which follow the batch.
    pub(crate) running: [[&'a Tensor; 2]; 2],
    /// The weight of the batch in them.
    pub(crate) momentum: f64,
}

/// What rho is to sigma.
pub(crate) fn scale_kind(parameterization: Parameterization) -> ScaleKind {
    match parameterization {
        Parameterization::Exp => ScaleKind::Exponential,
        Parameterization::Softplus => ScaleKind::Softplus,
    }
}

impl Unit {
    /// The unit's output in training, if the CUDA kernels can compute it: without gain, shift and
    /// skip connection, of a batch that no other process shares.
    pub(crate) fn train_on_cuda(&self, xs: &Images, with: &Training) -> Result<Option<Images>> {
        let config = *self.kernel.norm();
        let is_whole = config.across.is_alone() && self.noise.is_none_or(|noise| noise.first == 0);
        let others = [with.rho, with.running[0][0]];
        let fits = has_kernels(xs.tensor())
            && is_whole
            && others.iter().all(|other| other.device().is_cuda() && other.dtype() == DType::F32);
        if !fits {
            return Ok(None);
        }
        super::bn_noise::check_batch(&config)?;
        let ys = by_storage!(with.w.dtype(), train_in(self, xs, with))?;
        Ok(Some(Images::nchw(ys)))
    }
}

fn train_in<T: CudaElement + CudaDType>(
    unit: &Unit,
    xs: &Images,
    training: &Training,
) -> Result<Tensor> {
    let conv = *unit.kernel.conv().shape();
    let (xs, w) = (xs.to_nchw()?.contiguous()?, training.w.contiguous()?);
    let norm::Parts { config, pool } = norm::parts(unit);
    let u = convolve(&conv, Direction::Forward, &xs.detach(), &w.detach())?;
    let kind = scale_kind(training.parameterization);
    let running = training.running.map(|set| set.map(Tensor::storage_and_layout));
    let set = |index: usize| -> Result<Option<[_; 2]>> {
        let [(mean, mean_layout), (var, var_layout)] = &running[index];
        let mean = view::<f32>((cuda(mean)?, mean_layout))?;
        Ok(Some([mean, view::<f32>((cuda(var)?, var_layout))?]))
    };
    let following = RunningEstimates {
        sets: [set(0)?, set(1)?],
        weight: training.momentum,
        count: config.shape.elements_per_channel(),
    };
    let (statistics, y) = with::<f32, _>(training.rho, |sigma, device| {
        let noise = unit.noise.map(|noise| NoiseTerm { noise, sigma, kind });
        // SAFETY: the kernels write all of it.
        let mut y = unsafe { device.alloc::<T>(conv.output_len()) }?;
        let stream = device.cuda_stream();
        let statistics = with::<T, _>(&u, |u, _| {
            kernel::forward_train_following(&stream, &config, noise, Some(following), u, &mut y)
                .map_err(failed)
        })?;
        Ok((statistics, y))
    })?;
    let device = xs.device().as_cuda_device()?.clone();
    let (y, argmax) = match &pool {
        None => (y, None),
        Some(shape) => {
            // SAFETY: the kernel writes all of it.
            let mut pooled = unsafe { device.alloc::<T>(shape.output_len()) }?;
            let argmax = pool::max_forward(&device.cuda_stream(), shape, &y, &mut pooled);
            (pooled, Some(argmax.map_err(failed)?))
        }
    };
    let [height, width] = unit.kernel.output();
    let shape: Shape = match w.rank() {
        2 => (conv.batch, conv.out_channels).into(),
        _ => (conv.batch, conv.out_channels, height, width).into(),
    };
    let ready = Ready::new(CudaStorage::wrap_cuda_slice(y, device), shape);
    let node = CudaUnit {
        conv,
        config,
        noise: unit.noise,
        kind,
        u,
        statistics: Arc::new(statistics),
        pool: pool.zip(argmax),
        needs_dx: is_tracked(&xs),
        ready,
    };
    xs.apply_op3(&w, training.rho, node)
}

/// What follows the convolution.
mod norm {
    use super::{Config, NormShape, PoolShape, Unit};

    pub(super) struct Parts {
        pub(super) config: Config,
        pub(super) pool: Option<PoolShape>,
    }

    pub(super) fn parts(unit: &Unit) -> Parts {
        let config = *unit.kernel.norm();
        let shape = config.shape;
        let shape = NormShape::nchw(shape.batch, shape.channels, shape.positions);
        let pool = unit.kernel.pool().map(|pool| *pool.shape());
        Parts { config: Config { shape, ..config }, pool }
    }
}

/// The node over (x, w, rho), with what its backward pass needs.
struct CudaUnit {
    conv: vmf_kernels::conv::ConvShape,
    config: Config,
    noise: Option<Noise>,
    kind: ScaleKind,
    u: Tensor,
    statistics: Arc<Statistics>,
    pool: Option<(PoolShape, CudaSlice<u8>)>,
    needs_dx: bool,
    ready: Ready,
}

impl CudaUnit {
    /// du, and drho with what other terms of the objective have delivered for it.
    fn backward<T: CudaElement + CudaDType>(
        &self,
        rho: &Tensor,
        dy: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let base = take_delivered(rho);
        let base = base.as_ref().map(Tensor::storage_and_layout);
        let base = match &base {
            Some((storage, layout)) => Some(view::<f32>((cuda(storage)?, layout))?),
            None => None,
        };
        with::<f32, _>(rho, |sigma, device| {
            let noise = self.noise.map(|noise| NoiseTerm { noise, sigma, kind: self.kind });
            // SAFETY: the kernels write all of it.
            let mut du = unsafe { device.alloc::<T>(self.conv.output_len()) }?;
            let stream = device.cuda_stream();
            let drho = with::<T, _>(&self.u, |u, _| {
                with::<T, _>(dy, |dy, _| {
                    kernel::backward_train_onto(
                        &stream,
                        &self.config,
                        noise,
                        base.as_ref().filter(|_| noise.is_some()),
                        &self.statistics,
                        u,
                        dy,
                        &mut du,
                    )
                    .map_err(failed)
                })
            })?;
            let drho = match (drho, &base) {
                (Some(drho), _) => drho,
                (None, Some(base)) => stream.clone_dtod(base).map_err(|e| failed(e.into()))?,
                (None, None) => device.alloc_zeros::<f32>(sigma.len())?,
            };
            let [height, width] = self.conv.output();
            let dims = (self.conv.batch, self.conv.out_channels, height, width);
            Ok((tensor(du, dims, device), tensor(drho, rho.shape(), device)))
        })
    }
}

impl CustomOp3 for CudaUnit {
    fn name(&self) -> &'static str {
        "variational-unit"
    }

    fn cpu_fwd(
        &self,
        _x: &CpuStorage,
        _x_layout: &Layout,
        _w: &CpuStorage,
        _w_layout: &Layout,
        _rho: &CpuStorage,
        _rho_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("the unit has another kernel on the CPU")
    }

    fn cuda_fwd(
        &self,
        _x: &CudaStorage,
        _x_layout: &Layout,
        _w: &CudaStorage,
        _w_layout: &Layout,
        _rho: &CudaStorage,
        _rho_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.ready.take()
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        rho: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut dy = dy.contiguous()?;
        if let Some((shape, argmax)) = &self.pool {
            dy = pool_cuda::backward(shape, argmax, &dy)?;
        }
        fn typed<T: CudaElement + CudaDType>(
            unit: &CudaUnit,
            rho: &Tensor,
            dy: &Tensor,
        ) -> Result<(Tensor, Tensor)> {
            unit.backward::<T>(rho, dy)
        }
        let (du, drho) = by_storage!(dy.dtype(), typed(self, rho, &dy))?;
        let dw = convolve(&self.conv, Direction::WeightGradient, x, &du)?.reshape(w.shape())?;
        let dx = match self.needs_dx {
            true => {
                let dx = convolve(&self.conv, Direction::InputGradient, w, &du)?;
                Some(dx.reshape(x.shape())?)
            }
            false => None,
        };
        Ok((dx, deliver(w, dw), deliver(rho, drho)))
    }
}
