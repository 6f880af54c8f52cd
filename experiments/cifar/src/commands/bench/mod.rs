//! `cifar bench`: how fast the network trains on this machine.
//!
//! A step does all that training does: the forward pass with noise and running statistics,
//! cross-entropy, the KL of the posterior, Candle's automatic differentiation and Adam. Only the
//! images are random.

mod machine;
mod predictions;
mod stock;

use crate::device;
use crate::model::{IMAGE_SIZE, Model, Network, NetworkConfig};
use crate::settings::check_batch;
use crate::terminal;
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarMap};
use machine::Clock;
use predictions::Prediction;
use serde::Serialize;
use std::fmt;
use stock::{Mode, StockNetwork};
use vmf_candle::train::backward;
use vmf_candle::{Adam, AdamConfig, Elbo, Forward, Pass, Posterior, cross_entropy, seeded};
use vmf_kernels::simd::Isa;

/// Largest number of steps of each kind.
const STEPS: usize = 1_000_000;

/// Number of training images of CIFAR-10.
const EPOCH: usize = 50_000;

/// Arguments of `cifar bench`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Number of images per batch
    #[arg(long, default_value_t = 64)]
    pub batch: usize,

    /// Network
    #[arg(long, alias = "depth", value_enum, default_value_t, hide_possible_values = true)]
    pub model: Model,

    /// Factor of the number of channels of each layer, such as 0.25
    #[arg(long, default_value_t = 1.0)]
    pub width: f64,

    /// Give each normalization a gain and a shift
    #[arg(long)]
    pub affine: bool,

    /// Number of CPU threads [default: one per processor]
    #[arg(long)]
    pub threads: Option<usize>,

    /// Number of timed steps, of which the fastest is reported
    #[arg(long, default_value_t = 5)]
    pub steps: usize,

    /// Number of steps before those: the first ones are slower, because they allocate memory
    #[arg(long, default_value_t = 3)]
    pub warm_up: usize,

    /// Train the same network without noise and KL
    #[arg(long)]
    pub no_noise: bool,

    /// Alternate steps with and without noise and KL, and report what they cost
    #[arg(long, conflicts_with = "no_noise")]
    pub noise_cost: bool,

    /// Also time the ways to predict, in turn: noise off, the expected pass in both grades, and
    /// Monte Carlo
    #[arg(long)]
    pub predictions: bool,

    /// Device to compute on: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: String,

    /// Operations to build the network from
    #[arg(long, value_enum, default_value_t = Ops::Fused)]
    pub ops: Ops,

    /// Which time to measure; with one thread, `cpu` is not affected by other programs
    #[arg(long, value_enum, default_value_t = Clock::Wall)]
    pub clock: Clock,

    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// The operations that the network is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ops {
    /// The variational units of this project
    Fused,
    /// Candle's own operations and optimizer, for comparison
    Stock,
}

/// The result. Times are those of the fastest step, in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Report {
    /// The network.
    network: NetworkConfig,
    /// `fused` or `stock`.
    ops: String,
    /// Number of images per batch.
    batch: usize,
    /// Number of CPU threads.
    threads: usize,
    /// The vector instructions that the kernels use.
    instructions: String,
    /// Whether the network has noise and KL.
    noise: bool,
    /// `wall` or `cpu`.
    clock: String,
    /// The forward pass and the loss.
    forward_ms: f64,
    /// The backward pass.
    backward_ms: f64,
    /// The optimizer.
    optimizer_ms: f64,
    /// The whole step.
    step_ms: f64,
    /// The whole step in wall time.
    wall_step_ms: f64,
    /// A forward pass with running statistics, with noise if training has noise.
    evaluation_ms: f64,
    /// The ways to predict, with `--predictions`.
    predictions: Vec<Prediction>,
    /// The whole step without noise and KL, with `--noise-cost`.
    plain_step_ms: Option<f64>,
    /// The time of a step with noise and KL divided by that of the neighbouring step without: the
    /// median over all such pairs.
    noise_cost: Option<f64>,
    /// Number of images trained on per second.
    images_per_second: f64,
    /// GFLOP/s of the step. The operations are those of a direct convolution, whatever the
    /// algorithm.
    gflops: f64,
    /// GFLOP/s of fused multiply-adds in registers on all threads.
    peak_gflops: f64,
    /// Memory bandwidth of all threads, reads plus writes, in GB/s (10^9 bytes).
    bandwidth: f64,
    /// Peak memory during training in MiB.
    peak_memory_mb: Option<f64>,
    /// Seconds per epoch of 50,000 images.
    epoch_seconds: f64,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<()> {
    let threads = device::use_threads(args.threads)?;
    let report = measure(args, threads)?;
    if args.json {
        terminal::print(serde_json::to_string(&report)?)
    } else {
        terminal::print(report)
    }
}

