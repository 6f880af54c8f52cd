//! The divergence that training minimizes, a closed form in `sigma_eff`, and the positive parameter
//! behind it.

use crate::Sphere;

impl Sphere {
    /// The training divergence,
    /// `KL_approx(sigma_eff, D) = (D-1)/2 ln(1 + D / ((D-1) sigma_eff^2))`.
    ///
    /// It is `-(D-1)/2 ln(1 - A^2)` with `D/(D-1)` for 1, the logarithm of the volume of the
    /// latitude at height `A`, which is why it stays within 0.9 % of the exact divergence at `D
    /// = 3` and 0.003 % at `D = 4608`.
    ///
    /// Accurate for every positive `sigma_eff`; infinite at 0, zero at infinity, NaN for a negative
    /// argument.
    ///
    /// ```
    /// let sphere = vmf_core::Sphere::new(100)?;
    /// let kappa = 100.0;
    /// let error = sphere.kl_approx(sphere.sigma_eff(kappa)) / sphere.kl(kappa) - 1.0;
    /// assert!(error.abs() < 0.0014);
    /// # Ok::<(), vmf_core::Error>(())
    /// ```
    pub fn kl_approx(&self, sigma_eff: f64) -> f64 {
        let c = self.d() / (self.d() - 1.0);
        let log = if sigma_eff < 1.0 {
            // ln((sigma^2 + c) / sigma^2): the quotient itself would overflow for a tiny sigma
            (sigma_eff * sigma_eff + c).ln() - 2.0 * sigma_eff.ln()
        } else {
            (c / sigma_eff / sigma_eff).ln_1p()
        };
        0.5 * (self.d() - 1.0) * log
    }

    /// `d KL_approx / d sigma_eff = -D / (sigma_eff (sigma_eff^2 + D/(D-1)))`.
    pub fn kl_approx_slope(&self, sigma_eff: f64) -> f64 {
        -self.d() / sigma_eff / (sigma_eff * sigma_eff + self.d() / (self.d() - 1.0))
    }

    /// `d KL_approx / d rho` for a `sigma_eff` that is kept positive by `parameterization`.
    pub fn kl_approx_slope_in_rho(&self, parameterization: Parameterization, rho: f64) -> f64 {
        let sigma = parameterization.sigma(rho);
        // d sigma / d rho = sigma * rate, so the sigma in the denominator cancels instead of under-
        // or overflowing.
        -self.d() * parameterization.relative_slope(rho)
            / (sigma * sigma + self.d() / (self.d() - 1.0))
    }
}

/// How an unconstrained parameter `rho` is turned into a positive `sigma_eff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Parameterization {
    /// `sigma_eff = exp(rho)`: steps act on the logarithm, equally at every scale.
    #[default]
    Exp,
    /// `sigma_eff = softplus(rho) = ln(1 + exp(rho))`: like `exp` for small noise, linear for
    /// large.
    Softplus,
}

impl Parameterization {
    /// `sigma_eff` of `rho`.
    pub fn sigma(self, rho: f64) -> f64 {
        match self {
            Self::Exp => rho.exp(),
            // ln(1 + e^rho) = max(rho, 0) + ln(1 + e^-|rho|)
            Self::Softplus => rho.max(0.0) + (-rho.abs()).exp().ln_1p(),
        }
    }

    /// The `rho` that gives `sigma_eff`, the inverse of [`Parameterization::sigma`].
    ///
    /// ```
    /// use vmf_core::Parameterization::*;
    /// for p in [Exp, Softplus] {
    ///     assert!((p.sigma(p.rho(0.3)) - 0.3).abs() < 1e-15);
    /// }
    /// ```
    pub fn rho(self, sigma_eff: f64) -> f64 {
        match self {
            Self::Exp => sigma_eff.ln(),
            // ln(e^sigma - 1) = sigma + ln(1 - e^-sigma)
            Self::Softplus => sigma_eff + (-(-sigma_eff).exp_m1()).ln(),
        }
    }

    /// `d sigma_eff / d rho`: `sigma_eff` for `exp`, the logistic function of `rho` for `softplus`.
    pub fn slope(self, rho: f64) -> f64 {
        match self {
            Self::Exp => rho.exp(),
            Self::Softplus => 1.0 / (1.0 + (-rho).exp()),
        }
    }

    /// `d ln sigma_eff / d rho`, which tends to 1 for small noise in both.
    pub fn relative_slope(self, rho: f64) -> f64 {
        match self {
            Self::Exp => 1.0,
            Self::Softplus if rho < -40.0 => 1.0, // where the quotient below would become 0/0
            Self::Softplus => self.slope(rho) / self.sigma(rho),
        }
    }
}
