//! `x A - ln H`, where `H` is `I_nu` without its power of `x`.

use super::{Ratio, debye};

/// `x A(x) - ln H(x)` with `H(x) = Gamma(nu + 1) (2/x)^nu I_nu(x)` and `A = (ln H)'`: the Legendre
/// transform of `ln H`. On the sphere it is the KL of a von Mises-Fisher distribution from the
/// uniform one.
///
/// Both terms grow like `x` while their difference starts at `x^2 / (4 nu + 4)` and ends in a
/// logarithm, so they are never formed. With `h = sqrt(nu^2 + x^2)` and `G = x / (nu + h)`, the
/// uniform expansion gives
///
/// ```text
/// x A - ln H = x (A - G) + nu ln(1 + x G / 2nu) + ln(1 + x G / nu) / 2 - (series less its value at 0)
/// ```
///
/// and orders below its range are reached by `ln H_nu = ln H_(nu+1) + ln(1 + x A_(nu+1) / (2 nu +
/// 2))`.
pub(crate) fn legendre(nu: f64, x: f64) -> f64 {
    let here = Ratio::new(nu, x);
    if here.a.is_nan() || x == 0.0 {
        return here.a;
    }
    let raised = debye::raise(nu);
    if raised.order == nu {
        return expansion(nu, x, &here);
    }
    let top = Ratio::new(raised.order, x);
    let mut log_growth = 0.0;
    raised.descend(x, |j, above| log_growth += (above / (2.0 * j) * x).ln_1p());
    expansion(raised.order, x, &top) + x * difference(&here, &top) - log_growth
}

fn expansion(nu: f64, x: f64, ratio: &Ratio) -> f64 {
    let h = nu.hypot(x);
    let g = x / (nu + h);
    // 1 - G = (nu + h - x) / (nu + h) with h - x = nu^2 / (h + x)
    let leading = Ratio { a: g, one_minus_a: (nu / (nu + h)) * (1.0 + nu / (h + x)), ..*ratio };
    let growth = x * (g / nu);
    x * difference(ratio, &leading) + nu * (0.5 * growth).ln_1p() + 0.5 * growth.ln_1p()
        - debye::series_from_zero(nu, x)
}

/// `A - B`, from whichever of the two numbers and their complements are small.
fn difference(a: &Ratio, b: &Ratio) -> f64 {
    if a.a < 0.5 { a.a - b.a } else { b.one_minus_a - a.one_minus_a }
}
