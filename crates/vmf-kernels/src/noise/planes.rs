//! Normals in the order of HWNC, whose slowest dimension is the position.

use super::fill::{BATCH, BATCH_BLOCKS, PER_BLOCK, STEP, Words, fill_run};
use super::{ELEMENTS_PER_BLOCK, Noise};
use crate::element::Real;
use crate::simd::Simd;

/// Some positions of some planes, where a plane is one channel of one image.
///
/// The elements of a plane are consecutive in the logical order, and in HWNC those of a position
/// are: the normals have to be transposed, or made in such a way that they need not be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    /// Positions of a whole plane.
    pub(crate) plane_len: usize,
    pub(crate) first_plane: usize,
    pub(crate) planes: usize,
    pub(crate) first_position: usize,
    pub(crate) positions: usize,
}

impl Planes {
    /// How many positions to fill together, so that few of the four normals of a block are thrown
    /// away.
    ///
    /// If the length of a plane is a multiple of four, a block is four positions of one plane.
    /// Otherwise blocks begin anywhere in a plane, and only many positions together, those of a
    /// whole plane or of a batch, use most of their normals.
    pub(crate) fn preferred_positions(plane_len: usize) -> usize {
        if plane_len.is_multiple_of(PER_BLOCK) {
            PER_BLOCK
        } else {
            plane_len.min(BATCH - PER_BLOCK + 1)
        }
    }

    /// From one position to the next in the result, for this many planes: whole steps of a batch.
    pub(crate) fn pitch(planes: usize) -> usize {
        planes.next_multiple_of(STEP)
    }

    /// Writes the normal of the i-th plane and the p-th position to `out[p * pitch + i]`.
    ///
    /// `scratch` and `out` need room for `positions * pitch` elements; `pitch` is at least
    /// [`Self::pitch`] of the planes.
    #[inline(always)]
    pub(crate) fn fill<R: Real, S: Simd>(
        self,
        noise: &Noise,
        pitch: usize,
        scratch: &mut [R],
        out: &mut [R],
    ) {
        let samples_are_whole_planes = noise
            .elements_per_sample
            .is_none_or(|per_sample| per_sample.is_multiple_of(self.plane_len as u64));
        let blocks_fit = self.plane_len.is_multiple_of(PER_BLOCK)
            && self.first_position.is_multiple_of(PER_BLOCK)
            && self.positions == PER_BLOCK
            && noise.first.is_multiple_of(self.plane_len as u64);
        if samples_are_whole_planes && blocks_fit {
            self.fill_by_block::<R, S>(noise, pitch, out);
        } else if self.plane_len == 1 {
            fill_run::<R, S>(noise, self.first_plane as u64, &mut out[..self.planes]);
        } else {
            self.fill_by_plane::<R, S>(noise, pitch, scratch, out);
        }
    }

    /// The four positions of each plane are one block, so a batch comes out in the order of HWNC.
    #[inline(always)]
    fn fill_by_block<R: Real, S: Simd>(self, noise: &Noise, pitch: usize, out: &mut [R]) {
        let plane_len = self.plane_len as u64;
        let stride = (plane_len / ELEMENTS_PER_BLOCK) as u32;
        let planes_per_sample =
            noise.elements_per_sample.map_or(u64::MAX, |per_sample| per_sample / plane_len);
        let (out0, rest) = out.split_at_mut(pitch);
        let (out1, rest) = rest.split_at_mut(pitch);
        let (out2, out3) = rest.split_at_mut(pitch);
        let mut words = Words::new();
        let mut done = 0;
        while done < self.planes {
            let plane = (self.first_plane + done) as u64;
            let (key, element) = noise.locate(plane * plane_len + self.first_position as u64);
            let in_sample = planes_per_sample - plane % planes_per_sample;
            let count = in_sample.min((self.planes - done).min(BATCH_BLOCKS) as u64) as usize;
            let block = (element / ELEMENTS_PER_BLOCK) as u32;
            // Blocks beyond the count are overwritten by the next batch, or lie between `planes`
            // and `pitch`.
            let blocks = count.next_multiple_of(STEP).min(pitch - done);
            words.fill::<S>(key.blocks(block, stride), blocks);
            let place = done..done + blocks;
            words.normals::<R, S>(
                &mut out0[place.clone()],
                &mut out1[place.clone()],
                &mut out2[place.clone()],
                &mut out3[place],
            );
            done += count;
        }
    }

    /// Makes the normals in the logical order, then transposes them.
    #[inline(always)]
    fn fill_by_plane<R: Real, S: Simd>(
        self,
        noise: &Noise,
        pitch: usize,
        scratch: &mut [R],
        out: &mut [R],
    ) {
        let scratch = &mut scratch[..self.planes * self.positions];
        if self.positions == self.plane_len {
            let first = self.first_plane * self.plane_len;
            fill_run::<R, S>(noise, first as u64, scratch);
        } else {
            for (plane, scratch) in scratch.chunks_exact_mut(self.positions).enumerate() {
                let first = (self.first_plane + plane) * self.plane_len + self.first_position;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::fill::tests::{KEY, reference};
    use crate::simd::{Isa, Kernel, dispatch_to};

    struct FillPlanes<'a>(Planes, &'a Noise, &'a mut [f32]);

    impl Kernel for FillPlanes<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self) {
            let mut scratch = vec![0.0; self.2.len()];
            let pitch = Planes::pitch(self.0.planes);
            self.0.fill::<f32, S>(self.1, pitch, &mut scratch, self.2);
        }
    }

    #[test]
    fn planes_are_transposed_runs() {
        for isa in Isa::available() {
            for (plane_len, first_position, positions) in [
                (1, 0, 1),
                (8, 4, 4),
                (1024, 0, 4),
                (7, 0, 7),
                (300, 2, 5),
                (301, 48, 253),
                (8, 0, 3),
            ] {
                for noise in [
                    Noise::new(KEY),
                    Noise::folded(KEY, 3 * plane_len as u64),
                    Noise::folded(KEY, 5),
                    Noise::new(KEY).starting_at(7 * plane_len as u64),
                    Noise::new(KEY).starting_at(6),
                    Noise::folded(KEY, 3 * plane_len as u64).starting_at(plane_len as u64),
                ] {
                    let planes = Planes {
                        plane_len,
                        first_plane: 11,
                        planes: 97,
                        first_position,
                        positions,
                    };
                    let mut out = vec![0f32; Planes::pitch(planes.planes) * positions];
                    dispatch_to(isa, FillPlanes(planes, &noise, &mut out));
                    for p in 0..positions {
                        for plane in 0..planes.planes {
                            let index =
                                (planes.first_plane + plane) * plane_len + first_position + p;
                            let error = f64::from(out[p * Planes::pitch(planes.planes) + plane])
                                - reference(&noise, index as u64);
                            assert!(error.abs() < 2e-6, "{isa:?} {planes:?} {noise:?} {p} {plane}");
                        }
                    }
                }
            }
        }
    }
}
