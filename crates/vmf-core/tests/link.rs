//! The link between concentration and effective noise, the training KL, and the limits of both.

use proptest::prelude::*;
use vmf_core::{Parameterization, Sphere, expected_cosine};

fn sphere(dim: usize) -> Sphere {
    Sphere::new(dim).unwrap()
}

/// Concentrations from `10^-4 D` to `10^4 D`.
fn sweep(dim: usize) -> impl Iterator<Item = f64> {
    (-400..=400).map(move |step| dim as f64 * 10f64.powf(f64::from(step) / 100.0))
}

/// The largest relative error of `approximate` against `exact` over the sweep, and the ratio
/// `kappa/D` where it occurs.
fn worst(dim: usize, approximate: impl Fn(f64) -> f64, exact: impl Fn(f64) -> f64) -> (f64, f64) {
    let signed = |kappa: f64| approximate(kappa) / exact(kappa) - 1.0;
    let kappa = sweep(dim).max_by(|a, b| signed(*a).abs().total_cmp(&signed(*b).abs())).unwrap();
    (signed(kappa), kappa / dim as f64)
}

#[test]
fn the_papers_interpolant_is_off_by_a_fifth() {
    let s = sphere(100);
    let (error, ratio) = worst(100, |k| s.sigma_u2_paper(k), |k| s.one_minus_a2(k));
    assert!((error + 0.198).abs() < 0.001 && (ratio - 0.7).abs() < 0.1, "{error} at {ratio}");
    let s = sphere(3);
    let (error, _) = worst(3, |k| s.sigma_u2_paper(k), |k| s.one_minus_a2(k));
    assert!((error - 0.5).abs() < 0.01, "{error}");
}

#[test]
fn our_closed_forms_are_off_by_one_over_d() {
    for dim in [3, 27, 100, 576, 4608] {
        let (s, bound) = (sphere(dim), 1.0 / (dim as f64 - 1.0));
        let (variance, _) = worst(dim, |k| s.sigma_u2_closed(k), |k| s.one_minus_a2(k));
        let (inversion, _) = worst(dim, |k| s.kappa_closed(s.sigma_eff(k)), |k| k);
        assert!(variance.abs() <= bound * 1.0001, "D = {dim}: variance {variance}, bound {bound}");
        assert!(
            inversion.abs() <= bound * 1.0001,
            "D = {dim}: inversion {inversion}, bound {bound}"
        );
    }
}

#[test]
fn the_training_kl_is_tight_in_the_exact_noise() {
    // Largest relative error over all concentrations, for the exact sigma_eff.
    for (dim, bound) in [(3, 9.1e-3), (27, 5.1e-3), (100, 1.5e-3), (576, 2.6e-4), (4608, 3.3e-5)] {
        let s = sphere(dim);
        let (error, ratio) = worst(dim, |k| s.kl_approx(s.sigma_eff(k)), |k| s.kl(k));
        assert!(error.abs() < bound, "D = {dim}: {error} at kappa/D = {ratio}");
        assert!(
            error.abs() > 0.5 * bound,
            "D = {dim}: the stated bound {bound} is loose for {error}"
        );
    }
    // With the paper's sigma_eff the interpolant's error shows.
    let s = sphere(100);
    let (error, _) = worst(100, |k| s.kl_approx(s.sigma_eff_paper(k)), |k| s.kl(k));
    assert!((0.20..0.23).contains(&error), "{error}");
}

#[test]
fn asymptotes_are_met() {
    for dim in [3, 27, 100, 4608] {
        let (s, d) = (sphere(dim), dim as f64);
        let broad = 1e-3 * d;
        // The next term of the series is of relative size (kappa/D)^4.
        assert!(
            (s.mean_resultant_length_broad(broad) / s.mean_resultant_length(broad) - 1.0).abs()
                < 1e-11
        );
        assert!((s.kl_broad(broad) / s.kl(broad) - 1.0).abs() < 2e-6);
        let tight = 1e4 * d;
        let next = ((d - 1.0) / tight).powi(3);
        assert!(
            (s.mean_resultant_length_tight(tight) - s.mean_resultant_length(tight)).abs() < next
        );
        assert!((s.kl_tight(tight) / s.kl(tight) - 1.0).abs() < 1e-4);
        let (narrow, wide) = (1e-4, 1e4);
        assert!((s.kl_approx_tight(narrow) / s.kl_approx(narrow) - 1.0).abs() < 1e-8);
        assert!((s.kl_approx_broad(wide) / s.kl_approx(wide) - 1.0).abs() < 1e-7);
    }
}

