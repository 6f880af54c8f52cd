//! Compares the fused normalization, noise and ReLU with the same chain in the operations of Candle
//! and PyTorch.
//!
//! ```text
//! cargo bench -p vmf-kernels --bench bn_noise            64 images, 64 channels, 32 x 32
//! VMF_PYTHON=/path/to/python cargo bench ...             a Python that has torch; `python3` otherwise
//! ```
//! All contenders take turns, round after round, and the best round of each counts. The ratios are
//! therefore of times from one run on one machine. One thread is measured in processor time, which
//! other programs on the machine disturb less, and more threads in wall time. Every contender
//! computes y, du and dsigma, unless its name says otherwise.

use candle_core::{D, Device, Tensor, Var};
use cpu_time::ProcessTime;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use vmf_kernels::bn_noise::{Config, NoiseTerm, Saved, Shape, backward_train, forward_train};
use vmf_kernels::noise::{Noise, NoiseKey, fill_normals};

const BATCH: usize = 64;
const CHANNELS: usize = 64;
const SIDE: usize = 32;
const ROUNDS: usize = 25;

fn main() {
    for threads in [1, 2] {
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
        pool.install(|| compare(threads));
    }
}

fn compare(threads: usize) {
    let count = BATCH * CHANNELS * SIDE * SIDE;
    let mut ours = [
        Ours::new("ours, NCHW", Shape::nchw(BATCH, CHANNELS, SIDE * SIDE), true),
        Ours::new("ours, HWNC", Shape::hwnc(BATCH, CHANNELS, SIDE * SIDE), true),
        Ours::new("ours, NCHW, no noise", Shape::nchw(BATCH, CHANNELS, SIDE * SIDE), false),
    ];
    let candle = Candle::new();
    let mut peer = Peer::start(threads);

    let mut names: Vec<String> = ours.iter().map(|ours| ours.name.to_string()).collect();
    names.push("Candle, stock operations".to_string());
    names.extend(peer.iter().flat_map(|peer| peer.names.clone()));
    let mut best = vec![f64::INFINITY; names.len()];
    for round in 0..ROUNDS {
        let mut times: Vec<f64> =
            ours.iter_mut().map(|ours| timed(threads, || ours.step())).collect();
        // Candle is slow enough that fewer rounds measure it well.
        times.push(if round % 5 == 0 {
            timed(threads, || candle.step().expect("Candle's chain"))
        } else {
            f64::INFINITY
        });
        times.extend(peer.iter_mut().flat_map(Peer::step));
        for (best, time) in best.iter_mut().zip(times) {
            *best = best.min(time);
        }
    }

    println!(
        "\nforward + backward, {BATCH} images, {CHANNELS} channels, {SIDE} x {SIDE}, f32, {threads} thread(s)"
    );
    if let Some(peer) = &peer {
        println!("PyTorch {}", peer.version);
    }
    println!(
        "{:<32}{:>10}{:>14}{:>18}{:>18}",
        "", "ms", "ns/element", "time / our NCHW", "time / our HWNC"
    );
    for (name, time) in names.iter().zip(&best) {
        println!(
            "{name:<32}{:>10.2}{:>14.2}{:>18.2}{:>18.2}",
            time * 1e3,
            time * 1e9 / count as f64,
            time / best[0],
            time / best[1],
        );
    }
}

/// Seconds that the work took.
fn timed(threads: usize, work: impl FnOnce()) -> f64 {
    let (wall, processor) = (Instant::now(), ProcessTime::now());
    work();
    if threads == 1 { processor.elapsed().as_secs_f64() } else { wall.elapsed().as_secs_f64() }
}

struct Ours {
    name: &'static str,
    config: Config,
    noise: bool,
    u: Vec<f32>,
    dy: Vec<f32>,
    y: Vec<f32>,
    du: Vec<f32>,
}

impl Ours {
    fn new(name: &'static str, shape: Shape, noise: bool) -> Self {
        Self {
            name,
            config: Config::new(shape).relu(true),
            noise,
            u: normals(1),
            dy: normals(2),
            y: normals(3),
            du: normals(4),
        }
    }

    fn step(&mut self) {
        let term = self
            .noise
            .then_some(NoiseTerm { noise: Noise::new(NoiseKey::default()), sigma: &[0.1] });
        let statistics =
            forward_train(&self.config, term, &self.u, &mut self.y).expect("valid arguments");
        let saved = Saved { u: &self.u, y: &self.y, statistics: &statistics };
        backward_train(&self.config, term, saved, &self.dy, &mut self.du).expect("valid arguments");
    }
}

fn normals(stream: u32) -> Vec<f32> {
    let noise = Noise::new(NoiseKey { stream, ..NoiseKey::default() });
    let mut values = vec![0.0; BATCH * CHANNELS * SIDE * SIDE];
    fill_normals(&noise, 0, &mut values).expect("few enough elements");
    values
}

struct Candle {
    u: Var,
    sigma: Var,
    dy: Tensor,
}

impl Candle {
    fn new() -> Self {
        let tensor = |stream| {
            let shape = (BATCH, CHANNELS, SIDE, SIDE);
            Tensor::from_vec(normals(stream), shape, &Device::Cpu).expect("a tensor")
        };
        Self {
            u: Var::from_tensor(&tensor(1)).expect("a variable"),
            sigma: Var::new(0.1f32, &Device::Cpu).expect("a variable"),
            dy: tensor(2),
        }
    }

    fn step(&self) -> candle_core::Result<()> {
        let u = self.u.as_tensor();
        let channel_mean = |x: &Tensor| x.mean_keepdim(D::Minus1)?.mean_keepdim(2)?.mean_keepdim(0);
        let centered = u.broadcast_sub(&channel_mean(u)?)?;
        let variance = channel_mean(&centered.sqr()?)?;
        let xhat = centered.broadcast_div(&(variance + 1e-5)?.sqrt()?)?;
        let z = Tensor::randn(0f32, 1.0, u.shape(), &Device::Cpu)?;
        let y = (xhat + z.broadcast_mul(self.sigma.as_tensor())?)?.relu()?;
        (y * &self.dy)?.sum_all()?.backward()?;
        Ok(())
    }
}

/// A Python process that times PyTorch each time it reads a line.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    version: String,
    names: Vec<String>,
}

impl Peer {
    /// `None`, with a message, if there is no Python with torch.
    fn start(threads: usize) -> Option<Self> {
        let python = std::env::var("VMF_PYTHON").unwrap_or_else(|_| "python3".to_string());
        let peer = Self::start_with(&python, threads);
        if peer.is_none() {
            println!(
                "PyTorch was skipped: `{python}` has no torch; set VMF_PYTHON to one that has"
            );
        }
        peer
    }

    fn start_with(python: &str, threads: usize) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/bn_noise.py");
        let sizes = [BATCH, CHANNELS, SIDE, threads].map(|size| size.to_string());
        let mut child = Command::new(python)
            .arg(script)
            .args(sizes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let input = child.stdin.take()?;
        let mut output = BufReader::new(child.stdout.take()?);
        let mut line = String::new();
        output.read_line(&mut line).ok()?;
        let mut fields = line.trim_end().split('\t').map(str::to_string);
        let version = fields.next().filter(|version| !version.is_empty())?;
        Some(Self { version, names: fields.collect(), child, input, output })
    }

    fn step(&mut self) -> Vec<f64> {
        let mut line = String::new();
        writeln!(self.input).expect("the peer is alive");
        self.output.read_line(&mut line).expect("the peer answers");
        line.split_whitespace()
            .map(|seconds| seconds.parse().expect("a number of seconds"))
            .collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process waits for input until it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
