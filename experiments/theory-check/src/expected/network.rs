//! A random network with noise behind its normalizations, and the passes through it.

use rand::{SeedableRng, distr::Distribution};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use vmf_core::expected::{Gaussian, maximum_of_window, relu};

/// Inputs that statistics are measured on, and noisy passes for each.
const INPUTS: usize = 128;
const PASSES: usize = 8;

/// Units whose maximum a pooling takes.
const WINDOW: usize = 4;

/// Layers of random units, `y = relu(BN(w.x) + sigma z)`, each optionally followed by the maximum
/// over every four neighbouring units.
#[derive(Clone, Debug)]
pub struct Network {
    layers: Vec<Layer>,
    /// Units whose maximum is taken: one or four.
    window: usize,
    sigma: f64,
}

#[derive(Clone, Debug)]
struct Layer {
    /// One row of weights of length 1 for each unit.
    weights: Vec<Vec<f64>>,
    /// The statistics of noisy passes.
    mean: Vec<f64>,
    rstd: Vec<f64>,
    /// The variance that the inputs bring along, on average over examples.
    inherited: Vec<f64>,
}

/// How a deterministic pass treats the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// It leaves the noise out.
    NoiseOff,
    /// Expected activations, with one measured variance per unit.
    Fixed,
    /// Expected activations, with the variance propagated beside the mean.
    Full,
}

impl Network {
    /// A network of `depth` layers with `width` outputs each, and the statistics that training
    /// under its noise would leave.
    pub fn new(depth: usize, width: usize, pooling: bool, sigma: f64, seed: u64) -> Self {
        let mut rng = Pcg64::seed_from_u64(seed);
        let window = if pooling { WINDOW } else { 1 };
        let mut network = Self { layers: Vec::new(), window, sigma };
        let inputs: Vec<Vec<f64>> = (0..INPUTS).map(|_| normals(width, &mut rng)).collect();
        // All passes of an input stand side by side.
        let mut population: Vec<Vec<f64>> =
            inputs.iter().flat_map(|x| vec![x.clone(); PASSES]).collect();
        for _ in 0..depth {
            let weights = (0..width * window).map(|_| direction(width, &mut rng)).collect();
            let layer = Layer::measure(weights, &population);
            for x in &mut population {
                let mut values = layer.normalized(x);
                add_noise(&mut values, sigma, &mut rng);
                *x = network.activation(&values);
            }
            network.layers.push(layer);
        }
        network
    }

    /// The number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// One noisy pass: the values in front of each activation go to `visit`, layer by layer.
    pub fn sample(&self, input: &[f64], rng: &mut Pcg64, mut visit: impl FnMut(usize, &[f64])) {
        let mut x = input.to_vec();
        for (index, layer) in self.layers.iter().enumerate() {
            let mut values = layer.normalized(&x);
            add_noise(&mut values, self.sigma, rng);
            visit(index, &values);
            x = self.activation(&values);
        }
    }

    /// One deterministic pass: mean and variance in front of each activation.
    pub fn predict(&self, input: &[f64], grade: Grade) -> Vec<Vec<Gaussian>> {
        let mut x: Vec<Gaussian> =
            input.iter().map(|&mean| Gaussian { mean, variance: 0.0 }).collect();
        let own = self.sigma * self.sigma;
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let means: Vec<f64> = x.iter().map(|x| x.mean).collect();
            let mut values: Vec<Gaussian> = layer
                .normalized(&means)
                .into_iter()
                .map(|mean| Gaussian { mean, variance: 0.0 })
                .collect();
            for (unit, value) in values.iter_mut().enumerate() {
                value.variance = match grade {
                    Grade::NoiseOff => 0.0,
                    Grade::Fixed => layer.inherited[unit] + own,
                    Grade::Full => layer.propagated(unit, &x) + own,
                };
            }
            x = values.chunks(self.window).map(|window| relu(largest(window))).collect();
            layers.push(values);
        }
        layers
    }

    fn activation(&self, values: &[f64]) -> Vec<f64> {
        values
            .chunks(self.window)
            .map(|window| window.iter().copied().fold(0.0, f64::max))
            .collect()
    }
}

fn largest(window: &[Gaussian]) -> Gaussian {
    match window {
        &[p, q, r, s] => maximum_of_window([p, q, r, s]),
        window => window[0],
    }
}

impl Layer {
    /// The statistics of a population, in which `PASSES` passes of one input are neighbours.
    fn measure(weights: Vec<Vec<f64>>, population: &[Vec<f64>]) -> Self {
        let count = population.len() as f64;
        let (mut mean, mut rstd, mut inherited) = (Vec::new(), Vec::new(), Vec::new());
        for w in &weights {
            let u: Vec<f64> = population.iter().map(|x| super::dot(w, x)).collect();
            let average = u.iter().sum::<f64>() / count;
            let variance = u.iter().map(|u| (u - average).powi(2)).sum::<f64>() / count;
            let within: f64 = u
                .chunks(PASSES)
                .map(|passes| {
                    let average = passes.iter().sum::<f64>() / PASSES as f64;
                    let squares: f64 = passes.iter().map(|u| (u - average).powi(2)).sum();
                    squares / (PASSES - 1) as f64
                })
                .sum();
            mean.push(average);
            rstd.push(1.0 / variance.sqrt());
            inherited.push(within * PASSES as f64 / count / variance);
        }
        Self { weights, mean, rstd, inherited }
    }

    fn normalized(&self, x: &[f64]) -> Vec<f64> {
        let u = self.weights.iter().map(|w| super::dot(w, x));
        u.zip(self.mean.iter().zip(&self.rstd)).map(|(u, (mean, rstd))| (u - mean) * rstd).collect()
    }

    /// The variance of a unit's input, normalized, if the elements of x are independent.
    fn propagated(&self, unit: usize, x: &[Gaussian]) -> f64 {
        let terms = self.weights[unit].iter().zip(x).map(|(w, x)| w * w * x.variance);
        terms.sum::<f64>() * self.rstd[unit] * self.rstd[unit]
    }
}

fn add_noise(values: &mut [f64], sigma: f64, rng: &mut Pcg64) {
    for value in values {
        let z: f64 = StandardNormal.sample(rng);
        *value += sigma * z;
    }
}

/// Independent standard normals.
pub(super) fn normals(count: usize, rng: &mut Pcg64) -> Vec<f64> {
    (0..count).map(|_| StandardNormal.sample(rng)).collect()
}

fn direction(dim: usize, rng: &mut Pcg64) -> Vec<f64> {
    let w = normals(dim, rng);
    let length = super::dot(&w, &w).sqrt();
    w.into_iter().map(|w| w / length).collect()
}
