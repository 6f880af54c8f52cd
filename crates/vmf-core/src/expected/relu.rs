//! ReLU of a Gaussian.

use super::{
    Derivatives, Gaussian,
    normal::{FAR, Tail},
};

/// Mean and variance of `relu(m + s z)`.
///
/// With `t = m / s`, `u = |t|` and the tail integrals `Q, h, e` of [`Tail`] at `u`:
///
/// ```text
/// mean     = m Phi(t) + s phi(t)                          = relu(m) + s h
/// variance = (m^2 + s^2) Phi(t) + m s phi(t) - mean^2     = s^2 (e - h^2)             for m <= 0
///                                                         = s^2 (1 - e - h (2u + h))  for m >= 0
/// ```
///
/// The expressions on the right lose no digits: for `m <= 0` all of `e` remains, and for `m >= 0`
/// the corrections to 1 are small. Their relative error is below `4e-15 + 2e-16 t^2` wherever the
/// result is a normal number (measured against 50-digit arithmetic); the second part is what the
/// rounding of `t` costs in the left tail. Without noise (`s = 0`) the mean is `relu(m)` and the
/// variance 0.
///
/// # Source
/// The integrals are elementary; as a layer they appear in B. J. Frey and G. E. Hinton,
/// *Variational learning in nonlinear Gaussian belief networks*, Neural Computation 11 (1999).
///
/// ```
/// use vmf_core::expected::{Gaussian, relu};
///
/// // Half of a standard normal is cut off.
/// let y = relu(Gaussian { mean: 0.0, variance: 1.0 });
/// assert!((y.mean - 0.5 / std::f64::consts::FRAC_PI_2.sqrt()).abs() < 1e-15);
/// assert!((y.variance - (0.5 - 0.5 / std::f64::consts::PI)).abs() < 1e-15);
/// ```
pub fn relu(x: Gaussian) -> Gaussian {
    let s = x.deviation();
    let tail = Tail::new(x.relative_mean().abs());
    Gaussian {
        mean: x.mean.max(0.0) + s * tail.h,
        variance: x.variance * unit_variance(x.relative_mean(), &tail),
    }
}

/// The variance of `relu(t + z)`, from the tail at `|t|`.
pub(super) fn unit_variance(t: f64, tail: &Tail) -> f64 {
    let &Tail { h, e, .. } = tail;
    if t <= 0.0 { e - h * h } else { 1.0 - e - h * (2.0 * t.min(FAR) + h) }
}

/// Derivatives of [`relu`]'s mean and variance with respect to `m` and `s`:
///
/// ```text
/// d mean / dm = Phi(t)             d variance / dm = 2 mean Phi(-t)
/// d mean / ds = phi(t)             d variance / ds = 2 s (Phi(t) - g(t) phi(t)),    g(t) = t Phi(t) + phi(t)
/// ```
pub fn relu_derivatives(x: Gaussian) -> Derivatives {
    let (s, t) = (x.deviation(), x.relative_mean());
    let tail = Tail::new(t.abs());
    let (above, below) = if t <= 0.0 { (tail.q, 1.0 - tail.q) } else { (1.0 - tail.q, tail.q) };
    // s g(t) = mean; the product with phi vanishes before t overflows.
    let mean = x.mean.max(0.0) + s * tail.h;
    Derivatives {
        dmean_dm: above,
        dmean_ds: tail.phi,
        dvariance_dm: 2.0 * mean * below,
        dvariance_ds: 2.0 * (s * above - mean * tail.phi),
    }
}
