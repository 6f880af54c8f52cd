//! The larger of two Gaussians, and of the four of a pooling window.

use super::{
    Derivatives, Gaussian,
    normal::{FAR, Tail},
    quotient,
};

/// Mean and variance of `max(x, y)` for jointly Gaussian `x` and `y` with the given correlation.
///
/// Let `b` be the one with the larger mean, `a` the other, `r` their correlation,
/// `d^2 = Var(a - b) = (s_a - s_b)^2 + 2 (1 - r) s_a s_b` and `u = (m_b - m_a) / d >= 0`. Because
/// `max(a, b) = b + relu(a - b)`, and `Cov(b, relu(a - b)) = Cov(b, a - b) Q` by Stein's lemma,
///
/// ```text
/// mean     = m_b + d h(u)
/// variance = s_b^2 (1 - 2Q) + 2 r s_a s_b Q + d^2 (e - h^2)
/// ```
///
/// with the tail integrals `Q, h, e` of [`Tail`] at `u`. These are Clark's moments, written so that
/// no digits are lost: for `r >= 0` all terms of the variance are positive. The relative error is
/// below 1e-14 for `|r| < 0.99`.
///
/// Two constants (`s_a = s_b = 0`) give their maximum. A correlation outside `[-1, 1]` gives NaN.
///
/// # Source
/// C. E. Clark, *The greatest of a finite set of random variables*, Operations Research 9 (1961).
///
/// ```
/// use vmf_core::expected::{Gaussian, maximum};
///
/// // The larger of two independent standard normals.
/// let y = maximum(Gaussian::new(0.0, 1.0), Gaussian::new(0.0, 1.0), 0.0);
/// assert!((y.mean - std::f64::consts::FRAC_2_SQRT_PI / 2.0).abs() < 1e-15);
/// assert!((y.variance - (1.0 - 1.0 / std::f64::consts::PI)).abs() < 1e-15);
/// ```
pub fn maximum(x: Gaussian, y: Gaussian, correlation: f64) -> Gaussian {
    let Pair { s_a, s_b, m_b, d, tail, .. } = Pair::new(x, y, correlation);
    let Tail { q, h, e, .. } = tail;
    Gaussian {
        mean: m_b + d * h,
        variance: s_b * s_b * (1.0 - 2.0 * q)
            + 2.0 * correlation * s_a * s_b * q
            + d * d * (e - h * h),
    }
}

/// Derivatives of [`maximum`]'s mean and variance with respect to the means and deviations of `x`
/// and of `y`, at constant correlation.
///
/// With `D_a = dd/ds_a = (s_a - r s_b) / d`, `D_b` alike, and `k = Q - h phi`:
///
/// ```text
/// d mean / dm_a = Q                   d mean / ds_a = phi D_a
/// d mean / dm_b = 1 - Q               d mean / ds_b = phi D_b
/// d variance / dm_a = 2 (s_a D_a phi - d Q (u + h)) = - d variance / dm_b
/// d variance / ds_a = 2 (d D_a k - u phi s_b D_b D_a + r s_b Q)
/// d variance / ds_b = 2 (d D_b k - u phi s_b D_b^2 + s_b (1 - 2Q) + r s_a Q)
/// ```
///
/// Where both inputs are the same constant the maximum has no derivative; each mean then counts
/// half.
pub fn maximum_derivatives(x: Gaussian, y: Gaussian, correlation: f64) -> [Derivatives; 2] {
    let r = correlation;
    let Pair { s_a, s_b, d, u, tail, x_is_a, .. } = Pair::new(x, y, r);
    let Tail { phi, q, h, .. } = tail;
    let (slope_a, slope_b) = (quotient(s_a - r * s_b, d), quotient(s_b - r * s_a, d));
    let k = q - h * phi;
    let bend = u * phi * s_b * slope_b;
    let dvariance_dm = 2.0 * (s_a * slope_a * phi - d * q * (u + h));
    let a = Derivatives {
        dmean_dm: q,
        dmean_ds: phi * slope_a,
        dvariance_dm,
        dvariance_ds: 2.0 * (slope_a * (d * k - bend) + r * s_b * q),
    };
    let b = Derivatives {
        dmean_dm: 1.0 - q,
        dmean_ds: phi * slope_b,
        dvariance_dm: -dvariance_dm,
        dvariance_ds: 2.0 * (slope_b * (d * k - bend) + s_b * (1.0 - 2.0 * q) + r * s_a * q),
    };
    if x_is_a { [a, b] } else { [b, a] }
}

