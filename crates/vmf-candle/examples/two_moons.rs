//! Two interleaved half-moons: a classifier that shows where it is uncertain.
//!
//! ```text
//! cargo run --release -p vmf-candle --example two_moons
//! ```
//!
//! Draws the plane as text: the training points as `o` and `x`, and the uncertainty of the
//! prediction everywhere else, from blank (certain) to `@` (as likely one class as the other).

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Optimizer, VarMap};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Normal};
use std::f64::consts::{LN_2, PI};
use vmf_candle::prelude::*;

const SEED: u64 = 1;
const POINTS: usize = 400;
const EPOCHS: u32 = 600;

fn main() -> Result<()> {
    let device = Device::Cpu;
    let (points, labels) = two_moons();
    let xs = Tensor::new(points.as_slice().as_flattened(), &device)?.reshape((POINTS, 2))?;
    let ys = Tensor::new(labels.as_slice(), &device)?;

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, SEED, DType::F32, &device);
    let unit = || VmfConfig::default().relu();
    let model = Chain::new()
        .add_plain(candle_nn::linear(2, 64, vb.pp("input"))?)
        .add(vmf_linear(64, 64, unit(), &posterior, vb.pp("hidden1"))?)
        .add(vmf_linear(64, 64, unit(), &posterior, vb.pp("hidden2"))?)
        .add_plain(candle_nn::linear(64, 2, vb.pp("output"))?);

    let config = AdamConfig { lr: 2e-3, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let beta = Schedule::warmup(0.003, f64::from(EPOCHS) / 4.0);
    println!("epoch     NLL   KL (nats)");
    for epoch in 0..EPOCHS {
        let logits = model.forward(&xs, &Pass::train(SEED, epoch))?;
        let nll = cross_entropy(&logits, &ys)?;
        let loss = Elbo::new(POINTS).beta(beta.at(f64::from(epoch))).loss(&nll, &posterior)?;
        adam.backward_step(&loss.total)?;
        if epoch % 100 == 0 {
            let (nll, kl) = (nll.to_scalar::<f32>()?, loss.kl.to_scalar::<f64>()?);
            println!("{epoch:5}   {nll:5.3}   {kl:9.0}");
        }
    }
    reestimate(&model, &posterior, [Ok(xs.clone())])?;

    println!("\n{}\n", posterior.summary()?);
    draw(&model, &points, &labels)
}

/// Points of two half circles, with a little noise.
fn two_moons() -> (Vec<[f32; 2]>, Vec<u32>) {
    let mut rng = StdRng::seed_from_u64(SEED);
    let jitter = Normal::new(0.0, 0.1).expect("a positive deviation");
    (0..POINTS)
        .map(|i| {
            let angle = rng.random_range(0.0..PI);
            let (x, y) = match i % 2 {
                0 => (angle.cos(), angle.sin()),
                _ => (1.0 - angle.cos(), 0.5 - angle.sin()),
            };
            let mut moved = |v: f64| (v + jitter.sample(&mut rng)) as f32;
            ([moved(x), moved(y)], (i % 2) as u32)
        })
        .unzip()
}

fn draw(model: &Chain, points: &[[f32; 2]], labels: &[u32]) -> Result<()> {
    const WIDTH: usize = 76;
    const HEIGHT: usize = 28;
    const SHADES: &[u8] = b"  .:-=+*#@";
    let (left, top, step_x, step_y) = (-2.0f32, 2.0f32, 5.0 / WIDTH as f32, 3.5 / HEIGHT as f32);
    let grid: Vec<[f32; 2]> = (0..HEIGHT * WIDTH)
        .map(|cell| {
            let (column, row) = ((cell % WIDTH) as f32, (cell / WIDTH) as f32);
            [left + (column + 0.5) * step_x, top - (row + 0.5) * step_y]
        })
        .collect();
    let grid = Tensor::new(grid.as_flattened(), &Device::Cpu)?.reshape(((), 2))?;
    let prediction = predict(model, &grid, Samples::monte_carlo(32, SEED))?;
    let mut picture: Vec<u8> = prediction
        .entropy
        .to_vec1::<f32>()?
        .iter()
        .map(|entropy| f64::from(*entropy) / LN_2 * (SHADES.len() - 1) as f64)
        .map(|shade| SHADES[(shade.round() as usize).min(SHADES.len() - 1)])
        .collect();
    for ([x, y], label) in points.iter().zip(labels) {
        let (column, row) = ((x - left) / step_x, (top - y) / step_y);
        if (0.0..WIDTH as f32).contains(&column) && (0.0..HEIGHT as f32).contains(&row) {
            picture[row as usize * WIDTH + column as usize] = [b'o', b'x'][*label as usize];
        }
    }
    for line in picture.chunks(WIDTH) {
        println!("{}", String::from_utf8_lossy(line));
    }
    let share = prediction.mutual_information.mean_all()?.to_scalar::<f32>()?
        / prediction.entropy.mean_all()?.to_scalar::<f32>()?;
    println!(
        "\no, x: training points of the two classes    blank: certain    @: 50 % for each class"
    );
    println!(
        "{:.0} % of the uncertainty in this picture comes from not knowing the weights",
        100.0 * share
    );
    Ok(())
}
