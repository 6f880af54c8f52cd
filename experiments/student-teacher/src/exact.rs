//! Samples from the exact posterior of the student's problem.
//!
//! With a uniform prior on the sphere and Gaussian observations the posterior of the direction is
//!
//! ```text
//! p(w) ~ exp(h.w - w.Lambda w / 2),  |w| = 1,     Lambda = X^T X / s^2,  h = X^T y / s^2
//! ```
//!
//! a Fisher-Bingham density. The geodesic slice sampler (Habeck, Hasenpflug, Kodgirwar, Rudolf
//! 2023) draws from it and has no parameters to tune: it chooses a uniformly random great circle
//! through the current point and slice-samples the density along it, which five inner products
//! describe, with shrinkage.

use std::f64::consts::TAU;

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::diagnostics::{effective_size, split_r_hat};
use crate::problem::{
    Problem, Purpose, add_scaled, cosine, direction, dot, generator, transposed_times, unit,
};

/// Chains, each from a uniformly random start.
const CHAINS: u32 = 4;
/// Steps of a chain after the first fifth, which is discarded. They are multiplied by D, because a
/// step moves along one great circle.
const STEPS_PER_DIM: usize = 800;
/// Directions along which chains are compared, besides that of `h`.
const PROBES: usize = 4;

/// Estimates from draws of the exact posterior.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampled {
    /// Mean resultant length of the posterior, `|E w|`.
    pub resultant: f64,
    /// Cosine between the posterior's mean direction and the teacher.
    pub cosine: f64,
    /// Effective sample size over all chains, the smallest over the probes.
    pub effective: f64,
    /// Split R-hat, the largest over the probes.
    pub r_hat: f64,
}

/// `exp(h.w - w.Lambda w / 2)` on the sphere.
pub struct FisherBingham {
    /// Row-major.
    lambda: Vec<f64>,
    h: Vec<f64>,
}

impl FisherBingham {
    /// The posterior of a problem.
    pub fn of(problem: &Problem) -> Self {
        let (dim, precision) = (problem.point.dim, problem.point.noise.powi(-2));
        let mut lambda = vec![0.0; dim * dim];
        for x in problem.inputs.chunks_exact(dim) {
            for (row, x_i) in lambda.chunks_exact_mut(dim).zip(x) {
                add_scaled(row, precision * x_i, x);
            }
        }
        let mut h = transposed_times(&problem.inputs, &problem.targets, dim);
        h.iter_mut().for_each(|h| *h *= precision);
        Self { lambda, h }
    }

    /// `Lambda v`.
    pub fn lambda_times(&self, v: &[f64]) -> Vec<f64> {
        let rows = self.lambda.chunks_exact(v.len());
        rows.map(|row| dot(row, v)).collect()
    }

    /// The diagonal of Lambda.
    pub fn diagonal(&self) -> impl Iterator<Item = f64> + '_ {
        self.lambda.iter().step_by(self.h.len() + 1).copied()
    }

    /// The linear term.
    pub fn linear(&self) -> &[f64] {
        &self.h
    }
}

/// A chain: its point on the sphere, and Lambda times the point.
struct Chain<'a> {
    density: &'a FisherBingham,
    w: Vec<f64>,
    lambda_w: Vec<f64>,
}

impl<'a> Chain<'a> {
    fn at(w: Vec<f64>, density: &'a FisherBingham) -> Self {
        let lambda_w = density.lambda_times(&w);
        Self { density, w, lambda_w }
    }

    fn step(&mut self, rng: &mut impl Rng) {
        let v = self.tangent(rng);
        let lambda_v = self.density.lambda_times(&v);
        let (ww, wv, vv) =
            (dot(&self.w, &self.lambda_w), dot(&v, &self.lambda_w), dot(&v, &lambda_v));
        let (hw, hv) = (dot(&self.density.h, &self.w), dot(&self.density.h, &v));
        let log_density = |angle: f64| {
            let (sin, cos) = angle.sin_cos();
            hw * cos + hv * sin - 0.5 * (ww * cos * cos + 2.0 * wv * cos * sin + vv * sin * sin)
        };
        let level = log_density(0.0) + (1.0 - rng.random::<f64>()).ln();
        let mut angle = TAU * rng.random::<f64>();
        let (mut low, mut high) = (angle - TAU, angle);
        while log_density(angle) < level {
            if angle < 0.0 {
                low = angle;
            } else {
                high = angle;
            }
            angle = low + (high - low) * rng.random::<f64>();
        }
        let (sin, cos) = angle.sin_cos();
        for (w, v) in [(&mut self.w, &v), (&mut self.lambda_w, &lambda_v)] {
            for (w, v) in w.iter_mut().zip(v) {
                *w = *w * cos + v * sin;
            }
        }
    }

    /// A uniformly random unit vector at right angles to the point.
    fn tangent(&self, rng: &mut impl Rng) -> Vec<f64> {
        let mut v = direction(self.w.len(), rng);
        let along = dot(&v, &self.w);
        add_scaled(&mut v, -along, &self.w);
        unit(v)
    }
}