#[test]
fn what_the_paper_prints_misses_the_same_limits() {
    let s = sphere(100);
    assert!((s.kl_with_printed_sign(100.0) - 197.41).abs() < 0.005);
    let cubic = |a: f64| (a - 10.0 / 100.0).abs();
    assert!(
        (cubic(s.mean_resultant_length_broad_printed(10.0))
            / cubic(s.mean_resultant_length_broad(10.0))
            - 100.0)
            .abs()
            < 1e-9
    );
    let excess = s.kl_approx_tight_printed(1e-3) - s.kl_approx_tight(1e-3);
    assert!((excess - 49.5 * 99f64.ln()).abs() < 1e-9);
}

/// mpmath: `mp.dps = 50; (D-1)/2 * mp.log1p(mp.mpf(D)/(D-1)/sigma**2)` at the doubles nearest to
/// these sigmas.
#[test]
fn training_kl_at_the_ends_of_its_range() {
    for (dim, sigma, exact) in TRAINING {
        let value = sphere(dim).kl_approx(sigma);
        assert!(
            (value / exact - 1.0).abs() < 1e-15,
            "D = {dim}, sigma = {sigma}: {value} against {exact}"
        );
    }
    assert_eq!(sphere(100).kl_approx(0.0), f64::INFINITY);
    assert_eq!(sphere(100).kl_approx(f64::INFINITY), 0.0);
    assert!(sphere(100).kl_approx(-1.0).is_nan());
}

const TRAINING: [(usize, f64, f64); 9] = [
    (2, 1e-30, 69.42412638010134),
    (2, 0.37, 1.3739303636790072),
    (2, 1e+30, 1e-60),
    (100, 1e-30, 6839.175217817064),
    (100, 0.37, 105.21993564129077),
    (100, 1e+30, 5e-59),
    (4608, 1e-30, 318240.7856484497),
    (4608, 0.37, 4876.5111404974095),
    (4608, 1e+30, 2.304e-57),
];

#[test]
fn slopes_match_differences() {
    for dim in [2, 100, 4608] {
        let s = sphere(dim);
        // 1 and -40 are where a formula changes.
        for sigma in [1e-30, 1e-5, 0.3, 1.0, 7.0, 1e5, 1e30] {
            let step = 1e-6 * sigma;
            let difference = (s.kl_approx(sigma + step) - s.kl_approx(sigma - step)) / (2.0 * step);
            let slope = s.kl_approx_slope(sigma);
            assert!(
                (difference / slope - 1.0).abs() < 1e-6,
                "D = {dim}, sigma = {sigma}: {difference} {slope}"
            );
        }
        for p in [Parameterization::Exp, Parameterization::Softplus] {
            for rho in [-69.0, -40.0, -12.0, -1.0, 0.0, 0.4, 3.0, 30.0] {
                let step = 1e-5;
                let kl = |rho: f64| s.kl_approx(p.sigma(rho));
                let difference = (kl(rho + step) - kl(rho - step)) / (2.0 * step);
                let slope = s.kl_approx_slope_in_rho(p, rho);
                assert!(
                    (difference / slope - 1.0).abs() < 1e-6,
                    "{p:?}, D = {dim}, rho = {rho}: {difference} {slope}"
                );
                let difference = (p.sigma(rho + step) - p.sigma(rho - step)) / (2.0 * step);
                assert!((difference / p.slope(rho) - 1.0).abs() < 1e-6);
            }
        }
    }
}

proptest! {
    #[test]
    fn inversions_round_trip(log_dim in 0.31f64..6.5, log_sigma in -30f64..30.0) {
        let s = sphere(10f64.powf(log_dim) as usize);
        let sigma = 10f64.powf(log_sigma);
        let kappa = s.kappa_from_sigma_eff(sigma);
        prop_assert!((s.sigma_eff(kappa) / sigma - 1.0).abs() < 4e-15, "kappa {kappa}");
        prop_assert!((s.mean_resultant_length(kappa) / expected_cosine(sigma) - 1.0).abs() < 4e-15);
    }

    #[test]
    fn parameterizations_round_trip(log_sigma in -30f64..2.5) {
        let sigma = 10f64.powf(log_sigma);
        for p in [Parameterization::Exp, Parameterization::Softplus] {
            prop_assert!((p.sigma(p.rho(sigma)) / sigma - 1.0).abs() < 1e-13);
        }
    }
}
