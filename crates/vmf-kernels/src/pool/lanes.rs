//! The largest of some rows of values, lane by lane, and the way back to it.
//!
//! Which row it is differs from lane to lane and cannot be predicted, so nothing here branches.

use std::array;

/// Lanes that are handled together: their running maxima fit into registers.
const STRIP: usize = 32;

/// The maximum of each lane over some rows of values, and the number of the row it is in.
#[inline(always)]
pub(crate) fn maxima<'a>(
    rows: impl Iterator<Item = (u8, &'a [f32])> + Clone,
    y: &mut [f32],
    number: &mut [u8],
) {
    let (y_strips, y_rest) = y.as_chunks_mut::<STRIP>();
    let (number_strips, number_rest) = number.as_chunks_mut::<STRIP>();
    let done = STRIP * y_strips.len();
    for (strip, (y, number)) in y_strips.iter_mut().zip(number_strips).enumerate() {
        strip_maxima(rows.clone(), strip * STRIP, y, number);
    }
    for (lane, (y, number)) in y_rest.iter_mut().zip(number_rest).enumerate() {
        let (y, number) = (array::from_mut(y), array::from_mut(number));
        strip_maxima(rows.clone(), done + lane, y, number);
    }
}

/// [`maxima`] of the N lanes from `first` on, which stay in registers over all rows.
#[inline(always)]
fn strip_maxima<'a, const N: usize>(
    rows: impl Iterator<Item = (u8, &'a [f32])> + Clone,
    first: usize,
    y: &mut [f32; N],
    number: &mut [u8; N],
) {
    let first_row = rows.clone().next().map_or(0, |(number, _)| number);
    let mut best = [f32::NEG_INFINITY; N];
    let mut which = [u32::from(first_row); N];
    for (number, row) in rows {
        let row = &row[first..first + N];
        for lane in 0..N {
            let larger = (row[lane] > best[lane]) | row[lane].is_nan();
            let bits = select(larger, row[lane].to_bits(), best[lane].to_bits());
            best[lane] = f32::from_bits(bits);
            which[lane] = select(larger, u32::from(number), which[lane]);
        }
    }
    *y = best;
    for lane in 0..N {
        number[lane] = which[lane] as u8;
    }
}

/// `if yes { a } else { b }`, which would become a branch or a masked store.
#[inline(always)]
pub(super) fn select(yes: bool, a: u32, b: u32) -> u32 {
    let mask = u32::from(yes).wrapping_neg();
    (a & mask) | (b & !mask)
}

/// Of some rows of values, each lane of the row whose number is given: what [`maxima`] found, if
/// `number` is its.
#[inline(always)]
pub(crate) fn chosen<'a>(
    rows: impl Iterator<Item = (u8, &'a [f32])> + Clone,
    number: &[u8],
    to: &mut [f32],
) {
    let (to_strips, to_rest) = to.as_chunks_mut::<STRIP>();
    let (number_strips, number_rest) = number.as_chunks::<STRIP>();
    let done = STRIP * to_strips.len();
    for (strip, (to, number)) in to_strips.iter_mut().zip(number_strips).enumerate() {
        strip_chosen(rows.clone(), strip * STRIP, number, to);
    }
    for (lane, (to, number)) in to_rest.iter_mut().zip(number_rest).enumerate() {
        let (to, number) = (array::from_mut(to), array::from_ref(number));
        strip_chosen(rows.clone(), done + lane, number, to);
    }
}

/// [`chosen`] of the N lanes from `first` on, which stay in registers over all rows.
#[inline(always)]
fn strip_chosen<'a, const N: usize>(
    rows: impl Iterator<Item = (u8, &'a [f32])>,
    first: usize,
    number: &[u8; N],
    to: &mut [f32; N],
) {
    let mut bits = [0; N];
    for (row_number, row) in rows {
        let row = &row[first..first + N];
        for lane in 0..N {
            let chosen = number[lane] == row_number;
            bits[lane] = select(chosen, row[lane].to_bits(), bits[lane]);
        }
    }
    for lane in 0..N {
        to[lane] = f32::from_bits(bits[lane]);
    }
}
