//! The distribution and its sampler: validation, densities, moments, the exact marginal, value
//! stability.

use rand::{SeedableRng, distr::Distribution};
use rand_pcg::Pcg64;
use vmf_core::{Error, Sphere, VonMisesFisher};

/// A unit vector without any symmetry.
fn direction(dim: usize) -> Vec<f64> {
    let raw: Vec<f64> = (0..dim).map(|i| ((i * i + 3) as f64).sin()).collect();
    let norm = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    raw.into_iter().map(|x| x / norm).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn bad_arguments_are_named() {
    let error = |mean: &[f64], kappa| VonMisesFisher::new(mean.to_vec(), kappa).unwrap_err();
    assert_eq!(error(&[1.0], 1.0), Error::DimensionTooSmall { dim: 1 });
    assert!(matches!(error(&[3.0, 4.0], 1.0), Error::NotUnit { norm: 5.0 }));
    assert!(matches!(error(&[1.0, f64::NAN], 1.0), Error::NotFinite { index: 1, .. }));
    for kappa in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(error(&[1.0, 0.0], kappa), Error::BadConcentration { .. }));
    }
    let q = VonMisesFisher::new(vec![1.0, 0.0], 1.0).unwrap();
    assert!(matches!(
        q.log_prob(&[1.0]),
        Err(Error::LengthMismatch { expected: 2, actual: 1, .. })
    ));
    assert!(matches!(q.log_prob(&[1.0, 1.0]), Err(Error::NotUnit { .. })));
    let fit = |rows: &[f64]| VonMisesFisher::fit(rows, 2).unwrap_err();
    assert_eq!(fit(&[]), Error::NoObservations);
    assert!(matches!(fit(&[1.0, 0.0, 1.0]), Error::LengthMismatch { .. }));
    assert!(matches!(fit(&[1.0, 0.0, -1.0, 0.0]), Error::NoMeanDirection { .. }));
    assert_eq!(fit(&[0.6, 0.8, 0.6, 0.8]), Error::UnboundedConcentration);
}

#[test]
fn a_direction_in_single_precision_is_accepted() {
    let rounded: Vec<f64> = direction(500).into_iter().map(|x| f64::from(x as f32)).collect();
    let q = VonMisesFisher::new(rounded, 10.0).unwrap();
    assert!((dot(q.mean_direction(), q.mean_direction()) - 1.0).abs() < 1e-14);
}

#[test]
fn density_integrates_to_one_on_the_circle() {
    let q = VonMisesFisher::new(vec![0.6, 0.8], 3.0).unwrap();
    let points = 1000; // the trapezoidal rule is exact to rounding for a periodic analytic function
    let integral: f64 = (0..points)
        .map(|i| {
            let angle = std::f64::consts::TAU * f64::from(i) / f64::from(points);
            q.log_prob(&[angle.cos(), angle.sin()]).unwrap().exp()
        })
        .sum::<f64>()
        * std::f64::consts::TAU
        / f64::from(points);
    assert!((integral - 1.0).abs() < 1e-14, "{integral}");
}

#[test]
fn kls_agree() {
    let uniform = VonMisesFisher::new(direction(40), 0.0).unwrap();
    let mut reversed = direction(40);
    reversed.reverse();
    let (q, p) = (
        VonMisesFisher::new(direction(40), 30.0).unwrap(),
        VonMisesFisher::new(reversed, 12.0).unwrap(),
    );
    assert!((q.kl(&uniform).unwrap() / q.kl_to_uniform() - 1.0).abs() < 1e-13);
    assert!(q.kl(&q).unwrap().abs() < 1e-13);
    assert!((q.entropy() + q.kl_to_uniform() - q.sphere().log_area()).abs() < 1e-12);

    // KL(q|p) by Monte Carlo, within four standard errors.
    let mut rng = Pcg64::seed_from_u64(5);
    let (mut w, n) = (vec![0.0; 40], 20_000);
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..n {
        q.sample_into(&mut rng, &mut w).unwrap();
        let log_ratio = q.log_prob(&w).unwrap() - p.log_prob(&w).unwrap();
        sum += log_ratio;
        squares += log_ratio * log_ratio;
    }
    let mean = sum / f64::from(n);
    let error = ((squares / f64::from(n) - mean * mean) / f64::from(n)).sqrt();
    let exact = q.kl(&p).unwrap();
    assert!((mean - exact).abs() < 4.0 * error, "{mean} +- {error} against {exact}");
}

