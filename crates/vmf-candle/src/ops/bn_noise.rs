//! Normalization, noise and ReLU as one node of the graph.
//!
//! ```text
//! y = act((u - mean) / sqrt(var + eps) + sigma_g * noise)
//! ```
//!
//! The noise is never stored: the backward pass generates it again from its key. The statistics of
//! the batch stay inside the op, since a Candle op has one output and no saved context.

use super::bn_noise_reference::{bn_noise_eval_reference, bn_noise_reference};
use super::{contiguous_slice, cpu_slice};
use crate::error::Error;
use crate::pass::LayerNoise;
use crate::sigma::stable_dtype;
use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use std::sync::{Arc, OnceLock};
use vmf_kernels::bn_noise::{self as kernel, NoiseTerm, Saved, Statistics};
use vmf_kernels::noise::Noise;
use vmf_kernels::{Element, Real};

/// What follows normalization and noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    Identity,
    /// `max(y, 0)`, in the same pass over memory.
    Relu,
}

/// What to compute, apart from the tensors.
#[derive(Clone, Copy, Debug)]
pub struct BnNoise {
    /// Added to the variance under the root.
    pub eps: f64,
    /// What follows.
    pub activation: Activation,
    /// The noise, or none.
    pub noise: Option<LayerNoise>,
}

/// Mean and biased variance of each channel of a batch.
#[derive(Clone, Debug)]
pub struct BatchStatistics {
    /// The mean, one value a channel.
    pub mean: Tensor,
    /// The variance divided by `count`, one value a channel.
    pub var: Tensor,
    /// How many elements each channel has: batch size times positions.
    pub count: usize,
}

/// Normalizes `u`, of shape (N, C) or (N, C, ...), by its own batch, and adds noise.
///
/// `sigma` holds G values, where G divides C; channel c uses value `c / (C / G)`. Differentiable in
/// `u` and `sigma`.
pub fn bn_noise(u: &Tensor, sigma: &Tensor, op: &BnNoise) -> Result<(Tensor, BatchStatistics)> {
    let view = View::new(u, sigma, op)?;
    check_count(view.count())?;
    if !is_fused(u) {
        return bn_noise_reference(u, sigma, op);
    }
    let saved = Arc::default();
    let fused = Fused { op: *op, view, saved: Arc::clone(&saved), given: None };
    let y = u.contiguous()?.apply_op2(&real_sigma(sigma, u)?, fused)?;
    let (mean, var) = match saved.get() {
        Some(Kept::Cpu(statistics)) => {
            let channels =
                |values: &[f64]| Tensor::new(values, u.device())?.to_dtype(stable_dtype(u.dtype()));
            (channels(&statistics.mean)?, channels(&statistics.var)?)
        }
        #[cfg(feature = "cuda")]
        Some(Kept::Cuda(statistics)) => super::bn_noise_cuda::statistics(statistics, u.device())?,
        None => candle_core::bail!("bn-noise: the forward pass kept no statistics"),
    };
    let batch = BatchStatistics { mean, var, count: view.count() };
    Ok((y, batch))
}

/// Normalizes `u` by given statistics, one value a channel, and adds noise. Differentiable in `u`
/// and `sigma`.
pub fn bn_noise_eval(
    u: &Tensor,
    sigma: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    op: &BnNoise,
) -> Result<Tensor> {
    let view = View::new(u, sigma, op)?;
    for statistic in [mean, var] {
        if statistic.dims() != [view.channels] {
            Err(Error::Shape {
                what: "batch normalization".into(),
                reason: format!(
                    "statistics of shape {:?} for {} channels",
                    statistic.dims(),
                    view.channels
                ),
            })?
        }
    }
    if !is_fused(u) {
        return bn_noise_eval_reference(u, sigma, mean, var, op);
    }
    let fused =
        Fused { op: *op, view, saved: Arc::default(), given: Some((mean.detach(), var.detach())) };
    u.contiguous()?.apply_op2(&real_sigma(sigma, u)?, fused)
}

/// A batch has a variance from two values a channel on.
pub(super) fn check_count(count: usize) -> Result<()> {
    if count < 2 {
        Err(Error::Shape {
            what: "batch normalization".into(),
            reason: "one value a channel has no variance: give it at least two examples".into(),
        })?
    }
    Ok(())
}

/// Whether there is a kernel for this tensor. Elsewhere Candle's own operations serve.
fn is_fused(u: &Tensor) -> bool {
    let on_cuda = cfg!(feature = "cuda") && u.device().is_cuda() && u.dtype() != DType::F64;
    u.device().is_cpu() || on_cuda
}

