//! The sphere's functions against 50-digit values (`golden/sphere.py` says how those were made),
//! and their smoothness, range and bounds everywhere else.

use proptest::prelude::*;
use vmf_core::{Sphere, bessel};

#[derive(serde::Deserialize)]
struct Golden {
    dim: usize,
    kappa: f64,
    a: f64,
    one_minus_a2: f64,
    a_prime: f64,
    kl: f64,
    log_c: f64,
    log_i: f64,
}

fn golden() -> Vec<Golden> {
    let mut reader = csv::Reader::from_reader(include_str!("golden/sphere.csv").as_bytes());
    let rows: Vec<Golden> = reader.deserialize().collect::<Result<_, _>>().unwrap();
    assert!(rows.len() > 600);
    rows
}

fn relative(exact: f64) -> f64 {
    exact.abs()
}

fn absolute_or_relative(exact: f64) -> f64 {
    exact.abs().max(1.0)
}

/// Asserts the error at every golden point, as a multiple of `scale(exact)`.
fn check(
    name: &str,
    tolerance: f64,
    value: impl Fn(Sphere, f64) -> f64,
    exact: impl Fn(&Golden) -> f64,
    scale: impl Fn(f64) -> f64,
) {
    for row in golden() {
        let (value, exact) = (value(Sphere::new(row.dim).unwrap(), row.kappa), exact(&row));
        let error = (value - exact).abs() / scale(exact);
        let (dim, kappa) = (row.dim, row.kappa);
        assert!(
            error <= tolerance,
            "{name} at D = {dim}, kappa = {kappa}: {value} against {exact}, error {error:e}"
        );
    }
}

#[test]
fn mean_resultant_length_is_exact() {
    check("A", 1e-15, |s, k| s.mean_resultant_length(k), |g| g.a, relative);
}

#[test]
fn spherical_average_is_exact() {
    check("1 - A^2", 1e-15, |s, k| s.one_minus_a2(k), |g| g.one_minus_a2, relative);
}

#[test]
fn variances_are_exact() {
    check("A'", 2e-15, |s, k| s.variance_along_mean(k), |g| g.a_prime, relative);
    check("A/kappa", 1e-15, |s, k| s.variance_across_mean(k), |g| g.a / g.kappa, relative);
}

#[test]
fn kl_is_exact() {
    check("KL", 3e-14, |s, k| s.kl(k), |g| g.kl, relative);
}

#[test]
fn normalizer_is_exact() {
    check("ln C", 1e-14, |s, k| s.log_normalizer(k), |g| g.log_c, absolute_or_relative);
}

#[test]
fn log_bessel_is_exact() {
    let order = |s: Sphere| s.dim() as f64 / 2.0 - 1.0;
    check("ln I", 3e-14, |s, k| bessel::log_i(order(s), k), |g| g.log_i, absolute_or_relative);
}

#[test]
fn normalizer_is_exact_where_it_vanishes() {
    // The golden file ends with points chosen so that |ln C| is far below the terms it is the sum
    // of.
    let near_zero = golden().into_iter().filter(|g| g.log_c.abs() < 1e-4 && g.kappa > 10.0);
    let mut count = 0;
    for g in near_zero {
        let error = (Sphere::new(g.dim).unwrap().log_normalizer(g.kappa) - g.log_c).abs();
        assert!(error < 1e-14, "D = {}, kappa = {}: absolute error {error:e}", g.dim, g.kappa);
        count += 1;
    }
    assert!(count >= 5, "only {count} points");
}

/// Central differences against the analytic derivatives on a fine grid of concentrations, so across
/// every switch of formula: the one between `A` and `1 - A` (at `A = 1/2`, for the dimension itself
/// and for the one it is raised to), and the end of the extended precision at `kappa = 1e100`.
#[test]
fn functions_are_smooth_in_kappa() {
    for dim in [2, 3, 5, 17, 62, 63, 64, 65, 100, 1000, 100_000, 1_000_000] {
        let sphere = Sphere::new(dim).unwrap();
        let half = [sphere, Sphere::new(dim.max(64) + dim % 2).unwrap()]
            .map(|s| s.kappa_from_mean_resultant_length(0.5));
        let sweep = (-40..=110).map(|step| 10f64.powf(f64::from(step) / 10.0) * 0.7);
        for kappa in sweep.chain(half) {
            let step = kappa * 1e-4;
            let (low, high) = (kappa - step, kappa + step);
            let quotient = |f: &dyn Fn(f64) -> f64| (f(high) - f(low)) / (high - low);
            let ratio = sphere.ratio(kappa);
            // Truncation is 1e-8 relative; rounding is eps |f| / (step |f'|).
            let close = |name: &str, difference: f64, derivative: f64, size: f64| {
                let tolerance = 1e-7 * derivative.abs() + 4.0 * f64::EPSILON * size.abs() / step;
                assert!(
                    (difference - derivative).abs() < tolerance,
                    "{name}' at D = {dim}, kappa = {kappa}: {difference} against {derivative}"
                );
            };
            close("A", quotient(&|k| sphere.mean_resultant_length(k)), ratio.derivative, ratio.a);
            let kl = sphere.kl(kappa);
            close("KL", quotient(&|k| sphere.kl(k)), kappa * ratio.derivative, 100.0 * kl);
            let log_c = sphere.log_normalizer(kappa);
            close(
                "ln C",
                quotient(&|k| sphere.log_normalizer(k)),
                -ratio.a,
                10.0 * log_c.abs().max(1.0),
            );
        }
    }
}

