//! The exact KL by numerical integration, without Bessel functions.

/// `KL(vMF(mu, kappa) | uniform)` by the trapezoidal rule.
///
/// With `cos(theta) = tanh y`, the height of a draw along `mu` has a density proportional to
/// `exp(kappa tanh y) sech(y)^(D-1)` on the whole real line, where the rule converges
/// geometrically. Then
///
/// ```text
/// KL = kappa E[tanh y] - ln(J(kappa) / J(0)),    J(kappa) = int exp(kappa tanh y) sech(y)^(D-1) dy
/// ```
pub fn kl(dim: usize, kappa: f64) -> f64 {
    let (log_j, mean) = integrate(dim, kappa);
    let (log_j0, _) = integrate(dim, 0.0);
    kappa * mean - (log_j - log_j0)
}

/// `ln J` and `E tanh y`.
fn integrate(dim: usize, kappa: f64) -> (f64, f64) {
    let n = dim as f64 - 1.0;
    let root = n.hypot(2.0 * kappa);
    let (tanh, sech2) = (2.0 * kappa / (n + root), 2.0 * n / (n + root));
    let peak = ((1.0 + tanh) / sech2.sqrt()).ln();
    let width = 1.0 / (sech2 * (n + 2.0 * kappa * tanh)).sqrt();
    let step = (width / 4.0).min(0.05);
    // ln cosh y = |y| + ln(1 + exp(-2|y|)) - ln 2
    let log_cosh = |y: f64| y.abs() + (-2.0 * y.abs()).exp().ln_1p() - std::f64::consts::LN_2;
    let exponent = |y: f64| kappa * (y.tanh() - 1.0) - n * log_cosh(y);
    let top = exponent(peak);
    let (mut total, mut moment) = (0.0, 0.0);
    for sign in [1.0, -1.0] {
        for k in (if sign > 0.0 { 0 } else { 1 }).. {
            let y = peak + sign * f64::from(k) * step;
            let log_weight = exponent(y) - top;
            if log_weight < -45.0 {
                break;
            }
            total += log_weight.exp();
            moment += log_weight.exp() * y.tanh();
        }
    }
    (top + kappa + (total * step).ln(), moment / total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmf_core::Sphere;

    #[test]
    fn agrees_with_the_bessel_functions() {
        for dim in [2, 3, 27, 100, 4608] {
            for ratio in [0.1, 0.7, 1.0, 10.0, 100.0] {
                let kappa = ratio * dim as f64;
                let (numerical, exact) = (kl(dim, kappa), Sphere::new(dim).unwrap().kl(kappa));
                assert!(
                    (numerical / exact - 1.0).abs() < 1e-8,
                    "D = {dim}, kappa = {kappa}: {numerical} {exact}"
                );
            }
        }
    }
}
