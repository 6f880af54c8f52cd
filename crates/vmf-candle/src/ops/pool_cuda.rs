//! Maximum pooling on a CUDA device.

use crate::cuda::{by_storage, failed, tensor, view, with};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};
use std::sync::OnceLock;
use vmf_kernels::bn_noise::cuda::CudaElement;
use vmf_kernels::pool::{PoolShape, cuda as kernel};

/// The largest elements of windows, as a node.
pub(super) fn max_pool2d(xs: &Tensor, shape: PoolShape) -> Result<Tensor> {
    xs.contiguous()?.apply_op1(CudaMaxPool { shape, argmax: OnceLock::new() })
}

/// The gradient with respect to the input.
pub(super) fn backward(shape: &PoolShape, argmax: &CudaSlice<u8>, dy: &Tensor) -> Result<Tensor> {
    by_storage!(dy.dtype(), backward_in(shape, argmax, dy))
}

fn backward_in<T: CudaElement + CudaDType>(
    shape: &PoolShape,
    argmax: &CudaSlice<u8>,
    dy: &Tensor,
) -> Result<Tensor> {
    with::<T, _>(dy, |dy, device| {
        // SAFETY: the kernel writes all of it.
        let mut dx = unsafe { device.alloc::<T>(shape.input_len()) }?;
        kernel::max_backward(&device.cuda_stream(), shape, argmax, dy, &mut dx).map_err(failed)?;
        let [height, width] = shape.input;
        Ok(tensor(dx, (shape.batch, shape.channels, height, width), device))
    })
}

/// The node. It saves which element of its window each output is.
struct CudaMaxPool {
    shape: PoolShape,
    argmax: OnceLock<CudaSlice<u8>>,
}

impl CudaMaxPool {
    fn forward<T: CudaElement + CudaDType>(
        &self,
        x: &CudaStorage,
        layout: &Layout,
    ) -> Result<CudaStorage> {
        let (device, x) = (x.device().clone(), view::<T>((x, layout))?);
        // SAFETY: the kernel writes all of it.
        let mut y = unsafe { device.alloc::<T>(self.shape.output_len()) }?;
        let argmax = kernel::max_forward(&device.cuda_stream(), &self.shape, &x, &mut y);
        // A graph evaluates a node once; a second evaluation would save the same.
        let _ = self.argmax.set(argmax.map_err(failed)?);
        Ok(CudaStorage::wrap_cuda_slice(y, device))
    }
}

impl CustomOp1 for CudaMaxPool {
    fn name(&self) -> &'static str {
        "max-pool2d"
    }

    fn cpu_fwd(&self, _x: &CpuStorage, _layout: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("pooling has another kernel on the CPU")
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        use candle_core::DType;
        let y = match x.dtype() {
            DType::F32 => self.forward::<f32>(x, layout)?,
            DType::F16 => self.forward::<half::f16>(x, layout)?,
            DType::BF16 => self.forward::<half::bf16>(x, layout)?,
            dtype => candle_core::bail!("pooling has no CUDA kernel for {dtype:?}"),
        };
        let [height, width] = self.shape.output();
        Ok((y, (self.shape.batch, self.shape.channels, height, width).into()))
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        match self.argmax.get() {
            Some(argmax) => backward(&self.shape, argmax, &dy.contiguous()?).map(Some),
            None => {
                candle_core::bail!("max_pool2d: the backward pass came before the forward pass")
            }
        }
    }
}
