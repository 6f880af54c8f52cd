//! Between the kernels' layout and the one tensors have at the edges of a model.

use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use rayon::prelude::*;

/// Sides of the square blocks in which matrices are transposed: a block's lines of both sides stay
/// in cache.
const BLOCK: usize = 16;

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
    transpose(from, batch * channels, positions, to);
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
    transpose(from, positions, batch * channels, to);
    Ok(())
}

/// `to[col][row] = from[row][col]`.
fn transpose(from: &[f32], rows: usize, cols: usize, to: &mut [f32]) {
    if from.is_empty() {
        return;
    }
    to.par_chunks_mut(BLOCK * rows).by_task().enumerate().for_each(|(block, to)| {
        let first = block * BLOCK;
        for row in (0..rows).step_by(BLOCK) {
            for (c, to) in to.chunks_exact_mut(rows).enumerate() {
                let to = &mut to[row..rows.min(row + BLOCK)];
                for (r, to) in to.iter_mut().enumerate() {
                    *to = from[(row + r) * cols + first + c];
                }
            }
        }
    });
}
