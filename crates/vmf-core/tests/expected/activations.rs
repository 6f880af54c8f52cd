//! The normal distribution, ReLU, the maximum, GELU, SiLU and the quadrature behind them.

use proptest::prelude::*;
use vmf_core::expected::{
    GaussHermite, Gaussian, gelu, gelu_derivatives, maximum, maximum_derivatives,
    maximum_of_window, maximum_of_window_derivatives,
    normal::{self, Tail},
    relu, relu_derivatives, silu, silu_derivatives,
};

use crate::{assert_derivatives, assert_relative, golden};

#[test]
fn normal_functions_keep_their_digits_in_both_tails() {
    for [x, pdf, cdf, q, h, e] in golden().normal {
        assert_relative(&format!("pdf({x})"), normal::pdf(x), pdf, 5e-16);
        assert_relative(&format!("cdf({x})"), normal::cdf(x), cdf, 2e-15);
        let tail = Tail::new(x.abs());
        for (name, value, exact) in [("q", tail.q, q), ("h", tail.h, h), ("e", tail.e, e)] {
            assert_relative(&format!("{name}({})", x.abs()), value, exact, 3e-15);
        }
    }
    assert_eq!((normal::cdf(-50.0), normal::cdf(50.0)), (0.0, 1.0));
    assert_eq!((normal::pdf(f64::INFINITY), normal::cdf(f64::INFINITY)), (0.0, 1.0));
    assert!(normal::cdf(f64::NAN).is_nan() && normal::pdf(f64::NAN).is_nan());
    assert!(Tail::new(-1.0).q.is_nan());
}

#[test]
fn relu_is_exact() {
    for [m, s, mean, variance] in golden().relu {
        let y = relu(Gaussian::new(m, s));
        // In the left tail a rounding error of m / s counts t^2 times.
        let tolerance = 4e-15 + 2e-16 * (m / s).min(0.0).powi(2);
        assert_relative(&format!("mean at m = {m}, s = {s}"), y.mean, mean, tolerance);
        assert_relative(&format!("variance at m = {m}, s = {s}"), y.variance, variance, tolerance);
    }
}

#[test]
fn relu_meets_its_limits() {
    for (m, expected) in [(-2.0, 0.0), (0.0, 0.0), (3.0, 3.0)] {
        let y = relu(Gaussian::new(m, 0.0));
        assert_eq!((y.mean, y.variance), (expected, 0.0));
    }
    let far_above = relu(Gaussian::new(1e300, 1.0));
    assert_eq!((far_above.mean, far_above.variance), (1e300, 1.0));
    let far_below = relu(Gaussian::new(-1e300, 1.0));
    assert_eq!((far_below.mean, far_below.variance), (0.0, 0.0));
    for bad in [-1.0, f64::NAN] {
        let y = relu(Gaussian { mean: 1.0, variance: bad });
        assert!(y.mean.is_nan() && y.variance.is_nan());
    }
    let slope = |m| relu_derivatives(Gaussian::new(m, 0.0));
    assert_eq!((slope(1.0).dmean_dm, slope(-1.0).dmean_dm), (1.0, 0.0));
    assert_eq!((slope(1.0).dvariance_ds, slope(-1.0).dvariance_ds), (0.0, 0.0));
}

#[test]
fn maximum_is_exact() {
    for [m1, s1, m2, s2, r, mean, variance] in golden().maximum {
        let (x, y) = (Gaussian::new(m1, s1), Gaussian::new(m2, s2));
        for max in [maximum(x, y, r), maximum(y, x, r)] {
            let what = format!("{x:?}, {y:?}, correlation {r}");
            // The mean may be close to zero; its error is to be judged by the deviation.
            let error = (max.mean - mean).abs() / mean.abs().max(variance.sqrt());
            assert!(error < 1e-15, "mean of {what}: error {error:e}");
            assert_relative(&format!("variance of {what}"), max.variance, variance, 1e-14);
        }
    }
}

