//! The same operation from Candle's own tensor operations: it runs on any device, is differentiated
//! by Candle, and is what the fused kernels are checked against.

use super::bn_noise::{Activation, BatchStatistics, BnNoise, View, kernel_noise};
use crate::error::Error;
use crate::pass::LayerNoise;
use crate::sigma::stable_dtype;
use candle_core::{DType, Device, Result, Shape, Tensor};
use vmf_kernels::noise::fill_normals;

/// The noise of a layer as a tensor: what the fused kernels add without ever storing it.
pub fn noise_tensor(
    shape: impl Into<Shape>,
    noise: LayerNoise,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let shape = shape.into();
    let source = kernel_noise(noise, shape.elem_count());
    source.check(shape.elem_count()).map_err(Error::from)?;
    if dtype == DType::F64 {
        let mut values = vec![0f64; shape.elem_count()];
        fill_normals(&source, 0, &mut values).map_err(Error::from)?;
        Tensor::from_vec(values, shape, device)
    } else {
        let mut values = vec![0f32; shape.elem_count()];
        fill_normals(&source, 0, &mut values).map_err(Error::from)?;
        Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
    }
}

/// [`bn_noise`](super::bn_noise), from plain tensor operations.
pub fn bn_noise_reference(
    u: &Tensor,
    sigma: &Tensor,
    op: &BnNoise,
) -> Result<(Tensor, BatchStatistics)> {
    let view = View::new(u, sigma, op)?;
    let flat = flat(u, &view)?;
    let mean = flat.mean_keepdim(2)?.mean_keepdim(0)?;
    let centred = flat.broadcast_sub(&mean)?;
    let var = centred.sqr()?.mean_keepdim(2)?.mean_keepdim(0)?;
    let y = finish(&centred, &var, u, sigma, op, &view)?;
    let batch = BatchStatistics {
        mean: mean.detach().flatten_all()?,
        var: var.detach().flatten_all()?,
        count: view.count(),
    };
    Ok((y, batch))
}

/// [`bn_noise_eval`](super::bn_noise_eval), from plain tensor operations.
pub fn bn_noise_eval_reference(
    u: &Tensor,
    sigma: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    op: &BnNoise,
) -> Result<Tensor> {
    let view = View::new(u, sigma, op)?;
    let flat = flat(u, &view)?;
    let channels = |statistic: &Tensor| {
        statistic.detach().to_dtype(flat.dtype())?.reshape((1, view.channels, 1))
    };
    let centred = flat.broadcast_sub(&channels(mean)?)?;
    finish(&centred, &channels(var)?, u, sigma, op, &view)
}

/// `u` as (N, C, S), in a dtype whose sums can be trusted.
fn flat(u: &Tensor, view: &View) -> Result<Tensor> {
    u.to_dtype(stable_dtype(u.dtype()))?.reshape((view.batch, view.channels, view.spatial))
}

/// `act(centred / sqrt(var + eps) + sigma * noise)`, in the shape and dtype of `u`.
fn finish(
    centred: &Tensor,
    var: &Tensor,
    u: &Tensor,
    sigma: &Tensor,
    op: &BnNoise,
    view: &View,
) -> Result<Tensor> {
    let mut y = centred.broadcast_div(&(var + op.eps)?.sqrt()?)?;
    if let Some(noise) = op.noise {
        let noise = noise_tensor(y.shape(), noise, y.dtype(), y.device())?;
        let groups = sigma.dims1()?;
        let sigma = sigma
            .to_dtype(y.dtype())?
            .reshape((groups, 1))?
            .broadcast_as((groups, view.channels / groups))?
            .reshape((1, view.channels, 1))?;
        y = (y + noise.broadcast_mul(&sigma)?)?;
    }
    let y = match op.activation {
        Activation::Identity => y,
        Activation::Relu => y.relu()?,
    };
    y.reshape(u.shape())?.to_dtype(u.dtype())
}
