//! Matrices from one order of their dimensions to the other, by blocks of 8x8.

use crate::simd::prefetch_line;
use crate::vector::Vector;

/// Number j of row i, at `from[i * row + j]`, goes to `to[places[j] + i]`, for all j and for `rows`
/// rows.
///
/// What lies `ahead` of the numbers that are read is asked for meanwhile: rows are too short, and
/// too far from each other, for the processor to foresee them.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn transpose<V: Vector>(
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
                V::transpose8(from, row, columns.map(|column| column.add(i)));
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
