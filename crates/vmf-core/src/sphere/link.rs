//! The link between a concentration on the sphere and noise after normalization: `kappa <-> A <->
//! sigma_eff`.
//!
//! A weight drawn from `vMF(mu, kappa)` gives the activation `w.x` the mean `A mu.x` and, for
//! inputs without preferred direction and `|x|^2 = D`, the variance `sigma_u^2 = 1 - A^2`.
//! Normalization divides the shrinkage `A` away, so behind it the same uncertainty appears as
//! additive noise of deviation
//!
//! ```text
//! sigma_eff = sigma_u / A = sqrt(1 - A^2) / A
//! ```
//!
//! Each direction of the link is here in three forms: exact, the paper's approximation, and a
//! closed form of ours that costs as little as the paper's and is accurate to `1/(D-1)` everywhere.

use super::Sphere;

/// The expected cosine between a sampled direction and the mean direction, read off `sigma_eff`:
/// `A = 1 / sqrt(1 + sigma_eff^2)`.
///
/// It follows from `sigma_eff^2 = (1 - A^2) / A^2` and holds exactly, in every dimension; no Bessel
/// function is needed.
///
/// ```
/// assert_eq!(vmf_core::expected_cosine(0.0), 1.0);
/// assert!((vmf_core::expected_cosine(1.0) - 0.5f64.sqrt()).abs() < 1e-15);
/// ```
pub fn expected_cosine(sigma_eff: f64) -> f64 {
    1.0 / sigma_eff.hypot(1.0)
}

/// From concentration to noise.
impl Sphere {
    /// The paper's interpolant of the activation variance, `sigma_u^2 ~ D / (kappa + D)`.
    ///
    /// Up to 20 % below the exact `1 - A^2` (near `kappa = 0.7 D`), and above it by `1/(D-1)` in
    /// the tight limit (49 % at `D = 3`).
    pub fn sigma_u2_paper(&self, kappa: f64) -> f64 {
        1.0 / (1.0 + kappa / self.d())
    }

    /// Our interpolant of the activation variance, `sigma_u^2 ~ 2 / (1 + sqrt(1 + 4 (kappa/D)^2))`.
    ///
    /// The same cost as the paper's; the relative error is at most `1/(D-1)`, reached in the tight
    /// limit, and far less for `kappa < D`. It is `1 - G^2` at large `D`, with `G` the leading
    /// term of the uniform expansion of `A`.
    pub fn sigma_u2_closed(&self, kappa: f64) -> f64 {
        2.0 / (1.0 + (2.0 * kappa / self.d()).hypot(1.0))
    }

    /// The effective noise behind normalization, `sigma_eff = sqrt(1 - A^2) / A`; infinite at
    /// `kappa = 0`.
    pub fn sigma_eff(&self, kappa: f64) -> f64 {
        let ratio = self.ratio(kappa);
        ratio.one_minus_a2().sqrt() / ratio.a
    }

    /// The paper's effective noise, `sqrt(D / (kappa + D)) / A`: its interpolant over the exact
    /// shrinkage.
    pub fn sigma_eff_paper(&self, kappa: f64) -> f64 {
        self.sigma_u2_paper(kappa).sqrt() / self.mean_resultant_length(kappa)
    }
}

/// From noise to concentration.
impl Sphere {
    /// The concentration whose effective noise is `sigma_eff`: the root of `A_D(kappa) = 1 / sqrt(1
    /// + sigma_eff^2)`.
    ///
    /// Newton's method on `ln sigma_eff^2` as a function of `ln kappa`, nearly a straight line: its
    /// slope `-2 kappa A' / (A (1 - A^2))` runs from -2 (broad) to -1 (tight).
    ///
    /// No noise gives an infinite concentration; negative or NaN noise gives NaN.
    pub fn kappa_from_sigma_eff(&self, sigma_eff: f64) -> f64 {
        let mut kappa = self.kappa_closed(sigma_eff);
        // Also where the concentration leaves the range of doubles: there the closed form is the
        // limit itself.
        if !(kappa.is_normal() && kappa < 1e300) {
            return kappa;
        }
        for _ in 0..30 {
            let ratio = self.ratio(kappa);
            let log_excess = 2.0 * (ratio.one_minus_a2().sqrt() / ratio.a / sigma_eff).ln();
            let slope = -2.0 * (kappa * ratio.derivative) / (ratio.a * ratio.one_minus_a2());
            let step = -log_excess / slope;
            kappa *= step.exp();
            if step.abs() < 4.0 * f64::EPSILON {
                break;
            }
        }
        kappa
    }

    /// The concentration with mean resultant length `a` in `[0, 1]`: the inverse of
    /// [`Sphere::mean_resultant_length`]. NaN outside that range.
    pub fn kappa_from_mean_resultant_length(&self, a: f64) -> f64 {
        self.kappa_from_sigma_eff(((1.0 - a) * (1.0 + a)).sqrt() / a)
    }

    /// Our closed-form inversion, both of the paper's regimes in one:
    /// `kappa ~ D sqrt(1 + sigma_eff^2) / sigma_eff^2`.
    ///
    /// The relative error is at most `1/(D-1)`, reached in the tight limit.
    pub fn kappa_closed(&self, sigma_eff: f64) -> f64 {
        if sigma_eff < 0.0 {
            return f64::NAN;
        }
        self.d() * ((1.0 / sigma_eff).hypot(1.0) / sigma_eff)
    }

    /// The paper's inversion for tight posteriors (`sigma_eff << 1`), `kappa ~ D / sigma_eff^2`.
    pub fn kappa_tight(&self, sigma_eff: f64) -> f64 {
        self.d() / (sigma_eff * sigma_eff)
    }

    /// The paper's inversion for broad posteriors (`sigma_eff >> 1`), `kappa ~ D / sigma_eff`.
    pub fn kappa_broad(&self, sigma_eff: f64) -> f64 {
        self.d() / sigma_eff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversion_meets_its_limits() {
        let sphere = Sphere::new(100).unwrap();
        assert_eq!(sphere.kappa_from_sigma_eff(0.0), f64::INFINITY);
        assert_eq!(sphere.kappa_from_sigma_eff(f64::INFINITY), 0.0);
        assert!(sphere.kappa_from_sigma_eff(-1.0).is_nan());
        assert!(sphere.kappa_from_sigma_eff(f64::NAN).is_nan());
        assert_eq!(sphere.kappa_from_mean_resultant_length(0.0), 0.0);
        assert_eq!(sphere.kappa_from_mean_resultant_length(1.0), f64::INFINITY);
        assert!(sphere.kappa_from_mean_resultant_length(1.5).is_nan());
        assert!(sphere.kappa_from_mean_resultant_length(-0.5).is_nan());
    }
}
