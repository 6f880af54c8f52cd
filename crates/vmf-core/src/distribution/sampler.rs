//! Exact sampling in `O(D)`: a height along the mean by rejection, then a uniform direction across
//! it.
//!
//! # Source
//! G. Ulrich, *Computer generation of distributions on the m-sphere*, Applied Statistics 33 (1984);
//! A. T. A. Wood, *Simulation of the von Mises Fisher distribution*, Comm. Statist. Simulation 23
//! (1994).

use rand::{Rng, distr::Distribution};
use rand_distr::{Exp1, Gamma, StandardNormal, StandardUniform};

use crate::{
    Sphere,
    linalg::{dot, norm},
};

/// The quantities that do not change from draw to draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampler {
    kappa: f64,
    /// `D - 1`.
    n: f64,
    /// The envelope's parameter `b = (D-1) / (2 kappa + sqrt(4 kappa^2 + (D-1)^2))`.
    b: f64,
    /// `1 - x0`, where `x0 = (1 - b) / (1 + b)` is the height at which the envelope touches.
    one_minus_x0: f64,
    gamma: Gamma<f64>,
}

impl Sampler {
    pub(crate) fn new(sphere: Sphere, kappa: f64) -> Self {
        let n = sphere.d() - 1.0;
        let b = n / (2.0 * kappa + (2.0 * kappa).hypot(n));
        let gamma = Gamma::new(0.5 * n, 1.0).expect("the shape (D-1)/2 is positive and finite");
        Self { kappa, n, b, one_minus_x0: 2.0 * b / (1.0 + b), gamma }
    }

    /// Fills `w` with a draw around the unit vector `mu`.
    pub(crate) fn fill<R: Rng + ?Sized>(&self, rng: &mut R, mu: &[f64], w: &mut [f64]) {
        let one_minus_height = self.draw_one_minus_height(rng);
        // A Gaussian vector without its part along mu, divided by its norm, is uniform across mu.
        let across = loop {
            w.iter_mut().for_each(|coordinate| *coordinate = StandardNormal.sample(rng));
            let along = dot(w, mu);
            w.iter_mut().zip(mu).for_each(|(coordinate, mu)| *coordinate -= along * mu);
            let across = norm(w);
            if across > 1e-100 {
                break across;
            }
        };
        let height = 1.0 - one_minus_height;
        let radius = (one_minus_height * (2.0 - one_minus_height)).sqrt() / across;
        w.iter_mut()
            .zip(mu)
            .for_each(|(coordinate, mu)| *coordinate = radius * *coordinate + height * mu);
        // Rounding leaves a small component along mu, which would show in the norm of a tight draw.
        let norm = norm(w);
        w.iter_mut().for_each(|coordinate| *coordinate /= norm);
    }

    /// `1 - mu.w`: the complement keeps its digits when the distribution is tight.
    fn draw_one_minus_height<R: Rng + ?Sized>(&self, rng: &mut R) -> f64 {
        if self.n == 2.0 {
            return self.draw_on_ordinary_sphere(rng);
        }
        let x0 = 1.0 - self.one_minus_x0;
        loop {
            // z1 / (z1 + z2) is Beta((D-1)/2, (D-1)/2), and t = (z2 - b z1) / (z2 + b z1) the
            // proposed height.
            let (z1, z2): (f64, f64) = (self.gamma.sample(rng), self.gamma.sample(rng));
            let one_minus_t = 2.0 * self.b * z1 / (z2 + self.b * z1);
            // Accept with probability exp(kappa (t - x0) + (D-1) ln((1 - x0 t) / (1 - x0^2))) <= 1.
            let log_accept = self.kappa * (self.one_minus_x0 - one_minus_t)
                + self.n
                    * (x0 * (one_minus_t - self.one_minus_x0) / (self.one_minus_x0 * (1.0 + x0)))
                        .ln_1p();
            let exponential: f64 = Exp1.sample(rng);
            if log_accept >= -exponential {
                return one_minus_t;
            }
        }
    }

    /// `D = 3`: the height has density proportional to `exp(kappa t)` on `[-1, 1]`, whose
    /// distribution function inverts to `t = 1 + ln(u + (1 - u) exp(-2 kappa)) / kappa`.
    fn draw_on_ordinary_sphere<R: Rng + ?Sized>(&self, rng: &mut R) -> f64 {
        let u: f64 = StandardUniform.sample(rng);
        if self.kappa < 1e-8 {
            return 2.0 * u; // uniform to working precision
        }
        // u + (1 - u) e^(-2 kappa) = 1 + (1 - u) (e^(-2 kappa) - 1), and 1 - u is as uniform as u
        -(u * (-2.0 * self.kappa).exp_m1()).ln_1p() / self.kappa
    }
}
