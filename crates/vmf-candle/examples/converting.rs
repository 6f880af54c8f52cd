//! Converts an existing Candle model with batch normalization to a variational one: first with the
//! same logits, then trained further with noise.
//!
//! ```text
//! cargo run --release -p vmf-candle --example converting
//! ```

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Module, ModuleT, Optimizer, VarBuilder, VarMap,
};
use vmf_candle::checkpoint::Convert;
use vmf_candle::ops::mean_over_positions;
use vmf_candle::prelude::*;

const SEED: u64 = 3;

/// The existing model, of candle-nn's own layers.
struct Plain {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
}

impl Plain {
    fn new(vb: VarBuilder) -> Result<Self> {
        let padded = Conv2dConfig { padding: 1, ..Default::default() };
        Ok(Self {
            conv: candle_nn::conv2d(1, 16, 3, padded, vb.pp("conv1"))?,
            norm: candle_nn::batch_norm(16, 1e-5, vb.pp("bn1"))?,
            head: candle_nn::linear(16, 2, vb.pp("head"))?,
        })
    }

    fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let xs = self.norm.forward_t(&self.conv.forward(xs)?, train)?.relu()?;
        self.head.forward(&xs.mean((2, 3))?)
    }
}

/// The variational model. The convolution, its normalization and its ReLU are one layer.
fn variational(posterior: &Posterior, vb: VarBuilder) -> Result<Chain> {
    let config = VmfConfig::default().relu().affine().norm_at("bn1").padding(1);
    Ok(Chain::new()
        .add(vmf_conv2d(1, 16, 3, config, posterior, vb.pp("conv1"))?)
        .add_plain(|xs: &Tensor| mean_over_positions(xs))
        .add_plain(candle_nn::linear(16, 2, vb.pp("head"))?))
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    let batches: Vec<(Tensor, Tensor)> = (0..20).map(stripes).collect::<Result<_>>()?;
    let (test, test_labels) = stripes(1000)?;

    let plain_vars = VarMap::new();
    let plain = Plain::new(seeded(&plain_vars, SEED, DType::F32, &device))?;
    let mut sgd = candle_nn::SGD::new(plain_vars.all_vars(), 1.0)?;
    for (xs, ys) in batches.iter().cycle().take(60) {
        sgd.backward_step(&cross_entropy(&plain.forward(xs, true)?, ys)?)?;
    }
    let before = plain.forward(&test, false)?;
    println!("model                              accuracy");
    println!("candle-nn, trained                 {:8.3}", accuracy(&before, &test_labels)?);

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = variational(&posterior, seeded(&vars, SEED, DType::F32, &device))?;
    Convert::new().vars(&plain_vars)?.load_into(&vars)?;
    let after = model.forward(&test, &Pass::mean())?;
    let difference = (before - &after)?.abs()?.max_all()?.to_scalar::<f32>()?;
    println!(
        "converted                          {:8.3}   logits differ by at most {difference:.1e}",
        accuracy(&after, &test_labels)?
    );

    let mut adam =
        Adam::for_model(&vars, &posterior, AdamConfig { lr: 1e-3, ..Default::default() })?;
    let elbo = Elbo::new(64 * batches.len()).beta(0.02);
    for step in 0..100u32 {
        let (xs, ys) = &batches[step as usize % batches.len()];
        let nll = cross_entropy(&model.forward(xs, &Pass::train(SEED, step))?, ys)?;
        adam.backward_step(&elbo.loss(&nll, &posterior)?.total)?;
    }
    reestimate(&model, &posterior, batches.iter().map(|(xs, _)| Ok(xs.clone())))?;
    let prediction = predict(&model, &test, Samples::monte_carlo(16, SEED))?;
    println!(
        "trained further, 16 noisy passes   {:8.3}\n",
        accuracy(&prediction.probs, &test_labels)?
    );
    println!("{}\n", posterior.summary()?);

    let empty = Tensor::zeros((1, 1, 8, 8), DType::F32, &device)?;
    let empty = predict(&model, &empty, Samples::monte_carlo(64, SEED))?;
    println!("input             entropy (nats; 0.693 is 50 % for each class)");
    for (name, prediction) in [("stripes", prediction), ("an empty image", empty)] {
        println!("{name:<14}  {:9.3}", prediction.entropy.mean_all()?.to_scalar::<f32>()?);
    }
    Ok(())
}

/// 64 images of horizontal or vertical stripes with noise.
fn stripes(batch: usize) -> Result<(Tensor, Tensor)> {
    let mut state = batch as u64 * 7919 + 1;
    let mut random = || {
        // xorshift64, scaled to (-1, 1)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..64 {
        let (vertical, phase) = (random() > 0.0, 3.0 * random());
        labels.push(u32::from(vertical));
        for pixel in 0..64 {
            let along = if vertical { pixel % 8 } else { pixel / 8 };
            let stripe = (1.5 * along as f64 + phase).sin();
            pixels.push((stripe + random()) as f32);
        }
    }
    Ok((
        Tensor::from_vec(pixels, (64, 1, 8, 8), &Device::Cpu)?,
        Tensor::from_vec(labels, 64, &Device::Cpu)?,
    ))
}

fn accuracy(scores: &Tensor, labels: &Tensor) -> Result<f32> {
    let right = scores.argmax(1)?.eq(labels)?;
    right.to_dtype(DType::F32)?.mean_all()?.to_scalar()
}