/// Two Gaussians in the order of their means, `m_a <= m_b`.
struct Pair {
    s_a: f64,
    s_b: f64,
    m_b: f64,
    /// The deviation of the difference.
    d: f64,
    /// The difference of the means in units of `d`, limited to where the tail vanishes.
    u: f64,
    tail: Tail,
    x_is_a: bool,
}

impl Pair {
    fn new(x: Gaussian, y: Gaussian, correlation: f64) -> Self {
        let x_is_a = x.mean <= y.mean;
        let (a, b) = if x_is_a { (x, y) } else { (y, x) };
        let (s_a, s_b) = (a.deviation(), b.deviation());
        let d = if (-1.0..=1.0).contains(&correlation) {
            ((s_a - s_b).powi(2) + 2.0 * (1.0 - correlation) * s_a * s_b).sqrt()
        } else {
            f64::NAN
        };
        let u = quotient(b.mean - a.mean, d);
        Self { s_a, s_b, m_b: b.mean, d, u: u.min(FAR), tail: Tail::new(u), x_is_a }
    }
}

/// Mean and variance of the largest of four independent Gaussians, as in a 2x2 pooling window: the
/// larger of the first two, of the last two, and of both results.
///
/// The larger of two Gaussians is not itself Gaussian, so this is exact for the first step only.
/// For four equal Gaussians of deviation `s`, the mean is 0.0006 `s` too large and the variance
/// 5.5 % too small; if one of them is far above the others, both are exact.
///
/// ```
/// use vmf_core::expected::{Gaussian, maximum_of_window};
///
/// let y = maximum_of_window([Gaussian::new(0.0, 1.0); 4]);
/// assert!((y.mean - 1.0294).abs() < 0.001); // the exact mean is 1.0294
/// ```
pub fn maximum_of_window(window: [Gaussian; 4]) -> Gaussian {
    let [p, q, r, s] = window;
    maximum(maximum(p, q, 0.0), maximum(r, s, 0.0), 0.0)
}

/// Derivatives of [`maximum_of_window`] with respect to the mean and deviation of each element, by
/// the chain rule.
pub fn maximum_of_window_derivatives(window: [Gaussian; 4]) -> [Derivatives; 4] {
    let [p, q, r, s] = window;
    let halves = [maximum(p, q, 0.0), maximum(r, s, 0.0)];
    let outer = maximum_derivatives(halves[0], halves[1], 0.0);
    let inner = [maximum_derivatives(p, q, 0.0), maximum_derivatives(r, s, 0.0)];
    std::array::from_fn(|i| {
        let (outer, inner) = (outer[i / 2], inner[i / 2][i % 2]);
        // The deviation of a half is the root of its variance: ds = dv / (2 s).
        let twice_s = 2.0 * halves[i / 2].deviation();
        let (ds_dm, ds_ds) =
            (quotient(inner.dvariance_dm, twice_s), quotient(inner.dvariance_ds, twice_s));
        Derivatives {
            dmean_dm: outer.dmean_dm * inner.dmean_dm + outer.dmean_ds * ds_dm,
            dmean_ds: outer.dmean_dm * inner.dmean_ds + outer.dmean_ds * ds_ds,
            dvariance_dm: outer.dvariance_dm * inner.dmean_dm + outer.dvariance_ds * ds_dm,
            dvariance_ds: outer.dvariance_dm * inner.dmean_ds + outer.dvariance_ds * ds_ds,
        }
    })
}