/// sigma in the type that the kernel computes in.
fn real_sigma(sigma: &Tensor, u: &Tensor) -> Result<Tensor> {
    sigma.to_dtype(stable_dtype(u.dtype()))?.contiguous()
}

/// The logical shape (N, C, S) of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) spatial: usize,
}

impl View {
    /// Checks everything that either path relies on.
    pub(super) fn new(u: &Tensor, sigma: &Tensor, op: &BnNoise) -> Result<Self> {
        let refuse =
            |reason: String| Error::Shape { what: "batch normalization with noise".into(), reason };
        if u.rank() < 2 || u.elem_count() == 0 {
            Err(refuse(format!(
                "expected (batch, channels, ...) with no empty dimension, not {:?}",
                u.dims()
            )))?
        }
        if !matches!(u.dtype(), DType::F32 | DType::F64 | DType::BF16 | DType::F16) {
            Err(Error::DType { what: "batch normalization with noise", dtype: u.dtype() })?
        }
        let (batch, channels) = (u.dims()[0], u.dims()[1]);
        let groups = sigma.dims1()?;
        if groups == 0 || !channels.is_multiple_of(groups) {
            Err(refuse(format!(
                "{groups} values of sigma for {channels} channels: their number must divide the channels"
            )))?
        }
        if let Some(noise) = op.noise
            && (noise.folded == 0 || !batch.is_multiple_of(noise.folded))
        {
            Err(refuse(format!(
                "a batch of {batch} cannot hold {} Monte Carlo samples: repeat the input with `Pass::repeat`",
                noise.folded
            )))?
        }
        Ok(Self { batch, channels, spatial: u.elem_count() / (batch * channels) })
    }

    /// Elements a channel.
    pub(super) fn count(&self) -> usize {
        self.batch * self.spatial
    }

    pub(super) fn elements(&self) -> usize {
        self.batch * self.channels * self.spatial
    }
}

/// A layer's noise in the terms of the kernel.
pub(super) fn kernel_noise(noise: LayerNoise, elements: usize) -> Noise {
    Noise::folded(noise.key, (elements / noise.folded) as u64)
}

/// The statistics that a forward pass normalized by, kept for the backward pass where they were
/// computed.
pub(super) enum Kept {
    Cpu(Statistics),
    #[cfg(feature = "cuda")]
    Cuda(kernel::cuda::Statistics),
}

impl Kept {
    fn on_cpu(&self) -> Result<&Statistics> {
        match self {
            Kept::Cpu(statistics) => Ok(statistics),
            #[cfg(feature = "cuda")]
            Kept::Cuda(_) => candle_core::bail!("bn-noise: a CUDA pass cannot end on the CPU"),
        }
    }
}

/// The op in the graph.
pub(super) struct Fused {
    op: BnNoise,
    view: View,
    saved: Arc<OnceLock<Kept>>,
    /// Mean and variance to use instead of those of the batch.
    pub(super) given: Option<(Tensor, Tensor)>,
}

impl Fused {
    pub(super) fn config(&self) -> kernel::Config {
        let View { batch, channels, spatial } = self.view;
        kernel::Config::new(kernel::Shape::nchw(batch, channels, spatial))
            .eps(self.op.eps)
            .relu(self.op.activation == Activation::Relu)
    }

    pub(super) fn noise(&self) -> Option<Noise> {
        let elements = self.view.elements();
        self.op.noise.map(|noise| kernel_noise(noise, elements))
    }

    /// What the forward pass left.
    pub(super) fn kept(&self) -> Result<&Kept> {
        match self.saved.get() {
            Some(kept) => Ok(kept),
            None => candle_core::bail!("bn-noise: the backward pass came before the forward pass"),
        }
    }

    /// Leaves statistics for the backward pass. A graph evaluates an op once; a second evaluation
    /// would find the same.
    pub(super) fn keep(&self, kept: Kept) {
        let _ = self.saved.set(kept);
    }

