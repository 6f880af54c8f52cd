//! Convolution on a CUDA device, with gradients: by cuDNN where it is installed, otherwise as matrix
//! products of columns. Candle's own input gradient is a loop without matrix products, and its
//! feature `cudnn` covers the forward pass alone.

use super::conv2d::is_tracked;
use crate::cuda::{Ready, by_storage, cuda, failed, from_storage, tensor, view, with};
use crate::train::deliver;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, Layout, Result, Shape, Tensor};
use std::sync::Once;
use vmf_kernels::bn_noise::cuda::CudaElement;
use vmf_kernels::conv::cuda::{self as kernel, columns_len};
use vmf_kernels::conv::{ConvShape, cudnn};

pub(crate) use vmf_kernels::conv::cudnn::Direction;

/// The largest number of columns in memory at a time, in elements. More images take turns.
const COLUMNS: usize = 1 << 26;

/// One of the three products of a convolution, without a graph: y from (x, w), dx from (w, dy), dw
/// from (x, dy). Tensors are contiguous and NCHW.
pub(crate) fn convolve(
    shape: &ConvShape,
    direction: Direction,
    first: &Tensor,
    second: &Tensor,
) -> Result<Tensor> {
    Ok(from_storage(product(shape, direction, first, second)?, &dims(shape, direction)))
}

/// The same, not yet as a tensor.
fn product(
    shape: &ConvShape,
    direction: Direction,
    first: &Tensor,
    second: &Tensor,
) -> Result<CudaStorage> {
    match cudnn::unavailable() {
        None => by_storage!(first.dtype(), by_cudnn(shape, direction, first, second)),
        Some(reason) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::info!(
                    "convolutions are products of columns, because cuDNN is not used ({reason})"
                );
            });
            let result = by_columns(shape, direction, first, second)?;
            let (storage, layout) = result.storage_and_layout();
            cuda(&storage)?.try_clone(layout)
        }
    }
}

/// The dimensions of the result.
fn dims(shape: &ConvShape, direction: Direction) -> [usize; 4] {
    let ([height, width], [kh, kw]) = (shape.output(), shape.kernel);
    match direction {
        Direction::Forward => [shape.batch, shape.out_channels, height, width],
        Direction::InputGradient => {
            [shape.batch, shape.in_channels, shape.input[0], shape.input[1]]
        }
        Direction::WeightGradient => [shape.out_channels, shape.in_channels / shape.groups, kh, kw],
    }
}

fn by_cudnn<T: CudaElement + CudaDType>(
    shape: &ConvShape,
    direction: Direction,
    first: &Tensor,
    second: &Tensor,
) -> Result<CudaStorage> {
    let (first, second) = (first.storage_and_layout(), second.storage_and_layout());
    let device = cuda(&first.0)?.device().clone();
    let operands =
        (view::<T>((cuda(&first.0)?, first.1))?, view::<T>((cuda(&second.0)?, second.1))?);
    let dims = dims(shape, direction);
    // SAFETY: cuDNN writes all of it.
    let mut to = unsafe { device.alloc::<T>(dims.iter().product()) }?;
    let stream = device.cuda_stream();
    cudnn::convolve(&stream, shape, direction, [&operands.0, &operands.1], &mut to)
        .map_err(failed)?;
    Ok(CudaStorage::wrap_cuda_slice(to, device))
}

/// The same from matrix products:
/// ```text
/// y = w columns(x),     dx = columns^T(w^T dy),     dw = dy columns(x)^T
/// ```
fn by_columns(
    shape: &ConvShape,
    direction: Direction,
    first: &Tensor,
    second: &Tensor,
) -> Result<Tensor> {
    let each = columns_len(&ConvShape { batch: 1, ..*shape }).max(1);
    let turn = (COLUMNS / each).clamp(1, shape.batch);
    let mut parts = Vec::new();
    for start in (0..shape.batch).step_by(turn) {
        let part = ConvShape { batch: turn.min(shape.batch - start), ..*shape };
        let images = |tensor: &Tensor| tensor.narrow(0, start, part.batch);
        parts.push(match direction {
            Direction::Forward => part_of(&part, direction, &images(first)?, second)?,
            Direction::InputGradient => part_of(&part, direction, first, &images(second)?)?,
            Direction::WeightGradient => {
                part_of(&part, direction, &images(first)?, &images(second)?)?
            }
        });
    }
    match (parts.len(), direction) {
        (1, _) => Ok(parts.remove(0)),
        (_, Direction::WeightGradient) => {
            let first = parts.remove(0);
            parts.iter().try_fold(first, |sum, part| sum + part)
        }
        _ => Tensor::cat(&parts, 0),
    }
}

