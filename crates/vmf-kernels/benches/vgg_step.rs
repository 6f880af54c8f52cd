//! A whole training step of VGG16 for 32x32 images, on plain slices: forward, cross entropy,
//! backward, running statistics and Adam.
//!
//! ```text
//! cargo bench -p vmf-kernels --bench vgg_step -- [batch] [width divisor] [threads] [steps]
//! ```
//!
//! `--no-noise` leaves the noise out, and `--direct` Winograd's algorithm.

mod common;

use common::{fma_peak, now, random, with_threads};
use vmf_kernels::adam::{AdamConfig, adam};
use vmf_kernels::bn_noise::{NoiseTerm, Statistics};
use vmf_kernels::conv::{Algorithm, Conv2d, ConvShape};
use vmf_kernels::gemm::{Matrix, gemm};
use vmf_kernels::noise::{Noise, NoiseKey};
use vmf_kernels::unit::{Gradients, Operands, Saved, Unit};

/// Output channels of each convolution, and whether pooling follows.
const VGG16: [(usize, bool); 13] = [
    (64, false),
    (64, true),
    (128, false),
    (128, true),
    (256, false),
    (256, false),
    (256, true),
    (512, false),
    (512, false),
    (512, true),
    (512, false),
    (512, false),
    (512, true),
];
const CLASSES: usize = 10;

/// A parameter with its gradient and Adam's state.
struct Parameter {
    value: Vec<f32>,
    gradient: Vec<f32>,
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl Parameter {
    fn new(len: usize, scale: f32, seed: u32) -> Self {
        Parameter {
            value: random(len, seed).iter().map(|x| x * scale).collect(),
            gradient: vec![0.0; len],
            mean: vec![0.0; len],
            square: vec![0.0; len],
        }
    }

    fn step(&mut self, step: u64) {
        let config = AdamConfig::default();
        let state = (&mut self.mean, &mut self.square);
        adam(&config, step, &mut self.value, &self.gradient, state.0, state.1).unwrap();
    }
}

struct Layer {
    unit: Unit,
    weights: Parameter,
    sigma: Parameter,
    running: Statistics,
    y: Vec<f32>,
    saved: Saved,
}

struct Network {
    layers: Vec<Layer>,
    head: Parameter,
    bias: Parameter,
    batch: usize,
    noise: bool,
    /// Gradients with respect to the output and to the input of the layer that the backward pass
    /// is at; they swap places from layer to layer.
    flow: [Vec<f32>; 2],
}

fn noise_term(on: bool, layer: usize, step: u64, sigma: &[f32]) -> Option<NoiseTerm<'_, f32>> {
    let key = NoiseKey { seed: 7, stream: layer as u32, step: step as u32, sample: 0 };
    on.then(|| NoiseTerm { noise: Noise::new(key), sigma })
}

impl Network {
    fn new(batch: usize, divisor: usize, noise: bool, algorithm: Algorithm) -> Self {
        let (mut inputs, mut size) = (3, [32, 32]);
        let mut layers = Vec::new();
        for (i, (outputs, pool)) in VGG16.into_iter().enumerate() {
            let outputs = outputs / divisor;
            let shape = ConvShape::same(batch, inputs, outputs, size, 3);
            let conv = Conv2d::new(shape).unwrap().with_algorithm(algorithm);
            let unit = Unit::new(conv);
            let unit = if pool { unit.max_pool(2).unwrap() } else { unit };
            let scale = (24.0 / (9 * inputs) as f32).sqrt();
            let mut sigma = Parameter::new(1, 0.0, 1);
            sigma.value[0] = 0.1;
            layers.push(Layer {
                weights: Parameter::new(shape.weight_len(), scale, i as u32 + 1),
                sigma,
                running: Statistics { mean: vec![0.0; outputs], var: vec![1.0; outputs] },
                y: vec![0.0; unit.output_len()],
                saved: Saved::default(),
                unit,
            });
            (inputs, size) = (outputs, unit.output());
        }
        let scale = (12.0 / inputs as f32).sqrt();
        let longest = layers.iter().map(|layer| layer.y.len()).max().unwrap_or(0);
        Network {
            flow: [vec![0.0; longest], vec![0.0; longest]],
            layers,
            head: Parameter::new(CLASSES * inputs, scale, 99),
            bias: Parameter::new(CLASSES, 0.0, 100),
            batch,
            noise,
        }
    }

    fn logits(&self, features: &[f32]) -> Vec<f32> {
        let inputs = features.len() / self.batch;
        let mut logits = self.bias.value.repeat(self.batch);
        let x = Matrix::new(features, self.batch, inputs).unwrap();
        let w = Matrix::new(&self.head.value, CLASSES, inputs).unwrap();
        gemm(x, w.transposed(), &mut logits, true).unwrap();
        logits
    }

