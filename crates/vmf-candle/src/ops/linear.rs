//! Linear maps on the matrix product of `vmf-kernels`, by themselves and with the normalization
//! behind them.
//!
//! ```text
//! u = x wᵀ,   y = gain (norm(u) + sigma z) + shift          du by row_norm,   dx = du w,   dw = duᵀ x
//! ```
//! In f32 on a CPU each is one node of the graph. Candle's product is some 1.7 times slower there
//! where AVX-512 is available (see [`vmf_kernels::gemm`]), and each further node would cost two
//! passes over its gradient.

use super::conv2d::is_tracked;
use super::row_norm::{Given, Packed, PackedLayout, Rows, norm_rows};
use crate::error::{Error, check_shape};
use crate::storage::{contiguous_slice, cpu_slice, unwritten};
use crate::train::deliver;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};
use std::sync::{Arc, OnceLock};
use vmf_kernels::gemm::{Matrix, gemm};
use vmf_kernels::row_norm::{self, Statistics};

/// `x wᵀ`, differentiable.
///
/// # Shapes
/// `xs` (..., inputs), `weight` (outputs, inputs); output (..., outputs).
pub fn linear(xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let map = LinearMap::new(xs, weight)?;
    if !is_fused(xs, weight) {
        return map.candle(xs, weight);
    }
    xs.contiguous()?.apply_op2(&weight.contiguous()?, map)
}

/// [`linear`], normalized row by row, with noise, gain and shift.
pub(crate) fn linear_norm(
    xs: &Tensor,
    weight: &Tensor,
    rows: impl FnOnce(&Tensor) -> Result<Rows>,
    given: Given,
) -> Result<Tensor> {
    let map = LinearMap::new(xs, weight)?;
    if !is_fused(xs, weight) {
        let u = map.candle(xs, weight)?;
        return norm_rows(&u, &rows(&u)?, given);
    }
    // The shape of a single row says all about rows that the weight alone decides.
    let row = Tensor::zeros((1, map.outputs), DType::F32, &Device::Cpu)?;
    let rows = rows(&row)?.with_batch(map.rows);
    let packed = Packed::new(xs, &rows, given)?;
    let node = NormLinear { map, rows, layout: packed.layout, saved: Arc::default() };
    xs.contiguous()?.apply_op3(&weight.contiguous()?, &packed.values, node)
}

fn is_fused(xs: &Tensor, weight: &Tensor) -> bool {
    let fits = |tensor: &Tensor| tensor.device().is_cpu() && tensor.dtype() == DType::F32;
    fits(xs) && fits(weight)
}

/// The product, apart from its tensors; by itself a node over (x, w).
#[derive(Clone, Copy)]
struct LinearMap {
    rows: usize,
    inputs: usize,
    outputs: usize,
    needs_dx: bool,
    needs_dw: bool,
}

