//! Expected activations against quadrature (`golden/expected.py` says how those values were made),
//! their derivatives against differences, and their limits.

mod activations;
mod softmax;

use serde::Deserialize;
use vmf_core::expected::{Derivatives, Gaussian};

#[derive(Deserialize)]
struct Golden {
    /// x, pdf, cdf, and q, h, e of the tail beyond |x|.
    normal: Vec<[f64; 6]>,
    /// m, s, mean, variance.
    relu: Vec<[f64; 4]>,
    /// m and s of both, their correlation, mean, variance.
    maximum: Vec<[f64; 7]>,
    gelu: Vec<[f64; 4]>,
    silu: Vec<[f64; 4]>,
    softmax: Vec<SoftmaxCase>,
}

#[derive(Deserialize)]
struct SoftmaxCase {
    mean: Vec<f64>,
    covariance: Vec<f64>,
    probabilities: Vec<f64>,
    expected_entropy: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/expected.json")).expect("the file is well-formed")
}

#[track_caller]
fn assert_relative(what: &str, value: f64, exact: f64, tolerance: f64) {
    let error = (value / exact - 1.0).abs();
    assert!(
        error < tolerance || value == exact,
        "{what}: {value} against {exact}, relative error {error:e}"
    );
}

/// Asserts analytic derivatives against central differences, both of size `scale`.
#[track_caller]
fn assert_derivatives(
    what: &str,
    derivatives: Derivatives,
    f: impl Fn(f64, f64) -> Gaussian,
    (m, s): (f64, f64),
) {
    let step = 1e-5 * s;
    let difference = |dm: f64, ds: f64| {
        let (high, low) = (f(m + dm, s + ds), f(m - dm, s - ds));
        let size = 2.0 * (dm + ds);
        ((high.mean - low.mean) / size, (high.variance - low.variance) / size)
    };
    let (dmean_dm, dvariance_dm) = difference(step, 0.0);
    let (dmean_ds, dvariance_ds) = difference(0.0, step);
    for (name, analytic, difference, scale) in [
        ("d mean / dm", derivatives.dmean_dm, dmean_dm, 1.0),
        ("d mean / ds", derivatives.dmean_ds, dmean_ds, 1.0),
        ("d variance / dm", derivatives.dvariance_dm, dvariance_dm, s),
        ("d variance / ds", derivatives.dvariance_ds, dvariance_ds, s),
    ] {
        // The step is 1e-5 of the scale, and its square is what a central difference neglects.
        let tolerance = 1e-8 * scale;
        assert!(
            (analytic - difference).abs() < tolerance,
            "{what}, {name} at m = {m}, s = {s}: {analytic} against {difference}"
        );
    }
}
