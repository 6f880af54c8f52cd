//! Pooling over images (N, C, H, W), with right gradients.
//!
//! Candle's own `max_pool2d` gives the unique maximum of a 2x2 window only a quarter of its
//! gradient, so a network with five pools scales the gradient of its likelihood by 4^-5. Here the
//! maximum gets the whole gradient of its window. If several elements are equal the first gets it,
//! as in PyTorch. Windows may overlap.

use super::layout::Images;
use crate::error::{Error, check_shape};
use crate::storage::contiguous_slice;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use std::sync::{Arc, OnceLock};
use vmf_kernels::Layout as Memory;
use vmf_kernels::pool::{Pool, PoolShape};

/// Maximum over windows of `kernel x kernel` every `stride` pixels, with `padding` pixels on each
/// side that are never the maximum.
pub fn max_pool2d(xs: &Tensor, kernel: usize, stride: usize, padding: usize) -> Result<Tensor> {
    pool(xs, Reduction::Max, kernel, stride, padding)
}

/// Mean over windows of `kernel x kernel` every `stride` pixels, with `padding` pixels on each side
/// that count as zeros (PyTorch's `count_include_pad`).
pub fn avg_pool2d(xs: &Tensor, kernel: usize, stride: usize, padding: usize) -> Result<Tensor> {
    pool(xs, Reduction::Mean, kernel, stride, padding)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    Max,
    Mean,
}

/// The largest window of the kernel, which stores an argmax in one byte.
const LARGEST_WINDOW: usize = 256;

fn pool(
    xs: &Tensor,
    reduction: Reduction,
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    let (batch, channels, height, width) = xs.dims4()?;
    // A window of padding alone would have no maximum. PyTorch limits padding in the same way.
    check_shape(kernel > 0 && stride > 0 && 2 * padding <= kernel, "pooling", || {
        format!(
            "kernel {kernel}, stride {stride}, padding {padding}: kernel and stride must be positive, and padding at most half the kernel"
        )
    })?;
    check_shape(height.min(width) + 2 * padding >= kernel, "pooling", || {
        format!("a {kernel}x{kernel} window does not fit an image of {height}x{width}")
    })?;
    let shape =
        PoolShape { batch, channels, input: [height, width], window: [kernel; 2], stride, padding };
    let is_fused = xs.device().is_cpu()
        && xs.dtype() == DType::F32
        && kernel * kernel <= LARGEST_WINDOW
        && xs.elem_count() > 0;
    #[cfg(feature = "cuda")]
    if crate::cuda::has_kernels(xs)
        && reduction == Reduction::Max
        && kernel * kernel <= LARGEST_WINDOW
        && xs.elem_count() > 0
    {
        return super::pool_cuda::max_pool2d(xs, shape);
    }
    if !is_fused {
        return pool_reference(xs, reduction, &shape);
    }
    let images = Images::of(xs)?;
    let layout = if images.is_hwnc() { Memory::Hwnc } else { Memory::Nchw };
    let pool = Pool::new(shape, layout).map_err(Error::from)?;
    let op = FusedPool { reduction, pool, layout, argmax: Arc::default() };
    let pooled = images.tensor().contiguous()?.apply_op1(op)?;
    match layout {
        Memory::Hwnc => Images::hwnc(pooled).to_tensor(),
        Memory::Nchw => Ok(pooled),
    }
}

/// The node. It saves the argmax of each window for the backward pass.
#[derive(Clone)]
struct FusedPool {
    reduction: Reduction,
    pool: Pool,
    layout: Memory,
    argmax: Arc<OnceLock<Vec<u8>>>,
}

impl FusedPool {
    /// The shape of a tensor whose images have this size.
    fn dims(&self, [height, width]: [usize; 2]) -> Shape {
        let PoolShape { batch, channels, .. } = *self.pool.shape();
        match self.layout {
            Memory::Nchw => (batch, channels, height, width).into(),
            Memory::Hwnc => (height, width, batch, channels).into(),
        }
    }
}

impl CustomOp1 for FusedPool {
    fn name(&self) -> &'static str {
        match self.reduction {
            Reduction::Max => "max-pool2d",
            Reduction::Mean => "avg-pool2d",
        }
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous_slice::<f32>(storage, layout)?;
        let shape = self.pool.shape();
        let mut y = vec![0f32; shape.output_len()];
        match self.reduction {
            Reduction::Mean => self.pool.average_forward(x, &mut y).map_err(Error::from)?,
            Reduction::Max => {
                let mut argmax = vec![0; y.len()];
                self.pool.max_forward(x, &mut y, &mut argmax).map_err(Error::from)?;
                // A graph evaluates a node once; a second evaluation would save the same.
                let _ = self.argmax.set(argmax);
            }
        }
        Ok((CpuStorage::F32(y), self.dims(shape.output())))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let backward = PoolBackward(self.clone());
        grad_res.contiguous()?.apply_op1_no_bwd(&backward).map(Some)
    }
}

/// The gradient with respect to the input, from that with respect to the output.
struct PoolBackward(FusedPool);

impl CustomOp1 for PoolBackward {
    fn name(&self) -> &'static str {
        "pool2d-backward"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let FusedPool { reduction, pool, argmax, .. } = &self.0;
        let dy = contiguous_slice::<f32>(storage, layout)?;
        let shape = pool.shape();
        let mut dx = vec![0f32; shape.input_len()];
        match (reduction, argmax.get()) {
            (Reduction::Mean, _) => pool.average_backward(dy, &mut dx),
            (Reduction::Max, Some(argmax)) => pool.max_backward(argmax, dy, &mut dx),
            (Reduction::Max, None) => {
                candle_core::bail!("max_pool2d: the backward pass came before the forward pass")
            }
        }
        .map_err(Error::from)?;
        Ok((CpuStorage::F32(dx), self.0.dims(shape.input)))
    }
}