#[test]
fn maximum_meets_its_limits() {
    let (two, three) = (Gaussian::new(2.0, 0.0), Gaussian::new(3.0, 0.0));
    assert_eq!(maximum(two, three, 0.0), three);
    assert_eq!(maximum(two, two, 0.0), two);
    // Perfectly correlated and equal: the same number twice.
    let x = Gaussian::new(1.0, 2.0);
    assert_eq!(maximum(x, x, 1.0), x);
    // x and -x: the absolute value of a Gaussian.
    let folded = maximum(Gaussian::new(0.0, 1.0), Gaussian::new(0.0, 1.0), -1.0);
    let pi = std::f64::consts::PI;
    assert_relative("mean of |z|", folded.mean, (2.0 / pi).sqrt(), 1e-15);
    assert_relative("variance of |z|", folded.variance, 1.0 - 2.0 / pi, 2e-15);
    assert!(maximum(x, x, 1.5).mean.is_nan());
    // No derivative exists where two equal constants meet; each counts half.
    let [dx, dy] = maximum_derivatives(two, two, 0.0);
    assert_eq!((dx.dmean_dm, dy.dmean_dm), (0.5, 0.5));
    assert_eq!((dx.dmean_ds, dy.dvariance_ds), (0.0, 0.0));
}

#[test]
fn a_window_of_equal_elements_is_off_by_what_the_documentation_says() {
    // The largest of four standard normals has mean 1.0293753730 and variance 0.4917152369
    // (H. L. Harter, Biometrika 48, 1961).
    let y = maximum_of_window([Gaussian::new(0.0, 1.0); 4]);
    assert!((y.mean - 1.029_375_373_0 - 0.0006).abs() < 0.00005, "{}", y.mean);
    assert!((y.variance / 0.491_715_236_9 - 1.0 + 0.055).abs() < 0.0005, "{}", y.variance);
}

#[test]
fn gelu_and_silu_are_exact() {
    for [m, s, mean, variance] in golden().gelu {
        check_smooth("gelu", gelu(Gaussian::new(m, s)), (m, s), mean, variance);
        assert_relative(
            &format!("gelu's mean at {m}, {s}"),
            gelu(Gaussian::new(m, s)).mean,
            mean,
            1e-14,
        );
    }
    for [m, s, mean, variance] in golden().silu {
        check_smooth("silu", silu(Gaussian::new(m, s)), (m, s), mean, variance);
    }
}

fn check_smooth(name: &str, y: Gaussian, (m, s): (f64, f64), mean: f64, variance: f64) {
    let first = (y.mean - mean).abs() / (s + mean.abs());
    let second = (y.variance - variance).abs() / (s * s);
    assert!(first < 2e-15 && second < 1e-13, "{name} at {m}, {s}: errors {first:e}, {second:e}");
}

#[test]
fn gelu_and_silu_without_noise_are_themselves() {
    for m in [-3.0, 0.0, 1e-9, 2.0] {
        let x = Gaussian::new(m, 0.0);
        assert!((gelu(x).mean - m * normal::cdf(m)).abs() < 1e-16);
        assert!((silu(x).mean - m / (1.0 + (-m).exp())).abs() < 1e-15);
        assert!(gelu(x).variance < 1e-30 && silu(x).variance < 1e-30);
    }
    assert!(gelu(Gaussian { mean: 1.0, variance: -1.0 }).mean.is_nan());
    assert!(silu(Gaussian { mean: 1.0, variance: f64::NAN }).mean.is_nan());
}

