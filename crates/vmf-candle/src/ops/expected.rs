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
        let (m, var) = largest(elements)?;
        Ok(Self::nchw(if relu { expected_relu(&m, &var.sqrt()?)? } else { m }))
    }
}

/// Mean and variance of the maximum over windows of this side, side by side, from those of images
/// (N, C, H, W).
pub(crate) fn largest_of_windows(
    m: &Tensor,
    var: &Tensor,
    window: usize,
) -> Result<(Tensor, Tensor)> {
    let elements = |tensor: &Tensor| Images::nchw(tensor.clone()).window_elements(window);
    let var = var.maximum(SMALLEST * SMALLEST)?;
    largest(elements(m)?.into_iter().zip(elements(&var)?).collect())
}

/// The mean and the variance of `relu(m + s z)`. With `v = s^2`, `t = m / s` and `h = h(|t|)` of
/// [`excess`],
/// ```text
/// mean = m Phi(t) + s phi(t)        variance = v (Phi(t) - h (|t| + h))
/// ```
/// This form of the variance does not cancel large terms, as a second moment minus the square of
/// the mean would.
pub(crate) fn relu_moments(m: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    let v = v.maximum(SMALLEST * SMALLEST)?;
    let s = v.sqrt()?;
    let t = (m / &s)?;
    let (pdf, cdf) = normal(&t)?;
    let mean = ((m * &cdf)? + (pdf * s)?)?;
    let relative = (cdf - excess(&t)?)?;
    Ok((mean, (v * relative.relu()?)?))
}

/// The mean and the variance of the largest of several Gaussians: neighbours first, then the maxima
/// of neighbours, and so on.
fn largest(mut elements: Vec<(Tensor, Tensor)>) -> Result<(Tensor, Tensor)> {
    let mut step = 1;
    while step < elements.len() {
        for i in (0..elements.len() - step).step_by(2 * step) {
            elements[i] = maximum(&elements[i], &elements[i + step])?;
        }
        step *= 2;
    }
    Ok(elements.swap_remove(0))
}

/// The mean and the variance of the larger of two independent Gaussians. With d = m1 - m2,
/// a^2 = v1 + v2, t = d / a and h = h(|t|) of [`excess`],
/// ```text
/// mean = m2 + d Phi(t) + a phi(t),    var = v2 + (v1 - v2) Phi(t) - a^2 h (|t| + h)
/// ```
fn maximum((m1, v1): &(Tensor, Tensor), (m2, v2): &(Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
    let (d, sum) = ((m1 - m2)?, (v1 + v2)?);
    let a = sum.sqrt()?;
    let t = (&d / &a)?;
    let (pdf, cdf) = normal(&t)?;
    let mean = (m2 + ((d * &cdf)? + (a * pdf)?)?)?;
    let var = ((v2 + ((v1 - v2)? * cdf)?)? - (sum * excess(&t)?)?)?;
    Ok((mean, var.maximum(SMALLEST * SMALLEST)?))
}

/// `h (u + h)` with `u = |t|` and `h = phi(u) - u Phi(-u)`.
fn excess(t: &Tensor) -> Result<Tensor> {
    /// Beyond, h is 0 in double precision. In single precision it is rounding error, which this
    /// keeps from growing.
    const FAR: f64 = 9.0;
    let u = t.abs()?.minimum(FAR)?;
    let (pdf, below) = normal(&u.neg()?)?;
    let h = (pdf - (&u * below)?)?;
    &h * (u + &h)?
}

/// phi(t) and Phi(t).
fn normal(t: &Tensor) -> Result<(Tensor, Tensor)> {
    let pdf = ((t.sqr()? * -0.5)?.exp()? * (1.0 / (2.0 * PI).sqrt()))?;
    let cdf = (t * FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?;
    Ok((pdf, cdf))
}