/// The same from Candle's own operations, for any device and dtype: each of the `kernel^2` offsets
/// in a window gives one image of the size of the output, and the reduction is over these images.
fn pool_reference(xs: &Tensor, reduction: Reduction, shape: &PoolShape) -> Result<Tensor> {
    let (device, padding) = (xs.device(), shape.padding);
    // For a maximum, padding repeats the pixels of the border, which does not change it. For a mean
    // it is zeros.
    let (xs, shift) = match reduction {
        Reduction::Max => (xs.clone(), padding),
        Reduction::Mean => {
            let rows = xs.pad_with_zeros(2, padding, padding)?;
            (rows.pad_with_zeros(3, padding, padding)?, 0)
        }
    };
    let output = shape.output();
    let indices = |axis: usize, offset: usize| -> Result<Tensor> {
        let last = xs.dim(2 + axis)? - 1;
        let indices: Vec<u32> = (0..output[axis])
            .map(|index| (index * shape.stride + offset).saturating_sub(shift))
            .map(|index| index.min(last) as u32)
            .collect();
        Tensor::from_vec(indices, output[axis], device)
    };
    let mut offsets = Vec::with_capacity(shape.window[0] * shape.window[1]);
    for y in 0..shape.window[0] {
        let rows = xs.index_select(&indices(0, y)?, 2)?;
        for x in 0..shape.window[1] {
            offsets.push(rows.index_select(&indices(1, x)?, 3)?);
        }
    }
    let stacked = Tensor::stack(&offsets, 4)?;
    match reduction {
        Reduction::Mean => stacked.mean(4),
        Reduction::Max => {
            let argmax = stacked.detach().argmax_keepdim(4)?;
            stacked.gather(&argmax, 4)?.squeeze(4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    fn wave(shape: &[usize], a: f64) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (a * i as f64).sin()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)
    }

    /// A weighted sum of the output, so that each output's gradient is different.
    fn weighted(output: &Tensor) -> Result<Tensor> {
        (output * wave(output.dims(), 0.7)?.to_dtype(output.dtype())?)?.sum_all()
    }

    fn gradient(xs: &Var, loss: &Tensor) -> Result<Vec<f64>> {
        let grads = loss.backward()?;
        let gradient = grads.get(xs).unwrap().flatten_all()?;
        gradient.to_dtype(DType::F64)?.to_vec1()
    }

    #[test]
    fn gradients_are_those_of_finite_differences_in_both_paths() -> Result<()> {
        for (kernel, stride, padding) in [(2, 2, 0), (3, 2, 1), (2, 1, 0), (3, 3, 0), (1, 2, 0)] {
            for reduction in [Reduction::Max, Reduction::Mean] {
                let values = wave(&[2, 3, 7, 6], 1.3)?;
                let loss = |xs: &Tensor| weighted(&pool(xs, reduction, kernel, stride, padding)?);
                let plain = Var::from_tensor(&values)?;
                let fused = Var::from_tensor(&values.to_dtype(DType::F32)?)?;
                let (plain_loss, fused_loss) = (loss(&plain)?, loss(&fused)?);
                let (by_plain, by_fused) =
                    (gradient(&plain, &plain_loss)?, gradient(&fused, &fused_loss)?);

                let values = values.flatten_all()?.to_vec1::<f64>()?;
                for element in 0..values.len() {
                    let at = |shift: f64| -> Result<f64> {
                        let mut values = values.clone();
                        values[element] += shift;
                        loss(&Tensor::from_vec(values, plain.shape(), &Device::Cpu)?)?.to_scalar()
                    };
                    let numeric = (at(1e-6)? - at(-1e-6)?) / 2e-6;
                    assert!(
                        (by_plain[element] - numeric).abs() < 1e-7
                            && (by_fused[element] - numeric).abs() < 1e-5,
                        "{reduction:?} {kernel} {stride} {padding}: {} and {} against {numeric}",
                        by_plain[element],
                        by_fused[element]
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn ties_go_to_the_first_maximum_and_nan_is_not_hidden() -> Result<()> {
        let xs = Var::new(&[[[[1f32, 1.], [1., 1.]]]], &Device::Cpu)?;
        let by_pool = gradient(&xs, &max_pool2d(&xs, 2, 2, 0)?.sum_all()?)?;
        assert_eq!(by_pool, [1., 0., 0., 0.]);

        let xs = Tensor::new(&[[[[1f32, f32::NAN], [2., 3.]]]], &Device::Cpu)?;
        let pooled = max_pool2d(&xs, 2, 2, 0)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(pooled[0].is_nan());
        Ok(())
    }

    #[test]
    fn refuses_windows_that_do_not_fit() -> Result<()> {
        let xs = Tensor::zeros((1, 1, 3, 3), DType::F32, &Device::Cpu)?;
        assert!(max_pool2d(&xs, 4, 1, 0).is_err());
        assert!(max_pool2d(&xs, 2, 0, 0).is_err());
        assert!(max_pool2d(&xs, 2, 2, 2).is_err());
        assert!(max_pool2d(&xs.squeeze(0)?, 2, 2, 0).is_err());
        assert!(max_pool2d(&xs, 3, 1, 0).is_ok());
        Ok(())
    }
}
