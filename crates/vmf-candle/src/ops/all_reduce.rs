//! The sum over processes as a node of the graph.

use crate::error::Error;
use crate::storage::contiguous_slice;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use vmf_kernels::across::Across;

/// The sum of a tensor over the processes. Differentiable: what a rank contributes enters the loss of
/// every rank, so its gradient is the sum of all their gradients.
pub(super) fn all_reduce(values: &Tensor, across: Across) -> Result<Tensor> {
    let wide = values.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.contiguous()?;
    let sum = wide.apply_op1(AllReduce { across })?;
    sum.to_dtype(values.dtype())?.to_device(values.device())
}

#[derive(Clone, Copy)]
struct AllReduce {
    across: Across,
}

impl CustomOp1 for AllReduce {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut values = contiguous_slice::<f64>(storage, layout)?.to_vec();
        self.across.sum(&mut values).map_err(Error::from)?;
        Ok((CpuStorage::F64(values), layout.shape().clone()))
    }

    fn bwd(&self, _values: &Tensor, _sum: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient.contiguous()?.apply_op1_no_bwd(self).map(Some)
    }
}
