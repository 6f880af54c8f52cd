//! The transposition of a matrix by blocks of 8x8, which packing and changes of layout share.

use crate::simd::{Simd, prefetch_line};

/// Rows of numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) count: usize,
    pub(crate) stride: usize,
    /// How far ahead of the numbers that are read to prefetch. Rows are too short, and too far
    /// from each other, for the processor's own prefetcher.
    pub(crate) ahead: usize,
}

/// Writes columns where rows were read: number `j` of row `i` goes to `to[places[j] + i]`.
#[inline(always)]
pub(crate) fn transpose<S: Simd>(from: Rows, places: &[usize], to: &mut [f32]) {
    let Rows { data, count: rows, stride, ahead } = from;
    if rows == 0 || places.is_empty() {
        return;
    }
    let data = &data[..(rows - 1) * stride + places.len()];
    let whole = rows - rows % 8;
    let (eights, rest) = places.as_chunks::<8>();
    for (eight, places) in eights.iter().enumerate() {
        let columns = places.map(|place| to[place..][..rows].as_mut_ptr());
        for i in (0..whole).step_by(8) {
            // SAFETY: eight rows from i on, and eight numbers of each, are inside `data`; `rows`
            // numbers from each place on are inside `to`.
            unsafe {
                let from = data.as_ptr().add(i * stride + 8 * eight);
                for row in 0..8 {
                    prefetch_line(from.wrapping_add(row * stride + ahead));
                }
                transpose8::<S>(from, stride, columns.map(|column| column.add(i)));
            }
        }
        for (j, &place) in places.iter().enumerate() {
            for i in whole..rows {
                to[place + i] = data[i * stride + 8 * eight + j];
            }
        }
    }
    for (j, &place) in rest.iter().enumerate() {
        for (i, to) in to[place..][..rows].iter_mut().enumerate() {
            *to = data[i * stride + 8 * eights.len() + j];
        }
    }
}

/// Transposes eight rows of eight numbers: number `j` of row `i`, at `from + i * stride + j`, goes
/// to `to[j] + i`.
///
/// # Safety
/// All of these can be read and written, and `to` does not overlap `from`.
#[inline(always)]
unsafe fn transpose8<S: Simd>(from: *const f32, stride: usize, to: [*mut f32; 8]) {
    #[cfg(target_arch = "x86_64")]
    if S::LANES >= 8 {
        // SAFETY: the caller's contract; an x86-64 with eight lanes or more has AVX.
        return unsafe { transpose8_avx(from, stride, to) };
    }
    for (j, to) in to.into_iter().enumerate() {
        for i in 0..8 {
            // SAFETY: the caller's contract.
            unsafe { *to.add(i) = *from.add(i * stride + j) };
        }
    }
}

/// [`transpose8`] in three rounds: pairs of rows, pairs of pairs, then the halves of the registers.
///
/// # Safety
/// As there, and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose8_avx(from: *const f32, stride: usize, to: [*mut f32; 8]) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's contract.
    unsafe {
        let rows: [__m256; 8] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * stride)));
        let mut pairs = rows;
        for i in (0..8).step_by(2) {
            pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        }
        let mut fours = pairs;
        for i in [0, 1, 4, 5] {
            // Of rows 0 to 3, and of rows 4 to 7: columns 0 and 4, 1 and 5 (from i), 2 and 6, 3
            // and 7 (from i + 1).
            let column = i / 4 * 4 + i % 4 * 2;
            fours[column] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
            fours[column + 1] = _mm256_shuffle_ps::<0xee>(pairs[i], pairs[i + 2]);
        }
        for j in 0..4 {
            let (upper, lower) = (fours[j], fours[j + 4]);
            _mm256_storeu_ps(to[j], _mm256_permute2f128_ps::<0x20>(upper, lower));
            _mm256_storeu_ps(to[j + 4], _mm256_permute2f128_ps::<0x31>(upper, lower));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch_to};

    struct Transpose<'a>(&'a [f32], &'a mut [f32]);
    impl Kernel for Transpose<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self) {
            let places: [usize; 11] = std::array::from_fn(|j| 17 * j);
            let rows = Rows { data: self.0, count: 10, stride: 13, ahead: 0 };
            transpose::<S>(rows, &places, self.1);
        }
    }

    /// Ten rows of eleven numbers: one block of 8x8, and what remains in both directions.
    #[test]
    fn every_instruction_set_transposes_alike() {
        let from: Vec<f32> = (0..13 * 10).map(|i| i as f32).collect();
        for isa in Isa::available() {
            let mut to = vec![-1.0; 17 * 11];
            dispatch_to(isa, Transpose(&from, &mut to));
            for (place, &value) in to.iter().enumerate() {
                let (j, i) = (place / 17, place % 17);
                let expected = if i < 10 { (13 * i + j) as f32 } else { -1.0 };
                assert_eq!(value, expected, "{isa:?} {i} {j}");
            }
        }
    }
}
