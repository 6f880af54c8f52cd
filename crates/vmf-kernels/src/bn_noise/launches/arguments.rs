//! The arguments of kernels: the Rust side of the structs in noise.cuh and reduction.cuh.

use crate::noise::Noise;

/// `struct Noise` of noise.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseArguments {
    /// Elements of one Monte Carlo sample.
    pub elements_per_sample: u64,
    /// Low word of the seed.
    pub seed_low: u32,
    /// High word of the seed.
    pub seed_high: u32,
    /// The consumer of the noise.
    pub stream: u32,
    /// The training step.
    pub step: u32,
    /// The first sample.
    pub sample: u32,
    /// 0 without noise.
    pub enabled: u32,
}

impl NoiseArguments {
    /// The noise of a tensor of `elements` elements.
    pub fn new(noise: &Noise, elements: u64) -> Self {
        Self {
            elements_per_sample: noise.elements_per_sample.unwrap_or(elements),
            seed_low: noise.key.seed as u32,
            seed_high: (noise.key.seed >> 32) as u32,
            stream: noise.key.stream,
            step: noise.key.step,
            sample: noise.key.sample,
            enabled: 1,
        }
    }
}

/// `struct Problem` of reduction.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Problem {
    /// Where the noise comes from.
    pub noise: NoiseArguments,
    /// Images.
    pub batch: u32,
    /// Channels.
    pub channels: u32,
    /// Positions of an image.
    pub positions: u32,
    /// Consecutive channels that share one sigma.
    pub channels_per_group: u32,
    /// 1 if ReLU follows.
    pub relu: u32,
    /// 1 if the statistics are those of this batch, 0 if they are given.
    pub batch_statistics: u32,
    /// Added to the variance under the root.
    pub eps: f32,
    /// What the scales of the noise are given as.
    pub scale_kind: u32,
}

/// What the scale of the noise is given as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleKind {
    /// sigma itself.
    #[default]
    Sigma,
    /// The rho of `sigma = exp(rho)`.
    Exponential,
    /// The rho of `sigma = ln(1 + exp(rho))`.
    Softplus,
}

/// `struct Running` of bn_noise.cu: running estimates that follow the statistics of batches.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Running {
    /// The means of two sets of estimates, or 0.
    pub mean: [u64; 2],
    /// Their variances.
    pub variance: [u64; 2],
    /// The weight of the batch.
    pub weight: f32,
    /// What turns the biased variance of the batch into an unbiased one.
    pub unbiased: f32,
}

/// `struct Tiling` of reduction.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tiling {
    /// Length of a part: vectors if a tile is one channel, else rows (the tile in one image).
    pub part_length: u64,
    /// Channels of a tile.
    pub channels_per_tile: u32,
    /// Parts of a tile, each the work of one block.
    pub parts: u32,
}

/// `struct Windows` of expected.cu: windows of 2x2 side by side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Windows {
    /// Width of the image.
    pub input_width: u32,
    /// Windows side by side.
    pub output_width: u32,
    /// Rows of windows.
    pub output_height: u32,
    /// Fills the struct up to 16 bytes.
    pub unused: u32,
}

// reduction.cuh and expected.cu assert the same of their structs.
const _: () = assert!(size_of::<Problem>() == 64 && size_of::<Tiling>() == 16);
const _: () = assert!(size_of::<Windows>() == 16 && size_of::<Running>() == 40);

/// A small struct of 32-bit words, as a kernel takes it by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Words {
    words: [u32; 12],
    count: usize,
}

impl Words {
    /// The struct with these words; at most twelve.
    pub fn new<const N: usize>(values: [u32; N]) -> Self {
        const { assert!(N <= 12) };
        let mut words = [0; 12];
        words[..N].copy_from_slice(&values);
        Self { words, count: N }
    }

    /// The words of the struct.
    pub fn as_slice(&self) -> &[u32] {
        &self.words[..self.count]
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address in device memory.
    Pointer(u64),
    /// A [`Problem`], by value.
    Problem(Problem),
    /// A [`Tiling`], by value.
    Tiling(Tiling),
    /// [`Windows`], by value.
    Windows(Windows),
    /// [`Running`], by value.
    Running(Running),
    /// A struct of 32-bit words, by value.
    Words(Words),
}

impl Argument {
    /// The address of the argument's value, which is what the driver takes.
    pub fn as_ptr(&self) -> *const std::ffi::c_void {
        match self {
            Argument::Pointer(value) => std::ptr::from_ref(value).cast(),
            Argument::Problem(value) => std::ptr::from_ref(value).cast(),
            Argument::Tiling(value) => std::ptr::from_ref(value).cast(),
            Argument::Windows(value) => std::ptr::from_ref(value).cast(),
            Argument::Running(value) => std::ptr::from_ref(value).cast(),
            Argument::Words(value) => value.words.as_ptr().cast(),
        }
    }

    /// Bytes of the argument's value.
    pub fn size(&self) -> usize {
        match self {
            Argument::Pointer(value) => size_of_val(value),
            Argument::Problem(value) => size_of_val(value),
            Argument::Tiling(value) => size_of_val(value),
            Argument::Windows(value) => size_of_val(value),
            Argument::Running(value) => size_of_val(value),
            Argument::Words(value) => size_of_val(value.as_slice()),
        }
    }
}
