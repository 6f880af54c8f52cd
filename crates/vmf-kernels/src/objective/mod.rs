//! The objective of a training step and the gradient of its KL, in double precision.
//!
//! ```text
//! total = nll + weight KL,     KL = sum over layers and groups of  F ln(1 + exp(x)),
//! x = ln(D / (D - 1)) - 2 ln sigma,     F = M / G (D - 1) / 2
//! slope = weight dKL/drho = -2 weight F / (1 + exp(-x)) dln sigma/drho
//! ```
//!
//! rho is the free parameter of a layer's sigma. A network has a few dozen of these numbers. On a
//! CUDA device one kernel computes all of them, so that they do not have to be read back.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod launches;

use crate::bn_noise::launches::ScaleKind;

/// What the KL of a layer depends on, besides rho.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerKl {
    /// D, the number of inputs of a unit.
    pub dim: usize,
    /// M / G, the number of units that share a sigma.
    pub units_per_group: usize,
    /// G, the number of sigmas.
    pub groups: usize,
    /// What rho is to sigma.
    pub kind: ScaleKind,
}

impl LayerKl {
    pub(crate) fn log_ratio(&self) -> f64 {
        let dim = self.dim as f64;
        (dim / (dim - 1.0)).ln()
    }

    pub(crate) fn factor(&self) -> f64 {
        self.units_per_group as f64 * (self.dim as f64 - 1.0) / 2.0
    }

    /// The KL of one group, and its derivative with respect to rho.
    pub fn of(&self, rho: f64) -> (f64, f64) {
        let (log_sigma, slope) = match self.kind {
            ScaleKind::Softplus => {
                let sigma = softplus(rho);
                (sigma.ln(), logistic(rho) / sigma)
            }
            ScaleKind::Exponential => (rho, 1.0),
            ScaleKind::Sigma => (rho.ln(), 1.0 / rho),
        };
        let x = self.log_ratio() - 2.0 * log_sigma;
        (self.factor() * softplus(x), -2.0 * self.factor() * logistic(x) * slope)
    }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn logistic(x: f64) -> f64 {
    let tail = (-x.abs()).exp();
    (if x > 0.0 { 1.0 } else { tail }) / (1.0 + tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmf_core::{Parameterization, Sphere};

    #[test]
    fn the_kl_and_its_slope_are_the_closed_form() {
        let kinds = [
            (ScaleKind::Exponential, Parameterization::Exp),
            (ScaleKind::Softplus, Parameterization::Softplus),
        ];
        for (kind, parameterization) in kinds {
            for dim in [2, 27, 4608] {
                for exponent in [-8, -1, 0, 2] {
                    let sigma = 10f64.powi(exponent);
                    let rho = parameterization.rho(sigma);
                    let layer = LayerKl { dim, units_per_group: 64, groups: 1, kind };
                    let (kl, slope) = layer.of(rho);
                    let sphere = Sphere::new(dim).unwrap();
                    let expected = 64.0 * sphere.kl_approx(sigma);
                    assert!((kl / expected - 1.0).abs() < 1e-9, "{kl} {expected}");
                    let expected = 64.0 * sphere.kl_approx_slope_in_rho(parameterization, rho);
                    assert!((slope / expected - 1.0).abs() < 1e-9, "{slope} {expected}");
                }
            }
        }
    }
}