/// Samples the posterior of a problem.
pub fn sample(problem: &Problem, seed: u64) -> Sampled {
    let density = FisherBingham::of(problem);
    let draws = draw(&density, seed);
    let mean = draws.mean();
    Sampled {
        resultant: draws.resultant(),
        cosine: cosine(&mean, &problem.teacher),
        effective: draws.worst(effective_size, f64::min),
        r_hat: draws.worst(split_r_hat, f64::max),
    }
}

/// The summaries of the chains.
struct Draws {
    /// The mean of each chain.
    means: Vec<Vec<f64>>,
    /// For each probe and chain, the coordinate along the probe after every `D / 2` steps.
    traces: Vec<Vec<Vec<f64>>>,
}

fn draw(density: &FisherBingham, seed: u64) -> Draws {
    let dim = density.h.len();
    let mut probes = vec![unit(density.h.clone())];
    let mut rng = generator(seed, Purpose::Chain(CHAINS));
    probes.extend((0..PROBES).map(|_| direction(dim, &mut rng)));

    let (keep, every) = (STEPS_PER_DIM * dim, dim.div_ceil(2));
    let mut means = Vec::new();
    let mut traces = vec![Vec::new(); probes.len()];
    for number in 0..CHAINS {
        let mut rng = generator(seed, Purpose::Chain(number));
        let mut chain = Chain::at(direction(dim, &mut rng), density);
        for _ in 0..keep / 4 {
            chain.step(&mut rng);
        }
        let mut mean = vec![0.0; dim];
        let mut trace = vec![Vec::new(); probes.len()];
        for step in 0..keep {
            chain.step(&mut rng);
            add_scaled(&mut mean, 1.0 / keep as f64, &chain.w);
            if step % every == 0 {
                for (trace, probe) in trace.iter_mut().zip(&probes) {
                    trace.push(dot(probe, &chain.w));
                }
                // Removes accumulated rounding errors.
                chain = Chain::at(unit(chain.w), density);
            }
        }
        means.push(mean);
        for (traces, trace) in traces.iter_mut().zip(trace) {
            traces.push(trace);
        }
    }
    Draws { means, traces }
}

impl Draws {
    fn mean(&self) -> Vec<f64> {
        let mut mean = vec![0.0; self.means[0].len()];
        for chain in &self.means {
            add_scaled(&mut mean, 1.0 / self.means.len() as f64, chain);
        }
        mean
    }

    /// `|E w|` from products of the means of different chains. The square of one mean would count
    /// its error as length.
    fn resultant(&self) -> f64 {
        let mut products = Vec::new();
        for (i, a) in self.means.iter().enumerate() {
            products.extend(self.means[..i].iter().map(|b| dot(a, b)));
        }
        let mean = products.iter().sum::<f64>() / products.len() as f64;
        mean.max(0.0).sqrt()
    }

    fn worst(&self, diagnostic: fn(&[Vec<f64>]) -> f64, worse: fn(f64, f64) -> f64) -> f64 {
        let values = self.traces.iter().map(|chains| diagnostic(chains));
        values.reduce(worse).unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmf_core::Sphere;

    /// Without the quadratic term the density is von Mises-Fisher's, whose mean resultant length is
    /// known.
    #[test]
    fn a_von_mises_fisher_density_is_sampled_right() {
        for (dim, kappa) in [(3, 2.0), (10, 30.0)] {
            let mut h = vec![0.0; dim];
            h[1] = kappa;
            let density = FisherBingham { lambda: vec![0.0; dim * dim], h };
            let draws = draw(&density, 1);
            let exact = Sphere::new(dim).unwrap().mean_resultant_length(kappa);
            let resultant = draws.resultant();
            assert!((resultant - exact).abs() < 0.02, "{resultant} {exact}");
            assert!(draws.worst(split_r_hat, f64::max) < 1.05);
        }
    }

    /// In two dimensions the density is a function of one angle, and its mean an integral that a
    /// sum over a fine grid gives.
    #[test]
    fn a_fisher_bingham_density_is_sampled_right() {
        let density = FisherBingham { lambda: vec![6.0, 1.5, 1.5, 1.0], h: vec![0.5, 0.8] };
        let (mut mass, mut mean) = (0.0, [0.0; 2]);
        for i in 0..10_000 {
            let (sin, cos) = (TAU * f64::from(i) / 1e4).sin_cos();
            let w = [cos, sin];
            let p = (dot(&density.h, &w) - 0.5 * dot(&w, &density.lambda_times(&w))).exp();
            mass += p;
            add_scaled(&mut mean, p, &w);
        }
        let exact = mean.map(|m| m / mass);
        // The number of steps is proportional to D and small here, so several seeds are averaged.
        let seeds = 20;
        let mut sampled = [0.0; 2];
        for seed in 0..seeds {
            add_scaled(&mut sampled, 1.0 / seeds as f64, &draw(&density, seed).mean());
        }
        for (sampled, exact) in sampled.iter().zip(exact) {
            assert!((sampled - exact).abs() < 0.02, "{sampled} {exact}");
        }
    }
}