/// Mean and variance of the heights `mu.w` and of one product `w.x`, within five standard errors
/// (a false alarm once in two million runs for each).
#[test]
fn moments_of_draws() {
    for (dim, kappa) in [
        (2, 0.5),
        (2, 40.0),
        (3, 0.0),
        (3, 5.0),
        (4, 2.0),
        (27, 20.0),
        (100, 1000.0),
        (576, 300.0),
        (4608, 2304.0),
    ] {
        let q = VonMisesFisher::new(direction(dim), kappa).unwrap();
        let mut other = direction(dim);
        other.rotate_left(1);
        let mut rng = Pcg64::seed_from_u64(dim as u64);
        let n = (4_000_000 / dim).min(100_000);
        let mut w = vec![0.0; dim];
        let (mut heights, mut products) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for _ in 0..n {
            q.sample_into(&mut rng, &mut w).unwrap();
            assert!((dot(&w, &w) - 1.0).abs() < 1e-14);
            heights.push(dot(&w, q.mean_direction()));
            products.push(dot(&w, &other));
        }
        let sphere = q.sphere();
        check_moments(
            &heights,
            sphere.mean_resultant_length(kappa),
            sphere.variance_along_mean(kappa),
        );
        check_moments(&products, dot(&q.mean(), &other), q.variance_of_product(&other).unwrap());
        let quadratic_form = dot(&other, &q.covariance_times(&other).unwrap());
        assert!((quadratic_form / q.variance_of_product(&other).unwrap() - 1.0).abs() < 1e-12);
    }
}

fn check_moments(draws: &[f64], mean: f64, variance: f64) {
    let n = draws.len() as f64;
    let sample_mean = draws.iter().sum::<f64>() / n;
    assert!(
        (sample_mean - mean).abs() < 5.0 * (variance / n).sqrt(),
        "mean {sample_mean} against {mean}"
    );
    let squares: Vec<f64> = draws.iter().map(|x| (x - mean).powi(2)).collect();
    let sample_variance = squares.iter().sum::<f64>() / n;
    let spread = squares.iter().map(|s| (s - sample_variance).powi(2)).sum::<f64>() / n;
    let error = (spread / n).sqrt();
    assert!(
        (sample_variance - variance).abs() < 5.0 * error,
        "variance {sample_variance} against {variance}"
    );
}

/// Kolmogorov-Smirnov test of `theta = arccos(mu.w)` against its exact law, with density
/// proportional to `exp(kappa cos theta) sin(theta)^(D-2)`, at the 0.01 % level.
#[test]
fn heights_follow_the_exact_marginal() {
    let n = 20_000;
    for (dim, kappa) in [
        (2, 0.0),
        (2, 1.0),
        (2, 300.0),
        (3, 0.0),
        (3, 4.0),
        (3, 1e5),
        (4, 1.0),
        (10, 0.1),
        (10, 50.0),
        (100, 70.0),
        (576, 1e4),
        (4608, 4608.0),
    ] {
        let q = VonMisesFisher::new(direction(dim), kappa).unwrap();
        let mut rng = Pcg64::seed_from_u64(1000 + dim as u64);
        let mut w = vec![0.0; dim];
        let mut angles: Vec<f64> = (0..n)
            .map(|_| {
                q.sample_into(&mut rng, &mut w).unwrap();
                // The distance to mu resolves small angles that the cosine does not.
                let squared: f64 =
                    w.iter().zip(q.mean_direction()).map(|(w, mu)| (w - mu).powi(2)).sum();
                2.0 * (0.5 * squared.sqrt()).min(1.0).asin()
            })
            .collect();
        angles.sort_by(f64::total_cmp);
        let law = AngleLaw::new(dim, kappa);
        let distance = angles
            .iter()
            .enumerate()
            .map(|(i, &angle)| {
                let expected = law.cdf(angle);
                (expected - i as f64 / n as f64)
                    .abs()
                    .max(((i + 1) as f64 / n as f64 - expected).abs())
            })
            .fold(0.0, f64::max);
        // P(sqrt(n) distance > 2.225) = 2 exp(-2 * 2.225^2) = 1e-4
        let limit = 2.225 / (n as f64).sqrt();
        assert!(distance < limit, "D = {dim}, kappa = {kappa}: distance {distance} above {limit}");
    }
}

/// The distribution function of the angle to the mean, tabulated by Simpson's rule where the
/// density lives.
struct AngleLaw {
    start: f64,
    step: f64,
    cumulative: Vec<f64>,
}

