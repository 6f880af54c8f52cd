//! Monte Carlo dropout (Gal and Ghahramani, 2016).
//!
//! ```text
//! y = x * keep / (1 - rate),   keep ~ Bernoulli(1 - rate) for every element
//! ```
//!
//! Dropout stays on in prediction: each Monte Carlo sample drops other elements. It follows every
//! pooling of a VGG network, and every block of a residual network or transformer.

use candle_core::{Result, Tensor};
use vmf_candle::{Pass, ops};

/// Dropout at one place of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    rate: f64,
    stream: u32,
    /// The standard normal that is exceeded with probability `1 - rate`.
    threshold: f64,
}

impl Dropout {
    /// Dropout of this share of the elements. `stream` separates its draws from those of other
    /// places.
    pub fn new(rate: f64, stream: u32) -> Self {
        Self { rate, stream, threshold: normal_quantile(rate) }
    }

    /// Drops elements in passes with noise, and none in others.
    ///
    /// An element is dropped if the pass's noise for it is below a threshold. So the draws are a
    /// function of seed, step and element, as all others are, and a run that is resumed repeats
    /// them.
    pub fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let Some(noise) = pass.noise(self.stream, xs.dims())? else { return Ok(xs.clone()) };
        let z = ops::noise_tensor(xs.shape(), noise, xs.dtype(), xs.device())?;
        let keep = z.ge(self.threshold)?.to_dtype(xs.dtype())?;
        xs * (keep * (1.0 / (1.0 - self.rate)))?
    }
}

/// The value that a standard normal falls below with this probability, by bisection of its
/// distribution function.
fn normal_quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if vmf_core::expected::normal::cdf(middle) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn the_right_share_is_dropped_and_the_mean_is_kept() -> Result<()> {
        let xs = Tensor::ones((50, 8, 10, 10), DType::F32, &Device::Cpu)?;
        for rate in [0.1, 0.5] {
            let dropout = Dropout::new(rate, 7);
            let ys = dropout.forward(&xs, &Pass::train(1, 2))?;
            let ys: Vec<f32> = ys.flatten_all()?.to_vec1()?;
            let dropped = ys.iter().filter(|y| **y == 0.0).count() as f64 / ys.len() as f64;
            // Five standard deviations of 40,000 draws.
            let slack = 5.0 * (rate * (1.0 - rate) / 40_000.0f64).sqrt();
            assert!((dropped - rate).abs() < slack, "{dropped}");
            let kept = (1.0 / (1.0 - rate)) as f32;
            assert!(ys.iter().all(|y| *y == 0.0 || (*y - kept).abs() < 1e-6));
        }
        Ok(())
    }

    #[test]
    fn draws_repeat_for_a_step_and_stop_without_noise() -> Result<()> {
        let xs = Tensor::ones((4, 3, 5, 5), DType::F32, &Device::Cpu)?;
        let dropout = Dropout::new(0.5, 7);
        let ys = |pass: Pass| dropout.forward(&xs, &pass)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!(ys(Pass::train(1, 2))?, ys(Pass::train(1, 2))?);
        assert_ne!(ys(Pass::train(1, 2))?, ys(Pass::train(1, 3))?);
        assert_ne!(ys(Pass::sample(1, 0))?, ys(Pass::sample(1, 1))?);
        assert_eq!(ys(Pass::mean())?, vec![1.0; 300]);
        Ok(())
    }
}
