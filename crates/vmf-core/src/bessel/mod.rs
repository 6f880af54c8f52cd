//! Modified Bessel functions of the first kind at the orders that high-dimensional spheres need.
//!
//! On the sphere in `D` dimensions the order is `nu = D/2 - 1`, so a layer with 4,608 inputs asks
//! for `I_2303`. There `I_nu` itself underflows and overflows; its logarithm and the ratio of
//! neighbours do not.
//!
//! Three pieces, each without cancellation, cover every order `nu >= 0` and every argument `x >=
//! 0`:
//!
//! | piece | formula | used for |
//! |---|---|---|
//! | [`Ratio`], [`ratio`] | Perron's continued fraction, with its derivative | `A`, `1 - A` and `A'` for all orders and arguments |
//! | Debye | the uniform expansion of Debye, logarithmic form, ten terms | `ln I_nu` for `nu >= 31` |
//! | downward recurrence | `A_(nu-1) = x / (2 nu + x A_nu)` | carries the expansion down to smaller orders |
//!
//! There is no switch of formula in `x`: a kink there would pin a learned concentration.

pub(crate) mod debye;
mod legendre;
mod ratio;

pub(crate) use legendre::legendre;
pub use ratio::{Ratio, ratio};

/// `ln I_nu(x)`, the logarithm of the modified Bessel function of the first kind.
///
/// Relative error about 1e-15 (absolute where the logarithm is small) for real `nu >= 0`, `x >= 0`.
/// `I_nu(0)` is 0 for `nu > 0`, so `x = 0` gives minus infinity there, and 0 for `nu = 0`.
/// A negative or NaN order or argument gives NaN.
///
/// # Source
/// F. W. J. Olver, *Asymptotics and Special Functions* (1974), chapter 10, section 7; DLMF 10.41.
///
/// ```
/// // I_{1/2}(x) = sqrt(2 / (pi x)) sinh x
/// let x: f64 = 3.0;
/// let exact = (2.0 / (std::f64::consts::PI * x)).sqrt().ln() + x.sinh().ln();
/// assert!((vmf_core::bessel::log_i(0.5, x) - exact).abs() < 1e-14);
/// ```
pub fn log_i(nu: f64, x: f64) -> f64 {
    if nu.is_nan() || x.is_nan() || nu < 0.0 || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return if nu == 0.0 { 0.0 } else { f64::NEG_INFINITY };
    }
    if debye::in_range(nu) {
        return debye::log_i(nu, x);
    }
    // I_nu = (x/2)^nu H / Gamma(nu + 1) with ln H = x A - (x A - ln H)
    let log_h = x * ratio(nu, x) - legendre(nu, x);
    log_h + nu * (0.5 * x).ln() - libm::lgamma(nu + 1.0)
}
