//! The usual alternative to a posterior on the sphere: independent Gaussians for all weights.
//!
//! The weights are free, with the prior `N(0, I/D)`, whose draws have a length of about one. The
//! exact posterior is then Gaussian with precision `P = X^T X / s^2 + D I` and mean `P^-1 X^T y /
//! s^2`. The independent Gaussians closest to it in the variational sense have the same mean and
//! the variances `1 / P_ii`. What they say about the direction is measured by drawing weights and
//! dividing them by their lengths.

use serde::{Deserialize, Serialize};

use crate::exact::FisherBingham;
use crate::problem::{
    Problem, Purpose, add_scaled, conjugate_gradient, cosine, dot, generator, normals, unit,
};

/// Draws in each half of the sample.
const DRAWS: usize = 2000;

/// The direction according to mean-field Gaussian inference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeanField {
    /// Mean resultant length of the direction.
    pub resultant: f64,
    /// Cosine between the mean weight and the teacher.
    pub cosine: f64,
}

/// Infers a Gaussian for each weight from the data of a problem.
pub fn infer(problem: &Problem, seed: u64) -> MeanField {
    let (mean, deviations) = posterior(problem);
    let mut rng = generator(seed, Purpose::Gaussian);
    let mut half = || {
        let mut sum = vec![0.0; mean.len()];
        for _ in 0..DRAWS {
            let mut w = normals(mean.len(), &mut rng);
            for ((w, mean), deviation) in w.iter_mut().zip(&mean).zip(&deviations) {
                *w = mean + deviation * *w;
            }
            add_scaled(&mut sum, 1.0 / DRAWS as f64, &unit(w));
        }
        sum
    };
    // The product of two independent means: the square of one would count its error as length.
    let resultant = dot(&half(), &half()).max(0.0).sqrt();
    MeanField { resultant, cosine: cosine(&mean, &problem.teacher) }
}

/// Mean and deviation of each weight.
fn posterior(problem: &Problem) -> (Vec<f64>, Vec<f64>) {
    let likelihood = FisherBingham::of(problem);
    let prior = problem.point.dim as f64;
    let mean = conjugate_gradient(likelihood.linear(), |w| {
        let mut product = likelihood.lambda_times(w);
        add_scaled(&mut product, prior, w);
        product
    });
    let deviations =
        likelihood.diagonal().map(|precision| (precision + prior).powf(-0.5)).collect();
    (mean, deviations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Point;

    /// The variational objective, `KL(q || p)` up to a constant, is lowest at the closed form:
    /// moving any mean or deviation by a little raises it.
    #[test]
    fn the_closed_form_minimizes_the_kl() {
        let point = Point { noise: 0.8, dim: 6, samples: 40 };
        let problem = Problem::draw(point, 2);
        // -E_q log p(y, w) - H(q), with E_q (y - w.x)^2 = (y - m.x)^2 + sum_i d_i^2 x_i^2.
        let objective = |mean: &[f64], deviations: &[f64]| {
            let mut total = 0.0;
            for (x, y) in problem.inputs.chunks_exact(6).zip(&problem.targets) {
                let spread: f64 = x.iter().zip(deviations).map(|(x, d)| (x * d).powi(2)).sum();
                total += ((y - dot(mean, x)).powi(2) + spread) / (2.0 * 0.8 * 0.8);
            }
            for (m, d) in mean.iter().zip(deviations) {
                total += 0.5 * 6.0 * (m * m + d * d) - d.ln();
            }
            total
        };
        let (mean, deviations) = posterior(&problem);
        let lowest = objective(&mean, &deviations);
        for i in 0..6 {
            for change in [-1e-3, 1e-3] {
                let (mut m, mut d) = (mean.clone(), deviations.clone());
                m[i] += change;
                assert!(objective(&m, &deviations) > lowest);
                d[i] += change;
                assert!(objective(&mean, &d) > lowest);
            }
        }
    }
}
