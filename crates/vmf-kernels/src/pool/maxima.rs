//! The largest of several values, for many elements at once, and the way back to it.
//!
//! A row is one element of the pooling window, for many windows side by side. Which row holds the
//! maximum differs from window to window and cannot be predicted, so nothing here branches.

use std::array;

/// Windows that are handled together: their running maxima fit into registers.
const STRIP: usize = 32;

/// The maximum of each column over some numbered rows, and the number of the row it is in.
#[inline(always)]
pub(crate) fn maxima<'a>(
    rows: impl Iterator<Item = (u8, &'a [f32])> + Clone,
    y: &mut [f32],
    argmax: &mut [u8],
) {
    let (y_strips, y_rest) = y.as_chunks_mut::<STRIP>();
    let (argmax_strips, argmax_rest) = argmax.as_chunks_mut::<STRIP>();
    let done = STRIP * y_strips.len();
    for (strip, (y, argmax)) in y_strips.iter_mut().zip(argmax_strips).enumerate() {
        strip_maxima(rows.clone(), strip * STRIP, y, argmax);
    }
    for (column, (y, argmax)) in y_rest.iter_mut().zip(argmax_rest).enumerate() {
        let (y, argmax) = (array::from_mut(y), array::from_mut(argmax));
        strip_maxima(rows.clone(), done + column, y, argmax);
    }
}

/// [`maxima`] of the N columns from `first` on, which stay in registers over all rows.
#[inline(always)]
fn strip_maxima<'a, const N: usize>(
    rows: impl Iterator<Item = (u8, &'a [f32])> + Clone,
    first: usize,
    y: &mut [f32; N],
    argmax: &mut [u8; N],
) {
    let first_row = rows.clone().next().map_or(0, |(number, _)| number);
    let mut best = [f32::NEG_INFINITY; N];
    let mut which = [u32::from(first_row); N];
    for (number, row) in rows {
        let row = &row[first..first + N];
        for i in 0..N {
            let larger = (row[i] > best[i]) | row[i].is_nan();
            let bits = select(larger, row[i].to_bits(), best[i].to_bits());
            best[i] = f32::from_bits(bits);
            which[i] = select(larger, u32::from(number), which[i]);
        }
    }
    *y = best;
    for i in 0..N {
        argmax[i] = which[i] as u8;
    }
}

/// `if yes { a } else { b }`, which would become a branch or a masked store.
#[inline(always)]
fn select(yes: bool, a: u32, b: u32) -> u32 {
    let mask = u32::from(yes).wrapping_neg();
    (a & mask) | (b & !mask)
}

/// Each column's value in the row whose number is in `argmax`: what [`maxima`] found there, or
/// another tensor has in its place.
#[inline(always)]
pub(crate) fn gather<'a>(
    rows: impl Iterator<Item = (u8, &'a [f32])> + Clone,
    argmax: &[u8],
    to: &mut [f32],
) {
    let (to_strips, to_rest) = to.as_chunks_mut::<STRIP>();
    let (argmax_strips, argmax_rest) = argmax.as_chunks::<STRIP>();
    let done = STRIP * to_strips.len();
    for (strip, (to, argmax)) in to_strips.iter_mut().zip(argmax_strips).enumerate() {
        strip_gather(rows.clone(), strip * STRIP, argmax, to);
    }
    for (column, (to, argmax)) in to_rest.iter_mut().zip(argmax_rest).enumerate() {
        let (to, argmax) = (array::from_mut(to), array::from_ref(argmax));
        strip_gather(rows.clone(), done + column, argmax, to);
    }
}

/// [`gather`] of the N columns from `first` on, which stay in registers over all rows.
#[inline(always)]
fn strip_gather<'a, const N: usize>(
    rows: impl Iterator<Item = (u8, &'a [f32])>,
    first: usize,
    argmax: &[u8; N],
    to: &mut [f32; N],
) {
    let mut bits = [0; N];
    for (number, row) in rows {
        let row = &row[first..first + N];
        for i in 0..N {
            bits[i] = select(argmax[i] == number, row[i].to_bits(), bits[i]);
        }
    }
    for i in 0..N {
        to[i] = f32::from_bits(bits[i]);
    }
}
