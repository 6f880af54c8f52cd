//! Mean and covariance of the von Mises-Fisher distribution.
//!
//! ```text
//! E w   = A mu                                       A = I_(D/2)(kappa) / I_(D/2-1)(kappa)
//! Cov w = s_par mu mu^T + s_perp (I - mu mu^T)       s_par = A'(kappa),  s_perp = A / kappa
//! ```

use super::Sphere;
use crate::bessel::{self, Ratio};

impl Sphere {
    /// `A`, `1 - A` and `A'` in one evaluation.
    pub fn ratio(&self, kappa: f64) -> Ratio {
        Ratio::new(self.order(), kappa)
    }

    /// The mean resultant length `A_D(kappa) = |E w|`: the expected cosine between a draw and the
    /// mean direction.
    ///
    /// # Source
    /// K. V. Mardia and P. E. Jupp, *Directional Statistics* (2000), section 9.3.
    pub fn mean_resultant_length(&self, kappa: f64) -> f64 {
        bessel::ratio(self.order(), kappa)
    }

    /// `1 - A^2`, the spherical average: the total variance `Tr Cov w`.
    ///
    /// For inputs without preferred direction and `|x|^2 = D` this is the variance of `w.x`, since
    /// `E_x[x^T Cov x] = |x|^2 Tr(Cov) / D`; see [`Sphere::activation_variance`] for other norms.
    pub fn one_minus_a2(&self, kappa: f64) -> f64 {
        self.ratio(kappa).one_minus_a2()
    }

    /// The variance of `w.x` averaged over the directions of `x`: `(1 - A^2) |x|^2 / D`.
    pub fn activation_variance(&self, kappa: f64, squared_norm: f64) -> f64 {
        self.one_minus_a2(kappa) * (squared_norm / self.d())
    }

    /// The variance along the mean direction, `s_par = A'(kappa) = 1 - A^2 - (D - 1) A / kappa`.
    ///
    /// The expression on the right loses all its digits for a large sphere; the derivative is
    /// evaluated from the continued fraction itself, see [`Ratio`].
    pub fn variance_along_mean(&self, kappa: f64) -> f64 {
        self.ratio(kappa).derivative
    }

    /// The variance in each direction across the mean, `s_perp = A / kappa` (`1/D` at `kappa = 0`).
    pub fn variance_across_mean(&self, kappa: f64) -> f64 {
        if kappa == 0.0 { 1.0 / self.d() } else { self.mean_resultant_length(kappa) / kappa }
    }
}
