//! A case: one tensor, what is computed with it, and running that on a machine.

use half::{bf16, f16};
use vmf_kernels::bn_noise::launches::{
    Launch, Plan, Pointers, STATISTICS_PER_CHANNEL, SUMS_PER_CHANNEL, Storage,
};
use vmf_kernels::bn_noise::{Config, Shape, Statistics};
use vmf_kernels::noise::{Noise, NoiseKey};

use crate::machine::Machine;

/// One tensor and what is computed with it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Images, channels, positions.
    pub shape: (usize, usize, usize),
    /// Noise scales; 0 for no noise.
    pub groups: usize,
    /// Monte Carlo samples folded into the batch.
    pub samples: usize,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Whether statistics are measured (training) or given (evaluation).
    pub train: bool,
    /// Mean and deviation of the activations.
    pub activations: (f64, f64),
    /// Whether the tensors start at an address that is not aligned for vector loads.
    pub misaligned: bool,
    /// Multiprocessors that the work is divided for. With more of them there are more parts.
    pub multiprocessors: u32,
}

impl Case {
    /// A training step with one scale, ReLU and ordinary activations.
    pub fn new(batch: usize, channels: usize, positions: usize) -> Self {
        Self {
            shape: (batch, channels, positions),
            groups: 1,
            samples: 1,
            relu: true,
            train: true,
            activations: (0.7, 1.9),
            misaligned: false,
            multiprocessors: 2,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> Config {
        let (batch, channels, positions) = self.shape;
        Config::new(Shape::nchw(batch, channels, positions)).relu(self.relu)
    }

    /// Its noise, if it has any.
    pub fn noise(&self) -> Option<Noise> {
        let key = NoiseKey { seed: 0x0123_4567_89ab_cdef, stream: 3, step: 141, sample: 5 };
        let elements = self.config().shape.elements();
        (self.groups > 0).then(|| match self.samples {
            1 => Noise::new(key),
            samples => Noise::folded(key, (elements / samples) as u64),
        })
    }

    /// Its scales.
    pub fn sigma(&self) -> Vec<f32> {
        (0..self.groups).map(|g| 0.3 + 0.2 * g as f32).collect()
    }

    /// Its statistics in evaluation: mean and variance of each channel.
    pub fn given(&self) -> (Vec<f32>, Vec<f32>) {
        let (mean, deviation) = self.activations;
        let channel = |c: usize| (c % 7) as f64 * 0.1;
        let of = |f: &dyn Fn(usize) -> f64| (0..self.shape.1).map(|c| f(c) as f32).collect();
        (
            of(&|c| mean + deviation * channel(c)),
            of(&|c| deviation * deviation * (0.8 + channel(c))),
        )
    }

    /// Its activations or, with another seed, its output gradients, rounded to a storage.
    pub fn tensor(&self, storage: Storage, seed: u64, mean: f64, deviation: f64) -> Vec<f64> {
        let key = NoiseKey { seed, ..NoiseKey::default() };
        let (_, channels, positions) = self.shape;
        (0..self.config().shape.elements())
            .map(|i| {
                let offset = (i / positions % channels % 5) as f64 * 0.4;
                let value = vmf_kernels::noise::normal(key, i as u64);
                round(storage, mean + deviation * (value + offset))
            })
            .collect()
    }
}

/// What a case computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The output.
    pub y: Vec<f64>,
    /// Mean and variance of each channel.
    pub statistics: Statistics,
    /// The gradient with respect to the input.
    pub du: Vec<f64>,
    /// The gradient with respect to each scale.
    pub dsigma: Vec<f64>,
}

/// A number rounded to a storage.
pub fn round(storage: Storage, value: f64) -> f64 {
    match storage {
        Storage::F32 => (value as f32).into(),
        Storage::F16 => f16::from_f32(value as f32).to_f64(),
        Storage::Bf16 => bf16::from_f32(value as f32).to_f64(),
    }
}

pub(crate) fn encode(storage: Storage, values: &[f64]) -> Vec<u8> {
    let narrow = |value: &f64| match storage {
        Storage::F32 => (*value as f32).to_le_bytes().to_vec(),
        Storage::F16 => f16::from_f64(*value).to_le_bytes().to_vec(),
        Storage::Bf16 => bf16::from_f64(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(narrow).collect()
}

pub(crate) fn decode(storage: Storage, bytes: &[u8]) -> Vec<f64> {
    let two = |chunk: &[u8]| [chunk[0], chunk[1]];
    let wide = |chunk: &[u8]| match storage {
        Storage::F32 => f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).into(),
        Storage::F16 => f16::from_le_bytes(two(chunk)).to_f64(),
        Storage::Bf16 => bf16::from_le_bytes(two(chunk)).to_f64(),
    };
    bytes.chunks_exact(storage.bytes()).map(wide).collect()
}

fn floats(machine: &impl Machine, address: u64, count: usize) -> Vec<f64> {
    decode(Storage::F32, &machine.download(address, 4 * count))
}

/// Runs the forward and the backward pass of a case on a machine. `tamper` may change the launches,
/// to check that the change is noticed.
pub fn run(
    machine: &mut impl Machine,
    case: &Case,
    storage: Storage,
    order: u32,
    tamper: impl Fn(&mut Vec<Launch>),
) -> Result<Outcome, String> {
    machine.clear();
    let noise = case.noise();
    let noise = noise.as_ref().map(|noise| (noise, case.groups));
    let plan = Plan::new(&case.config(), noise, storage, !case.misaligned, case.multiprocessors)
        .map_err(|error| error.to_string())?;
    let (elements, channels) = (case.config().shape.elements(), case.shape.1);
    let (mean, deviation) = case.activations;
    // One element in front makes a tensor unaligned, but keeps it inside its buffer.
    let front = usize::from(case.misaligned);
    let shift = (front * storage.bytes()) as u64;
    let mut tensor = |values: &[f64]| {
        let padded: Vec<f64> =
            std::iter::repeat_n(f64::NAN, front).chain(values.iter().copied()).collect();
        machine.upload(&encode(storage, &padded)) + shift
    };
    let empty = vec![f64::NAN; elements];
    let (y, du) = (tensor(&empty), tensor(&empty));
    let u = tensor(&case.tensor(storage, 1, mean, deviation));
    let dy = tensor(&case.tensor(storage, 2, 0.1, 1.0));
    let mut vector = |values: &[f32]| {
        let values: Vec<f64> = values.iter().map(|&value| value.into()).collect();
        machine.upload(&encode(Storage::F32, &values))
    };
    let (given_mean, given_variance) = case.given();
    let at = Pointers {
        u,
        y,
        dy,
        du,
        sigma: vector(&case.sigma()),
        dsigma: vector(&vec![f32::NAN; case.groups]),
        mean: vector(&given_mean),
        variance: vector(&given_variance),
        statistics: vector(&vec![f32::NAN; STATISTICS_PER_CHANNEL * channels]),
        sums: vector(&vec![f32::NAN; SUMS_PER_CHANNEL * channels]),
        partials: vector(&vec![f32::NAN; plan.partials()]),
        ..Pointers::default()
    };
    let mut launches = if case.train {
        [plan.forward_train(&at), plan.backward_train(&at)].concat()
    } else {
        [plan.forward_eval(&at), plan.backward_eval(&at)].concat()
    };
    tamper(&mut launches);
    for launch in &launches {
        machine.launch(launch, order).map_err(|error| format!("{}: {error}", launch.kernel))?;
    }
    let read = |address| decode(storage, &machine.download(address, elements * storage.bytes()));
    let statistics = floats(machine, at.statistics, STATISTICS_PER_CHANNEL * channels);
    Ok(Outcome {
        y: read(at.y),
        du: read(at.du),
        dsigma: floats(machine, at.dsigma, case.groups),
        statistics: Statistics {
            mean: (0..channels).map(|c| statistics[c] + statistics[3 * channels + c]).collect(),
            var: statistics[channels..2 * channels].to_vec(),
        },
    })
}
