//! CIFAR-10 in one file, to read from top to bottom: data, model, training and evaluation.
//!
//! ```text
//! cargo run --release -p cifar -- fetch                                  # once: fetches the data
//! cargo run --release -p vmf-candle --example cifar_one_file             # 5 epochs, all images
//! cargo run --release -p vmf-candle --example cifar_one_file -- 2 5000   # 2 epochs, 5,000 images
//! ```
//!
//! A third argument names a folder with the binary version of CIFAR-10, if it is not in `data/`.
//! The package `cifar` trains the paper's networks with augmentation, checkpoints and reports.

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Linear, Optimizer, VarBuilder, VarMap};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::error::Error;
use std::path::Path;
use std::time::Instant;
use vmf_candle::ops::mean_over_positions;
use vmf_candle::predict::predict_stream;
use vmf_candle::prelude::*;

const SEED: u64 = 1;
const BATCH: usize = 128;
const LEARNING_RATE: f64 = 2e-3; // at the start, falling to 0 along a cosine
const CHANNELS: [usize; 3] = [32, 64, 128]; // of the three blocks, at 32x32, 16x16 and 8x8 pixels
const SAMPLES: u32 = 8; // of the Monte Carlo prediction

// ---------------------------------------------------------------------------------------- data

const CLASSES: usize = 10;
const PIXELS: usize = 3 * 32 * 32;

/// Mean and deviation of the red, green and blue pixels of the training images.
const PIXEL_STATISTICS: [(f32, f32); 3] = [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)];

/// Records of the binary files: a label, then the red, green and blue planes of 32 x 32 pixels.
struct Images(Vec<[u8; 1 + PIXELS]>);

impl Images {
    fn read(folder: &Path, files: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut records = Vec::new();
        for file in files {
            let bytes = std::fs::read(folder.join(file)).map_err(|error| {
                let file = folder.join(file);
                let remedy = "`cargo run --release -p cifar -- fetch` downloads CIFAR-10";
                format!("{}: {error}; {remedy}", file.display())
            })?;
            records.extend_from_slice(bytes.as_chunks().0);
        }
        Ok(Self(records))
    }

    /// The images (N, 3, 32, 32) and labels (N) with these numbers.
    fn batch(&self, numbers: &[usize], device: &Device) -> candle_core::Result<(Tensor, Tensor)> {
        let mut pixels = Vec::with_capacity(numbers.len() * PIXELS);
        for &number in numbers {
            for (plane, (mean, deviation)) in self.0[number][1..].chunks(1024).zip(PIXEL_STATISTICS)
            {
                pixels.extend(plane.iter().map(|&p| (f32::from(p) / 255.0 - mean) / deviation));
            }
        }
        let labels: Vec<u32> = numbers.iter().map(|&number| self.0[number][0].into()).collect();
        let images = Tensor::from_vec(pixels, (numbers.len(), 3, 32, 32), device)?;
        Ok((images, Tensor::from_vec(labels, numbers.len(), device)?))
    }
}

// --------------------------------------------------------------------------------------- model

/// Three blocks of two 3x3 convolutions, each block followed by maximum pooling; then the mean over
/// the image and a linear classifier. Normalization, noise and ReLU are part of each convolution.
struct Network {
    features: ConvStack,
    classifier: Linear,
}

impl Network {
    fn new(posterior: &Posterior, vb: VarBuilder) -> candle_core::Result<Self> {
        let (mut features, mut inputs) = (ConvStack::new(), 3);
        for (block, outputs) in CHANNELS.into_iter().enumerate() {
            for conv in 0..2 {
                let config = VmfConfig::default().relu().padding(1);
                let vb = vb.pp(format!("block{block}.conv{conv}"));
                features = features.unit(vmf_conv2d(inputs, outputs, 3, config, posterior, vb)?);
                inputs = outputs;
            }
            features = features.max_pool(2);
        }
        Ok(Self { features, classifier: candle_nn::linear(inputs, CLASSES, vb.pp("classifier"))? })
    }
}

impl Forward for Network {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        self.classifier.forward(&mean_over_positions(&self.features.forward(xs, pass)?)?)
    }
}