/// Times training.
fn measure(args: &Args, threads: usize) -> Result<Report> {
    check_batch(args.batch)?;
    for (name, count, least) in [("--steps", args.steps, 1), ("--warm-up", args.warm_up, 0)] {
        ensure!(
            (least..=STEPS).contains(&count),
            "{name} is {count}; it must be at least {least} and at most {STEPS}"
        );
    }
    ensure!(
        !args.predictions || args.ops == Ops::Fused,
        "--predictions times the variational network: leave `--ops {}` away",
        format!("{:?}", args.ops).to_lowercase()
    );
    let network = NetworkConfig {
        model: args.model,
        width: args.width,
        affine: args.affine,
        ..Default::default()
    };
    let device = device::parse(&args.device)?;
    let mut subject: Box<dyn Subject> = match args.ops {
        Ops::Fused => Box::new(Fused::new(&network, &device)?),
        Ops::Stock => Box::new(Stock::new(&network, &device)?),
    };
    let (images, labels) = random_batch(args.batch, &network, &device)?;

    let noise = !args.no_noise;
    let (mut timed, mut plain) = (Fastest::default(), Fastest::default());
    let mut costs = Vec::new();
    for step in 0..args.warm_up + args.steps {
        let mut take = |noise: bool, fastest: &mut Fastest| -> Result<f64> {
            let start = Clock::Wall.now();
            let (number, clock) = (step as u32, args.clock);
            let (images, labels) = (&images, &labels);
            let times = subject.step(Step { number, images, labels, noise, clock })?;
            if step >= args.warm_up {
                fastest.see(times, Clock::Wall.now() - start);
            }
            Ok(times.iter().sum())
        };
        if !args.noise_cost {
            take(noise, &mut timed)?;
            continue;
        }
        // The two kinds alternate, and so does their order, so that both see the same machine.
        let [with, without] = if step % 2 == 0 {
            let with = take(true, &mut timed)?;
            [with, take(false, &mut plain)?]
        } else {
            let without = take(false, &mut plain)?;
            [take(true, &mut timed)?, without]
        };
        if step >= args.warm_up {
            costs.push(with / without);
        }
    }
    let memory = machine::peak_memory();
    subject.evaluate(&images, noise)?;
    let mut failure = Ok(());
    let evaluation = args.clock.best_of(args.steps, || {
        if let Err(error) = subject.evaluate(&images, noise) {
            failure = Err(error);
        }
    });
    failure?;
    let predictions = subject.predictions(&images, args)?;

    let Fastest { parts: [forward, backward, optimizer], step, wall_step } = timed;
    let images_per_second = args.batch as f64 / step;
    Ok(Report {
        gflops: network.training_flops()? * images_per_second * 1e-9,
        network,
        ops: format!("{:?}", args.ops).to_lowercase(),
        batch: args.batch,
        threads,
        instructions: Isa::current().to_string(),
        noise,
        clock: format!("{:?}", args.clock).to_lowercase(),
        forward_ms: forward * 1e3,
        backward_ms: backward * 1e3,
        optimizer_ms: optimizer * 1e3,
        step_ms: step * 1e3,
        wall_step_ms: wall_step * 1e3,
        evaluation_ms: evaluation * 1e3,
        predictions,
        plain_step_ms: args.noise_cost.then_some(plain.step * 1e3),
        noise_cost: median(costs),
        images_per_second,
        peak_gflops: machine::fma_peak(args.clock) * 1e-9,
        bandwidth: machine::bandwidth() * 1e-9,
        peak_memory_mb: memory.map(|bytes| bytes as f64 / (1u64 << 20) as f64),
        epoch_seconds: EPOCH as f64 / images_per_second,
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The fastest of several steps, in seconds.
struct Fastest {
    /// The fastest forward pass, backward pass and optimizer step, each on its own.
    parts: [f64; 3],
    step: f64,
    wall_step: f64,
}

impl Default for Fastest {
    fn default() -> Self {
        Fastest { parts: [f64::INFINITY; 3], step: f64::INFINITY, wall_step: f64::INFINITY }
    }
}

impl Fastest {
    fn see(&mut self, parts: [f64; 3], wall_step: f64) {
        self.step = self.step.min(parts.iter().sum());
        self.wall_step = self.wall_step.min(wall_step);
        for (fastest, part) in self.parts.iter_mut().zip(parts) {
            *fastest = fastest.min(part);
        }
    }
}

/// What a step is taken on.
#[derive(Clone, Copy)]
struct Step<'a> {
    number: u32,
    images: &'a Tensor,
    labels: &'a Tensor,
    noise: bool,
    clock: Clock,
}

/// A network with its optimizer.
trait Subject {
    /// Takes a step and returns the seconds of forward pass, backward pass and optimizer.
    fn step(&mut self, step: Step) -> Result<[f64; 3]>;

    /// A forward pass with running statistics.
    fn evaluate(&self, images: &Tensor, noise: bool) -> Result<()>;

    /// The ways to predict, if they are asked for.
    fn predictions(&self, _images: &Tensor, _args: &Args) -> Result<Vec<Prediction>> {
        Ok(Vec::new())
    }
}

struct Fused {
    model: Network,
    posterior: Posterior,
    adam: Adam,
}

impl Fused {
    fn new(network: &NetworkConfig, device: &Device) -> Result<Self> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let model = Network::new(network, &posterior, seeded(&vars, 1, DType::F32, device))?;
        let adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
        Ok(Self { model, posterior, adam })
    }
}

impl Subject for Fused {
    fn step(&mut self, Step { number, images, labels, noise, clock }: Step) -> Result<[f64; 3]> {
        let start = clock.now();
        let pass = match noise {
            true => Pass::train(1, number),
            false => Pass::train_noiseless(),
        };
        let nll = cross_entropy(&self.model.forward(images, &pass)?, labels)?;
        let loss = match noise {
            true => Elbo::new(EPOCH).loss(&nll, &self.posterior)?.total,
            false => nll,
        };
        let forward = clock.now();
        let gradients = backward(&loss)?;
        let backward = clock.now();
        self.adam.step(&gradients)?;
        // A GPU computes asynchronously: reading the loss waits for it.
        loss.to_scalar::<f32>()?;
        Ok([forward - start, backward - forward, clock.now() - backward])
    }

    fn evaluate(&self, images: &Tensor, noise: bool) -> Result<()> {
        let pass = match noise {
            true => Pass::sample(1, 0),
            false => Pass::mean(),
        };
        self.model.forward(images, &pass)?.sum_all()?.to_scalar::<f32>()?;
        Ok(())
    }

    fn predictions(&self, images: &Tensor, args: &Args) -> Result<Vec<Prediction>> {
        match args.predictions {
            true => predictions::measure(self, images, args.clock, args.steps),
            false => Ok(Vec::new()),
        }
    }
}

struct Stock {
    model: StockNetwork,
    adam: AdamW,
}

impl Stock {
    fn new(network: &NetworkConfig, device: &Device) -> Result<Self> {
        let vars = VarMap::new();
        let model = StockNetwork::new(network, seeded(&vars, 1, DType::F32, device))?;
        let params = ParamsAdamW { lr: 1e-4, weight_decay: 0.0, ..Default::default() };
        let adam = AdamW::new(vars.all_vars(), params)?;
        Ok(Self { model, adam })
    }
}

impl Subject for Stock {
    fn step(&mut self, Step { images, labels, noise, clock, .. }: Step) -> Result<[f64; 3]> {
        let start = clock.now();
        let logits = self.model.forward(images, Mode { train: true, noise })?;
        let loss = cross_entropy(&logits, labels)?;
        let forward = clock.now();
        let gradients = loss.backward()?;
        let backward = clock.now();
        self.adam.step(&gradients)?;
        loss.to_scalar::<f32>()?;
        Ok([forward - start, backward - forward, clock.now() - backward])
    }

    fn evaluate(&self, images: &Tensor, noise: bool) -> Result<()> {
        let logits = self.model.forward(images, Mode { train: false, noise })?;
        logits.sum_all()?.to_scalar::<f32>()?;
        Ok(())
    }
}

/// Images of white noise with labels.
fn random_batch(
    batch: usize,
    network: &NetworkConfig,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let shape = (batch, network.in_channels, IMAGE_SIZE, IMAGE_SIZE);
    let labels: Vec<u32> = (0..batch).map(|i| (i % network.classes) as u32).collect();
    Ok((Tensor::randn(0f32, 1.0, shape, device)?, Tensor::from_vec(labels, batch, device)?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Report { network, .. } = self;
        let noise = if self.noise { "noise" } else { "no noise" };
        let threads = match self.threads {
            1 => "1 thread".to_string(),
            threads => format!("{threads} threads"),
        };
        writeln!(
            f,
            "{} at width {}, batch {}, {noise}, {threads}, {} operations, {} time",
            network.model, network.width, self.batch, self.ops, self.clock
        )?;
        writeln!(f)?;
        let rows = [
            ("forward", self.forward_ms),
            ("backward", self.backward_ms),
            ("optimizer", self.optimizer_ms),
            ("step", self.step_ms),
            ("evaluation", self.evaluation_ms),
        ];
        for (name, milliseconds) in rows {
            writeln!(f, "{name:<12}{milliseconds:>9.1} ms")?;
        }
        if let (Some(plain), Some(cost)) = (self.plain_step_ms, self.noise_cost) {
            let percent = 100.0 * (cost - 1.0);
            writeln!(
                f,
                "{:<12}{plain:>9.1} ms without noise and KL, which cost {percent:.1} %",
                "plain step"
            )?;
        }
        writeln!(f, "{:<12}{:>9.1} images/s", "speed", self.images_per_second)?;
        writeln!(
            f,
            "{:<12}{:>9.1} GFLOP/s, {:.0} % of the {:.0} of multiply-adds in registers with {}",
            "arithmetic",
            self.gflops,
            100.0 * self.gflops / self.peak_gflops,
            self.peak_gflops,
            self.instructions
        )?;
        write!(f, "{:<12}", "memory")?;
        if let Some(memory) = self.peak_memory_mb {
            write!(f, "{memory:>9.0} MB at most, ")?;
        }
        writeln!(f, "{:.1} GB/s", self.bandwidth)?;
        let minutes = self.epoch_seconds / 60.0;
        write!(f, "{:<12}{minutes:>9.1} minutes for {EPOCH} images", "epoch")?;
        if !self.predictions.is_empty() {
            write!(f, "\n\nprediction of a batch")?;
        }
        self.predictions.iter().try_for_each(|prediction| write!(f, "\n{prediction}"))
    }
}
