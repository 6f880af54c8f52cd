//! The Kullback-Leibler divergence (KL) from the uniform prior, the normalizer and the entropy.

use std::f64::consts::{LN_2, PI};

use super::{Sphere, double::Double};
use crate::bessel::{debye, legendre};

/// `ln 2 pi` to 32 digits.
const LN_2_PI: Double = Double { hi: 1.837_877_066_409_345_3, lo: 1.4447872176368647e-16 };

impl Sphere {
    /// The logarithm of the sphere's area, `ln Area(S^(D-1)) = ln 2 + (D/2) ln pi - ln Gamma(D/2)`.
    ///
    /// ```
    /// let ordinary = vmf_core::Sphere::new(3)?;
    /// assert!((ordinary.log_area() - (4.0 * std::f64::consts::PI).ln()).abs() < 1e-15);
    /// # Ok::<(), vmf_core::Error>(())
    /// ```
    pub fn log_area(&self) -> f64 {
        let half = 0.5 * self.d();
        LN_2 + half * PI.ln() - libm::lgamma(half)
    }

    /// The exact KL from the uniform prior, in nats:
    /// `KL = kappa A + ln C_D(kappa) + ln Area(S^(D-1))`.
    ///
    /// The paper subtracts `ln Area`; with that sign the KL would not vanish at `kappa = 0` (see
    /// [`Sphere::kl_with_printed_sign`]).
    ///
    /// The three terms grow like `D ln D` while their sum starts at `kappa^2 / (2D)`, so they are
    /// never formed. The KL is `kappa A - ln H` with `H = Gamma(nu+1) (2/kappa)^nu I_nu(kappa)` and
    /// `nu = D/2 - 1`, and that difference is evaluated as a sum of small terms.
    ///
    /// ```
    /// let sphere = vmf_core::Sphere::new(100)?;
    /// assert!((sphere.kl(100.0) - 24.135).abs() < 5e-4);
    /// assert_eq!(sphere.kl(0.0), 0.0);
    /// # Ok::<(), vmf_core::Error>(())
    /// ```
    pub fn kl(&self, kappa: f64) -> f64 {
        legendre(self.order(), kappa)
    }

    /// `ln C_D(kappa)`, the logarithm of the density's normalizer in `q(w) = C_D exp(kappa mu.w)`:
    /// `ln C_D = nu ln kappa - (D/2) ln 2 pi - ln I_nu(kappa)`.
    ///
    /// Where it passes through zero, numbers of size `D ln D` cancel; that part of the sum is
    /// carried in twice the working precision, so the absolute error stays small there too.
    pub fn log_normalizer(&self, kappa: f64) -> f64 {
        let nu = self.order();
        if debye::in_range(nu) && kappa >= 0.0 {
            let h = nu.hypot(kappa);
            leading(nu, kappa) + 0.5 * (h / (2.0 * PI)).ln() - debye::series(nu, kappa)
        } else {
            self.kl(kappa) - kappa * self.mean_resultant_length(kappa) - self.log_area()
        }
    }

    /// The differential entropy `-E ln q = ln Area(S^(D-1)) - KL`, in nats.
    pub fn entropy(&self, kappa: f64) -> f64 {
        self.log_area() - self.kl(kappa)
    }
}

/// `nu (ln(nu + h) - ln 2 pi) - h` with `h = sqrt(nu^2 + kappa^2)`.
fn leading(nu: f64, kappa: f64) -> f64 {
    if kappa > 1e100 {
        // Nothing cancels here, and the squares below would overflow.
        return nu * (kappa / (2.0 * PI)).ln() - kappa;
    }
    let h = (Double::product(nu, nu) + Double::product(kappa, kappa)).sqrt();
    let log = (h + nu.into()).ln() - LN_2_PI;
    let sum = log * nu.into() - h;
    sum.hi + sum.lo
}
