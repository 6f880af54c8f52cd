//! How fast the network trains on this machine: the numbers that tell a user how long training will
//! take.
//!
//! Everything in a step is real: the forward pass with noise and running statistics, cross-entropy,
//! the posterior's KL, Candle's automatic differentiation, Adam. Only the images are random.

use crate::device;
use crate::machine::{self, Clock};
use crate::model::{Depth, IMAGE_SIZE, Vgg, VggConfig};
use crate::stock::StockVgg;
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarMap};
use serde::Serialize;
use std::fmt;
use vmf_candle::train::backward;
use vmf_candle::{Adam, AdamConfig, Elbo, Forward, Pass, Posterior, cross_entropy, seeded};
use vmf_kernels::simd::Isa;

/// Images in CIFAR-10's training set.
const EPOCH: usize = 50_000;

/// What to time.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Images in a batch.
    #[arg(long, default_value_t = 64)]
    pub batch: usize,

    /// Which network: vgg11, vgg13, vgg16 or vgg19.
    #[arg(long, default_value_t)]
    pub depth: Depth,

    /// Multiplies the channels of every layer, such as 0.25.
    #[arg(long, default_value_t = 1.0)]
    pub width: f64,

    /// Threads to compute with [default: as many as the machine has].
    #[arg(long)]
    pub threads: Option<usize>,

    /// Steps to time, of which the fastest counts.
    #[arg(long, default_value_t = 5)]
    pub steps: usize,

    /// Steps before those: the first few touch memory that the system has yet to hand out.
    #[arg(long, default_value_t = 3)]
    pub warm_up: usize,

    /// Train the same network without noise and KL.
    #[arg(long)]
    pub no_noise: bool,

    /// Also take a step without noise and KL after each step with them, and say what they cost.
    #[arg(long, conflicts_with = "no_noise")]
    pub noise_cost: bool,

    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    pub device: String,

    /// Which operations to build the network of.
    #[arg(long, value_enum, default_value_t = Ops::Fast)]
    pub ops: Ops,

    /// Which time to measure. With one thread, `cpu` is not disturbed by other programs.
    #[arg(long, value_enum, default_value_t = Clock::Wall)]
    pub clock: Clock,

    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which operations to build the network of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ops {
    /// The variational units of this project.
    Fast,
    /// Candle's own operations and optimizer, to compare with.
    Stock,
}

