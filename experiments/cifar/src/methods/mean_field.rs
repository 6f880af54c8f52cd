//! A Gaussian of its own for every weight of a convolution (Blundell et al., 2015), with local
//! reparameterization (Kingma et al., 2015).
//!
//! ```text
//! w ~ N(mu, s^2)   =>   u = x * mu + sqrt(x^2 * s^2) z,   z ~ N(0, 1) for every output
//! y = relu(BN(u) + skip)
//! KL = sum over weights of  ln(p / s) + (s^2 + mu^2) / (2 p^2) - 1/2,   prior N(0, p^2)
//! ```
//!
//! The prior has p = 1 / sqrt(D), at which the weight of a unit with D inputs has length one on
//! average. Initially s is `--sigma` times that. The classifier is not variational, as in the other
//! methods.

use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};
use std::sync::{Arc, Mutex, PoisonError};
use vmf_candle::layers::NormStats;
use vmf_candle::posterior::stream_of;
use vmf_candle::{Pass, ops};

use crate::model::Layer;

/// The variational parameters of a network, from which its KL is computed.
#[derive(Clone, Debug, Default)]
pub struct Gaussians(Arc<Mutex<Vec<Gaussian>>>);

#[derive(Clone, Debug)]
struct Gaussian {
    mean: Tensor,
    /// The logarithm of the standard deviation.
    log_deviation: Tensor,
    /// The standard deviation of the prior.
    prior: f64,
}

impl Gaussian {
    fn variance(&self) -> candle_core::Result<Tensor> {
        (&self.log_deviation * 2.0)?.exp()
    }

    fn kl(&self) -> candle_core::Result<Tensor> {
        let squares = ((self.variance()? + self.mean.sqr()?)? / (2.0 * self.prior.powi(2)))?;
        let per_weight = ((squares - &self.log_deviation)? + (self.prior.ln() - 0.5))?;
        per_weight.to_dtype(DType::F64)?.sum_all()
    }
}

impl Gaussians {
    /// The KL of all weights from their priors in nats, in double precision; `None` if there are
    /// none.
    pub fn kl(&self) -> candle_core::Result<Option<Tensor>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total: Option<Tensor> = None;
        for gaussian in all.iter() {
            let kl = gaussian.kl()?;
            total = Some(match total {
                Some(total) => (total + kl)?,
                None => kl,
            });
        }
        Ok(total)
    }

    fn add(&self, gaussian: Gaussian) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(gaussian);
    }
}

/// A convolution with Gaussian weights, its normalization and, if asked for, ReLU.
#[derive(Clone, Debug)]
pub struct GaussianConv {
    weight: Gaussian,
    norm: NormStats,
    /// No noise is added behind the normalization.
    no_sigma: Tensor,
    stream: u32,
    padding: usize,
    stride: usize,
    relu: bool,
}

impl GaussianConv {
    /// Builds the convolution at the path of its name in `vb`, the builder of the whole network.
    pub fn new(
        layer: &Layer,
        relu: bool,
        sigma: f64,
        gaussians: &Gaussians,
        vb: &VarBuilder,
    ) -> Result<Self> {
        ensure!(
            layer.kernel > 0,
            "--method mean-field has no linear layers: choose VGG or a ResNet"
        );
        let shape = layer.weight_shape();
        let inputs: usize = shape[1..].iter().product();
        let prior = 1.0 / (inputs as f64).sqrt();
        let own = vb.pp(&layer.name);
        let normal = Init::Randn { mean: 0.0, stdev: prior };
        let deviation = Init::Const((sigma * prior).ln());
        let weight = Gaussian {
            mean: own.get_with_hints(shape.as_slice(), "weight", normal)?,
            log_deviation: own.get_with_hints(shape.as_slice(), "log_deviation", deviation)?,
            prior,
        };
        gaussians.add(weight.clone());
        let norm = match layer.name.rsplit_once('.') {
            Some((parent, _)) => vb.pp(parent).pp(&layer.norm),
            None => vb.pp(&layer.norm),
        };
        Ok(Self {
            weight,
            norm: NormStats::batch(layer.outputs, &norm)?,
            no_sigma: Tensor::zeros(1, vb.dtype(), vb.device())?,
            stream: stream_of(&layer.name),
            padding: layer.kernel / 2,
            stride: layer.stride,
            relu,
        })
    }

