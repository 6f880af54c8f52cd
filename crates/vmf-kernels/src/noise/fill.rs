//! Normals by the batch, in the order of the elements.
//!
//! A batch is [`BATCH_BLOCKS`] Philox blocks. First their words are made (in 64-bit lanes), then
//! the normals (in 32-bit lanes), in plain loops that LLVM vectorizes. A batch never leaves the
//! first-level cache.

use super::philox::Blocks;
use super::{ELEMENTS_PER_BLOCK, MAX_ELEMENTS, Noise};
use crate::element::Real;
use crate::error::Error;
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Philox blocks of a batch.
pub(super) const BATCH_BLOCKS: usize = 64;
/// Batches are cut short in steps of this many blocks, so that no vector loop is left with a scalar
/// remainder.
pub(super) const STEP: usize = 16;
pub(super) const PER_BLOCK: usize = ELEMENTS_PER_BLOCK as usize;
/// Elements of a batch.
pub(super) const BATCH: usize = BATCH_BLOCKS * PER_BLOCK;
/// Elements that one task of [`fill_normals`] makes.
const TASK: usize = 1 << 16;

/// Fills `out` with the normals of the logical elements `first .. first + out.len()`, in parallel.
///
/// In `f32` the values are within 2e-6 of [`normal`](super::normal); in `f64` they are equal to it.
/// They do not depend on the number of threads. Between instruction sets, `f32` values differ by
/// rounding.
pub fn fill_normals<R: Real>(noise: &Noise, first: u64, out: &mut [R]) -> Result<(), Error> {
    let end = first.saturating_add(out.len() as u64);
    let elements = noise.elements_per_sample.unwrap_or(end);
    let last = noise.first.saturating_add(elements);
    if last > MAX_ELEMENTS {
        return Err(Error::TooManyElements { elements: last });
    }
    if elements == 0 && !out.is_empty() {
        return Err(Error::Folding { elements: out.len(), per_sample: elements });
    }
    fill_normals_on(Isa::current(), noise, first, out);
    Ok(())
}

fn fill_normals_on<R: Real>(isa: Isa, noise: &Noise, first: u64, out: &mut [R]) {
    out.par_chunks_mut(TASK).by_task().enumerate().for_each(|(task, out)| {
        let first = first + (task * TASK) as u64;
        dispatch_to(isa, FillRun { noise, first, out });
    });
}

struct FillRun<'a, R> {
    noise: &'a Noise,
    first: u64,
    out: &'a mut [R],
}

impl<R: Real> Kernel for FillRun<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        fill_run::<R, S>(self.noise, self.first, self.out);
    }
}

/// The normals of the elements `first .. first + out.len()`, in logical order.
#[inline(always)]
pub(crate) fn fill_run<R: Real, S: Simd>(noise: &Noise, first: u64, out: &mut [R]) {
    let mut words = Words::new();
    let mut normals = [[R::ZERO; BATCH_BLOCKS]; PER_BLOCK];
    let mut done = 0;
    while done < out.len() {
        let (key, element) = noise.locate(first + done as u64);
        let in_sample = noise.elements_per_sample.map_or(u64::MAX, |n| noise.first + n - element);
        let skip = (element % ELEMENTS_PER_BLOCK) as usize;
        let length = (out.len() - done).min(BATCH - skip);
        let length = in_sample.min(length as u64) as usize;
        let out = &mut out[done..done + length];
        done += length;

        let block = (element / ELEMENTS_PER_BLOCK) as u32;
        let blocks = (skip + length).div_ceil(PER_BLOCK).next_multiple_of(STEP);
        words.fill::<S>(key.blocks(block, 1), blocks);
        let [z0, z1, z2, z3] = &mut normals;
        words.normals::<R, S>(
            &mut z0[..blocks],
            &mut z1[..blocks],
            &mut z2[..blocks],
            &mut z3[..blocks],
        );
        if length == BATCH {
            interleave(&normals, out);
        } else {
            let mut whole = [R::ZERO; BATCH];
            interleave(&normals, &mut whole);
            out.copy_from_slice(&whole[skip..skip + length]);
        }
    }
}