#[test]
fn derivatives_match_differences() {
    for s in [0.05, 0.7, 3.0] {
        for t in [-5.0, -1.5, -0.3, 0.0, 0.8, 1.5, 4.0] {
            let (m, x) = (t * s, Gaussian::new(t * s, s));
            assert_derivatives(
                "relu",
                relu_derivatives(x),
                |m, s| relu(Gaussian::new(m, s)),
                (m, s),
            );
            assert_derivatives(
                "gelu",
                gelu_derivatives(x),
                |m, s| gelu(Gaussian::new(m, s)),
                (m, s),
            );
            assert_derivatives(
                "silu",
                silu_derivatives(x),
                |m, s| silu(Gaussian::new(m, s)),
                (m, s),
            );
            let rule = GaussHermite::new(9);
            let by_rule = |m, s| rule.expect(Gaussian::new(m, s), f64::sin);
            assert_derivatives("sine", rule.derivatives(x, f64::sin, f64::cos), by_rule, (m, s));
            for r in [-0.6, 0.0, 0.5] {
                let y = Gaussian::new(0.4 * s, 1.7 * s);
                let [dx, dy] = maximum_derivatives(x, y, r);
                let first = |m, s| maximum(Gaussian::new(m, s), y, r);
                assert_derivatives("maximum, x", dx, first, (m, s));
                let second = |m, s| maximum(x, Gaussian::new(m, s), r);
                assert_derivatives("maximum, y", dy, second, (y.mean, y.deviation()));
            }
        }
    }
}

#[test]
fn window_derivatives_match_differences() {
    let window =
        [(0.3, 1.0), (-0.4, 0.5), (0.9, 0.8), (0.1, 2.0)].map(|(m, s)| Gaussian::new(m, s));
    for (i, derivatives) in maximum_of_window_derivatives(window).into_iter().enumerate() {
        let f = |m, s| {
            let mut changed = window;
            changed[i] = Gaussian::new(m, s);
            maximum_of_window(changed)
        };
        let x = window[i];
        assert_derivatives(&format!("element {i}"), derivatives, f, (x.mean, x.deviation()));
    }
    let still = maximum_of_window_derivatives([1.0, 4.0, 2.0, 3.0].map(|m| Gaussian::new(m, 0.0)));
    assert_eq!(still.map(|d| d.dmean_dm), [0.0, 1.0, 0.0, 0.0]);
}

/// The table in the documentation of [`GaussHermite`]: the largest errors over all means, as a
/// share of `s` and of `s^2`.
#[test]
fn few_points_err_as_the_documentation_says() {
    let silu_f = |x: f64| x / (1.0 + (-x).exp());
    let gelu_f = |x: f64| x * normal::cdf(x);
    type Row = (usize, [(f64, f64); 3], [(f64, f64); 3]);
    let table: [Row; 4] = [
        (5, [(3e-6, 5e-5), (4e-4, 3e-3), (3e-2, 5e-2)], [(2e-5, 4e-4), (2e-3, 2e-2), (5e-2, 7e-2)]),
        (8, [(6e-9, 2e-7), (2e-5, 1e-4), (7e-3, 2e-2)], [(3e-8, 3e-6), (7e-5, 2e-3), (3e-2, 4e-2)]),
        (
            16,
            [(2e-14, 7e-13), (1e-8, 2e-7), (7e-4, 2e-3)],
            [(1e-14, 5e-12), (1e-8, 3e-6), (4e-3, 8e-3)],
        ),
        (
            32,
            [(1e-14, 1e-14), (4e-13, 2e-11), (2e-5, 8e-5)],
            [(1e-14, 1e-14), (1e-14, 4e-11), (2e-4, 8e-4)],
        ),
    ];
    for (points, silu_bounds, gelu_bounds) in table {
        let rule = GaussHermite::new(points);
        for (i, s) in [0.5, 1.0, 3.0].into_iter().enumerate() {
            let (mut silu_worst, mut gelu_worst) = ((0.0f64, 0.0f64), (0.0f64, 0.0f64));
            for step in -80..=80 {
                let x = Gaussian::new(f64::from(step) / 10.0, s);
                for (worst, y, exact) in [
                    (&mut silu_worst, rule.expect(x, silu_f), silu(x)),
                    (&mut gelu_worst, rule.expect(x, gelu_f), gelu(x)),
                ] {
                    worst.0 = worst.0.max((y.mean - exact.mean).abs() / s);
                    worst.1 = worst.1.max((y.variance - exact.variance).abs() / (s * s));
                }
            }
            for (name, worst, bound) in
                [("SiLU", silu_worst, silu_bounds[i]), ("GELU", gelu_worst, gelu_bounds[i])]
            {
                let within = |error: f64, bound: f64| {
                    error <= bound && (bound <= 1e-12 || error > 0.4 * bound)
                };
                assert!(
                    within(worst.0, bound.0) && within(worst.1, bound.1),
                    "{points} points, {name}, s = {s}: {worst:?}, stated {bound:?}"
                );
            }
        }
    }
}

