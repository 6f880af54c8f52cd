//! Expected activations: what an activation makes of a Gaussian, on average.
//!
//! Over draws of the weights the value in front of an activation is close to a Gaussian with mean m
//! and standard deviation s. A pass that hands on the mean of the activation, in place of the
//! activation of the mean, predicts in one go what many noisy passes predict on average:
//!
//! ```text
//! E relu(m + s z) = m Phi(m / s) + s phi(m / s)
//! ```
//!
//! These functions are made of Candle's operations: they run on any device, and Candle
//! differentiates them. On the CPU the variational unit has a kernel of its own,
//! [`vmf_kernels::expected`].

use super::layout::Images;
use candle_core::{Result, Tensor};
use std::f64::consts::{FRAC_1_SQRT_2, PI};
use vmf_core::expected::GaussHermite;

/// Below this s there is no noise: it keeps m / s finite.
const SMALLEST: f64 = 1e-12;

/// `E relu(m + s z)`, where `s` broadcasts to the shape of `m`.
pub fn expected_relu(m: &Tensor, s: &Tensor) -> Result<Tensor> {
    let s = s.maximum(SMALLEST)?;
    let (pdf, cdf) = normal(&m.broadcast_div(&s)?)?;
    (m * cdf)? + pdf.broadcast_mul(&s)?
}

/// `E f(m + s z)` for any activation, by Gauss-Hermite quadrature with `points` points, where `s`
/// broadcasts to the shape of `m`.
///
/// Eight points are enough for smooth activations such as GELU and SiLU; use [`expected_relu`] for
/// one with a kink. It costs as many evaluations of f as it has points.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use vmf_candle::ops::expected_activation;
/// let (m, s) = (Tensor::new(&[1f32], &Device::Cpu)?, Tensor::new(&[0.5f32], &Device::Cpu)?);
/// let square = expected_activation(&m, &s, 3, |x| x.sqr())?; // E x^2 = m^2 + s^2
/// assert!((square.to_vec1::<f32>()?[0] - 1.25).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn expected_activation(
    m: &Tensor,
    s: &Tensor,
    points: usize,
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut sum = m.zeros_like()?;
    for &(z, weight) in GaussHermite::new(points.max(1)).points() {
        sum = (sum + (f(&m.broadcast_add(&(s * z)?)?)? * weight)?)?;
    }
    Ok(sum)
}

impl Images {
    /// `E relu(m + s z)`, with one s per channel.
    pub(crate) fn expected_relu(&self, s: &Tensor) -> Result<Self> {
        let s = self.per_channel(s)?;
        self.map(|m| expected_relu(m, &s))
    }

    /// The expected maximum of windows of this side, side by side, and if asked the expected ReLU
    /// of that maximum, with one s per channel: the formulas of Clark (1961) for two Gaussians,
    /// pair by pair.
    pub(crate) fn expected_max_pool(&self, s: &Tensor, window: usize, relu: bool) -> Result<Self> {
        let m = Self::nchw(self.to_nchw()?);
        let var = m.per_channel(&s.maximum(SMALLEST)?.sqr()?)?;
        let mut elements = Vec::new();
        for m in m.window_elements(window)? {
            elements.push((m.clone(), var.broadcast_as(m.shape())?));
        }
        let mut step = 1;
        while step < elements.len() {
            for i in (0..elements.len() - step).step_by(2 * step) {
                elements[i] = maximum(&elements[i], &elements[i + step])?;
            }
            step *= 2;
        }
        let (m, var) = elements.swap_remove(0);
        Ok(Self::nchw(if relu { expected_relu(&m, &var.sqrt()?)? } else { m }))
    }
}

/// The mean and the variance of the larger of two independent Gaussians. With d = m1 - m2,
/// a^2 = v1 + v2 and t = d / a,
/// ```text
/// mean = m2 + e,    var = v2 + (v1 - v2) Phi(t) + e (d - e),    e = d Phi(t) + a phi(t)
/// ```
fn maximum((m1, v1): &(Tensor, Tensor), (m2, v2): &(Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
    let (d, a) = ((m1 - m2)?, (v1 + v2)?.sqrt()?);
    let (pdf, cdf) = normal(&(&d / &a)?)?;
    let e = ((&d * &cdf)? + (a * pdf)?)?;
    let var = (v2 + ((v1 - v2)? * cdf)? + (&e * (d - &e)?)?)?;
    Ok(((m2 + e)?, var.maximum(SMALLEST * SMALLEST)?))
}

/// phi(t) and Phi(t).
fn normal(t: &Tensor) -> Result<(Tensor, Tensor)> {
    let pdf = ((t.sqr()? * -0.5)?.exp()? * (1.0 / (2.0 * PI).sqrt()))?;
    let cdf = (t * FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?;
    Ok((pdf, cdf))
}
