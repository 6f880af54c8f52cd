//! Between the kernels' layout and the one that tensors have at the edges of a model.

use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::simd::{Kernel, Simd, dispatch};
use crate::transpose::{Rows, transpose};
use rayon::prelude::*;

/// Copies `(batch, channels, positions)` to `[positions][batch][channels]`.
pub fn to_hwnc(
    from: &[f32],
    batch: usize,
    channels: usize,
    positions: usize,
    to: &mut [f32],
) -> Result<(), Error> {
    check_length("from", from.len(), batch * channels * positions)?;
    check_length("to", to.len(), positions * batch * channels)?;
    transpose_all(from, batch * channels, to);
    Ok(())
}

/// Copies `[positions][batch][channels]` to `(batch, channels, positions)`.
pub fn to_nchw(
    from: &[f32],
    batch: usize,
    channels: usize,
    positions: usize,
    to: &mut [f32],
) -> Result<(), Error> {
    check_length("from", from.len(), positions * batch * channels)?;
    check_length("to", to.len(), batch * channels * positions)?;
    transpose_all(from, positions, to);
    Ok(())
}

/// Columns that are transposed at a time: those of a cache line.
const COLS: usize = 16;
/// Rows that are transposed at a time, so that the lines read stay in cache for all columns.
const ROWS: usize = 64;
/// Elements of a task, at least.
const TASK: usize = 1 << 12;

/// `to[col][row] = from[row][col]`.
fn transpose_all(from: &[f32], rows: usize, to: &mut [f32]) {
    if from.is_empty() {
        return;
    }
    let cols = from.len() / rows;
    let task_cols = TASK.div_ceil(rows).next_multiple_of(COLS);
    to.par_chunks_mut(task_cols * rows).by_task().enumerate().for_each(|(task, to)| {
        dispatch(Columns { from: &from[task * task_cols..], rows, cols, to });
    });
}

/// Transposes as many columns as `to` has.
struct Columns<'a> {
    from: &'a [f32],
    rows: usize,
    cols: usize,
    to: &'a mut [f32],
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Columns { from, rows, cols, to } = self;
        let places: [usize; COLS] = std::array::from_fn(|col| col * rows);
        for (block, to) in to.chunks_mut(COLS * rows).enumerate() {
            let places = &places[..to.len() / rows];
            for row in (0..rows).step_by(ROWS) {
                let data = &from[row * cols + block * COLS..];
                let count = ROWS.min(rows - row);
                let block = Rows { data, count, stride: cols, ahead: ROWS * cols };
                transpose::<S>(block, places, &mut to[row..]);
            }
        }
    }
}