#[test]
fn gauss_hermite_rules_are_exact_for_polynomials() {
    for n in [1usize, 2, 3, 8, 31, 64] {
        let rule = GaussHermite::new(n);
        assert_eq!(rule.points().len(), n);
        assert!(rule.points().is_sorted_by(|a, b| a.0 < b.0));
        // E z^(2k) = (2k - 1)!!, for as long as the numbers stay moderate
        let mut exact = 1.0;
        for k in 0..n.min(20) {
            let moment: f64 = rule.points().iter().map(|(x, w)| w * x.powi(2 * k as i32)).sum();
            assert_relative(&format!("{n} points, E z^{}", 2 * k), moment, exact, 1e-13);
            exact *= 2.0 * k as f64 + 1.0;
        }
    }
}

fn any_gaussian() -> impl Strategy<Value = Gaussian> {
    (-20f64..20.0, -3f64..3.0).prop_map(|(m, log_s)| Gaussian::new(m, 10f64.powf(log_s)))
}

proptest! {
    #[test]
    fn relu_is_the_maximum_with_zero(x in any_gaussian()) {
        let (y, max) = (relu(x), maximum(x, Gaussian::default(), 0.0));
        prop_assert!((y.mean - max.mean).abs() <= 1e-15 * y.mean.abs());
        prop_assert!((y.variance - max.variance).abs() <= 4e-15 * y.variance);
    }

    #[test]
    fn relu_lies_within_its_bounds(x in any_gaussian()) {
        let y = relu(x);
        prop_assert!(y.mean >= x.mean.max(0.0));
        prop_assert!((0.0..=x.variance * (1.0 + 1e-15)).contains(&y.variance));
    }

    /// The larger of two is at least each of them, and their sum is that of the larger and smaller.
    #[test]
    fn maximum_and_minimum_add_up(x in any_gaussian(), y in any_gaussian(), r in -0.99f64..0.99) {
        let negated = |x: Gaussian| Gaussian { mean: -x.mean, ..x };
        let (max, min) = (maximum(x, y, r), negated(maximum(negated(x), negated(y), r)));
        let scale = x.deviation() + y.deviation() + x.mean.abs() + y.mean.abs();
        prop_assert!(max.mean >= x.mean.max(y.mean));
        prop_assert!((max.mean + min.mean - x.mean - y.mean).abs() < 1e-14 * scale);
        // E max^2 + E min^2 = E x^2 + E y^2
        let second = |x: Gaussian| x.variance + x.mean * x.mean;
        let difference = second(max) + second(min) - second(x) - second(y);
        prop_assert!(difference.abs() < 1e-13 * scale * scale);
        prop_assert!(max.variance > 0.0);
    }

    #[test]
    fn a_shift_of_all_inputs_shifts_the_maximum(x in any_gaussian(), y in any_gaussian(), r in -0.99f64..0.99) {
        let [dx, dy] = maximum_derivatives(x, y, r);
        prop_assert!((dx.dmean_dm + dy.dmean_dm - 1.0).abs() < 1e-15);
        prop_assert_eq!(dx.dvariance_dm, -dy.dvariance_dm);
    }

    /// Scaling an input by a power of two scales the result by exactly that.
    #[test]
    fn relu_scales(t in -30f64..30.0, log_s in -3f64..3.0, exponent in -40i32..40) {
        let s = 10f64.powf(log_s);
        let x = Gaussian::new(t * s, s);
        let factor = 2f64.powi(exponent);
        let scaled = relu(Gaussian { mean: factor * x.mean, variance: factor * factor * x.variance });
        let y = relu(x);
        prop_assert_eq!(scaled.mean, factor * y.mean);
        prop_assert_eq!(scaled.variance, factor * factor * y.variance);
    }
}
