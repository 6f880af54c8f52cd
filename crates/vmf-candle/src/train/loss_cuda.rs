//! Cross-entropy on a CUDA device: the loss, its gradient and the number of right predictions in one
//! pass over the logits.

use crate::cuda::{Ready, by_storage, failed, tensor, with};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use vmf_kernels::bn_noise::cuda::CudaElement;
use vmf_kernels::cross_entropy::cuda as kernel;

/// The mean loss of logits (N, classes), as a node, and how many of the N predictions are right.
pub(super) fn cross_entropy(
    logits: &Tensor,
    labels: &Tensor,
    smoothing: f64,
) -> Result<(Tensor, Tensor)> {
    let (logits, labels) = (logits.contiguous()?, labels.contiguous()?);
    by_storage!(logits.dtype(), cross_entropy_in(&logits, &labels, smoothing))
}

fn cross_entropy_in<T: CudaElement + CudaDType>(
    logits: &Tensor,
    labels: &Tensor,
    smoothing: f64,
) -> Result<(Tensor, Tensor)> {
    let (loss, results, gradient) = with::<T, _>(logits, |values, device| {
        let stream = device.cuda_stream();
        // SAFETY: the kernel writes all of it.
        let mut gradient = unsafe { device.alloc::<T>(values.len()) }?;
        let results = with::<u32, _>(labels, |labels, _| {
            kernel::cross_entropy(&stream, smoothing, values, labels, &mut gradient).map_err(failed)
        })?;
        let loss = stream.clone_dtod(&results.slice(0..1)).map_err(|e| failed(e.into()))?;
        let loss = CudaStorage::wrap_cuda_slice(loss, device.clone());
        Ok((loss, tensor(results, 2, device), tensor(gradient, logits.shape(), device)))
    })?;
    let node = CudaCrossEntropy { gradient, ready: Ready::new(loss, ()) };
    Ok((logits.apply_op1(node)?, results.get(1)?))
}

struct CudaCrossEntropy {
    /// Of the mean loss with respect to the logits.
    gradient: Tensor,
    ready: Ready,
}

impl CustomOp1 for CudaCrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, _logits: &CpuStorage, _layout: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("cross-entropy has another path on the CPU")
    }

    fn cuda_fwd(&self, _logits: &CudaStorage, _layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.ready.take()
    }

    fn bwd(&self, _logits: &Tensor, _loss: &Tensor, dloss: &Tensor) -> Result<Option<Tensor>> {
        let dloss = dloss.to_dtype(self.gradient.dtype())?;
        self.gradient.broadcast_mul(&dloss).map(Some)
    }
}