    fn noise_term<'a, R>(&self, sigma: &'a [R]) -> Option<NoiseTerm<'a, R>> {
        self.noise().map(|noise| NoiseTerm { noise, sigma })
    }

    fn forward<E: Element>(&self, u: &[E], sigma: &[E::Real]) -> Result<Vec<E>> {
        let mut y = vec![E::default(); u.len()];
        let (config, noise) = (self.config(), self.noise_term(sigma));
        let statistics = match &self.given {
            Some((mean, var)) => {
                let statistics = Statistics {
                    mean: mean.to_dtype(DType::F64)?.to_vec1()?,
                    var: var.to_dtype(DType::F64)?.to_vec1()?,
                };
                kernel::forward_eval(&config, noise, &statistics, u, &mut y)
                    .map_err(Error::from)?;
                statistics
            }
            None => kernel::forward_train(&config, noise, u, &mut y).map_err(Error::from)?,
        };
        self.keep(Kept::Cpu(statistics));
        Ok(y)
    }

    /// du and dsigma.
    fn backward<E>(&self, tensors: Backward) -> Result<(Tensor, Tensor)>
    where
        E: Element + WithDType,
        E::Real: WithDType,
    {
        let Backward { u, sigma, y, gradient } = tensors;
        let (gradient, groups) = (gradient.contiguous()?, sigma.elem_count());
        let storages = [u, sigma, y, &gradient].map(Tensor::storage_and_layout);
        let statistics = self.kept()?.on_cpu()?;
        let saved = Saved {
            u: cpu_slice::<E>(&storages[0])?,
            y: cpu_slice::<E>(&storages[2])?,
            statistics,
        };
        let noise = self.noise_term(cpu_slice::<E::Real>(&storages[1])?);
        let gradient = cpu_slice::<E>(&storages[3])?;
        let mut du = vec![E::default(); gradient.len()];
        let backward =
            if self.given.is_some() { kernel::backward_eval } else { kernel::backward_train };
        let mut dsigma =
            backward(&self.config(), noise, saved, gradient, &mut du).map_err(Error::from)?;
        dsigma.resize(groups, <E::Real as Real>::ZERO);
        Ok((
            Tensor::from_vec(du, u.shape(), &Device::Cpu)?,
            Tensor::from_vec(dsigma, groups, &Device::Cpu)?,
        ))
    }
}

/// What the backward pass is given.
struct Backward<'a> {
    u: &'a Tensor,
    sigma: &'a Tensor,
    y: &'a Tensor,
    gradient: &'a Tensor,
}

impl CustomOp2 for Fused {
    fn name(&self) -> &'static str {
        "bn-noise"
    }

    fn cpu_fwd(
        &self,
        u: &CpuStorage,
        u_layout: &Layout,
        sigma: &CpuStorage,
        sigma_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y =
            match u {
                CpuStorage::F32(_) => CpuStorage::F32(self.forward(
                    contiguous_slice(u, u_layout)?,
                    contiguous_slice(sigma, sigma_layout)?,
                )?),
                CpuStorage::F64(_) => CpuStorage::F64(self.forward(
                    contiguous_slice(u, u_layout)?,
                    contiguous_slice(sigma, sigma_layout)?,
                )?),
                CpuStorage::BF16(_) => CpuStorage::BF16(self.forward(
                    contiguous_slice(u, u_layout)?,
                    contiguous_slice(sigma, sigma_layout)?,
                )?),
                CpuStorage::F16(_) => CpuStorage::F16(self.forward(
                    contiguous_slice(u, u_layout)?,
                    contiguous_slice(sigma, sigma_layout)?,
                )?),
                _ => candle_core::bail!("bn-noise: this dtype is not supported"),
            };
        Ok((y, u_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        u: &candle_core::CudaStorage,
        u_layout: &Layout,
        sigma: &candle_core::CudaStorage,
        sigma_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let y = super::bn_noise_cuda::forward(self, (u, u_layout), (sigma, sigma_layout))?;
        Ok((y, u_layout.shape().clone()))
    }

    fn bwd(
        &self,
        u: &Tensor,
        sigma: &Tensor,
        y: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        #[cfg(feature = "cuda")]
        if u.device().is_cuda() {
            let (du, dsigma) = super::bn_noise_cuda::backward(self, u, sigma, gradient)?;
            return Ok((Some(du), Some(dsigma)));
        }
        let tensors = Backward { u, sigma, y, gradient };
        let (du, dsigma) = match u.dtype() {
            DType::F32 => self.backward::<f32>(tensors)?,
            DType::F64 => self.backward::<f64>(tensors)?,
            DType::BF16 => self.backward::<bf16>(tensors)?,
            DType::F16 => self.backward::<f16>(tensors)?,
            _ => candle_core::bail!("bn-noise: this dtype is not supported"),
        };
        Ok((Some(du), Some(dsigma)))
    }
}
