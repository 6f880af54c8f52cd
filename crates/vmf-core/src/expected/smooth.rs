//! The smooth relatives of ReLU: GELU and SiLU of a Gaussian.

use super::{
    Derivatives, Gaussian,
    normal::{Tail, cdf, pdf},
    quadrature::{derivatives, moments, trapezoidal},
};

/// Mean and variance of `gelu(x) = x Phi(x)` (the exact GELU, not its approximation by `tanh`).
///
/// The mean has a closed form. By Stein's lemma `E[(x - m) Phi(x)] = s^2 E phi(x)`, and both
/// `E Phi(x) = Phi(t)` and `E phi(x) = phi(t) / c` are Gaussian integrals, with `c = sqrt(1 + s^2)`
/// and `t = m / c`. So
///
/// ```text
/// mean = m Phi(t) + s^2 phi(t) / c = c h(-t) - phi(t) / c
/// ```
///
/// where the second form, with `h` of [`Tail`], keeps its digits in the left tail: the relative
/// error is below 1e-14. The variance is a sum of squares by the trapezoidal rule, whose error is
/// below 1e-13 of `s^2` for `s` from 0.01 to 10.
///
/// ```
/// use vmf_core::expected::{GaussHermite, Gaussian, gelu, normal::cdf};
///
/// let x = Gaussian::new(0.3, 0.5);
/// let y = gelu(x);
/// let by_quadrature = GaussHermite::new(24).expect(x, |x| x * cdf(x));
/// assert!((y.mean - by_quadrature.mean).abs() < 1e-14);
/// assert!((y.variance - by_quadrature.variance).abs() < 1e-14);
/// ```
pub fn gelu(x: Gaussian) -> Gaussian {
    let c = (1.0 + x.variance).sqrt();
    let t = x.mean / c;
    let mean = if t > -1.0 {
        x.mean * cdf(t) + x.variance / c * pdf(t)
    } else {
        let tail = Tail::new(-t);
        c * tail.h - tail.phi / c
    };
    Gaussian { mean, ..moments(&gelu_points(x), x, |x| x * cdf(x)) }
}

/// Derivatives of [`gelu`]'s mean and variance with respect to `m` and `s`.
///
/// ```text
/// d mean / dm = Phi(t) + t phi(t) / c^2        d mean / ds = (s / c) phi(t) (1 + (1 - t^2) / c^2)
/// ```
pub fn gelu_derivatives(x: Gaussian) -> Derivatives {
    let c2 = 1.0 + x.variance;
    let t = x.mean / c2.sqrt();
    let variance = derivatives(&gelu_points(x), x, |x| x * cdf(x), |x| cdf(x) + x * pdf(x));
    Derivatives {
        dmean_dm: cdf(t) + t * pdf(t) / c2,
        dmean_ds: (x.variance / c2).sqrt() * pdf(t) * (1.0 + (1.0 - t * t) / c2),
        ..variance
    }
}

/// Mean and variance of `silu(x) = x / (1 + exp(-x))`.
///
/// There is no closed form. The trapezoidal rule is exact to rounding: the error is below 2e-15 of
/// `s + |mean|` for the mean and 1e-13 of `s^2` for the variance, for `s` from 0.01 to 10.
/// [`GaussHermite`](super::GaussHermite) says how well a few points do.
pub fn silu(x: Gaussian) -> Gaussian {
    moments(&silu_points(x), x, |x| x * logistic(x))
}

/// Derivatives of [`silu`]'s mean and variance with respect to `m` and `s`.
pub fn silu_derivatives(x: Gaussian) -> Derivatives {
    let slope = |x: f64| logistic(x) * (1.0 + x * logistic(-x));
    derivatives(&silu_points(x), x, |x| x * logistic(x), slope)
}

/// Off the real axis the integrand grows like `exp((1 + 2 s^2) y^2 / 2)` at `Im z = y`, so steps of
/// length `l` leave an error of `exp(-2 pi^2 / (l^2 (1 + 2 s^2)))`.
fn gelu_points(x: Gaussian) -> Vec<(f64, f64)> {
    trapezoidal(0.7 / (1.0 + 2.0 * finite(x.variance)).sqrt())
}

/// The logistic function has its nearest poles at `Im x = pi`, so steps of length `l` leave an
/// error of `exp(-2 pi^2 / (l s))`; the Gaussian alone needs `l` below 0.7.
fn silu_points(x: Gaussian) -> Vec<(f64, f64)> {
    trapezoidal(0.5 / (1.0 + finite(x.variance).sqrt()))
}

/// The variance as far as it decides on a number of points, which it must not make unbounded.
fn finite(variance: f64) -> f64 {
    if variance.is_nan() { 0.0 } else { variance.clamp(0.0, 1e4) }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