impl AngleLaw {
    fn new(dim: usize, kappa: f64) -> Self {
        let power = dim as f64 - 2.0;
        let log_density = |angle: f64| {
            let sine = if power == 0.0 { 0.0 } else { power * angle.sin().ln() };
            -2.0 * kappa * (0.5 * angle).sin().powi(2) + sine
        };
        // The mode solves kappa sin^2 = (D-2) cos; the law is negligible ten widths away from it.
        let cosine =
            if kappa == 0.0 { 0.0 } else { 2.0 * kappa / (power + power.hypot(2.0 * kappa)) };
        let mode = if power == 0.0 { 0.0 } else { cosine.acos() };
        let width = 1.0 / (kappa + dim as f64).sqrt();
        let (start, end) =
            ((mode - 12.0 * width).max(0.0), (mode + 12.0 * width).min(std::f64::consts::PI));
        let (start, end) =
            if kappa + (dim as f64) < 60.0 { (0.0, std::f64::consts::PI) } else { (start, end) };
        let cells = 4000;
        let step = (end - start) / f64::from(cells);
        let top = log_density(mode.max(1e-9));
        let density =
            |angle: f64| (log_density(angle.clamp(1e-300, std::f64::consts::PI)) - top).exp();
        let mut cumulative = vec![0.0];
        for cell in 0..cells {
            let left = start + step * f64::from(cell);
            let simpson = density(left) + 4.0 * density(left + 0.5 * step) + density(left + step);
            cumulative.push(cumulative[cell as usize] + simpson * step / 6.0);
        }
        let total = cumulative[cells as usize];
        cumulative.iter_mut().for_each(|value| *value /= total);
        Self { start, step, cumulative }
    }

    fn cdf(&self, angle: f64) -> f64 {
        let position =
            ((angle - self.start) / self.step).clamp(0.0, (self.cumulative.len() - 1) as f64);
        let cell = (position as usize).min(self.cumulative.len() - 2);
        let (low, high) = (self.cumulative[cell], self.cumulative[cell + 1]);
        low + (high - low) * (position - cell as f64)
    }
}

#[test]
fn fit_recovers_what_it_was_drawn_from() {
    for (dim, kappa) in [(2, 3.0), (3, 20.0), (50, 40.0), (1000, 2000.0)] {
        let q = VonMisesFisher::new(direction(dim), kappa).unwrap();
        let mut rng = Pcg64::seed_from_u64(77);
        let n = 2000;
        let rows: Vec<f64> = (0..n).flat_map(|_| -> Vec<f64> { q.sample(&mut rng) }).collect();
        let fitted = VonMisesFisher::fit(&rows, dim).unwrap();
        // |mean of n draws|^2 exceeds A^2 by about (1 - A^2)/n; the deviation of the height is sqrt(A'/n).
        let ratio = q.sphere().ratio(kappa);
        let bias = ratio.one_minus_a2() / (2.0 * f64::from(n) * ratio.a);
        let error = (ratio.derivative / f64::from(n)).sqrt();
        let fitted_a = fitted.sphere().mean_resultant_length(fitted.kappa());
        assert!(
            (fitted_a - ratio.a - bias).abs() < 5.0 * error + bias,
            "D = {dim}: {fitted_a}, {}",
            ratio.a
        );
        let cosine = dot(fitted.mean_direction(), q.mean_direction());
        assert!(cosine > 0.9, "D = {dim}: cosine {cosine}");
    }
}

/// The first coordinates of seeded draws; a change here changes every experiment that draws
/// directions.
#[test]
fn draws_are_stable_by_seed() {
    let draw = |dim: usize, kappa: f64| -> Vec<f64> {
        VonMisesFisher::new(direction(dim), kappa).unwrap().sample(&mut Pcg64::seed_from_u64(42))
    };
    for (dim, kappa, expected) in STABLE {
        let drawn = draw(dim, kappa);
        for (value, expected) in drawn.iter().zip(expected) {
            assert!(
                (value - expected).abs() < 1e-12,
                "D = {dim}, kappa = {kappa}: {:?}",
                &drawn[..2]
            );
        }
    }
}

const STABLE: [(usize, f64, [f64; 2]); 3] = [
    (2, 3.0, [-0.6210709314694507, -0.7837543608067957]),
    (3, 7.0, [-0.0912333476551444, -0.6512518007323347]),
    (100, 50.0, [-0.022921125495507327, -0.10374609791111064]),
];

#[test]
fn tight_draws_keep_their_scale() {
    // At kappa = 1e14 the cosine differs from 1 by a few units in the last place; the distance does
    // not suffer.
    let q = VonMisesFisher::new(direction(10), 1e14).unwrap();
    let mut rng = Pcg64::seed_from_u64(3);
    let n = 4000;
    let mean_squared_distance: f64 = (0..n)
        .map(|_| {
            let w: Vec<f64> = q.sample(&mut rng);
            w.iter().zip(q.mean_direction()).map(|(w, mu)| (w - mu).powi(2)).sum::<f64>()
        })
        .sum::<f64>()
        / f64::from(n);
    let expected = 2.0 * Sphere::new(10).unwrap().ratio(1e14).one_minus_a;
    assert!(
        (mean_squared_distance / expected - 1.0).abs() < 0.05,
        "{mean_squared_distance} {expected}"
    );
}
