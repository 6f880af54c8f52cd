//! What the integration tests share.
#![allow(dead_code, unreachable_pub)]

pub mod network;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Optimizer, VarBuilder, VarMap};
use std::sync::{Arc, Mutex};
use vmf_candle::ops::max_pool2d;
use vmf_candle::prelude::*;

/// `sin(a i + b)`, the numbers that tests/golden/generate.py makes too.
pub fn wave(shape: &[usize], a: f64, b: f64) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|i| (a * i as f64 + b).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// A sum with a different weight for each element, so that all gradients differ.
pub fn weighted_sum(ys: &Tensor) -> Result<Tensor> {
    let weights = wave(ys.dims(), 0.7, 0.2)?.to_dtype(ys.dtype())?;
    (ys * weights)?.sum_all()
}

pub fn values(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().unwrap();
    flat.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

pub fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| {
            assert!(a.is_finite() && b.is_finite(), "{a} {b}");
            (a - b).abs()
        })
        .fold(0.0, f64::max)
}

/// The variables of a map, sorted by name.
pub fn named(vars: &VarMap) -> Vec<(String, Var)> {
    let mut named: Vec<_> = vars.data().lock().unwrap().clone().into_iter().collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}

/// The gradient of `loss` with respect to `var`, by central differences.
pub fn numeric_gradient(var: &Var, loss: &dyn Fn() -> Result<Tensor>) -> Result<Vec<f64>> {
    let (original, shape) = (values(var), var.shape().clone());
    let step = 1e-6;
    let mut gradient = Vec::with_capacity(original.len());
    for element in 0..original.len() {
        let at = |shift: f64| -> Result<f64> {
            let mut moved = original.clone();
            moved[element] += shift;
            var.set(&Tensor::from_vec(moved, &shape, &Device::Cpu)?)?;
            loss()?.to_scalar()
        };
        gradient.push((at(step)? - at(-step)?) / (2.0 * step));
    }
    var.set(&Tensor::from_vec(original, &shape, &Device::Cpu)?)?;
    Ok(gradient)
}

/// A small VGG: each number is a unit with that many channels, 0 is a pooling, and the head is
/// linear. Its tensors have torchvision's names.
pub fn small_vgg(plan: &[usize], posterior: &Posterior, vb: VarBuilder) -> Result<Chain> {
    let mut model = Chain::new();
    let (mut channels, mut index) = (3, 0);
    for &width in plan {
        if width == 0 {
            model = model.add_plain(|xs: &Tensor| max_pool2d(xs, 2, 2, 0));
            index += 1;
        } else {
            let config = VmfConfig::default().relu().norm_at((index + 1).to_string()).padding(1);
            let vb = vb.pp(format!("features.{index}"));
            model = model.add(vmf_conv2d(channels, width, 3, config, posterior, vb)?);
            (channels, index) = (width, index + 3);
        }
    }
    let head = candle_nn::linear(channels, 10, vb.pp("classifier"))?;
    Ok(model.add_plain(|xs: &Tensor| xs.mean((2, 3))).add_plain(head))
}

pub const PLAN: [usize; 5] = [8, 0, 16, 16, 0];

/// A small VGG with everything it needs, in f32.
pub struct Model {
    pub vars: VarMap,
    pub posterior: Posterior,
    pub network: Chain,
}

impl Model {
    pub fn new(seed: u64) -> Result<Self> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, seed, DType::F32, &Device::Cpu);
        let network = small_vgg(&PLAN, &posterior, vb)?;
        Ok(Self { vars, posterior, network })
    }

    pub fn adam(&self) -> Result<Adam> {
        let config = AdamConfig { lr: 1e-2, ..Default::default() };
        Adam::for_model(&self.vars, &self.posterior, config)
    }

    /// A step of training on images with their labels.
    pub fn step(
        &self,
        adam: &mut Adam,
        (xs, labels): (&Tensor, &Tensor),
        pass: Pass,
    ) -> Result<()> {
        let nll = cross_entropy(&self.forward(xs, &pass)?, labels)?;
        let loss = Elbo::new(160).beta(0.1).loss(&nll, &self.posterior)?;
        adam.backward_step(&loss.total)
    }
}

/// Every variable, as bits.
pub fn state(vars: &VarMap) -> Vec<(String, Vec<u64>)> {
    let bits = |tensor: &Tensor| values(tensor).iter().map(|v| v.to_bits()).collect();
    named(vars).into_iter().map(|(name, var)| (name, bits(&var))).collect()
}

impl Forward for Model {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.network.forward(xs, pass)
    }
}

/// A batch of images of ten classes, each with its own frequency and direction.
pub fn images(count: usize, first: usize) -> Result<(Tensor, Tensor)> {
    let mut pixels = Vec::with_capacity(count * 3 * 64);
    let mut labels = Vec::with_capacity(count);
    for example in first..first + count {
        let class = example % 10;
        labels.push(class as u32);
        for channel in 0..3 {
            for pixel in 0..64 {
                let (x, y) = ((pixel % 8) as f64, (pixel / 8) as f64);
                let wave = (0.3 * class as f64 * (x + 0.5 * channel as f64 * y)).sin();
                let grain = (12.9898 * (example * 192 + channel * 64 + pixel) as f64).sin();
                pixels.push((wave + 0.5 * grain) as f32);
            }
        }
    }
    Ok((
        Tensor::from_vec(pixels, (count, 3, 8, 8), &Device::Cpu)?,
        Tensor::from_vec(labels, count, &Device::Cpu)?,
    ))
}

/// What is logged while `run` runs.
pub fn heard(run: impl FnOnce() -> Result<()>) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    tracing::subscriber::with_default(subscriber, run).unwrap();
    let bytes = log.0.lock().unwrap();
    String::from_utf8(bytes.clone()).unwrap()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
