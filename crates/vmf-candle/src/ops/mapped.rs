//! Operations that map a tensor to one of the same shape, as nodes of the graph: the part that they
//! share.

use crate::error::{Error, check_shape};
use crate::storage::{contiguous_slice, cpu_slice, for_dtype, same_storage};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, WithDType};
use vmf_kernels::{Element, Elementary};

/// What a kernel returns.
pub(super) type KernelResult = std::result::Result<(), vmf_kernels::Error>;

/// A kernel that maps a tensor to one of the same shape.
pub(super) trait Mapped: Send + Sync + 'static {
    /// The name of the operation.
    const NAME: &'static str;
    /// Whether the gradient is computed from the output, and not from the input.
    const FROM_OUTPUT: bool = false;

    /// y from x.
    fn forward<E: Element<Real: Elementary>>(&self, x: &[E], y: &mut [E]) -> KernelResult;

    /// dx from x, or y, and dy.
    fn backward<E: Element<Real: Elementary>>(
        &self,
        kept: &[E],
        dy: &[E],
        dx: &mut [E],
    ) -> KernelResult;
}

/// Whether a kernel computes with this tensor. Elsewhere Candle's own operations compute the same.
pub(super) fn has_kernel(xs: &Tensor) -> bool {
    xs.device().is_cpu() && is_float(xs)
}

fn is_float(xs: &Tensor) -> bool {
    matches!(xs.dtype(), DType::F32 | DType::F64 | DType::BF16 | DType::F16)
}

/// Refuses dtypes that are no floating-point numbers, and empty tensors.
pub(super) fn check_input(what: &'static str, xs: &Tensor) -> Result<()> {
    if !is_float(xs) {
        Err(Error::DType { what, dtype: xs.dtype() })?
    }
    Ok(check_shape(xs.elem_count() > 0, what, || format!("a tensor {:?} is empty", xs.dims()))?)
}

/// Applies a kernel to a tensor on the CPU.
pub(super) fn apply<M: Mapped>(xs: &Tensor, mapped: M) -> Result<Tensor> {
    xs.contiguous()?.apply_op1(Node(mapped))
}

struct Node<M>(M);

impl<M: Mapped> Node<M> {
    fn forward<E: Element<Real: Elementary>>(&self, x: &[E]) -> Result<Vec<E>> {
        let mut y = vec![E::default(); x.len()];
        self.0.forward(x, &mut y).map_err(Error::from)?;
        Ok(y)
    }

    fn backward<E>(&self, kept: &Tensor, dy: &Tensor) -> Result<Tensor>
    where
        E: Element<Real: Elementary> + WithDType,
    {
        let (kept_storage, dy_storage) = (kept.storage_and_layout(), dy.storage_and_layout());
        let (values, dys) = (cpu_slice::<E>(&kept_storage)?, cpu_slice::<E>(&dy_storage)?);
        let mut dx = vec![E::default(); dys.len()];
        self.0.backward(values, dys, &mut dx).map_err(Error::from)?;
        Tensor::from_vec(dx, dy.shape(), &Device::Cpu)
    }
}

impl<M: Mapped> CustomOp1 for Node<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = same_storage!(x, M::NAME, self.forward(contiguous_slice(x, layout)?)?);
        Ok((y, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let (kept, dy) = (if M::FROM_OUTPUT { y } else { x }, dy.contiguous()?);
        for_dtype!(dy.dtype(), M::NAME, self.backward(kept, &dy)).map(Some)
    }
}
