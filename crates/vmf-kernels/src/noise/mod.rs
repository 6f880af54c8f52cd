//! Standard normal noise as a pure function of a key and an element's index.
//!
//! A generator with a state forces its users to draw in a fixed order. Here there is no state: the
//! noise of an element is computed from *which* element it is. So it is the same for any number of
//! threads, in any memory layout and on any device, and the backward pass computes it again instead
//! of reading it from memory.
//!
//! # The specification
//!
//! Every implementation, on the CPU and on CUDA, follows these rules. The integers agree bit for
//! bit. The normals agree up to rounding ([`fill_normals`] states how closely).
//!
//! 1. **Key.** The two words of Philox's key are the low and the high half of the 64-bit seed.
//! 2. **Element.** The row-major index of the element in the tensor's logical shape, (N, C, H, W)
//!    or (N, C) or any other, whatever its layout in memory. A sample has at most 2^34 elements.
//!    Where several processes share a batch, the tensor is that of the whole batch, and each of them
//!    counts from the index of its own first element ([`Noise::starting_at`]).
//! 3. **Samples.** When several Monte Carlo samples are folded into the batch, `e` elements to a
//!    sample, the flat index `i` has `element = i % e` and `sample = key.sample + i / e`, wrapping
//!    at 2^32. So a folded batch sees the same noise as the samples computed one after another.
//!    Without folding `e` is the whole tensor.
//! 4. **Counter.** `(element / 4, stream, step, sample)`, four words of 32 bits: which block of
//!    elements, which layer, which training step, which sample.
//! 5. **Words.** `(r0, r1, r2, r3) = philox4x32_10(counter, key)`.
//! 6. **Uniforms.** `u1 = ((r0 >> 8) + 1) / 2^24` in (0, 1] and `u2 = (r1 >> 8) / 2^24` in [0, 1).
//!    Both are exact in `f32`, so single and double precision evaluate the same function of the
//!    same numbers.
//! 7. **Normals** (Box and Muller 1958): `z0 = sqrt(-2 ln u1) cos(2 pi u2)` and `z1 = sqrt(-2 ln
//!    u1) sin(2 pi u2)`; `z2` and `z3` likewise from `(r2, r3)`. Element `i` uses `z_(i % 4)`.
//!
//! The smallest `u1` is 2^-24, so |z| never exceeds sqrt(48 ln 2) = 5.768. A true normal does once
//! in 10^8 draws.

mod fill;
mod philox;
mod planes;

pub use fill::fill_normals;
pub(crate) use fill::fill_run;
pub use philox::philox4x32_10;
pub(crate) use planes::Planes;

use crate::box_muller::box_muller_f64;
use crate::error::Error;
use philox::Blocks;

/// Elements whose noise one counter gives.
pub const ELEMENTS_PER_BLOCK: u64 = 4;

/// The largest number of elements in one sample: the block index has 32 bits.
pub const MAX_ELEMENTS: u64 = 1 << 34;

/// The standard normal of one element, in double precision: the reference that every fast path is
/// tested against.
///
/// `element` is the index within its sample; see [`Noise::locate`].
pub fn normal(key: NoiseKey, element: u64) -> f64 {
    let [r0, r1, r2, r3] = key.words((element / ELEMENTS_PER_BLOCK) as u32);
    match element % ELEMENTS_PER_BLOCK {
        0 => box_muller_f64(r0, r1).0,
        1 => box_muller_f64(r0, r1).1,
        2 => box_muller_f64(r2, r3).0,
        _ => box_muller_f64(r2, r3).1,
    }
}

/// Which noise: everything that goes into Philox besides the element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NoiseKey {
    /// The seed of the run.
    pub seed: u64,
    /// The consumer of the noise, usually the index of a layer.
    pub stream: u32,
    /// The training step.
    pub step: u32,
    /// The Monte Carlo sample; the first one if samples are folded into the batch.
    pub sample: u32,
}

impl NoiseKey {
    /// The four random words of the elements `4 * block .. 4 * block + 4`.
    #[inline(always)]
    pub fn words(&self, block: u32) -> [u32; 4] {
        let Blocks { counter, key, .. } = self.blocks(block, 0);
        philox4x32_10(counter, key)
    }

    /// The blocks `first`, `first + stride` and so on.
    #[inline(always)]
    fn blocks(&self, first: u32, stride: u32) -> Blocks {
        Blocks {
            counter: [first, self.stream, self.step, self.sample],
            stride,
            key: [self.seed as u32, (self.seed >> 32) as u32],
        }
    }
}

/// The noise of one tensor: a key, and how many of the tensor's elements make one Monte Carlo
/// sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Noise {
    /// Which noise.
    pub key: NoiseKey,
    /// Elements per sample if samples are folded into the batch, `None` if the tensor is one
    /// sample.
    pub elements_per_sample: Option<u64>,
    /// The logical index of the tensor's first element, in a larger tensor of which it is a part. A
    /// sample is then a part of one sample of the larger tensor.
    pub first: u64,
}

impl Noise {
    /// The noise of a tensor that is one sample.
    pub fn new(key: NoiseKey) -> Self {
        Self { key, elements_per_sample: None, first: 0 }
    }

    /// The noise of a tensor that holds several samples of `elements_per_sample` elements, one
    /// after another.
    pub fn folded(key: NoiseKey, elements_per_sample: u64) -> Self {
        Self { key, elements_per_sample: Some(elements_per_sample), first: 0 }
    }

    /// The noise of the part that begins at this element, counted within each sample.
    pub fn starting_at(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// Checks that a tensor of `elements` elements can have this noise.
    pub fn check(&self, elements: usize) -> Result<(), Error> {
        let per_sample = self.elements_per_sample.unwrap_or(elements as u64);
        let end = self.first.saturating_add(per_sample);
        if end > MAX_ELEMENTS {
            return Err(Error::TooManyElements { elements: end });
        }
        if !(elements as u64).is_multiple_of(per_sample) {
            return Err(Error::Folding { elements, per_sample });
        }
        Ok(())
    }

    /// The key, and the index within its sample, of the element with the logical index `index`.
    #[inline]
    pub fn locate(&self, index: u64) -> (NoiseKey, u64) {
        match self.elements_per_sample {
            None => (self.key, self.first + index),
            Some(per_sample) => {
                let sample = self.key.sample.wrapping_add((index / per_sample) as u32);
                (NoiseKey { sample, ..self.key }, self.first + index % per_sample)
            }
        }
    }
}

impl From<NoiseKey> for Noise {
    fn from(key: NoiseKey) -> Self {
        Self::new(key)
    }
}
