//! One variational unit on plain slices: what its noise does, what its gradient says about sigma,
//! and where its time goes. Run it with
//!
//! ```text
//! cargo run --release -p vmf-kernels --example unit
//! ```
//!
//! u is normalized and close to normal, so the loss should be close to (1 + sigma^2) / 4, and its
//! derivative to sigma / 2.

use std::time::Instant;
use vmf_kernels::Error;
use vmf_kernels::bn_noise::NoiseTerm;
use vmf_kernels::conv::{Conv2d, ConvShape};
use vmf_kernels::noise::{Noise, NoiseKey, fill_normals};
use vmf_kernels::unit::{Gradients, Operands, Saved, Unit};

fn main() -> Result<(), Error> {
    let shape = ConvShape::same(32, 32, 64, [16, 16], 3);
    let conv = Conv2d::new(shape)?;
    let unit = Unit::new(conv);
    let x = normals(1, shape.input_len())?;
    let w = normals(2, shape.weight_len())?;
    println!("32 images of 16 x 16, 3 x 3 convolution from 32 to 64 channels:");
    println!("u = x * w, y = relu((u - mean) / std + sigma z), loss = mean of y^2 / 2\n");

    println!("sigma | noise in the output | loss   | dloss/dsigma | by differences");
    for sigma in [0.0, 0.1, 0.3, 1.0] {
        let mut saved = Saved::default();
        let mut y = vec![0.0; shape.output_len()];
        let mut loss = |sigma: f32| -> Result<f64, Error> {
            unit.forward_train(noise(&[sigma]), &x, &w, &mut y, &mut saved)?;
            Ok(y.iter().map(|&y| f64::from(y).powi(2)).sum::<f64>() / (2 * y.len()) as f64)
        };
        let step = 0.01;
        let quotient = (loss(sigma + step)? - loss(sigma - step)?) / f64::from(2.0 * step);
        let loss = loss(sigma)?;

        let dy: Vec<f32> = y.iter().map(|y_i| y_i / y.len() as f32).collect();
        let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
        let operands = Operands { x: &x, w: &w, y: &y };
        let gradients = Gradients { dx: Some(&mut dx), dw: &mut dw, dskip: None };
        let dsigma =
            unit.backward_train(noise(&[sigma]), operands, &saved, &dy, gradients)?.sigma[0];

        // Without ReLU the outputs with and without noise differ by sigma z.
        let (linear, mut clean) = (unit.relu(false), y.clone());
        linear.forward_eval(noise(&[sigma]), &saved.statistics, &x, &w, &mut y)?;
        linear.forward_eval(None, &saved.statistics, &x, &w, &mut clean)?;
        let squares = y.iter().zip(&clean).map(|(y, clean)| f64::from(y - clean).powi(2));
        let rms = (squares.sum::<f64>() / y.len() as f64).sqrt();
        println!("{sigma:5.1} | {rms:19.4} | {loss:6.4} | {dsigma:12.4} | {quotient:14.4}");
    }

    println!("\npart                                          | ms");
    let (mut dx, mut dw) = (x.clone(), w.clone());
    let (mut y, dy) = (vec![0.0; shape.output_len()], vec![1.0; shape.output_len()]);
    let mut saved = Saved::default();
    let noise = noise(&[0.1]);
    time("convolution alone", || conv.forward(&x, &w, &mut y))?;
    time("forward pass: with normalization, noise, ReLU", || {
        unit.forward_train(noise, &x, &w, &mut y, &mut saved)
    })?;
    time("backward pass: dx, dw and dsigma", || {
        let operands = Operands { x: &x, w: &w, y: &y };
        let gradients = Gradients { dx: Some(&mut dx), dw: &mut dw, dskip: None };
        unit.backward_train(noise, operands, &saved, &dy, gradients)
    })
}

/// Noise of scale sigma. It is a function of the key: the backward pass computes it again.
fn noise(sigma: &[f32]) -> Option<NoiseTerm<'_, f32>> {
    let key = NoiseKey { seed: 42, stream: 0, step: 0, sample: 0 };
    Some(NoiseTerm { noise: Noise::new(key), sigma })
}

/// Standard normal numbers, the same in every run.
fn normals(stream: u32, len: usize) -> Result<Vec<f32>, Error> {
    let mut numbers = vec![0.0; len];
    let key = NoiseKey { seed: 7, stream, step: 0, sample: 0 };
    fill_normals(&Noise::new(key), 0, &mut numbers)?;
    Ok(numbers)
}

/// Prints the shortest of ten times.
fn time<T>(part: &str, mut f: impl FnMut() -> Result<T, Error>) -> Result<(), Error> {
    let mut best = f64::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        f()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{part:<45} | {:.2}", best * 1e3);
    Ok(())
}
