//! The quantities of the theory, measured by drawing directions and inputs.

use rand::{Rng, SeedableRng, distr::Distribution};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use vmf_core::{Error, VonMisesFisher};

/// A Monte Carlo estimate with its standard error.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// One standard error.
    pub error: f64,
}

impl Estimate {
    /// How many standard errors lie between the estimate and `exact`.
    pub fn z_score(&self, exact: f64) -> f64 {
        (self.value - exact) / self.error
    }
}

/// Estimates at one concentration, which use no formula of the theory.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// The mean resultant length, `E mu.w`.
    pub a: Estimate,
    /// The activation variance `E_x Var_w(w.x)` for isotropic Gaussian inputs.
    pub sigma_u2: Estimate,
    /// sigma_eff, the root of the activation variance over the mean resultant length.
    pub sigma_eff: Estimate,
}

/// Draws `samples` pairs of directions from `vMF(mu, kappa)` in `dim` dimensions, and an input `x ~
/// N(0, I)` for each pair.
///
/// For two independent draws `w, w'` and an independent `x`, `((w - w').x)^2 / 2` has the mean
/// `E_x[x^T Cov(w) x]`: the variance of the activation, with no need to know its mean.
pub fn measure(dim: usize, kappa: f64, samples: u32, seed: u64) -> Result<Measurement, Error> {
    let mut rng = Pcg64::seed_from_u64(seed);
    let q = VonMisesFisher::new(random_direction(dim, &mut rng), kappa)?;
    let (mut w, mut w2) = (vec![0.0; dim], vec![0.0; dim]);
    let (mut heights, mut squares) = (Welford::default(), Welford::default());
    for _ in 0..samples {
        q.sample_into(&mut rng, &mut w)?;
        q.sample_into(&mut rng, &mut w2)?;
        let (mut height, mut product) = (0.0, 0.0);
        for ((w, w2), mu) in w.iter().zip(&w2).zip(q.mean_direction()) {
            let x: f64 = StandardNormal.sample(&mut rng);
            height += 0.5 * (w + w2) * mu;
            product += (w - w2) * x;
        }
        heights.add(height);
        squares.add(0.5 * product * product);
    }
    let (a, sigma_u2) = (heights.estimate(), squares.estimate());
    // First-order propagation: sigma_eff = sqrt(s) / a.
    let value = sigma_u2.value.sqrt() / a.value;
    let relative = (0.5 * sigma_u2.error / sigma_u2.value).hypot(a.error / a.value);
    Ok(Measurement { a, sigma_u2, sigma_eff: Estimate { value, error: (value * relative).abs() } })
}

pub(crate) fn random_direction(dim: usize, rng: &mut impl Rng) -> Vec<f64> {
    let raw: Vec<f64> = (0..dim).map(|_| StandardNormal.sample(rng)).collect();
    let norm = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    raw.into_iter().map(|x| x / norm).collect()
}

/// Mean and variance in one pass, by Welford's recurrence.
#[derive(Default)]
pub(crate) struct Welford {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Welford {
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1.0;
        let before = value - self.mean;
        self.mean += before / self.count;
        self.squares += before * (value - self.mean);
    }

    pub(crate) fn variance(&self) -> f64 {
        self.squares / (self.count - 1.0)
    }

    pub(crate) fn estimate(&self) -> Estimate {
        Estimate { value: self.mean, error: (self.variance() / self.count).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmf_core::Sphere;

    #[test]
    fn measurements_meet_the_exact_values() {
        for (dim, kappa) in [(3, 2.0), (27, 60.0), (100, 70.0)] {
            let m = measure(dim, kappa, 20_000, 9).unwrap();
            let sphere = Sphere::new(dim).unwrap();
            assert!(m.a.z_score(sphere.mean_resultant_length(kappa)).abs() < 4.5);
            assert!(m.sigma_u2.z_score(sphere.one_minus_a2(kappa)).abs() < 4.5);
            assert!(m.sigma_eff.z_score(sphere.sigma_eff(kappa)).abs() < 4.5);
            // The square of a Gaussian has a relative deviation of sqrt(2): 1 % after 20,000 draws,
            // more or less.
            assert!((0.005..0.015).contains(&(m.sigma_u2.error / m.sigma_u2.value)));
        }
    }

    #[test]
    fn a_wrong_formula_is_noticed() {
        let m = measure(100, 70.0, 20_000, 9).unwrap();
        assert!(m.sigma_u2.z_score(Sphere::new(100).unwrap().sigma_u2_paper(70.0)) > 10.0);
    }
}
