//! Normalization, noise and ReLU from Candle's own operations: they run on any device, Candle
//! differentiates them, and the kernels are checked against them.

use super::all_reduce::all_reduce;
use super::bn_noise::Statistics;
use crate::dtype::stable_dtype;
use crate::error::Error;
use candle_core::{DType, Device, Result, Shape, Tensor};
use vmf_kernels::bn_noise::Config;
use vmf_kernels::noise::{Noise, fill_normals};

/// The noise z of a layer as a tensor, which the kernels add without ever storing it.
pub fn noise_tensor(
    shape: impl Into<Shape>,
    noise: Noise,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let shape = shape.into();
    noise.check(shape.elem_count()).map_err(Error::from)?;
    if dtype == DType::F64 {
        let mut values = vec![0f64; shape.elem_count()];
        fill_normals(&noise, 0, &mut values).map_err(Error::from)?;
        Tensor::from_vec(values, shape, device)
    } else {
        let mut values = vec![0f32; shape.elem_count()];
        fill_normals(&noise, 0, &mut values).map_err(Error::from)?;
        Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
    }
}

/// [`bn_noise`](super::bn_noise), from Candle's own operations.
pub fn bn_noise_reference(
    u: &Tensor,
    sigma: &Tensor,
    config: &Config,
    noise: Option<Noise>,
) -> Result<(Tensor, Statistics)> {
    let flat = flat(u, config)?;
    let mean = batch_mean(&flat, config)?;
    let centred = flat.broadcast_sub(&mean)?;
    let var = batch_mean(&centred.sqr()?, config)?;
    let y = finish(&centred, &var, u, sigma, config, noise)?;
    let batch = Statistics { mean: mean.detach().flatten_all()?, var: var.detach().flatten_all()? };
    Ok((y, batch))
}

/// [`bn_noise_eval`](super::bn_noise_eval), from Candle's own operations.
pub fn bn_noise_eval_reference(
    u: &Tensor,
    sigma: &Tensor,
    statistics: &Statistics,
    config: &Config,
    noise: Option<Noise>,
) -> Result<Tensor> {
    let flat = flat(u, config)?;
    let channels = |statistic: &Tensor| {
        statistic.detach().to_dtype(flat.dtype())?.reshape((1, config.shape.channels, 1))
    };
    let centred = flat.broadcast_sub(&channels(&statistics.mean)?)?;
    finish(&centred, &channels(&statistics.var)?, u, sigma, config, noise)
}

/// The mean of each channel over the whole batch, of which processes may have a part each.
fn batch_mean(values: &Tensor, config: &Config) -> Result<Tensor> {
    if config.across.is_alone() {
        return values.mean_keepdim(2)?.mean_keepdim(0);
    }
    let mut elements = [config.shape.elements_per_channel() as f64];
    config.across.sum(&mut elements).map_err(Error::from)?;
    all_reduce(&values.sum_keepdim(2)?.sum_keepdim(0)?, config.across)? / elements[0]
}

/// `u` as (N, C, H W), in a dtype that is precise enough for sums.
fn flat(u: &Tensor, config: &Config) -> Result<Tensor> {
    let shape = config.shape;
    let u = u.to_dtype(stable_dtype(u.dtype()))?;
    u.reshape((shape.batch, shape.channels, shape.positions))
}

/// `act(centred / sqrt(var + eps) + sigma z)`, in the shape and dtype of `u`.
fn finish(
    centred: &Tensor,
    var: &Tensor,
    u: &Tensor,
    sigma: &Tensor,
    config: &Config,
    noise: Option<Noise>,
) -> Result<Tensor> {
    let mut y = centred.broadcast_div(&(var + config.eps)?.sqrt()?)?;
    if let Some(noise) = noise {
        let z = noise_tensor(y.shape(), noise, y.dtype(), y.device())?;
        let (groups, channels) = (sigma.dims1()?, config.shape.channels);
        let sigma = sigma
            .to_dtype(y.dtype())?
            .reshape((groups, 1))?
            .broadcast_as((groups, channels / groups.max(1)))?
            .reshape((1, channels, 1))?;
        y = (y + z.broadcast_mul(&sigma)?)?;
    }
    let y = if config.relu { y.relu()? } else { y };
    y.reshape(u.shape())?.to_dtype(u.dtype())
}
