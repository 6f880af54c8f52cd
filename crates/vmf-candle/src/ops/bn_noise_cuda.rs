//! The node on a CUDA device. It runs on Candle's own stream, and nothing here waits for the GPU.

use super::bn_noise::{BnNoise, Saved, Statistics};
use crate::cuda::from_storage as tensor;
pub(super) use crate::cuda::{Located, cuda, view};
use crate::error::Error;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::CudaView;
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage, WrapErr};
use candle_core::{DType, Device, Result, Shape, Tensor};
use half::{bf16, f16};
use vmf_kernels::bn_noise::cuda::{self as kernel, CudaElement, NoiseTerm};
use vmf_kernels::bn_noise::launches::ScaleKind;

/// y. The statistics stay with the node.
pub(super) fn forward(node: &BnNoise, u: Located, sigma: Located) -> Result<CudaStorage> {
    match u.0.dtype() {
        DType::F32 => forward_in::<f32>(node, u, sigma),
        DType::F16 => forward_in::<f16>(node, u, sigma),
        DType::BF16 => forward_in::<bf16>(node, u, sigma),
        dtype => candle_core::bail!("bn-noise has no CUDA kernel for {dtype:?}"),
    }
}

fn forward_in<T: CudaElement + CudaDType>(
    node: &BnNoise,
    u: Located,
    sigma: Located,
) -> Result<CudaStorage> {
    let device = u.0.device();
    let stream = device.cuda_stream();
    let (u, sigma) = (view::<T>(u)?, view::<f32>(sigma)?);
    let noise = noise_term(node, &sigma);
    // SAFETY: the kernels write every element before any is read.
    let mut y = unsafe { device.alloc::<T>(u.len()) }?;
    let statistics = match &node.given {
        None => kernel::forward_train(&stream, &node.config, noise, &u, &mut y),
        Some(Statistics { mean, var }) => {
            let (mean, var) = (on_device(mean, device)?, on_device(var, device)?);
            let (mean, var) = (mean.storage_and_layout(), var.storage_and_layout());
            let mean = view::<f32>((cuda(&mean.0)?, mean.1))?;
            let var = view::<f32>((cuda(&var.0)?, var.1))?;
            kernel::forward_eval(&stream, &node.config, noise, &mean, &var, &u, &mut y)
        }
    };
    node.save(Saved::Cuda(statistics.map_err(Error::from)?));
    Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
}

/// du and dsigma.
pub(super) fn backward(
    node: &BnNoise,
    u: &Tensor,
    sigma: &Tensor,
    dy: &Tensor,
) -> Result<(Tensor, Tensor)> {
    match u.dtype() {
        DType::F32 => backward_in::<f32>(node, u, sigma, dy),
        DType::F16 => backward_in::<f16>(node, u, sigma, dy),
        DType::BF16 => backward_in::<bf16>(node, u, sigma, dy),
        dtype => candle_core::bail!("bn-noise has no CUDA kernel for {dtype:?}"),
    }
}

fn backward_in<T: CudaElement + CudaDType>(
    node: &BnNoise,
    u: &Tensor,
    sigma: &Tensor,
    dy: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let Saved::Cuda(statistics) = node.saved()? else {
        candle_core::bail!("bn-noise: a CPU pass cannot end on a GPU")
    };
    let [(u_storage, u_layout), (sigma_storage, sigma_layout), (dy_storage, dy_layout)] =
        [u, sigma, dy].map(Tensor::storage_and_layout);
    let device = cuda(&u_storage)?.device();
    let stream = device.cuda_stream();
    let u_view = view::<T>((cuda(&u_storage)?, u_layout))?;
    let dy_view = view::<T>((cuda(&dy_storage)?, dy_layout))?;
    let sigma_view = view::<f32>((cuda(&sigma_storage)?, sigma_layout))?;
    let noise = noise_term(node, &sigma_view);
    // SAFETY: the kernels write every element before any is read.
    let mut du = unsafe { device.alloc::<T>(u_view.len()) }?;
    let backward =
        if node.given.is_some() { kernel::backward_eval } else { kernel::backward_train };
    let dsigma = backward(&stream, &node.config, noise, statistics, &u_view, &dy_view, &mut du)
        .map_err(Error::from)?;
    let dsigma = match dsigma {
        Some(dsigma) => dsigma,
        None => device.alloc_zeros::<f32>(sigma_view.len())?,
    };
    Ok((
        tensor(CudaStorage::wrap_cuda_slice(du, device.clone()), u.shape()),
        tensor(CudaStorage::wrap_cuda_slice(dsigma, device.clone()), sigma.shape()),
    ))
}

/// Mean and biased variance of the batch as tensors.
pub(super) fn statistics(statistics: &kernel::Statistics, device: &Device) -> Result<Statistics> {
    let device = device.as_cuda_device()?;
    let copy = |field: CudaView<f32>| -> Result<Tensor> {
        let copy = device.cuda_stream().clone_dtod(&field).w()?;
        let channels = Shape::from(copy.len());
        Ok(tensor(CudaStorage::wrap_cuda_slice(copy, device.clone()), &channels))
    };
    Ok(Statistics { mean: copy(statistics.mean())?, var: copy(statistics.variance())? })
}

fn noise_term<'a>(node: &BnNoise, sigma: &'a CudaView<'a, f32>) -> Option<NoiseTerm<'a>> {
    node.noise.map(|noise| NoiseTerm { noise, sigma, kind: ScaleKind::Sigma })
}

/// A statistic as the kernels take it.
pub(super) fn on_device(statistic: &Tensor, device: &CudaDevice) -> Result<Tensor> {
    statistic.to_device(&Device::Cuda(device.clone()))?.to_dtype(DType::F32)?.contiguous()
}
