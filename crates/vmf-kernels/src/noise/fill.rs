//! Normals by the tile, in the order in which kernels consume them.
//!
//! Normals are made in batches of [`LANES`] Philox blocks: first the words (64-bit lanes), then the
//! normals (32-bit lanes) in plain loops that LLVM vectorizes. A batch never leaves the first-level
//! cache.

use super::philox::Blocks;
use super::{ELEMENTS_PER_BLOCK, MAX_ELEMENTS, Noise};
use crate::element::Real;
use crate::error::Error;
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Philox blocks in a batch.
const LANES: usize = 64;
/// Batches are cut short in steps of this many blocks, so that no vector loop is left with a scalar
/// remainder.
const STEP: usize = 16;
const PER_BLOCK: usize = ELEMENTS_PER_BLOCK as usize;
/// Elements of a batch.
const BATCH: usize = LANES * PER_BLOCK;
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
    if elements > MAX_ELEMENTS {
        return Err(Error::TooManyElements { elements });
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
    let mut normals = [[R::ZERO; LANES]; PER_BLOCK];
    let mut done = 0;
    while done < out.len() {
        let (key, element) = noise.locate(first + done as u64);
        let in_sample =
            noise.elements_per_sample.map_or(u64::MAX, |per_sample| per_sample - element);
        let skip = (element % ELEMENTS_PER_BLOCK) as usize;
        let length = (out.len() - done).min(BATCH - skip);
        let length = in_sample.min(length as u64) as usize;
        let out = &mut out[done..done + length];
        done += length;

        let block = (element / ELEMENTS_PER_BLOCK) as u32;
        let lanes = (skip + length).div_ceil(PER_BLOCK).next_multiple_of(STEP);
        words.fill::<S>(key.blocks(block, 1), lanes);
        let [z0, z1, z2, z3] = &mut normals;
        words.normals::<R, S>(
            &mut z0[..lanes],
            &mut z1[..lanes],
            &mut z2[..lanes],
            &mut z3[..lanes],
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

/// A batch in the order of its elements.
#[inline(always)]
fn interleave<R: Real>(normals: &[[R; LANES]; PER_BLOCK], out: &mut [R]) {
    let [z0, z1, z2, z3] = normals;
    for (lane, four) in out.chunks_exact_mut(PER_BLOCK).take(LANES).enumerate() {
        [four[0], four[1], four[2], four[3]] = [z0[lane], z1[lane], z2[lane], z3[lane]];
    }
}

/// A rectangle of a tensor whose slowest dimension in memory is the position: `rows` consecutive
/// pairs (image, channel) by `positions` consecutive positions, of the `spatial` positions that a
/// pair has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    pub(crate) spatial: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) first_position: usize,
    pub(crate) positions: usize,
}

impl Planes {
    /// How many positions to fill together, so that few of a block's four normals are thrown away.
    ///
    /// Where S is a multiple of four, a block is four positions of one row. Elsewhere blocks begin
    /// anywhere in a row, and it takes a row's worth of positions, or a batch's, to use most of
    /// them.
    pub(crate) fn preferred_positions(spatial: usize) -> usize {
        if spatial.is_multiple_of(PER_BLOCK) {
            PER_BLOCK
        } else {
            spatial.min(BATCH - PER_BLOCK + 1)
        }
    }

    /// The length that rows of the result must have, for `rows` elements: whole steps of a batch.
    pub(crate) fn pitch(rows: usize) -> usize {
        rows.next_multiple_of(STEP)
    }

    /// The normals of the rectangle: that of row r and position p goes to `out[p * pitch + r]`.
    ///
    /// `scratch` and `out` need room for `positions * pitch` elements; `pitch` is at least
    /// [`Self::pitch`] of the rows.
    #[inline(always)]
    pub(crate) fn fill<R: Real, S: Simd>(
        self,
        noise: &Noise,
        pitch: usize,
        scratch: &mut [R],
        out: &mut [R],
    ) {
        let samples_are_whole_rows = noise
            .elements_per_sample
            .is_none_or(|per_sample| per_sample.is_multiple_of(self.spatial as u64));
        let blocks_fit = self.spatial.is_multiple_of(PER_BLOCK)
            && self.first_position.is_multiple_of(PER_BLOCK)
            && self.positions == PER_BLOCK;
        if samples_are_whole_rows && blocks_fit {
            self.fill_by_block::<R, S>(noise, pitch, out);
        } else if self.spatial == 1 {
            fill_run::<R, S>(noise, self.first_row as u64, &mut out[..self.rows]);
        } else {
            self.fill_by_row::<R, S>(noise, pitch, scratch, out);
        }
    }

    /// Each row's four positions are one block: the batch is already in the order that is asked
    /// for.
    #[inline(always)]
    fn fill_by_block<R: Real, S: Simd>(self, noise: &Noise, pitch: usize, out: &mut [R]) {
        let spatial = self.spatial as u64;
        let stride = (spatial / ELEMENTS_PER_BLOCK) as u32;
        let rows_per_sample =
            noise.elements_per_sample.map_or(u64::MAX, |per_sample| per_sample / spatial);
        let (out0, rest) = out.split_at_mut(pitch);
        let (out1, rest) = rest.split_at_mut(pitch);
        let (out2, out3) = rest.split_at_mut(pitch);
        let mut words = Words::new();
        let mut done = 0;
        while done < self.rows {
            let row = (self.first_row + done) as u64;
            let (key, element) = noise.locate(row * spatial + self.first_position as u64);
            let in_sample = rows_per_sample - row % rows_per_sample;
            let count = in_sample.min((self.rows - done).min(LANES) as u64) as usize;
            let block = (element / ELEMENTS_PER_BLOCK) as u32;
            // Lanes beyond the count are overwritten by the next batch, or lie between `rows` and
            // `pitch`.
            let lanes = count.next_multiple_of(STEP).min(pitch - done);
            words.fill::<S>(key.blocks(block, stride), lanes);
            let lanes = done..done + lanes;
            words.normals::<R, S>(
                &mut out0[lanes.clone()],
                &mut out1[lanes.clone()],
                &mut out2[lanes.clone()],
                &mut out3[lanes],
            );
            done += count;
        }
    }

    /// Each row's positions are consecutive elements: make them in that order, then transpose.
    #[inline(always)]
    fn fill_by_row<R: Real, S: Simd>(
        self,
        noise: &Noise,
        pitch: usize,
        scratch: &mut [R],
        out: &mut [R],
    ) {
        let scratch = &mut scratch[..self.rows * self.positions];
        if self.positions == self.spatial {
            let first = self.first_row * self.spatial;
            fill_run::<R, S>(noise, first as u64, scratch);
        } else {
            for (row, scratch) in scratch.chunks_exact_mut(self.positions).enumerate() {
                let first = (self.first_row + row) * self.spatial + self.first_position;
                fill_run::<R, S>(noise, first as u64, scratch);
            }
        }
        for (position, out) in out.chunks_exact_mut(pitch).take(self.positions).enumerate() {
            let column = scratch.iter().skip(position).step_by(self.positions);
            for (z, &value) in out.iter_mut().zip(column) {
                *z = value;
            }
        }
    }
}

/// Philox's words for a batch: `self.0[i][lane]` is word i of the lane's block.
struct Words([[u32; LANES]; PER_BLOCK]);

impl Words {
    #[inline(always)]
    fn new() -> Self {
        Self([[0; LANES]; PER_BLOCK])
    }

    /// The words of the first `count` blocks.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, blocks: Blocks, count: usize) {
        blocks.words::<S>(self.0.each_mut().map(|words| &mut words[..count]));
    }

    /// The normals made of them: z_i of each block goes to the i-th slice. The slices are equally
    /// long.
    #[inline(always)]
    fn normals<R: Real, S: Simd>(&self, z0: &mut [R], z1: &mut [R], z2: &mut [R], z3: &mut [R]) {
        let count = z0.len();
        let [w0, w1, w2, w3] = self.0.each_ref().map(|words| &words[..count]);
        let (z1, z2, z3) = (&mut z1[..count], &mut z2[..count], &mut z3[..count]);
        // Two loops, because in a short one the processor overlaps more of the lanes.
        for lane in 0..count {
            z0[lane] = R::squared_radius::<S>(w0[lane]);
            z2[lane] = R::squared_radius::<S>(w2[lane]);
        }
        for lane in 0..count {
            (z0[lane], z1[lane]) = R::turn::<S>(z0[lane], w1[lane]);
            (z2[lane], z3[lane]) = R::turn::<S>(z2[lane], w3[lane]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{NoiseKey, normal};

    const KEY: NoiseKey =
        NoiseKey { seed: 0xfedc_ba98_7654_3210, stream: 1, step: 2, sample: u32::MAX - 1 };

    fn reference(noise: &Noise, index: u64) -> f64 {
        let (key, element) = noise.locate(index);
        normal(key, element)
    }

    #[test]
    fn runs_may_begin_and_end_anywhere() {
        let noises = [Noise::new(KEY), Noise::folded(KEY, 37), Noise::folded(KEY, 512)];
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

    struct FillPlanes<'a>(Planes, &'a Noise, &'a mut [f32]);

    impl Kernel for FillPlanes<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self) {
            let mut scratch = vec![0.0; self.2.len()];
            let pitch = Planes::pitch(self.0.rows);
            self.0.fill::<f32, S>(self.1, pitch, &mut scratch, self.2);
        }
    }

    #[test]
    fn planes_are_transposed_runs() {
        for isa in Isa::available() {
            for (spatial, first_position, positions) in [
                (1, 0, 1),
                (8, 4, 4),
                (1024, 0, 4),
                (7, 0, 7),
                (300, 2, 5),
                (301, 48, 253),
                (8, 0, 3),
            ] {
                for noise in
                    [Noise::new(KEY), Noise::folded(KEY, 3 * spatial as u64), Noise::folded(KEY, 5)]
                {
                    let planes =
                        Planes { spatial, first_row: 11, rows: 97, first_position, positions };
                    let mut out = vec![0f32; Planes::pitch(planes.rows) * positions];
                    dispatch_to(isa, FillPlanes(planes, &noise, &mut out));
                    for p in 0..positions {
                        for row in 0..planes.rows {
                            let index = (planes.first_row + row) * spatial + first_position + p;
                            let error = f64::from(out[p * Planes::pitch(planes.rows) + row])
                                - reference(&noise, index as u64);
                            assert!(error.abs() < 2e-6, "{isa:?} {planes:?} {noise:?} {p} {row}");
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
