//! The weight gradient as sums of outer products, tap by tap.
//!
//! ```text
//! dw[o][i][t] = sum over outputs p, images n of  dy[p][n][o] * x[source(p, t)][n][i]
//! ```
//!
//! Neighbouring outputs of a row see neighbouring inputs through the same tap, so with stride 1 a
//! whole output row is one segment of the sum.

use super::Conv2d;
use super::shape::ConvShape;
use super::weight_gradient::{Chunk, Segments, Sums};
use crate::gemm::Matrix;
use crate::gemm::micro_kernel::MicroKernel;
use crate::gemm::pack::pack;
use crate::parallel::Shared;
use crate::scratch::Scratch;
use std::ops::Range;

/// Rows (positions x images) in a chunk: a panel of them stays in the second-level cache for all
/// taps.
const CHUNK_ROWS: usize = 2048;

/// `dw = dyᵀ x`, tap by tap.
pub(super) fn run(conv: &Conv2d, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let shape = &conv.shape;
    let (inputs, per_row) = (shape.group_inputs(), shape.input[1] * shape.batch);
    let kernel = MicroKernel::for_columns(conv.isa, inputs);
    sum_over_rows(conv, dy, dw, [shape.taps(), inputs], |group, out| {
        let seen = seen_rows(shape, &out);
        let rows = seen.start * per_row..seen.end * per_row;
        let products = segments(shape, &out, seen.start, &kernel);
        let channels = group * inputs..(group + 1) * inputs;
        PackedInput {
            rows: rows.len(),
            data: pack_part(conv, (x, shape.in_channels), rows, channels, kernel.nr),
            products,
        }
    });
}

/// What some output rows of the image see of the input.
pub(super) struct PackedInput {
    /// Panels of NR columns.
    pub(super) data: Scratch,
    /// Rows of a panel.
    pub(super) rows: usize,
    pub(super) products: Vec<Segments>,
}

/// Sums over all rows of the image, chunk by chunk. There are `products` sums, each with `columns`
/// columns; `pack_input` packs what some output rows of a group see of the input.
pub(super) fn sum_over_rows(
    conv: &Conv2d,
    dy: &[f32],
    dw: &mut [f32],
    [products, columns]: [usize; 2],
    pack_input: impl Fn(usize, Range<usize>) -> PackedInput + Sync,
) {
    let (shape, kernel) = (&conv.shape, MicroKernel::for_columns(conv.isa, columns));
    let [height, width] = shape.output();
    let step = (CHUNK_ROWS / (width * shape.batch).max(1)).clamp(1, height.max(1));
    let chunks = height.div_ceil(step);
    if chunks == 0 || shape.batch == 0 {
        dw.fill(0.0);
        return;
    }
    let (outputs, per_row) = (shape.group_outputs(), width * shape.batch);
    for (group, dw) in dw.chunks_mut(outputs * columns * products).enumerate() {
        let dw = Shared::new(dw);
        let pack = |chunk: usize| {
            let out = chunk * step..height.min((chunk + 1) * step);
            let rows = out.start * per_row..out.end * per_row;
            let channels = group * outputs..(group + 1) * outputs;
            let a_rows = rows.len();
            let a = pack_part(conv, (dy, shape.out_channels), rows, channels, kernel.a_panel);
            let b = pack_input(group, out);
            Chunk { a, a_rows, b: b.data, b_rows: b.rows, products: b.products }
        };
        Sums::new(kernel, products, outputs, columns)
            .run(chunks, pack, |block, sums| block.store(sums, products, columns, dw));
    }
}

/// Some rows and channels of activations, given with the number of their channels, in panels
/// `[panel][row][width]`.
fn pack_part(
    conv: &Conv2d,
    (data, all_channels): (&[f32], usize),
    rows: Range<usize>,
    channels: Range<usize>,
    width: usize,
) -> Scratch {
    if rows.is_empty() {
        return Scratch::default();
    }
    let m = Matrix::with_taps(data, data.len() / all_channels, all_channels, 1);
    let m = m.part(rows.start, rows.len(), channels.start, channels.len());
    pack(conv.isa, &[m.transposed()], width)
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
    kernel: &MicroKernel,
) -> Vec<Segments> {
    let (out_width, width, batch) = (shape.output()[1], shape.input[1], shape.batch);
    let of_tap = |tap: usize| {
        let mut starts = Vec::new();
        let mut rows = batch;
        for y in out.clone() {
            let inside: Vec<_> = (0..out_width)
                .filter_map(|x| shape.source([y, x], tap).map(|from| (x, from)))
                .collect();
            let at = |(x, [from_y, from_x]): (usize, [usize; 2])| {
                (
                    ((y - out.start) * out_width + x) * batch * kernel.a_panel,
                    ((from_y - first_seen) * width + from_x) * batch * kernel.nr,
                )
            };
            if shape.stride == 1 {
                rows = rows.max(inside.len() * batch);
                starts.extend(inside.first().copied().map(at));
            } else {
                starts.extend(inside.into_iter().map(at));
            }
        }
        Segments { starts, rows }
    };
    (0..shape.taps()).map(of_tap).collect()
}