    /// `relu(BN(u) + skip)`.
    pub fn forward(
        &self,
        xs: &Tensor,
        skip: Option<&Tensor>,
        pass: &Pass,
    ) -> candle_core::Result<Tensor> {
        let conv = |xs: &Tensor, w: &Tensor| ops::conv2d(xs, w, self.padding, self.stride, 1, 1);
        let mut u = conv(xs, &self.weight.mean)?;
        if let Some(noise) = pass.noise(self.stream, u.dims())? {
            // Rounding in a fast convolution can leave a variance of zero a little below it.
            let variance = (conv(&xs.sqr()?, &self.weight.variance()?)?.relu()? + 1e-12)?;
            let z = ops::noise_tensor(u.shape(), noise, u.dtype(), u.device())?;
            u = (u + (variance.sqrt()? * z)?)?;
        }
        let relu_inside = self.relu && skip.is_none();
        let config = ops::bn_noise_config(&u)?.relu(relu_inside);
        let ys = match self.norm.running_for(pass.statistics()) {
            Some(running) => ops::bn_noise_eval(&u, &self.no_sigma, &running, &config, None)?,
            None => {
                let (ys, batch) = ops::bn_noise(&u, &self.no_sigma, &config, None)?;
                let elements = config.shape.elements_per_channel();
                self.norm.record(pass.statistics(), &batch, elements)?;
                ys
            }
        };
        match skip {
            None => Ok(ys),
            Some(skip) if self.relu => (ys + skip)?.relu(),
            Some(skip) => ys + skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random::Draws;
    use candle_core::{Device, Var};
    use candle_nn::VarMap;
    use vmf_candle::seeded;

    fn layer() -> Layer {
        Layer {
            name: "conv1".into(),
            norm: "bn1".into(),
            inputs: 3,
            outputs: 4,
            kernel: 3,
            stride: 1,
            size: 6,
        }
    }

    /// The KL against Monte Carlo: the mean of `ln q(w) - ln p(w)` over draws of w.
    #[test]
    fn the_kl_is_the_mean_log_ratio_of_densities() -> Result<()> {
        let (mean, deviation, prior) = (0.3f64, 0.2f64, 0.5f64);
        let gaussian = Gaussian {
            mean: Tensor::new(&[mean], &Device::Cpu)?,
            log_deviation: Tensor::new(&[deviation.ln()], &Device::Cpu)?,
            prior,
        };
        let kl = gaussian.kl()?.to_scalar::<f64>()?;
        let log_density = |x: f64, m: f64, s: f64| -((x - m) / s).powi(2) / 2.0 - s.ln();
        let key = ops::NoiseKey { seed: 5, ..Default::default() };
        let draws = 100_000;
        let ratios = (0..draws).map(|element| {
            let w = mean + deviation * vmf_kernels::noise::normal(key, element);
            log_density(w, mean, deviation) - log_density(w, 0.0, prior)
        });
        let ratios: Vec<f64> = ratios.collect();
        let average = ratios.iter().sum::<f64>() / draws as f64;
        let variance = ratios.iter().map(|r| (r - average).powi(2)).sum::<f64>() / draws as f64;
        // Five standard errors.
        assert!((average - kl).abs() < 5.0 * (variance / draws as f64).sqrt(), "{average} {kl}");
        Ok(())
    }

    /// Local reparameterization against draws of the weights themselves: the mean and the
    /// variance of an output before normalization.
    #[test]
    fn outputs_vary_as_they_do_over_draws_of_the_weights() -> Result<()> {
        let (vars, gaussians) = (VarMap::new(), Gaussians::default());
        let vb = seeded(&vars, 3, DType::F32, &Device::Cpu);
        let conv = GaussianConv::new(&layer(), false, 0.5, &gaussians, &vb)?;
        let draws = Draws::new(1, "test.images", 0);
        let pixels = (0..108).map(|i| draws.words(i, 0)[0] as f32 / u32::MAX as f32 - 0.3);
        let image = Tensor::from_iter(pixels, &Device::Cpu)?.reshape((1, 3, 6, 6))?;
        let convolve = |w: &Tensor| -> candle_core::Result<f64> {
            let u = ops::conv2d(&image, w, 1, 1, 1, 1)?;
            Ok(u.get(0)?.get(1)?.get(2)?.get(3)?.to_scalar::<f32>()?.into())
        };
        let variance_map = ops::conv2d(&image.sqr()?, &conv.weight.variance()?, 1, 1, 1, 1)?;
        let variance = variance_map.get(0)?.get(1)?.get(2)?.get(3)?.to_scalar::<f32>()?;
        let (count, center) = (4000, convolve(&conv.weight.mean)?);
        let deviation = conv.weight.log_deviation.exp()?;
        let mut squares = 0.0;
        for sample in 0..count {
            let key = ops::NoiseKey { seed: 9, sample, ..Default::default() };
            let z = ops::noise_tensor(deviation.shape(), key.into(), DType::F32, &Device::Cpu)?;
            squares += (convolve(&(&conv.weight.mean + (&deviation * z)?)?)? - center).powi(2);
        }
        // The variance of a variance of normals is 2 / n; five standard errors.
        let ratio = squares / f64::from(count) / f64::from(variance);
        assert!((ratio - 1.0).abs() < 5.0 * (2.0 / f64::from(count)).sqrt(), "{ratio}");
        Ok(())
    }

    #[test]
    fn gradients_reach_means_and_deviations() -> Result<()> {
        let (vars, gaussians) = (VarMap::new(), Gaussians::default());
        let vb = seeded(&vars, 3, DType::F32, &Device::Cpu);
        let conv = GaussianConv::new(&layer(), true, 0.5, &gaussians, &vb)?;
        let xs = Tensor::rand(0f32, 1.0, (5, 3, 6, 6), &Device::Cpu)?;
        let ys = conv.forward(&xs, None, &Pass::train(1, 0))?;
        let weights = Tensor::rand(0f32, 1.0, ys.shape(), &Device::Cpu)?;
        let gradients = (ys * weights)?.sum_all()?.backward()?;
        let all = vars.data().lock().unwrap();
        for name in ["conv1.weight", "conv1.log_deviation"] {
            let var: &Var = &all[name];
            let gradient = gradients.get(var).expect("a gradient").sqr()?.sum_all()?;
            assert!(gradient.to_scalar::<f32>()? > 0.0, "{name}");
        }
        Ok(())
    }
}
