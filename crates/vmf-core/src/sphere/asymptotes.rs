//! The limits that the paper gives, corrected where they are wrong, and as printed so that both can
//! be drawn.

use std::f64::consts::PI;

use super::Sphere;

impl Sphere {
    /// Small concentrations: `A = kappa/D - kappa^3 / (D^2 (D+2)) + O(kappa^5)`.
    pub fn mean_resultant_length_broad(&self, kappa: f64) -> f64 {
        let (d, u) = (self.d(), kappa / self.d());
        u - u * u * kappa / (d + 2.0)
    }

    /// The small-concentration series as the paper prints it, `kappa/D - kappa^3 / (D (D+2))`: its
    /// cubic term is too large by the factor `D`.
    pub fn mean_resultant_length_broad_printed(&self, kappa: f64) -> f64 {
        let u = kappa / self.d();
        u - u * kappa * kappa / (self.d() + 2.0)
    }

    /// Large concentrations: `A = 1 - (D-1) / (2 kappa) + (D-1)(D-3) / (8 kappa^2) + O(kappa^-3)`.
    pub fn mean_resultant_length_tight(&self, kappa: f64) -> f64 {
        let (d, u) = (self.d(), 1.0 / kappa);
        1.0 - 0.5 * (d - 1.0) * u + 0.125 * (d - 1.0) * (d - 3.0) * u * u
    }

    /// The KL of a broad posterior, `KL = kappa^2 / (2D) + O(kappa^4)`.
    pub fn kl_broad(&self, kappa: f64) -> f64 {
        0.5 * kappa * (kappa / self.d())
    }

    /// The KL of a tight posterior, `KL = (D-1)/2 (ln(kappa / 2 pi) - 1) + ln Area(S^(D-1))
    /// + O(1/kappa)`.
    pub fn kl_tight(&self, kappa: f64) -> f64 {
        0.5 * (self.d() - 1.0) * ((kappa / (2.0 * PI)).ln() - 1.0) + self.log_area()
    }

    /// The KL as the paper prints it, with `ln Area` subtracted: too large by `-2 ln
    /// Area(S^(D-1))`.
    pub fn kl_with_printed_sign(&self, kappa: f64) -> f64 {
        self.kl(kappa) - 2.0 * self.log_area()
    }

    /// The broad limit of the training KL, `(D/2) / sigma_eff^2`.
    pub fn kl_approx_broad(&self, sigma_eff: f64) -> f64 {
        0.5 * self.d() / (sigma_eff * sigma_eff)
    }

    /// The tight limit of the training KL, `(D-1)/2 ln(D / ((D-1) sigma_eff^2))`.
    pub fn kl_approx_tight(&self, sigma_eff: f64) -> f64 {
        let d = self.d();
        0.5 * (d - 1.0) * ((d / (d - 1.0)).ln() - 2.0 * sigma_eff.ln())
    }

    /// The tight limit in the paper's table of regimes, `(D-1)/2 ln(D / sigma_eff^2)`: too large by
    /// about `(D-1)/2 ln D`.
    pub fn kl_approx_tight_printed(&self, sigma_eff: f64) -> f64 {
        let d = self.d();
        0.5 * (d - 1.0) * (d.ln() - 2.0 * sigma_eff.ln())
    }
}