// ------------------------------------------------------------------------------------ training

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let epochs = arguments.first().map_or(Ok(5), |number| number.parse())?;
    let limit = arguments.get(1).map_or(Ok(50_000), |number| number.parse())?;
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/cifar-10-batches-bin");
    let folder = Path::new(arguments.get(2).map_or(default, String::as_str));

    let device = Device::Cpu;
    let files = [1, 2, 3, 4, 5].map(|file| format!("data_batch_{file}.bin"));
    let mut train = Images::read(folder, &files.each_ref().map(String::as_str))?;
    let test = Images::read(folder, &["test_batch.bin"])?;
    let test_len = limit.min(test.0.len());
    // One image in twenty, drawn at random, is held out of training, to find beta by.
    train.0.truncate(limit);
    train.0.shuffle(&mut StdRng::seed_from_u64(SEED));
    let held_out_len = train.0.len() / 20;
    let train_len = train.0.len() - held_out_len;
    let held_out: Vec<usize> = (train_len..train_len + held_out_len.min(500)).collect();
    let held_out = train.batch(&held_out, &device)?;

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let network = Network::new(&posterior, seeded(&vars, SEED, DType::F32, &device))?;
    let config = AdamConfig { lr: LEARNING_RATE, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let steps_per_epoch = train_len / BATCH;
    let steps = (epochs * steps_per_epoch) as u32;
    let lr = Schedule::cosine(LEARNING_RATE, 0.0, steps.into());
    let mut beta = AutoBeta::new(&posterior, train_len, steps)?;

    println!("{train_len} images, {epochs} epochs of {steps_per_epoch} steps\n");
    println!("epoch   train NLL   train accuracy   KL (nats)      beta   seconds");
    let mut step = 0;
    for epoch in 1..=epochs {
        let (start, mut nll_sum, mut correct) = (Instant::now(), 0.0, 0.0);
        let mut order: Vec<usize> = (0..train_len).collect();
        order.shuffle(&mut StdRng::seed_from_u64(SEED + epoch as u64));
        for numbers in order.chunks_exact(BATCH) {
            let (images, labels) = train.batch(numbers, &device)?;
            let logits = network.forward(&images, &Pass::train(SEED, step))?;
            let nll = cross_entropy(&logits, &labels)?;
            let elbo = Elbo::new(train_len).beta(beta.value());
            adam.set_learning_rate(lr.at(step.into()));
            adam.backward_step(&elbo.loss(&nll, &posterior)?.total)?;
            if beta.is_due(step) {
                beta.update(
                    step,
                    &network,
                    &posterior,
                    (&images, &labels),
                    (&held_out.0, &held_out.1),
                )?;
            }
            step += 1;
            nll_sum += nll.to_scalar::<f32>()?;
            let hits = logits.argmax(1)?.eq(&labels)?.to_dtype(DType::F32)?;
            correct += hits.mean_all()?.to_scalar::<f32>()?;
        }
        println!(
            "{epoch:5}   {:9.3}   {:14.3}   {:9.0}   {:7.5}   {:7.0}",
            nll_sum / steps_per_epoch as f32,
            correct / steps_per_epoch as f32,
            posterior.kl()?.to_scalar::<f64>()?,
            beta.value(),
            start.elapsed().as_secs_f64()
        );
    }

    // Deterministic passes need to know how much activations and outputs vary under noise.
    let sample: Vec<usize> = (0..train_len.min(4096)).collect();
    let batches = sample.chunks(BATCH).map(|batch| Ok(train.batch(batch, &device)?.0));
    reestimate(&network, &posterior, batches)?;

    // -------------------------------------------------------------------------------- evaluation

    let all: Vec<usize> = (0..test_len).collect();
    let labels = test.batch(&all, &device)?.1;
    println!("\n{test_len} test images   accuracy   confidence     NLL     ECE");
    for (name, samples) in [
        ("one pass".to_string(), Samples::expected(&posterior)),
        ("noise off".to_string(), Samples::mean()),
        (format!("{SAMPLES} samples"), Samples::monte_carlo(SAMPLES, SEED)),
    ] {
        let batches = all.chunks(256).map(|batch| Ok(test.batch(batch, &device)?.0));
        let probs = predict_stream(&network, batches, samples)
            .map(|prediction| Ok(prediction?.probs))
            .collect::<candle_core::Result<Vec<_>>>()?;
        let Calibration { accuracy, confidence, nll, ece, .. } =
            Calibration::of(&Tensor::cat(&probs, 0)?, &labels)?;
        println!("{name:<17}   {accuracy:8.3}   {confidence:10.3}   {nll:5.3}   {ece:5.3}");
    }
    println!("\n{}", posterior.summary()?);
    Ok(())
}