fn part_of(
    shape: &ConvShape,
    direction: Direction,
    first: &Tensor,
    second: &Tensor,
) -> Result<Tensor> {
    let ConvShape { batch, groups, .. } = *shape;
    let [height, width] = shape.output();
    let (units, positions) = (shape.out_channels / groups, height * width);
    let depth = shape.in_channels / groups * shape.kernel[0] * shape.kernel[1];
    // The weights of all groups, for each image.
    let weights = |w: &Tensor| match groups {
        1 => w.reshape((1, units, depth))?.broadcast_as((batch, units, depth)),
        _ => w
            .reshape((1, groups, units, depth))?
            .broadcast_as((batch, groups, units, depth))?
            .contiguous()?
            .reshape((batch * groups, units, depth)),
    };
    // Images and positions together, behind the groups.
    let joined = |of: &Tensor, rows: usize| {
        let by_group = of.reshape((batch, groups, rows, positions))?.permute((1, 2, 0, 3))?;
        by_group.contiguous()?.reshape((groups, rows, batch * positions))
    };
    let dims = dims(shape, direction);
    match direction {
        Direction::Forward => {
            let columns = by_storage!(first.dtype(), columns_of(shape, first))?;
            weights(second)?
                .matmul(&columns.reshape((batch * groups, depth, positions))?)?
                .reshape(&dims)
        }
        Direction::InputGradient => {
            let dy = second.reshape((batch * groups, units, positions))?;
            let columns = weights(first)?.t()?.matmul(&dy)?;
            by_storage!(columns.dtype(), images_of(shape, &columns))
        }
        Direction::WeightGradient => {
            let columns = by_storage!(first.dtype(), columns_of(shape, first))?;
            joined(second, units)?.matmul(&joined(&columns, depth)?.t()?)?.reshape(&dims)
        }
    }
}

/// (N, C * kh * kw, positions).
fn columns_of<T: CudaElement + CudaDType>(shape: &ConvShape, x: &Tensor) -> Result<Tensor> {
    with::<T, _>(x, |x, device| {
        let count = columns_len(shape);
        // SAFETY: the kernel writes all of it.
        let mut columns = unsafe { device.alloc::<T>(count) }?;
        kernel::im2col(&device.cuda_stream(), shape, x, &mut columns).map_err(failed)?;
        let [height, width] = shape.output();
        let dims = (shape.batch, count / (shape.batch * height * width), height * width);
        Ok(tensor(columns, dims, device))
    })
}

fn images_of<T: CudaElement + CudaDType>(shape: &ConvShape, columns: &Tensor) -> Result<Tensor> {
    with::<T, _>(columns, |columns, device| {
        // SAFETY: the kernel writes all of it.
        let mut dx = unsafe { device.alloc::<T>(shape.input_len()) }?;
        kernel::col2im(&device.cuda_stream(), shape, columns, &mut dx).map_err(failed)?;
        Ok(tensor(dx, &dims(shape, Direction::InputGradient), device))
    })
}

/// The convolution as a node.
pub(crate) fn conv2d(xs: &Tensor, weight: &Tensor, shape: &ConvShape) -> Result<Tensor> {
    let (xs, weight) = (xs.contiguous()?, weight.contiguous()?);
    let (needs_dx, needs_dw) = (is_tracked(&xs), is_tracked(&weight));
    let ys = product(shape, Direction::Forward, &xs, &weight)?;
    let ready = Ready::new(ys, &dims(shape, Direction::Forward));
    xs.apply_op2(&weight, CudaConvolution { shape: *shape, ready, needs_dx, needs_dw })
}

struct CudaConvolution {
    shape: ConvShape,
    ready: Ready,
    needs_dx: bool,
    needs_dw: bool,
}

impl CustomOp2 for CudaConvolution {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        _x: &CpuStorage,
        _x_layout: &Layout,
        _w: &CpuStorage,
        _w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("convolution has another kernel on the CPU")
    }

    fn cuda_fwd(
        &self,
        _x: &CudaStorage,
        _x_layout: &Layout,
        _w: &CudaStorage,
        _w_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.ready.take()
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let of = |needed: bool, direction, a: &Tensor, b: &Tensor| {
            needed.then(|| convolve(&self.shape, direction, a, b)).transpose()
        };
        let dx = of(self.needs_dx, Direction::InputGradient, w, &dy)?;
        let dw = of(self.needs_dw, Direction::WeightGradient, x, &dy)?;
        Ok((dx, dw.and_then(|dw| deliver(w, dw))))
    }
}
