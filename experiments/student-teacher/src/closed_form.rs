//! The stationary points of the objective, in closed form. The crate's documentation derives them.

use crate::settings::Point;

/// sigma_eff at the stationary point with the gain fixed to 1:
///
/// ```text
/// sigma^2 (1 + sigma^2 (D-1)/D) = beta (D-1) s^2 / N
/// ```
///
/// It does not depend on the data.
pub fn sigma_fixed_gain(point: &Point, beta: f64) -> f64 {
    let dim = point.dim as f64;
    positive_root(share(dim), pressure(point, beta) * (dim - 1.0)).sqrt()
}

/// The same with `D` in place of `D - 1` on the right: simpler, and within `1/(2(D-1))` of it.
pub fn sigma_fixed_gain_large_dim(point: &Point, beta: f64) -> f64 {
    let dim = point.dim as f64;
    positive_root(share(dim), pressure(point, beta) * dim).sqrt()
}

/// sigma_eff at the stationary point with a learned gain, where `covariance` is that of the
/// normalized activation with the targets, `c = mean(b y)`:
///
/// ```text
/// sigma^2 (1 + sigma^2 (D-1)/D) / (1 + sigma^2)^2 = beta (D-1) s^2 / (N c^2)
/// ```
///
/// The left side never exceeds `(D-1)/D`. If the right side does, the KL outweighs the signal,
/// sigma_eff grows without bound, and this returns infinity.
pub fn sigma_learned_gain(point: &Point, beta: f64, covariance: f64) -> f64 {
    let dim = point.dim as f64;
    let r = pressure(point, beta) * (dim - 1.0) / (covariance * covariance);
    if r >= share(dim) {
        return f64::INFINITY;
    }
    // (q - r) t^2 + (1 - 2r) t - r = 0 with q = (D-1)/D, whose discriminant is 1 - 4 r / D.
    let denominator = (1.0 - 2.0 * r) + (1.0 - 4.0 * r / dim).sqrt();
    (2.0 * r / denominator).sqrt()
}

/// The average covariance of least squares: the teacher's signal, plus the observation noise that
/// `min(D, N-1)` free directions fit.
pub fn expected_covariance(point: &Point) -> f64 {
    let explained = point.dim.min(point.samples - 1) as f64;
    (1.0 + point.noise.powi(2) * explained / point.samples as f64).sqrt()
}

/// The cosine between least squares and the teacher, to leading order in `1/D`:
///
/// ```text
/// 1 / sqrt(1 + (D-1) s^2 / (N - D - 2))
/// ```
///
/// The error of least squares has the covariance `s^2 (X^T X)^-1`, whose mean for centred Gaussian
/// inputs is `s^2 I / (N - D - 2)`; all of it except the part along the teacher turns the
/// direction. `None` for `N < D + 3`.
pub fn least_squares_cosine(point: &Point) -> Option<f64> {
    let freedom = point.samples.checked_sub(point.dim + 2).filter(|&f| f > 0)?;
    let error = (point.dim as f64 - 1.0) * point.noise.powi(2) / freedom as f64;
    Some(1.0 / (1.0 + error).sqrt())
}

/// The standard deviation of that cosine over data sets, to first order.
///
/// With `t = |e|^2` the squared tangential error, `cos = 1/sqrt(1 + t)`; t has the relative
/// deviation `sqrt(2/(D-1))` of a sum of `D - 1` squares, and that of twice the radial error, `2 s
/// / sqrt(N)`.
pub fn least_squares_cosine_deviation(point: &Point) -> Option<f64> {
    let cosine = least_squares_cosine(point)?;
    let t = cosine.powi(-2) - 1.0;
    let relative =
        (2.0 / (point.dim as f64 - 1.0) + 4.0 * point.noise.powi(2) / point.samples as f64).sqrt();
    Some(0.5 * cosine.powi(3) * t * relative)
}

/// `beta s^2 / N`: the weight of a unit of KL against a unit of squared error.
fn pressure(point: &Point, beta: f64) -> f64 {
    beta * point.noise.powi(2) / point.samples as f64
}

fn share(dim: f64) -> f64 {
    (dim - 1.0) / dim
}

/// The positive root t of `t (1 + q t) = r`.
fn positive_root(q: f64, r: f64) -> f64 {
    2.0 * r / (1.0 + (1.0 + 4.0 * q * r).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [(f64, usize, usize); 5] =
        [(0.1, 100, 1000), (1.0, 2, 50), (2.0, 27, 300), (5.0, 100, 1000), (3.0, 100, 100)];

    fn point((noise, dim, samples): (f64, usize, usize)) -> Point {
        Point { noise, dim, samples }
    }

    /// The objective averaged over the noise, per example, with its constants left out.
    fn objective(p: &Point, beta: f64, gain: f64, sigma: f64, c: f64) -> f64 {
        let sphere = vmf_core::Sphere::new(p.dim).unwrap();
        (gain * gain * (1.0 + sigma * sigma) - 2.0 * gain * c) / (2.0 * p.noise.powi(2))
            + beta / p.samples as f64 * sphere.kl_approx(sigma)
    }

    /// A golden-section search over ln sigma, which knows nothing of derivatives.
    fn minimize(f: impl Fn(f64) -> f64) -> f64 {
        let ratio = 0.5 * (5f64.sqrt() - 1.0);
        let (mut low, mut high) = (1e-4f64.ln(), 1e3f64.ln());
        for _ in 0..200 {
            let (a, b) = (high - ratio * (high - low), low + ratio * (high - low));
            if f(a.exp()) < f(b.exp()) {
                high = b;
            } else {
                low = a;
            }
        }
        low.exp()
    }

    #[test]
    fn closed_forms_minimize_the_objective() {
        for p in POINTS.map(point) {
            for beta in [0.3, 1.0] {
                let fixed = minimize(|sigma| objective(&p, beta, 1.0, sigma, 1.2));
                let ratio = sigma_fixed_gain(&p, beta) / fixed;
                assert!((ratio - 1.0).abs() < 1e-5, "{p:?}: {ratio}");

                let c = expected_covariance(&p);
                // The best gain for each sigma is c / (1 + sigma^2).
                let best = |sigma: f64| objective(&p, beta, c / (1.0 + sigma * sigma), sigma, c);
                let ratio = sigma_learned_gain(&p, beta, c) / minimize(best);
                assert!((ratio - 1.0).abs() < 1e-5, "{p:?}: {ratio}");
            }
        }
    }

    #[test]
    fn a_signal_that_does_not_pay_for_its_kl_is_given_up() {
        let p = point((3.0, 100, 100));
        assert!(sigma_learned_gain(&p, 1.0, 2.9).is_infinite());
        assert!(sigma_learned_gain(&p, 1.0, 3.1).is_finite());
        let objective = |sigma: f64| objective(&p, 1.0, 2.9 / (1.0 + sigma * sigma), sigma, 2.9);
        assert!(minimize(objective) > 900.0);
    }

    #[test]
    fn the_large_dimension_form_is_as_close_as_it_says() {
        for p in POINTS.map(point) {
            let ratio = sigma_fixed_gain_large_dim(&p, 1.0) / sigma_fixed_gain(&p, 1.0);
            assert!(ratio > 1.0 && ratio < 1.0 + 0.5 / (p.dim as f64 - 1.0));
        }
    }
}
