//! Candle's tensors as buffers in device memory, and back. Everything runs on Candle's own stream.

use crate::error::Error;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{DType, Layout, Result, Shape, Storage, Tensor};
use std::sync::{Mutex, PoisonError};

/// A contiguous tensor in device memory.
pub(crate) type Located<'a> = (&'a CudaStorage, &'a Layout);

/// The storages that the kernels have.
pub(crate) fn has_kernels(tensor: &Tensor) -> bool {
    let stored = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    tensor.device().is_cuda() && stored
}

/// The elements of a contiguous tensor.
pub(crate) fn view<'a, T: CudaDType>((storage, layout): Located<'a>) -> Result<CudaView<'a, T>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(storage.as_cuda_slice::<T>()?.slice(start..end)),
        None => candle_core::bail!("a CUDA kernel needs contiguous tensors"),
    }
}

/// The storage of a tensor on a GPU.
pub(crate) fn cuda(storage: &Storage) -> Result<&CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => candle_core::bail!("expected a tensor on the GPU"),
    }
}

/// A tensor of a buffer, outside of any graph.
pub(crate) fn tensor<T: CudaDType>(
    slice: CudaSlice<T>,
    shape: impl Into<Shape>,
    device: &CudaDevice,
) -> Tensor {
    from_storage(CudaStorage::wrap_cuda_slice(slice, device.clone()), shape)
}

/// A tensor of a storage, outside of any graph.
pub(crate) fn from_storage(storage: CudaStorage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}

/// Calls `action` with the elements of a contiguous tensor.
pub(crate) fn with<T: CudaDType, R>(
    tensor: &Tensor,
    action: impl FnOnce(&CudaView<T>, &CudaDevice) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let storage = cuda(&storage)?;
    action(&view::<T>((storage, layout))?, storage.device())
}

/// An error of a kernel.
pub(crate) fn failed(error: vmf_kernels::bn_noise::cuda::Error) -> candle_core::Error {
    Error::from(error).into()
}

/// The result of a node that was computed before the node was made. A node whose forward pass calls
/// several libraries is easier to write with tensors than with the storages that Candle hands it.
#[derive(Default)]
pub(crate) struct Ready(Mutex<Option<(CudaStorage, Shape)>>);

impl Ready {
    pub(crate) fn new(storage: CudaStorage, shape: impl Into<Shape>) -> Self {
        Self(Mutex::new(Some((storage, shape.into()))))
    }

    /// The result, once.
    pub(crate) fn take(&self) -> Result<(CudaStorage, Shape)> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(result) => Ok(result),
            None => candle_core::bail!("the result of a node was taken twice"),
        }
    }
}

/// Calls a function for the storage of a tensor: `f32`, `f16` or `bf16`.
macro_rules! by_storage {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            candle_core::DType::F32 => $function::<f32>($($argument),*),
            candle_core::DType::F16 => $function::<half::f16>($($argument),*),
            candle_core::DType::BF16 => $function::<half::bf16>($($argument),*),
            dtype => candle_core::bail!("there is no CUDA kernel for {dtype:?}"),
        }
    };
}
pub(crate) use by_storage;
