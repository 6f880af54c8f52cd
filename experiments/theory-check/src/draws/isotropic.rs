//! The paper's central statement, on the inputs of the theory: `x ~ N(0, I)`.
//!
//! A weight `w ~ vMF(mu, kappa)` gives the activation the residual `r = w.x / A - mu.x`. For a
//! given draw it is Gaussian in `x`, with variance `|w/A - mu|^2 = 1/A^2 + 1 - 2t/A`, where `t =
//! mu.w` is the height of the draw. Over all draws it is therefore a mixture of Gaussians with
//!
//! ```text
//! E r   = 0
//! Var r = 1/A^2 - 1 = sigma_eff^2                      exactly, in every dimension
//! kurtosis = 3 + 12 A'(kappa) / (A^2 sigma_eff^4)      3 + O(1/D): Gaussian in high dimension
//! ```

use rand::{SeedableRng, distr::Distribution};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use rayon::prelude::*;
use vmf_core::{Error, Sphere, VonMisesFisher, expected_cosine};

use super::{Draws, dot};
use crate::monte_carlo::random_direction;

/// Residuals `w.x / A - mu.x` over `sigma_eff`, of draws and isotropic inputs.
pub struct Residuals {
    /// The dimension.
    pub dim: usize,
    values: Vec<f64>,
}

impl Residuals {
    /// Draws a weight and an input for each residual.
    pub fn draw(dim: usize, draws: &Draws) -> Result<Self, Error> {
        let kappa = Sphere::new(dim)?.kappa_from_sigma_eff(draws.sigma);
        let mut rng = Pcg64::seed_from_u64(draws.seed.wrapping_add((dim as u64) << 32));
        let q = VonMisesFisher::new(random_direction(dim, &mut rng), kappa)?;
        let shrinkage = expected_cosine(draws.sigma);
        let values = draws
            .seeds(dim as u64)
            .into_par_iter()
            .map(|(seed, count)| {
                let mut rng = Pcg64::seed_from_u64(seed);
                let mut weight = vec![0.0; dim];
                let mut residuals = Vec::with_capacity(count);
                for _ in 0..count {
                    q.sample_into(&mut rng, &mut weight)?;
                    let input: Vec<f64> =
                        (0..dim).map(|_| StandardNormal.sample(&mut rng)).collect();
                    let residual =
                        dot(&weight, &input) / shrinkage - dot(q.mean_direction(), &input);
                    residuals.push(residual / draws.sigma);
                }
                Ok(residuals)
            })
            .collect::<Result<Vec<_>, Error>>()?
            .concat();
        Ok(Self { dim, values })
    }

    /// The mean of the residuals' `power`.
    pub fn moment(&self, power: i32) -> f64 {
        self.values.iter().map(|r| r.powi(power)).sum::<f64>() / self.values.len() as f64
    }

    /// The fourth moment over the square of the second; 3 for a Gaussian.
    pub fn kurtosis(&self) -> f64 {
        self.moment(4) / self.moment(2).powi(2)
    }

    /// The largest distance between the residuals' distribution and the standard normal one
    /// (Kolmogorov-Smirnov).
    pub fn distance_from_gaussian(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let at = |(i, value): (usize, &f64)| {
            let below = normal_cdf(*value);
            (below - i as f64 / count).abs().max((below - (i + 1) as f64 / count).abs())
        };
        sorted.iter().enumerate().map(at).fold(0.0, f64::max)
    }
}

/// The kurtosis of the mixture, `3 + 12 A' / (A^2 sigma_eff^4)`.
pub fn exact_kurtosis(dim: usize, sigma: f64) -> Result<f64, Error> {
    let ratio = {
        let sphere = Sphere::new(dim)?;
        sphere.ratio(sphere.kappa_from_sigma_eff(sigma))
    };
    Ok(3.0 + 12.0 * ratio.derivative / (ratio.a.powi(2) * sigma.powi(4)))
}

/// The standard normal distribution function, by Simpson's rule from 0.
fn normal_cdf(z: f64) -> f64 {
    let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
    let (steps, z) = (200, z.clamp(-9.0, 9.0));
    let h = z / f64::from(steps);
    let inner: f64 =
        (1..steps).map(|i| density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(z))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kurtosis_of_the_draws_is_that_of_the_mixture() {
        // Dimension 8 is far from Gaussian, so this tests the formula and not its limit.
        let draws = Draws { sigma: 0.5, draws: 40_000, seed: 3 };
        let exact = exact_kurtosis(8, draws.sigma).unwrap();
        assert!(exact > 3.5, "{exact}");
        let measured = Residuals::draw(8, &draws).unwrap().kurtosis();
        assert!((measured - exact).abs() < 0.2, "{measured} against {exact}");
    }

    #[test]
    fn the_normal_distribution_function_is_right() {
        // mpmath.ncdf
        for (z, exact) in
            [(0.0, 0.5), (1.0, 0.841_344_746_068_542_9), (-2.5, 0.006_209_665_325_776_132)]
        {
            assert!((normal_cdf(z) - exact).abs() < 1e-10);
        }
    }
}