/// What was measured. Times are of the fastest step, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The network.
    pub network: VggConfig,
    /// `fast` or `stock`.
    pub ops: String,
    /// Images in a batch.
    pub batch: usize,
    /// Threads that computed.
    pub threads: usize,
    /// Which vector instructions the project's kernels use.
    pub instructions: String,
    /// Whether there was noise and KL.
    pub noise: bool,
    /// `wall` or `cpu`.
    pub clock: String,
    /// The forward pass, with the loss.
    pub forward_ms: f64,
    /// The backward pass.
    pub backward_ms: f64,
    /// The optimizer.
    pub optimizer_ms: f64,
    /// The whole step.
    pub step_ms: f64,
    /// The whole step by wall time.
    pub wall_step_ms: f64,
    /// A forward pass with running statistics, noise as in training.
    pub evaluation_ms: f64,
    /// The whole step without noise and KL, if it was asked for.
    pub plain_step_ms: Option<f64>,
    /// The time of a step with noise and KL, as a multiple of the next one without: the median of
    /// all such pairs.
    pub noise_cost: Option<f64>,
    /// Images trained on in a second.
    pub images_per_second: f64,
    /// GFLOP/s of the step, counted as if every convolution were computed by its definition.
    pub gflops: f64,
    /// GFLOP/s of fused multiply-adds in registers, on all threads.
    pub peak_gflops: f64,
    /// GB/s (of 10^9 bytes) that all threads read from memory and write to it.
    pub bandwidth: f64,
    /// The most memory at once during training, in megabytes of 2^20 bytes.
    pub peak_memory_mb: Option<f64>,
    /// How long an epoch of 50,000 images takes, in seconds.
    pub epoch_seconds: f64,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<()> {
    let threads = device::use_threads(args.threads)?;
    let report = measure(args, threads)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

/// Times training as `args` say.
pub fn measure(args: &Args, threads: usize) -> Result<Report> {
    ensure!(
        args.batch >= 2,
        "a batch of {} has no variance to normalize with: say --batch 2 or more",
        args.batch
    );
    ensure!(args.steps >= 1, "--steps must be at least 1");
    let network = VggConfig { depth: args.depth, width: args.width, ..Default::default() };
    let device = device::parse(&args.device)?;
    let mut subject: Box<dyn Subject> = match args.ops {
        Ops::Fast => Box::new(Fast::new(&network, &device)?),
        Ops::Stock => Box::new(Stock::new(&network, &device)?),
    };
    let (images, labels) = random_batch(args.batch, &network, &device)?;

    let noise = !args.no_noise;
    let (mut timed, mut plain) = (Fastest::default(), Fastest::default());
    let mut costs = Vec::new();
    for step in 0..args.warm_up + args.steps {
        let mut take = |noise: bool, fastest: &mut Fastest| -> Result<f64> {
            let start = Clock::Wall.now();
            let times = subject.step(step as u32, &images, &labels, noise, args.clock)?;
            if step >= args.warm_up {
                fastest.see(times, Clock::Wall.now() - start);
            }
            Ok(times.iter().sum())
        };
        if !args.noise_cost {
            take(noise, &mut timed)?;
            continue;
        }
        // In turns, and now the one first, now the other: so both see the same machine.
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
    /// Forward pass, backward pass and optimizer, each where it was fastest.
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

/// A network with its optimizer.
trait Subject {
    /// Takes a step, and returns the seconds of forward pass, backward pass and optimizer.
    fn step(
        &mut self,
        step: u32,
        images: &Tensor,
        labels: &Tensor,
        noise: bool,
        clock: Clock,
    ) -> Result<[f64; 3]>;

    /// A forward pass with running statistics.
    fn evaluate(&self, images: &Tensor, noise: bool) -> Result<()>;
}

struct Fast {
    model: Vgg,
    posterior: Posterior,
    adam: Adam,
}

impl Fast {
    fn new(network: &VggConfig, device: &Device) -> Result<Self> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let model = Vgg::new(network, &posterior, seeded(&vars, 1, DType::F32, device))?;
        let adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
        Ok(Self { model, posterior, adam })
    }
}

impl Subject for Fast {
    fn step(
        &mut self,
        step: u32,
        images: &Tensor,
        labels: &Tensor,
        noise: bool,
        clock: Clock,
    ) -> Result<[f64; 3]> {
        let start = clock.now();
        let pass = match noise {
            true => Pass::train(1, step),
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
        // A GPU may still be at work: reading the loss waits for it.
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
}

struct Stock {
    model: StockVgg,
    adam: AdamW,
}

impl Stock {
    fn new(network: &VggConfig, device: &Device) -> Result<Self> {
        let vars = VarMap::new();
        let model = StockVgg::new(network, seeded(&vars, 1, DType::F32, device))?;
        let params = ParamsAdamW { lr: 1e-4, weight_decay: 0.0, ..Default::default() };
        let adam = AdamW::new(vars.all_vars(), params)?;
        Ok(Self { model, adam })
    }
}

impl Subject for Stock {
    fn step(
        &mut self,
        _step: u32,
        images: &Tensor,
        labels: &Tensor,
        noise: bool,
        clock: Clock,
    ) -> Result<[f64; 3]> {
        let start = clock.now();
        let logits = self.model.forward(images, true, noise)?;
        let loss = cross_entropy(&logits, labels)?;
        let forward = clock.now();
        let gradients = loss.backward()?;
        let backward = clock.now();
        self.adam.step(&gradients)?;
        loss.to_scalar::<f32>()?;
        Ok([forward - start, backward - forward, clock.now() - backward])
    }

    fn evaluate(&self, images: &Tensor, noise: bool) -> Result<()> {
        let logits = self.model.forward(images, false, noise)?;
        logits.sum_all()?.to_scalar::<f32>()?;
        Ok(())
    }
}

/// Images of white noise, and labels.
fn random_batch(batch: usize, network: &VggConfig, device: &Device) -> Result<(Tensor, Tensor)> {
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
            network.depth, network.width, self.batch, self.ops, self.clock
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
        write!(f, "{:<12}{minutes:>9.1} minutes for {EPOCH} images", "epoch")
    }
}