#[test]
fn one_step_across_a_switch_changes_nothing() {
    for dim in [2, 3, 40, 64, 1000, 1_000_000] {
        let sphere = Sphere::new(dim).unwrap();
        let raised = Sphere::new(dim.max(64) + dim % 2).unwrap();
        for kappa in [
            sphere.kappa_from_mean_resultant_length(0.5),
            raised.kappa_from_mean_resultant_length(0.5),
            1e100,
        ] {
            let (below, above) = (kappa * (1.0 - 1e-14), kappa * (1.0 + 1e-14));
            let ratio = sphere.ratio(kappa);
            type Function = fn(&Sphere, f64) -> f64;
            let functions: [(Function, f64); 2] =
                [(Sphere::kl, kappa * ratio.derivative), (Sphere::log_normalizer, -ratio.a)];
            for (f, slope) in functions {
                let (low, high) = (f(&sphere, below), f(&sphere, above));
                let jump = (high - low) - slope * (above - below);
                let size = low.abs().max(1.0);
                assert!(jump.abs() < 3e-14 * size, "D = {dim}, kappa = {kappa}: {low} to {high}");
            }
        }
    }
}

#[test]
fn every_value_is_finite() {
    let kappas = (-330..=300).step_by(3).map(|e| 10f64.powi(e)).chain([0.0]);
    for kappa in kappas {
        for dim in [2, 3, 4, 10, 63, 64, 1000, 1_000_000, 1_000_000_000] {
            let sphere = Sphere::new(dim).unwrap();
            let values = [
                ("A", sphere.mean_resultant_length(kappa)),
                ("1 - A^2", sphere.one_minus_a2(kappa)),
                ("A'", sphere.variance_along_mean(kappa)),
                ("A/kappa", sphere.variance_across_mean(kappa)),
                ("KL", sphere.kl(kappa)),
                ("ln C", sphere.log_normalizer(kappa)),
                ("entropy", sphere.entropy(kappa)),
                ("paper's sigma_u^2", sphere.sigma_u2_paper(kappa)),
                ("closed sigma_u^2", sphere.sigma_u2_closed(kappa)),
            ];
            for (name, value) in values {
                assert!(value.is_finite(), "{name} = {value} at D = {dim}, kappa = {kappa}");
            }
            let sigma = sphere.sigma_eff(kappa);
            assert!(sigma > 0.0, "sigma_eff = {sigma} at D = {dim}, kappa = {kappa}");
            assert!(sphere.kl_approx(sigma) >= 0.0, "KL_approx at D = {dim}, kappa = {kappa}");
        }
    }
}

#[test]
fn outside_the_domain_is_nan() {
    let sphere = Sphere::new(10).unwrap();
    for kappa in [-1.0, f64::NAN, f64::NEG_INFINITY] {
        assert!(sphere.mean_resultant_length(kappa).is_nan());
        assert!(sphere.kl(kappa).is_nan());
        assert!(sphere.log_normalizer(kappa).is_nan());
    }
    assert!(bessel::log_i(-0.5, 1.0).is_nan());
    assert_eq!(bessel::log_i(0.0, 0.0), 0.0);
    assert_eq!(bessel::log_i(2.0, 0.0), f64::NEG_INFINITY);
}

/// `G_(a,b)(x) = x / (a + sqrt(x^2 + b^2))`, the shape of Amos's bounds.
fn amos(a: f64, b: f64, x: f64) -> f64 {
    x / (a + x.hypot(b))
}

proptest! {
    #[test]
    fn amos_bounds_hold(log_dim in 0.31f64..6.0, log_kappa in -6f64..8.0) {
        let (dim, kappa) = (10f64.powf(log_dim) as usize, 10f64.powf(log_kappa));
        let (nu, a) = (dim as f64 / 2.0 - 1.0, Sphere::new(dim).unwrap().mean_resultant_length(kappa));
        let lower = amos(nu + 0.5, nu + 1.5, kappa);
        let upper = amos(nu, nu + 2.0, kappa).min(amos(nu + 0.5, ((nu + 0.5) * (nu + 1.5)).sqrt(), kappa));
        prop_assert!(lower <= a * (1.0 + 1e-15) && a <= upper * (1.0 + 1e-15), "{lower} {a} {upper}");
        prop_assert!((0.0..=1.0).contains(&a));
    }

    #[test]
    fn kl_increases(log_dim in 0.31f64..6.0, log_kappa in -6f64..8.0, factor in 1.0001f64..10.0) {
        let sphere = Sphere::new(10f64.powf(log_dim) as usize).unwrap();
        let kappa = 10f64.powf(log_kappa);
        prop_assert!(sphere.kl(kappa) > 0.0);
        prop_assert!(sphere.kl(kappa * factor) > sphere.kl(kappa));
    }

    /// The identity that defines `A'`, where it does not cancel.
    #[test]
    fn variances_add_up(dim in 2usize..50, log_ratio in -1f64..1.0) {
        let sphere = Sphere::new(dim).unwrap();
        let kappa = dim as f64 * 10f64.powf(log_ratio);
        let trace = sphere.variance_along_mean(kappa) + (dim as f64 - 1.0) * sphere.variance_across_mean(kappa);
        prop_assert!((trace / sphere.one_minus_a2(kappa) - 1.0).abs() < 1e-13);
    }
}