/// Puts a batch into the order of its elements.
#[inline(always)]
fn interleave<R: Real>(normals: &[[R; BATCH_BLOCKS]; PER_BLOCK], out: &mut [R]) {
    let [z0, z1, z2, z3] = normals;
    for (i, four) in out.chunks_exact_mut(PER_BLOCK).take(BATCH_BLOCKS).enumerate() {
        [four[0], four[1], four[2], four[3]] = [z0[i], z1[i], z2[i], z3[i]];
    }
}

/// Philox's words for a batch: `self.0[w][i]` is word w of block i.
pub(super) struct Words([[u32; BATCH_BLOCKS]; PER_BLOCK]);

impl Words {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([[0; BATCH_BLOCKS]; PER_BLOCK])
    }

    /// Makes the words of the first `count` blocks.
    #[inline(always)]
    pub(super) fn fill<S: Simd>(&mut self, blocks: Blocks, count: usize) {
        blocks.words::<S>(self.0.each_mut().map(|words| &mut words[..count]));
    }

    /// The normals made of the words: z_j of each block goes to the slice `zj`. The slices have the
    /// same length.
    #[inline(always)]
    pub(super) fn normals<R: Real, S: Simd>(
        &self,
        z0: &mut [R],
        z1: &mut [R],
        z2: &mut [R],
        z3: &mut [R],
    ) {
        let count = z0.len();
        let [w0, w1, w2, w3] = self.0.each_ref().map(|words| &words[..count]);
        let (z1, z2, z3) = (&mut z1[..count], &mut z2[..count], &mut z3[..count]);
        // Two loops, because in a short one the processor overlaps more blocks.
        for i in 0..count {
            z0[i] = R::squared_radius::<S>(w0[i]);
            z2[i] = R::squared_radius::<S>(w2[i]);
        }
        for i in 0..count {
            (z0[i], z1[i]) = R::turn::<S>(z0[i], w1[i]);
            (z2[i], z3[i]) = R::turn::<S>(z2[i], w3[i]);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::noise::{NoiseKey, normal};

    pub(in crate::noise) const KEY: NoiseKey =
        NoiseKey { seed: 0xfedc_ba98_7654_3210, stream: 1, step: 2, sample: u32::MAX - 1 };

    pub(in crate::noise) fn reference(noise: &Noise, index: u64) -> f64 {
        let (key, element) = noise.locate(index);
        normal(key, element)
    }

    #[test]
    fn runs_may_begin_and_end_anywhere() {
        let noises = [
            Noise::new(KEY),
            Noise::folded(KEY, 37),
            Noise::folded(KEY, 512),
            Noise::new(KEY).starting_at(1001),
            Noise::folded(KEY, 512).starting_at(1001),
        ];
        for isa in Isa::available() {
            for noise in noises {
                for first in [0, 1, 2, 3, 4, 255, 1023, (1 << 34) - 700] {
                    for length in [0, 1, 3, 4, 5, 255, 256, 257, 700] {
                        let mut single = vec![0f32; length];
                        let mut double = vec![0f64; length];
                        fill_normals_on(isa, &noise, first, &mut single);
                        fill_normals_on(isa, &noise, first, &mut double);
                        for i in 0..length {
                            let expected = reference(&noise, first + i as u64);
                            assert_eq!(double[i], expected, "{isa:?} {noise:?} {first} {i}");
                            assert!((f64::from(single[i]) - expected).abs() < 2e-6);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn more_elements_than_counters_are_refused() {
        let mut out = [0f32; 8];
        let error = fill_normals(&Noise::new(KEY), MAX_ELEMENTS - 7, &mut out);
        assert_eq!(error, Err(Error::TooManyElements { elements: MAX_ELEMENTS + 1 }));
        assert!(fill_normals(&Noise::folded(KEY, 0), 0, &mut out).is_err());
        assert!(fill_normals(&Noise::new(KEY), MAX_ELEMENTS - 8, &mut out).is_ok());
    }
}
