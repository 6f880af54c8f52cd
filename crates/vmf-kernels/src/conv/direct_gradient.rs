//! The weight gradient as sums of outer products, tap by tap.
//!
//! ```text
//! dw[o][i][t] = sum over outputs p, images n of  dy[p][n][o] * x[source(p, t)][n][i]
//! ```
//!
//! Neighbouring outputs of a row see neighbouring inputs through the same tap, so with stride 1 a
//! whole output row is one segment of the sum.

use super::narrow;
use super::shape::ConvShape;
use super::weight_gradient::{Block, Chunk, Sums};
use crate::gemm::tile::MicroKernel;
use crate::parallel::ByTask;
use crate::scratch::{Scratch, Shared};
use crate::simd::Isa;
use rayon::prelude::*;
use std::ops::Range;

/// Rows (positions x images) in a chunk: a panel of them stays in the second-level cache for all
/// taps.
const CHUNK_ROWS: usize = 2048;

/// `dw = dy^T * x`.
pub(super) fn run(isa: Isa, shape: &ConvShape, input: &[f32], gradient: &[f32], dw: &mut [f32]) {
    let kernel = MicroKernel::of(isa);
    let [height, width] = shape.output();
    let step = (CHUNK_ROWS / (width * shape.batch).max(1)).clamp(1, height.max(1));
    let chunks = height.div_ceil(step);
    if chunks == 0 || shape.batch == 0 {
        dw.fill(0.0);
        return;
    }
    let gather = narrow::is_narrow(shape);
    let (points, inputs) = match gather {
        true => (1, narrow::channels(shape)),
        false => (shape.taps(), shape.group_inputs()),
    };
    let outputs = shape.group_outputs();
    let group_len = outputs * inputs * points;
    for (group, dw) in dw.chunks_mut(group_len).enumerate() {
        let dw = Shared::new(dw);
        let pack = |chunk: usize, add: &mut dyn FnMut(&Chunk)| {
            let out_rows = chunk * step..height.min((chunk + 1) * step);
            let a = Source {
                data: gradient,
                channels: shape.out_channels,
                first: group * outputs,
                count: outputs,
            };
            let a = a.pack(
                out_rows.start * width * shape.batch..out_rows.end * width * shape.batch,
                kernel.panel_rows,
            );
            let rows = out_rows.len() * width * shape.batch;
            if gather {
                let b = narrow::pack(shape, input, out_rows, kernel.cols);
                add(&Chunk {
                    a: &a,
                    a_rows: rows,
                    b: &b,
                    b_rows: rows,
                    points: &[(vec![(0, 0)], rows)],
                });
            } else {
                let seen = seen_rows(shape, &out_rows);
                let per_row = shape.input[1] * shape.batch;
                let b = Source {
                    data: input,
                    channels: shape.in_channels,
                    first: group * inputs,
                    count: inputs,
                };
                let b = b.pack(seen.start * per_row..seen.end * per_row, kernel.cols);
                let points = segments(shape, &out_rows, seen.start, kernel.panel_rows, kernel.cols);
                add(&Chunk {
                    a: &a,
                    a_rows: rows,
                    b: &b,
                    b_rows: seen.len() * per_row,
                    points: &points,
                });
            }
        };
        let finish = |block: Block, sums: &[f32]| store(&block, sums, points, inputs, dw);
        Sums::new(kernel, points, outputs, inputs).run(chunks, pack, finish);
    }
}

/// Some channels of a tensor in `[row][channel]`.
struct Source<'a> {
    data: &'a [f32],
    channels: usize,
    first: usize,
    count: usize,
}

impl Source<'_> {
    /// Copies `rows` into panels `[panel][row][width]`; what follows the last channel in its panel
    /// is never used.
    fn pack(&self, rows: Range<usize>, width: usize) -> Scratch {
        let mut packed = Scratch::take(self.count.div_ceil(width) * width * rows.len());
        if rows.is_empty() {
            return packed;
        }
        packed.par_chunks_mut(width * rows.len()).by_task().enumerate().for_each(|(panel, to)| {
            let (first, cols) = (panel * width, width.min(self.count - panel * width));
            let from = &self.data[rows.start * self.channels..rows.end * self.channels];
            for (to, from) in to.chunks_exact_mut(width).zip(from.chunks_exact(self.channels)) {
                to[..cols].copy_from_slice(&from[self.first + first..][..cols]);
            }
        });
        packed
    }
}

/// The input rows that some output row of `out` sees.
fn seen_rows(shape: &ConvShape, out: &Range<usize>) -> Range<usize> {
    let reach = shape.dilation * (shape.kernel[0] - 1);
    let start = (out.start * shape.stride).saturating_sub(shape.padding);
    let end = ((out.end - 1) * shape.stride + reach + 1)
        .saturating_sub(shape.padding)
        .min(shape.input[0]);
    start.min(end)..end
}

/// For each tap, where the rows that it joins begin in the packed gradient and in the packed input.
fn segments(
    shape: &ConvShape,
    out: &Range<usize>,
    first_seen: usize,
    a_width: usize,
    b_width: usize,
) -> Vec<(Vec<(usize, usize)>, usize)> {
    let (out_width, width, batch) = (shape.output()[1], shape.input[1], shape.batch);
    let of_tap = |tap: usize| {
        let tap = [tap / shape.kernel[1], tap % shape.kernel[1]];
        let mut found = Vec::new();
        let mut depth = batch;
        for y in out.clone() {
            let inside: Vec<_> = (0..out_width)
                .filter_map(|x| shape.source([y, x], tap).map(|from| (x, from)))
                .collect();
            let at = |(x, [from_y, from_x]): (usize, [usize; 2])| {
                (
                    ((y - out.start) * out_width + x) * batch * a_width,
                    ((from_y - first_seen) * width + from_x) * batch * b_width,
                )
            };
            if shape.stride == 1 {
                depth = depth.max(inside.len() * batch);
                found.extend(inside.first().copied().map(at));
            } else {
                found.extend(inside.into_iter().map(at));
            }
        }
        (found, depth)
    };
    (0..shape.taps()).map(of_tap).collect()
}

/// Writes a block of sums where the weights `(outputs, inputs, taps)` have them.
pub(super) fn store(block: &Block, sums: &[f32], points: usize, inputs: usize, dw: Shared) {
    for row in 0..block.rows {
        let at = ((block.output + row) * inputs + block.input) * points;
        let to = dw.at(at, block.cols * points);
        // SAFETY: `at` checked the range, and blocks have no weight in common.
        let to = unsafe { std::slice::from_raw_parts_mut(to, block.cols * points) };
        for (col, to) in to.chunks_exact_mut(points).enumerate() {
            for (point, to) in to.iter_mut().enumerate() {
                *to = sums[point * block.point + row * block.stride + col];
            }
        }
    }
}
