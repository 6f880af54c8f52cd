//! A curve with a gap in the data: the prediction with a band of two standard deviations.
//!
//! ```text
//! cargo run --release -p vmf-candle --example regression_band
//! ```
//!
//! Draws the data as `o`, the mean as `#` and the band as `:`. The noise of the observations is
//! learned together with the weights.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Init, Optimizer, VarMap};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Normal};
use vmf_candle::prelude::*;
use vmf_candle::train::gaussian_nll_learned;

const SEED: u64 = 2;
const POINTS: usize = 200;
const EPOCHS: u32 = 1500;
const NOISE: f64 = 0.15;

fn main() -> Result<()> {
    let device = Device::Cpu;
    let points = data();
    let column = |axis: usize| {
        let values: Vec<f32> = points.iter().map(|point| point[axis] as f32).collect();
        Tensor::from_vec(values, (POINTS, 1), &device)
    };
    let (xs, ys) = (column(0)?, column(1)?);

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, SEED, DType::F32, &device);
    // The biases are spread out, so that the first layer can bend anywhere in the range of the
    // data.
    let bias = vb.get_with_hints(64, "input.bias", Init::Uniform { lo: -3.0, up: 3.0 })?;
    let weight = vb.get_with_hints((64, 1), "input.weight", Init::Uniform { lo: -2.0, up: 2.0 })?;
    let log_noise = vb.get_with_hints(1, "log_noise", Init::Const(0.0))?;
    let model = Chain::new()
        .add_plain(candle_nn::Linear::new(weight, Some(bias)))
        .add_plain(|xs: &Tensor| xs.tanh())
        .add(vmf_linear(64, 64, VmfConfig::default().relu(), &posterior, vb.pp("hidden"))?)
        .add_plain(candle_nn::linear(64, 1, vb.pp("output"))?);

    let config = AdamConfig { lr: 3e-3, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let beta = Schedule::warmup(0.02, f64::from(EPOCHS) / 4.0);
    for epoch in 0..EPOCHS {
        let predictions = model.forward(&xs, &Pass::train(SEED, epoch))?;
        let nll = gaussian_nll_learned(&predictions, &ys, &log_noise)?;
        let loss = Elbo::new(POINTS).beta(beta.at(f64::from(epoch))).loss(&nll, &posterior)?;
        adam.backward_step(&loss.total)?;
    }

    let noise = f64::from(log_noise.exp()?.to_vec1::<f32>()?[0]);
    println!("standard deviation of the observations: {noise:.3} learned, {NOISE} true\n");
    println!("{}\n", posterior.summary()?);
    draw(&model, &points, noise)
}

/// A sine wave, observed everywhere but in its middle.
fn data() -> Vec<[f64; 2]> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let noise = Normal::new(0.0, NOISE).expect("a positive deviation");
    (0..POINTS)
        .map(|_| {
            let side: f64 = if rng.random() { 1.0 } else { -1.0 };
            let x = side * rng.random_range(0.7..2.5);
            [x, (1.5 * x).sin() + noise.sample(&mut rng)]
        })
        .collect()
}

fn draw(model: &Chain, points: &[[f64; 2]], noise: f64) -> Result<()> {
    const WIDTH: usize = 76;
    const HEIGHT: usize = 26;
    let (range, height) = (3.2, 2.6);
    let xs: Vec<f32> = (0..WIDTH)
        .map(|column| ((2.0 * column as f64 / (WIDTH - 1) as f64 - 1.0) * range) as f32)
        .collect();
    let prediction = predict_values(
        model,
        &Tensor::from_vec(xs, (WIDTH, 1), &Device::Cpu)?,
        Samples::monte_carlo(200, SEED),
    )?;
    let means = prediction.mean.flatten_all()?.to_vec1::<f32>()?;
    let deviations = prediction.deviation.flatten_all()?.to_vec1::<f32>()?;

    let row = |y: f64| ((1.0 - y / height) / 2.0 * HEIGHT as f64).floor();
    let mut picture = vec![vec![' '; WIDTH]; HEIGHT];
    let mut put = |x: usize, row: f64, mark: char| {
        if (0.0..HEIGHT as f64).contains(&row) && x < WIDTH {
            picture[row as usize][x] = mark;
        }
    };
    for (x, (mean, deviation)) in means.iter().zip(&deviations).enumerate() {
        let total = f64::from(*deviation).hypot(noise);
        let (low, high) = (f64::from(*mean) - 2.0 * total, f64::from(*mean) + 2.0 * total);
        for line in row(high).max(0.0) as usize..=row(low).max(0.0) as usize {
            put(x, line as f64, ':');
        }
    }
    for [x, y] in points {
        put(((x / range + 1.0) / 2.0 * (WIDTH - 1) as f64).round() as usize, row(*y), 'o');
    }
    for (x, mean) in means.iter().enumerate() {
        put(x, row(f64::from(*mean)), '#');
    }
    for line in picture {
        println!("{}", line.into_iter().collect::<String>());
    }
    let at = |x: f64| deviations[((x / range + 1.0) / 2.0 * (WIDTH - 1) as f64).round() as usize];
    println!(
        "\no: data    #: predicted mean    :: two standard deviations of weights and observations"
    );
    println!("\nstandard deviation that comes from not knowing the weights");
    for (place, x) in [("among the data", 1.6), ("in the gap", 0.0), ("beyond the data", 3.1)] {
        println!("  {place:<15}  x = {x:.1}   {:.3}", at(x));
    }
    Ok(())
}
