//! The von Mises-Fisher distribution as an object: a mean direction and a concentration.

mod sampler;

use rand::{Rng, distr::Distribution};

use crate::{
    Error, Sphere,
    linalg::{dot, norm},
};
use sampler::Sampler;

/// How far the norm of a mean direction may be from one, so that a direction stored in single
/// precision is accepted. The constructor divides the direction by its norm.
const NORM_TOLERANCE: f64 = 1e-6;

/// The von Mises-Fisher distribution `q(w) = C_D(kappa) exp(kappa mu.w)` on the unit sphere.
///
/// ```
/// use rand::{SeedableRng, rngs::StdRng};
/// use vmf_core::VonMisesFisher;
///
/// let q = VonMisesFisher::new(vec![0.6, 0.8], 50.0)?;
/// let mut w = [0.0; 2];
/// q.sample_into(&mut StdRng::seed_from_u64(1), &mut w)?;
/// assert!((w[0].hypot(w[1]) - 1.0).abs() < 1e-15);
/// assert!(q.log_prob(&w)? > q.log_prob(&[-0.6, -0.8])?);
/// # Ok::<(), vmf_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VonMisesFisher {
    mean_direction: Vec<f64>,
    kappa: f64,
    sphere: Sphere,
    log_normalizer: f64,
    sampler: Sampler,
}

impl VonMisesFisher {
    /// The distribution around a unit vector with concentration `kappa >= 0`.
    ///
    /// # Errors
    /// When there are fewer than two coordinates, one of them is not finite, the norm differs from
    /// 1 by more than 1e-6, or `kappa` is negative or not finite.
    pub fn new(mut mean_direction: Vec<f64>, kappa: f64) -> Result<Self, Error> {
        let sphere = Sphere::new(mean_direction.len())?;
        if !(kappa.is_finite() && kappa >= 0.0) {
            return Err(Error::BadConcentration { kappa });
        }
        let norm = unit_norm(&mean_direction)?;
        mean_direction.iter_mut().for_each(|coordinate| *coordinate /= norm);
        Ok(Self {
            mean_direction,
            kappa,
            sphere,
            log_normalizer: sphere.log_normalizer(kappa),
            sampler: Sampler::new(sphere, kappa),
        })
    }

    /// The maximum-likelihood fit to observations on the sphere, `rows` of `dim` coordinates each.
    ///
    /// ```text
    /// r = |sum_i w_i| / n,    mu = sum_i w_i / (n r),    A_D(kappa) = r
    /// ```
    ///
    /// # Errors
    /// When there are no rows, the length is not a multiple of `dim`, a row is not a finite unit
    /// vector, the rows cancel (every mean direction fits equally well), or they coincide
    /// (the likelihood grows without bound in the concentration).
    ///
    /// # Source
    /// A. Banerjee, I. S. Dhillon, J. Ghosh and S. Sra, *Clustering on the unit hypersphere using
    /// von Mises-Fisher distributions*, JMLR 6 (2005); the root is found to full precision
    /// here.
    pub fn fit(rows: &[f64], dim: usize) -> Result<Self, Error> {
        let sphere = Sphere::new(dim)?;
        if rows.is_empty() {
            return Err(Error::NoObservations);
        }
        if !rows.len().is_multiple_of(dim) {
            let expected = rows.len().div_ceil(dim) * dim;
            return Err(Error::LengthMismatch { what: "rows", expected, actual: rows.len() });
        }
        let count = (rows.len() / dim) as f64;
        let mut mean = vec![0.0; dim];
        for row in rows.chunks_exact(dim) {
            let norm = unit_norm(row)?;
            mean.iter_mut().zip(row).for_each(|(sum, coordinate)| *sum += coordinate / norm);
        }
        mean.iter_mut().for_each(|sum| *sum /= count);
        let resultant = norm(&mean);
        // Observations that cancel or coincide exactly give 0 or 1 only up to this rounding error.
        let rounding = f64::EPSILON * (dim as f64).sqrt();
        if resultant <= rounding {
            return Err(Error::NoMeanDirection { resultant });
        }
        if resultant >= 1.0 - rounding {
            return Err(Error::UnboundedConcentration);
        }
        mean.iter_mut().for_each(|coordinate| *coordinate /= resultant);
        Self::new(mean, sphere.kappa_from_mean_resultant_length(resultant))
    }

