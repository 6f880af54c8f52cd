//! Which CUDA kernels a step of Adam launches. The tests execute the same launches on the CPU.

use super::AdamConfig;
use crate::bn_noise::launches::{Argument, BLOCK, Launch, Words};

/// Elements that a block steps, at least.
const CHUNK: usize = 32 * BLOCK as usize;

/// Numbers in front of a report: the scale of the gradients, 0 if no step was taken, and their
/// norm.
pub const REPORT_HEAD: usize = 2;

/// One parameter, its gradient and its moments, by their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The weights, the gradient, the first and the second moments.
    pub at: [u64; 4],
    /// Elements of each.
    pub len: usize,
    /// The number of this step, the first being 1.
    pub step: u64,
    /// The constants. All parameters of a step have the same beta1, beta2 and eps.
    pub config: AdamConfig,
}

impl Parameter {
    /// Elements of a block: whole rows on the sphere, of which each warp takes one at a time.
    fn chunk(&self) -> usize {
        match self.config.sphere {
            None => CHUNK,
            Some(row) => row * (CHUNK / row).next_multiple_of(8).max(8),
        }
    }

    fn words(&self, first_chunk: usize) -> [u64; 8] {
        let AdamConfig { lr, beta1, beta2, weight_decay, sphere, .. } = self.config;
        let correction = |beta: f64| 1.0 - beta.powf(self.step as f64);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let float = |value: f64| (value as f32).to_bits();
        let [weight, gradient, first, second] = self.at;
        [
            weight,
            gradient,
            first,
            second,
            pair(self.len as u32, sphere.unwrap_or(0) as u32),
            pair(first_chunk as u32, self.chunk() as u32),
            pair(float(lr / correction(beta1)), float(1.0 / correction(beta2).sqrt())),
            pair(float(1.0 - lr * weight_decay), 0),
        ]
    }
}

/// The table of parameters as adam.cu reads it, and how many blocks go over it.
pub fn table(parameters: &[Parameter]) -> (Vec<u64>, usize) {
    let (mut table, mut chunks) = (Vec::new(), 0);
    for parameter in parameters {
        table.extend(parameter.words(chunks));
        chunks += parameter.len.div_ceil(parameter.chunk());
    }
    (table, chunks)
}

/// Addresses in device memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pointers {
    /// The [`table`].
    pub table: u64,
    /// Scratch memory, one `f64` for each block.
    pub partials: u64,
    /// The addresses of the loss, which must be finite, and of the further numbers to report.
    pub watched: u64,
    /// The sum of squares of each gradient, `f64`.
    pub squares: u64,
    /// [`REPORT_HEAD`] numbers, then those that are watched, `f32`.
    pub report: u64,
}

/// A step: moves the parameters and their moments, if the loss and all gradients are finite, and
/// writes the report.
pub fn step(
    config: &AdamConfig,
    clip: Option<f64>,
    [parameters, chunks, watched]: [usize; 3],
    at: &Pointers,
) -> [Launch; 3] {
    let floats = [config.beta1, config.beta2, config.eps, clip.unwrap_or(f64::INFINITY)];
    let [beta1, beta2, eps, clip] = floats.map(|value| (value as f32).to_bits());
    let counts = [parameters, chunks, watched].map(|count| count as u32);
    let rule = Words::new([beta1, beta2, eps, clip, counts[0], counts[1], counts[2]]);
    let call = |kernel: &str, grid: usize, pointers: &[u64]| Launch {
        kernel: kernel.into(),
        grid: grid as u32,
        arguments: pointers
            .iter()
            .map(|&at| Argument::Pointer(at))
            .chain([Argument::Words(rule)])
            .collect(),
    };
    let verdict = [at.table, at.partials, at.watched, at.squares, at.report];
    [
        call("adam_squares", chunks, &[at.table, at.partials]),
        call("adam_verdict", 1, &verdict),
        call("adam_step", chunks, &[at.table, at.report]),
    ]
}
