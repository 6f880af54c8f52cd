//! Matrices from one order of their dimensions to the other, by blocks of 8x8.

use crate::simd::{Simd, prefetch_line};

/// Number j of row i, at `from[i * row + j]`, goes to `to[places[j] + i]`, for all j and for `rows`
/// rows.
///
/// What lies `ahead` of the numbers that are read is prefetched: rows are too short, and too far
/// from each other, for the processor's own prefetcher.
#[inline(always)]
pub(crate) fn transpose<S: Simd>(
    from: &[f32],
    row: usize,
    rows: usize,
    places: &[usize],
    to: &mut [f32],
    ahead: usize,
) {
    if rows == 0 || places.is_empty() {
        return;
    }
    let from = &from[..(rows - 1) * row + places.len()];
    let (eights, rest) = places.as_chunks::<8>();
    for (eight, places) in eights.iter().enumerate() {
        let columns = places.map(|place| to[place..][..rows].as_mut_ptr());
        for i in (0..rows - rows % 8).step_by(8) {
            // SAFETY: eight rows from i on, and eight numbers of each, are inside `from`; `rows`
            // places from each column's on are inside `to`.
            unsafe {
                let from = from.as_ptr().add(i * row + 8 * eight);
                for next in 0..8 {
                    prefetch_line(from.wrapping_add(next * row + ahead));
                }
                transpose8::<S>(from, row, columns.map(|column| column.add(i)));
            }
        }
        for (j, &place) in places.iter().enumerate() {
            for i in rows - rows % 8..rows {
                to[place + i] = from[i * row + 8 * eight + j];
            }
        }
    }
    for (j, &place) in rest.iter().enumerate() {
        for (i, to) in to[place..][..rows].iter_mut().enumerate() {
            *to = from[i * row + 8 * eights.len() + j];
        }
    }
}

/// Transposes eight rows of eight numbers: number j of row i, at `from + i * row + j`, goes to
/// `to[j] + i`.
///
/// # Safety
/// Every address is readable, or writable, and the two do not overlap.
#[inline(always)]
unsafe fn transpose8<S: Simd>(from: *const f32, row: usize, to: [*mut f32; 8]) {
    #[cfg(target_arch = "x86_64")]
    if S::LANES >= 8 {
        // SAFETY: the caller's contract; an x86-64 with eight lanes or more has AVX.
        return unsafe { transpose8_avx(from, row, to) };
    }
    for (j, to) in to.into_iter().enumerate() {
        for i in 0..8 {
            // SAFETY: the caller's contract.
            unsafe { *to.add(i) = *from.add(i * row + j) };
        }
    }
}

/// [`transpose8`] in three rounds: pairs of rows, pairs of pairs, then the halves of the registers.
///
/// # Safety
/// As there, and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose8_avx(from: *const f32, row: usize, to: [*mut f32; 8]) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's contract.
    unsafe {
        let rows: [__m256; 8] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * row)));
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
            transpose::<S>(self.0, 13, 10, &places, self.1, 0);
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