    /// The loss of one training step, and the times at the ends of its parts.
    fn train(&mut self, x: &[f32], labels: &[usize], step: u64) -> (f64, [f64; 4]) {
        let start = now();
        for i in 0..self.layers.len() {
            let (before, layer) = self.layers.split_at_mut(i);
            let layer = &mut layer[0];
            let x = before.last().map_or(x, |layer| &layer.y);
            let noise = noise_term(self.noise, i, step, &layer.sigma.value);
            let w = &layer.weights.value;
            layer.unit.forward_train(noise, x, w, &mut layer.y, &mut layer.saved).unwrap();
            let count = layer.unit.conv_len() / layer.running.mean.len();
            let batch = &layer.saved.statistics;
            for (running, new) in layer.running.mean.iter_mut().zip(&batch.mean) {
                *running += 0.1 * (new - *running);
            }
            for (running, new) in layer.running.var.iter_mut().zip(batch.unbiased_var(count)) {
                *running += 0.1 * (new - *running);
            }
        }
        let features = &self.layers.last().unwrap().y;
        let mut dlogits = self.logits(features);
        let loss = cross_entropy(&mut dlogits, labels);
        let forward = now();

        let inputs = features.len() / self.batch;
        let d = Matrix::new(&dlogits, self.batch, CLASSES).unwrap();
        let f = Matrix::new(features, self.batch, inputs).unwrap();
        gemm(d.transposed(), f, &mut self.head.gradient, false).unwrap();
        let [dy, dx] = &mut self.flow;
        let w = Matrix::new(&self.head.value, CLASSES, inputs).unwrap();
        gemm(d, w, &mut dy[..features.len()], false).unwrap();
        for (class, g) in self.bias.gradient.iter_mut().enumerate() {
            *g = dlogits.iter().skip(class).step_by(CLASSES).sum();
        }
        for i in (0..self.layers.len()).rev() {
            let (before, layer) = self.layers.split_at_mut(i);
            let layer = &mut layer[0];
            let x = before.last().map_or(x, |layer| &layer.y);
            let operands = Operands { x, w: &layer.weights.value, y: &layer.y };
            let gradients = Gradients {
                dx: (i > 0).then(|| &mut dx[..x.len()]),
                dw: &mut layer.weights.gradient,
                dskip: None,
            };
            let noise = noise_term(self.noise, i, step, &layer.sigma.value);
            let dy_of_layer = &dy[..layer.y.len()];
            let dsigma = layer
                .unit
                .backward_train(noise, operands, &layer.saved, dy_of_layer, gradients)
                .unwrap()
                .sigma;
            layer.sigma.gradient[..dsigma.len()].copy_from_slice(&dsigma);
            std::mem::swap(dy, dx);
        }
        let backward = now();

        for layer in &mut self.layers {
            layer.weights.step(step);
            layer.sigma.step(step);
        }
        self.head.step(step);
        self.bias.step(step);
        (loss, [start, forward, backward, now()])
    }

    fn evaluate(&mut self, x: &[f32]) -> Vec<f32> {
        for i in 0..self.layers.len() {
            let (before, layer) = self.layers.split_at_mut(i);
            let layer = &mut layer[0];
            let x = before.last().map_or(x, |layer| &layer.y);
            let noise = noise_term(self.noise, i, 0, &layer.sigma.value);
            let w = &layer.weights.value;
            layer.unit.forward_eval(noise, &layer.running, x, w, &mut layer.y).unwrap();
        }
        self.logits(&self.layers.last().unwrap().y)
    }
}

/// The mean cross entropy; replaces the logits by its gradient.
fn cross_entropy(logits: &mut [f32], labels: &[usize]) -> f64 {
    let scale = 1.0 / labels.len() as f32;
    let mut loss = 0.0;
    for (logits, &label) in logits.chunks_exact_mut(CLASSES).zip(labels) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let log_sum = logits.iter().map(|l| (l - max).exp()).sum::<f32>().ln() + max;
        loss += f64::from((log_sum - logits[label]) * scale);
        for (class, logit) in logits.iter_mut().enumerate() {
            let target = if class == label { 1.0 } else { 0.0 };
            *logit = ((*logit - log_sum).exp() - target) * scale;
        }
    }
    loss
}

/// The most memory the process has held, in megabytes, where the system says.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let numbers: Vec<usize> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let number = |i: usize, default| numbers.get(i).copied().unwrap_or(default);
    let (batch, divisor, threads) = (number(0, 64), number(1, 1), number(2, 1));
    let steps = number(3, 5);
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let noise = !has("--no-noise");
    let algorithm = if has("--direct") { Algorithm::Direct } else { Algorithm::Auto };
    with_threads(threads, || {
        let mut network = Network::new(batch, divisor, noise, algorithm);
        let x = random(32 * 32 * 3 * batch, 77);
        let labels: Vec<usize> = (0..batch).map(|i| i % CLASSES).collect();
        let mut best = [f64::MAX; 4];
        let mut losses = Vec::new();
        for step in 1..=steps as u64 + 1 {
            let (loss, t) = network.train(&x, &labels, step);
            losses.push(loss);
            if step > 1 {
                let parts = [t[1] - t[0], t[2] - t[1], t[3] - t[2], t[3] - t[0]];
                best = std::array::from_fn(|i| best[i].min(parts[i] * 1e3));
            }
        }
        let evaluation = common::best(steps, || {
            std::hint::black_box(network.evaluate(&x));
        }) * 1e3;
        let gflop: f64 =
            network.layers.iter().map(|layer| layer.unit.conv().shape().flops() * 3e-9).sum();
        let [forward, backward, optimizer, step] = best;
        println!(
            "VGG16 batch {batch} width 1/{divisor} threads {threads} noise {noise} {algorithm:?}: step {step:.1} ms \
             ({:.1} images/s), forward {forward:.1}, backward {backward:.1}, adam {optimizer:.1}, evaluation \
             {evaluation:.1} ms",
            batch as f64 / step * 1e3
        );
        println!(
            "  {gflop:.1} GFLOP nominal, {:.0} % of the peak of {:.0} GFLOP/s a thread; memory {:.0} MB; loss {:.3} to {:.3}",
            100.0 * gflop / step * 1e3 / (fma_peak() * threads as f64),
            fma_peak(),
            peak_memory().unwrap_or(f64::NAN),
            losses[0],
            losses[losses.len() - 1],
        );
    });
}