impl LinearMap {
    fn new(xs: &Tensor, weight: &Tensor) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let valid = xs.dims().last() == Some(&inputs) && xs.elem_count() > 0 && outputs > 0;
        check_shape(valid, "a linear map", || {
            format!("expected (..., {inputs}), got {:?}", xs.dims())
        })?;
        Ok(Self {
            rows: xs.elem_count() / inputs,
            inputs,
            outputs,
            needs_dx: is_tracked(xs),
            needs_dw: is_tracked(weight),
        })
    }

    /// The product by Candle.
    fn candle(&self, xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let mut dims = xs.dims().to_vec();
        dims.pop();
        dims.push(self.outputs);
        xs.reshape((self.rows, self.inputs))?.matmul(&weight.t()?)?.reshape(dims)
    }

    fn output_shape(&self, x: &Layout) -> Shape {
        let mut dims = x.dims().to_vec();
        dims.pop();
        dims.push(self.outputs);
        dims.into()
    }

    fn product(&self, x: &[f32], w: &[f32]) -> Result<Vec<f32>> {
        // SAFETY: the product writes every element; after an error nobody reads them.
        let mut u = unsafe { unwritten(self.rows * self.outputs) };
        let (x, w) = self.matrices(x, w)?;
        gemm(x, w.transposed(), &mut u, false).map_err(Error::from)?;
        Ok(u)
    }

    fn matrices<'a>(&self, x: &'a [f32], w: &'a [f32]) -> Result<(Matrix<'a>, Matrix<'a>)> {
        let x = Matrix::new(x, self.rows, self.inputs).map_err(Error::from)?;
        Ok((x, Matrix::new(w, self.outputs, self.inputs).map_err(Error::from)?))
    }

    /// dx and dw, as far as they are needed.
    fn gradients(
        &self,
        (x, w): (&Tensor, &Tensor),
        [xs, ws, du]: [&[f32]; 3],
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (x_matrix, w_matrix) = self.matrices(xs, ws)?;
        let du = Matrix::new(du, self.rows, self.outputs).map_err(Error::from)?;
        let mut gradients = (None, None);
        if self.needs_dx {
            // SAFETY: as in `product`.
            let mut dx = unsafe { unwritten(xs.len()) };
            gemm(du, w_matrix, &mut dx, false).map_err(Error::from)?;
            gradients.0 = Some(Tensor::from_vec(dx, x.shape(), &Device::Cpu)?);
        }
        if self.needs_dw {
            // SAFETY: as in `product`.
            let mut dw = unsafe { unwritten(ws.len()) };
            gemm(du.transposed(), x_matrix, &mut dw, false).map_err(Error::from)?;
            gradients.1 = deliver(w, Tensor::from_vec(dw, w.shape(), &Device::Cpu)?);
        }
        Ok(gradients)
    }
}

impl CustomOp2 for LinearMap {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let u = self.product(contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?)?;
        Ok((CpuStorage::F32(u), self.output_shape(x_layout)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let storages = [x, w, &dy].map(Tensor::storage_and_layout);
        let [xs, ws, dys] = [0, 1, 2].map(|i| cpu_slice::<f32>(&storages[i]));
        self.gradients((x, w), [xs?, ws?, dys?])
    }
}

/// The product and its normalization: a node over (x, w, packed).
struct NormLinear {
    map: LinearMap,
    rows: Rows,
    layout: PackedLayout,
    /// u and the statistics of its rows.
    saved: Arc<OnceLock<(Vec<f32>, Statistics<f32>)>>,
}

impl CustomOp3 for NormLinear {
    fn name(&self) -> &'static str {
        "linear-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        packed: &CpuStorage,
        packed_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let u = self.map.product(contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?)?;
        let packed = contiguous_slice(packed, packed_layout)?;
        let parameters = self.layout.parameters(packed, self.map.outputs);
        // SAFETY: the kernel writes all of y; after an error nobody reads it.
        let mut y = unsafe { unwritten(u.len()) };
        let statistics =
            row_norm::forward(self.rows.config(), parameters, &u, &mut y).map_err(Error::from)?;
        // A graph evaluates a node once; a second evaluation would save the same.
        let _ = self.saved.set((u, statistics));
        Ok((CpuStorage::F32(y), self.map.output_shape(x_layout)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        packed: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let storages = [x, w, packed, &dy].map(Tensor::storage_and_layout);
        let [xs, ws, values, dys] = [0, 1, 2, 3].map(|i| cpu_slice::<f32>(&storages[i]));
        let (xs, ws, values, dys) = (xs?, ws?, values?, dys?);
        let Some((u, statistics)) = self.saved.get() else {
            candle_core::bail!("linear-norm: the backward pass came before the forward pass")
        };
        let parameters = self.layout.parameters(values, self.map.outputs);
        // SAFETY: the kernel writes all of du; after an error nobody reads it.
        let mut du = unsafe { unwritten(u.len()) };
        let gradients =
            row_norm::backward(self.rows.config(), parameters, (u, statistics), dys, &mut du)
                .map_err(Error::from)?;
        let (dx, dw) = self.map.gradients((x, w), [xs, ws, &du])?;
        let dpacked = self.layout.gradient(gradients, values.len());
        Ok((dx, dw, Some(Tensor::from_vec(dpacked, packed.shape(), &Device::Cpu)?)))
    }
}
