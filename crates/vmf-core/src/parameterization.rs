//! How `sigma_eff` is kept positive while it is learned.

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
