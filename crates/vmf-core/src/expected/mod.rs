//! Expected activations: what a layer does to a Gaussian, without drawing samples.
//!
//! # The idea
//!
//! Behind each normalization the network adds Gaussian noise of a known size, so a Monte Carlo
//! prediction is the mean over that noise of what the network computes. A pass without noise is not
//! that mean, because activations are not linear: `E relu(m + s z)` is larger than `relu(m)`. One
//! deterministic pass comes close to it if it carries the mean through *expected* activations:
//!
//! ```text
//! m  = (conv(m_in, w) - mean) * rstd               the statistics collected under noise
//! v  = conv(v_in, w^2) * rstd^2 + sigma_eff^2      inherited noise, plus the layer's own
//! m', v' = mean and variance of relu(m + sqrt(v) z)
//! p  = E softmax(logits)                           logits with mean m' and variance v'
//! ```
//!
//! Each step treats its input as a Gaussian with the right mean and variance.
//!
//! # What is where
//!
//! | item | holds | error |
//! |---|---|---|
//! | [`normal`] | `phi`, `Phi` and the integrals of the normal tail | 3e-15 relative, in both tails |
//! | [`relu`] | mean, variance and derivatives in closed form | 4e-15 relative |
//! | [`maximum`], [`maximum_of_window`] | the larger of two Gaussians (Clark), of a pooling window | 1e-14 for two; a window is moment matching |
//! | [`gelu`], [`silu`] | GELU's mean in closed form, the rest by the trapezoidal rule | 1e-14 for the mean, 1e-13 of `s^2` for the variance |
//! | [`GaussHermite`] | the mean and variance of any function of a Gaussian, by few points | depends on the function |
//! | [`softmax`] | expected class probabilities and entropies from the moments of the logits | about 0.001 in probability |
//!
//! All functions take a [`Gaussian`] and give NaN if its variance is negative or NaN.

mod maximum;
pub mod normal;
mod quadrature;
mod relu;
mod smooth;
pub mod softmax;

pub use maximum::{maximum, maximum_derivatives, maximum_of_window, maximum_of_window_derivatives};
pub use quadrature::GaussHermite;
pub use relu::{relu, relu_derivatives};
pub use smooth::{gelu, gelu_derivatives, silu, silu_derivatives};

/// A random number known by its mean and variance, treated as the Gaussian `m + s z`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gaussian {
    /// The mean, `m`.
    pub mean: f64,
    /// The variance, `s^2`.
    pub variance: f64,
}

impl Gaussian {
    /// `m + s z` with standard normal `z`.
    pub fn new(m: f64, s: f64) -> Self {
        Self { mean: m, variance: s * s }
    }

    /// The standard deviation, `s`.
    pub fn deviation(self) -> f64 {
        self.variance.sqrt()
    }

    /// `m / s`, infinite where there is no noise, and 0 where there is nothing at all.
    fn relative_mean(self) -> f64 {
        quotient(self.mean, self.deviation())
    }
}

/// The derivatives of an activation's mean and variance with respect to its input's mean `m` and
/// standard deviation `s`.
///
/// With respect to the variance they would be `d/ds / (2 s)`, which is not bounded as `s` vanishes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Derivatives {
    /// `d mean / dm`.
    pub dmean_dm: f64,
    /// `d mean / ds`.
    pub dmean_ds: f64,
    /// `d variance / dm`.
    pub dvariance_dm: f64,
    /// `d variance / ds`.
    pub dvariance_ds: f64,
}

/// `a / b`, with `0 / 0 = 0`.
fn quotient(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { 0.0 } else { a / b }
}
