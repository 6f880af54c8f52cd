//! Expectations of any function of a Gaussian, by quadrature.

use super::{Derivatives, Gaussian, normal};

/// The Gauss-Hermite rule: `E f(m + s z) ~ sum_i w_i f(m + s x_i)`, exact for polynomials of degree
/// up to `2n - 1`.
///
/// The points are the roots of the Hermite polynomial `He_n`. Those of each degree separate those
/// of the next, so they are found degree by degree, by Newton's method inside brackets. With the
/// orthonormal polynomials `h_k`, which obey `sqrt(k+1) h_(k+1) = x h_k - sqrt(k) h_(k-1)`, the
/// derivative is `h_n' = sqrt(n) h_(n-1)` and the weights are `w_i = 1 / (n h_(n-1)(x_i)^2)`.
///
/// # How many points
/// The error depends on how much of `f` happens within one standard deviation of the input. The
/// largest errors over all means, as a share of `s` for the mean and of `s^2` for the variance:
///
/// | points | SiLU, s = 0.5 | s = 1 | s = 3 | GELU, s = 0.5 | s = 1 | s = 3 |
/// |--:|---|---|---|---|---|---|
/// | 5 | 3e-6, 5e-5 | 4e-4, 3e-3 | 3e-2, 5e-2 | 2e-5, 4e-4 | 2e-3, 2e-2 | 5e-2, 7e-2 |
/// | 8 | 6e-9, 2e-7 | 2e-5, 1e-4 | 7e-3, 2e-2 | 3e-8, 3e-6 | 7e-5, 2e-3 | 3e-2, 4e-2 |
/// | 16 | 2e-14, 7e-13 | 1e-8, 2e-7 | 7e-4, 2e-3 | 1e-14, 5e-12 | 1e-8, 3e-6 | 4e-3, 8e-3 |
/// | 32 | 1e-14, 1e-14 | 4e-13, 2e-11 | 2e-5, 8e-5 | 1e-14, 1e-14 | 1e-14, 4e-11 | 2e-4, 8e-4 |
///
/// (`cargo test -p vmf-core --test expected` checks each entry.)
///
/// # Source
/// G. H. Golub and J. H. Welsch, *Calculation of Gauss quadrature rules*, Math. Comp. 23 (1969).
#[derive(Clone, Debug, PartialEq)]
pub struct GaussHermite {
    points: Vec<(f64, f64)>,
}

impl GaussHermite {
    /// The rule with `n` points. Zero points are taken as one, the mean itself.
    ///
    /// Finding the points takes time of order `n^3`, a millisecond at `n = 64`; keep the rule.
    pub fn new(n: usize) -> Self {
        let n = n.max(1);
        // The positive roots of one degree, ascending.
        let mut roots: Vec<f64> = Vec::new();
        for degree in 2..=n {
            // All roots are below sqrt(4n + 2); zero is one of odd degrees and a bound for even.
            let mut edges = roots;
            edges.push((4.0 * degree as f64 + 2.0).sqrt());
            if degree % 2 == 0 {
                edges.insert(0, 0.0);
            }
            roots = edges.windows(2).map(|edge| root(degree, edge[0], edge[1])).collect();
        }
        let weight = |x: f64| 1.0 / (n as f64 * hermite(n, x).1.powi(2));
        let middle = (n % 2 == 1).then(|| (0.0, weight(0.0)));
        let outer = roots.iter().flat_map(|&x| [(-x, weight(x)), (x, weight(x))]);
        let mut points: Vec<(f64, f64)> = middle.into_iter().chain(outer).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { points }
    }

    /// The points `x_i`, ascending, each with its weight `w_i`.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Mean and variance of `f(x)`.
    ///
    /// ```
    /// use vmf_core::expected::{Gaussian, GaussHermite};
    ///
    /// // x^2 of N(1, 2^2) has mean 1 + 4 and variance 2 * 4^2 + 4 * 4 * 1.
    /// let y = GaussHermite::new(5).expect(Gaussian::new(1.0, 2.0), |x| x * x);
    /// assert!((y.mean - 5.0).abs() < 1e-13 && (y.variance - 48.0).abs() < 1e-12);
    /// ```
    pub fn expect(&self, x: Gaussian, f: impl Fn(f64) -> f64) -> Gaussian {
        moments(&self.points, x, f)
    }

    /// Derivatives of the mean and variance of `f(x)`, where `df` is the derivative of `f`.
    pub fn derivatives(
        &self,
        x: Gaussian,
        f: impl Fn(f64) -> f64,
        df: impl Fn(f64) -> f64,
    ) -> Derivatives {
        derivatives(&self.points, x, f, df)
    }
}

/// The root of `He_n` between two roots of `He_(n-1)`.
fn root(n: usize, mut low: f64, mut high: f64) -> f64 {
    let rising = hermite(n, high).0 > 0.0;
    let mut x = 0.5 * (low + high);
    for _ in 0..100 {
        let (value, below) = hermite(n, x);
        if (value > 0.0) == rising {
            high = x;
        } else {
            low = x;
        }
        let newton = x - value / ((n as f64).sqrt() * below);
        let next = if low < newton && newton < high { newton } else { 0.5 * (low + high) };
        if (next - x).abs() <= f64::EPSILON * x {
            return next;
        }
        x = next;
    }
    x
}

/// The orthonormal Hermite polynomials of degrees `n` and `n - 1` at `x`.
fn hermite(n: usize, x: f64) -> (f64, f64) {
    (0..n).fold((1.0, 0.0), |(here, below), k| {
        let k = k as f64;
        ((x * here - k.sqrt() * below) / (k + 1.0).sqrt(), here)
    })
}

/// The trapezoidal rule in `z` with steps of at most `step`: as accurate as rounding allows if `f`
/// is analytic and `step` is small enough for it.
pub(super) fn trapezoidal(step: f64) -> Vec<(f64, f64)> {
    /// The density beyond is below 1e-20.
    const END: f64 = 9.5;
    let half = (END / step).ceil() as i32;
    let step = END / f64::from(half);
    (-half..=half)
        .map(|i| {
            let z = step * f64::from(i);
            (z, step * normal::pdf(z))
        })
        .collect()
}

pub(super) fn moments(points: &[(f64, f64)], x: Gaussian, f: impl Fn(f64) -> f64) -> Gaussian {
    let s = x.deviation();
    let mean: f64 = points.iter().map(|(z, w)| w * f(x.mean + s * z)).sum();
    let variance = points.iter().map(|(z, w)| w * (f(x.mean + s * z) - mean).powi(2)).sum();
    Gaussian { mean, variance }
}

/// ```text
/// d mean / dm = E f'         d variance / dm = 2 E (f - mean) f'
/// d mean / ds = E f' z       d variance / ds = 2 E (f - mean) f' z
/// ```
pub(super) fn derivatives(
    points: &[(f64, f64)],
    x: Gaussian,
    f: impl Fn(f64) -> f64,
    df: impl Fn(f64) -> f64,
) -> Derivatives {
    let s = x.deviation();
    let mean: f64 = points.iter().map(|(z, w)| w * f(x.mean + s * z)).sum();
    points.iter().fold(Derivatives::default(), |sum, &(z, w)| {
        let at = x.mean + s * z;
        let (slope, excess) = (w * df(at), f(at) - mean);
        Derivatives {
            dmean_dm: sum.dmean_dm + slope,
            dmean_ds: sum.dmean_ds + slope * z,
            dvariance_dm: sum.dvariance_dm + 2.0 * excess * slope,
            dvariance_ds: sum.dvariance_ds + 2.0 * excess * slope * z,
        }
    })
}