    /// The mean direction `mu`, a unit vector.
    pub fn mean_direction(&self) -> &[f64] {
        &self.mean_direction
    }

    /// The concentration `kappa`.
    pub fn kappa(&self) -> f64 {
        self.kappa
    }

    /// The sphere it lives on.
    pub fn sphere(&self) -> Sphere {
        self.sphere
    }

    /// The mean `E w = A mu`, a vector shorter than one.
    pub fn mean(&self) -> Vec<f64> {
        let a = self.sphere.mean_resultant_length(self.kappa);
        self.mean_direction.iter().map(|coordinate| a * coordinate).collect()
    }

    /// `ln q(w)` at a unit vector `w`, with respect to the sphere's area.
    pub fn log_prob(&self, w: &[f64]) -> Result<f64, Error> {
        self.check_length("w", w.len())?;
        let norm = unit_norm(w)?;
        Ok(self.kappa * (dot(&self.mean_direction, w) / norm) + self.log_normalizer)
    }

    /// The covariance applied to a vector, `Cov x = s_perp x + (s_par - s_perp) (mu.x) mu`, without
    /// forming the matrix.
    pub fn covariance_times(&self, x: &[f64]) -> Result<Vec<f64>, Error> {
        self.check_length("x", x.len())?;
        let across = self.sphere.variance_across_mean(self.kappa);
        let along = self.sphere.variance_along_mean(self.kappa);
        let shift = (along - across) * dot(&self.mean_direction, x);
        Ok(x.iter().zip(&self.mean_direction).map(|(x, mu)| across * x + shift * mu).collect())
    }

    /// The variance of `w.x`: `s_par (mu.x)^2 + s_perp (|x|^2 - (mu.x)^2)`.
    pub fn variance_of_product(&self, x: &[f64]) -> Result<f64, Error> {
        self.check_length("x", x.len())?;
        let along = dot(&self.mean_direction, x);
        let across =
            x.iter().zip(&self.mean_direction).map(|(x, mu)| (x - along * mu).powi(2)).sum::<f64>();
        Ok(self.sphere.variance_along_mean(self.kappa) * along * along
            + self.sphere.variance_across_mean(self.kappa) * across)
    }

    /// The differential entropy, in nats.
    pub fn entropy(&self) -> f64 {
        self.sphere.entropy(self.kappa)
    }

    /// The KL from the uniform distribution, in nats.
    pub fn kl_to_uniform(&self) -> f64 {
        self.sphere.kl(self.kappa)
    }

    /// The KL from another von Mises-Fisher distribution, in nats:
    /// `KL(q|p) = (kappa_q - kappa_p mu_p.mu_q) A_q + ln C(kappa_q) - ln C(kappa_p)`.
    pub fn kl(&self, other: &Self) -> Result<f64, Error> {
        self.check_length("the other distribution", other.mean_direction.len())?;
        let cosine = dot(&self.mean_direction, &other.mean_direction);
        let a = self.sphere.mean_resultant_length(self.kappa);
        Ok((self.kappa - other.kappa * cosine) * a + self.log_normalizer - other.log_normalizer)
    }

    /// Draws a direction into the caller's buffer, in `O(D)` time and without allocating.
    pub fn sample_into<R: Rng + ?Sized>(&self, rng: &mut R, w: &mut [f64]) -> Result<(), Error> {
        self.check_length("w", w.len())?;
        self.sampler.fill(rng, &self.mean_direction, w);
        Ok(())
    }

    fn check_length(&self, what: &'static str, actual: usize) -> Result<(), Error> {
        let expected = self.mean_direction.len();
        if actual == expected {
            Ok(())
        } else {
            Err(Error::LengthMismatch { what, expected, actual })
        }
    }
}

impl Distribution<Vec<f64>> for VonMisesFisher {
    fn sample<R: Rng + ?Sized>(&self, rng: &mut R) -> Vec<f64> {
        let mut w = vec![0.0; self.mean_direction.len()];
        self.sampler.fill(rng, &self.mean_direction, &mut w);
        w
    }
}

/// The norm of a vector that should have norm one.
fn unit_norm(x: &[f64]) -> Result<f64, Error> {
    if let Some((index, &value)) = x.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        return Err(Error::NotFinite { index, value });
    }
    let norm = norm(x);
    if (norm - 1.0).abs() > NORM_TOLERANCE { Err(Error::NotUnit { norm }) } else { Ok(norm) }
}
