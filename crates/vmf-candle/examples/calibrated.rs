//! Makes two layers of a classifier variational, which makes its probabilities trustworthy.
//!
//! ```text
//! cargo run --release -p vmf-candle --example calibrated
//! ```
//!
//! A small network of candle-nn's layers learns to distinguish four directions of noisy stripes
//! from few images, some of them with wrong labels. It memorizes the wrong labels and becomes
//! overconfident. The same network with `vmf_linear` instead of linear layers and batch
//! normalization, trained on the same images, is much better calibrated.

use candle_core::{DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{AdamW, BatchNorm, Linear, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};
use std::f64::consts::PI;
use vmf_candle::prelude::*;

const SEED: u64 = 1;
const SIDE: usize = 12;
const PIXELS: usize = SIDE * SIDE;
const WIDTH: usize = 64;
const CLASSES: usize = 4;
const TRAIN: usize = 1024;
const BATCH: usize = 128;
const EPOCHS: u32 = 50;

/// The existing model: linear layers with batch normalization.
struct Plain {
    hidden: [Linear; 2],
    norms: [BatchNorm; 2],
    head: Linear,
}

impl Plain {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            hidden: [
                candle_nn::linear_no_bias(PIXELS, WIDTH, vb.pp("hidden1"))?,
                candle_nn::linear_no_bias(WIDTH, WIDTH, vb.pp("hidden2"))?,
            ],
            norms: [
                candle_nn::batch_norm(WIDTH, 1e-5, vb.pp("norm1"))?,
                candle_nn::batch_norm(WIDTH, 1e-5, vb.pp("norm2"))?,
            ],
            head: candle_nn::linear(WIDTH, CLASSES, vb.pp("head"))?,
        })
    }

    fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let mut xs = xs.clone();
        for (hidden, norm) in self.hidden.iter().zip(&self.norms) {
            xs = norm.forward_t(&hidden.forward(&xs)?, train)?.relu()?;
        }
        self.head.forward(&xs)
    }
}

/// The variational model. A linear layer, its normalization and its ReLU are one layer.
struct Variational {
    hidden: [VmfLinear; 2],
    head: Linear,
}

impl Variational {
    fn new(posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let unit = || VmfConfig::default().relu();
        Ok(Self {
            hidden: [
                vmf_linear(PIXELS, WIDTH, unit(), posterior, vb.pp("hidden1"))?,
                vmf_linear(WIDTH, WIDTH, unit(), posterior, vb.pp("hidden2"))?,
            ],
            head: candle_nn::linear(WIDTH, CLASSES, vb.pp("head"))?,
        })
    }
}

impl Forward for Variational {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut xs = xs.clone();
        for hidden in &self.hidden {
            xs = hidden.forward(&xs, pass)?;
        }
        self.head.forward(&xs)
    }
}

fn main() -> vmf_candle::Result<()> {
    let device = Device::Cpu;
    let (xs, ys) = stripes(TRAIN, 1)?;
    let (test, labels) = stripes(4000, 2)?;
    let batches: Vec<(Tensor, Tensor)> =
        xs.chunk(TRAIN / BATCH, 0)?.into_iter().zip(ys.chunk(TRAIN / BATCH, 0)?).collect();

    let vars = VarMap::new();
    let plain = Plain::new(seeded(&vars, SEED, DType::F32, &device))?;
    let params = ParamsAdamW { lr: 3e-3, weight_decay: 0.0, ..Default::default() };
    let mut adamw = AdamW::new(vars.all_vars(), params)?;
    for _ in 0..EPOCHS {
        for (xs, ys) in &batches {
            adamw.backward_step(&cross_entropy(&plain.forward(xs, true)?, ys)?)?;
        }
    }
    let probs = candle_nn::ops::softmax(&plain.forward(&test, false)?, 1)?;
    println!("model                     accuracy   confidence     NLL     ECE");
    let row = |name: &str, calibration: Calibration| {
        let Calibration { accuracy, confidence, nll, ece, .. } = calibration;
        println!("{name:<24}  {accuracy:8.3}   {confidence:10.3}   {nll:5.3}   {ece:5.3}");
    };
    row("candle-nn", Calibration::of(&probs, &labels)?);

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = Variational::new(&posterior, seeded(&vars, SEED, DType::F32, &device))?;
    let config = AdamConfig { lr: 3e-3, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let beta = Schedule::warmup(0.3, f64::from(EPOCHS) / 10.0);
    let mut step = 0;
    for epoch in 0..EPOCHS {
        for (xs, ys) in &batches {
            let nll = cross_entropy(&model.forward(xs, &Pass::train(SEED, step))?, ys)?;
            let elbo = Elbo::new(TRAIN).beta(beta.at(epoch.into()));
            adam.backward_step(&elbo.loss(&nll, &posterior)?.total)?;
            step += 1;
        }
    }
    reestimate(&model, &posterior, batches.iter().map(|(xs, _)| Ok(xs.clone())))?;
    let mean = predict(&model, &test, Samples::mean())?;
    row("variational, noise off", mean.calibration(&labels)?);
    let sampled = predict(&model, &test, Samples::monte_carlo(16, SEED))?;
    row("variational, 16 samples", sampled.calibration(&labels)?);
    println!("\n{}", posterior.summary()?);
    Ok(())
}

/// Images of noisy stripes in one of four directions, and their labels.
fn stripes(count: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let class = rng.random_range(0..CLASSES);
        // Three labels in ten are random. No network can predict them, so that a calibrated one is
        // never certain.
        let label = if rng.random_bool(0.3) { rng.random_range(0..CLASSES) } else { class };
        labels.push(label as u32);
        let angle = PI / 4.0 * class as f64;
        for pixel in 0..PIXELS {
            let (x, y) = ((pixel % SIDE) as f64, (pixel / SIDE) as f64);
            let noise: f64 = StandardNormal.sample(&mut rng);
            let stripe = (1.2 * (x * angle.cos() + y * angle.sin())).sin();
            pixels.push((stripe + 3.0 * noise) as f32);
        }
    }
    Ok((
        Tensor::from_vec(pixels, (count, PIXELS), &Device::Cpu)?,
        Tensor::from_vec(labels, count, &Device::Cpu)?,
    ))
}
