//! Few input channels: the taps are gathered into channels, and the convolution becomes one dense
//! product.
//!
//! Three channels make nine sums of length three, too short for the micro-kernel; gathered, they
//! make one of length 27 whose weights are already in order, as `(out, in, taps)` is `(out, in *
//! taps)`.

use super::Conv2d;
use super::direct_gradient::{PackedInput, sum_over_rows};
use super::shape::ConvShape;
use super::weight_gradient::Segments;
use crate::gemm::Matrix;
use crate::gemm::micro_kernel::{MicroKernel, Next, Product};
use crate::gemm::pack::pack;
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use rayon::prelude::*;
use std::ops::Range;

/// Channels after gathering.
fn gathered_channels(shape: &ConvShape) -> usize {
    shape.in_channels * shape.taps()
}

/// `y = x * w`.
pub(super) fn forward(conv: &Conv2d, x: &[f32], w: &[f32], y: &mut [f32]) {
    let shape = &conv.shape;
    let kernel = MicroKernel::for_columns(conv.isa, shape.out_channels);
    let (outputs, kc, nr) = (shape.out_channels, gathered_channels(shape), kernel.nr);
    let packed = pack(conv.isa, &[Matrix::with_taps(w, outputs, kc, 1)], nr);
    let rows = shape.output()[1] * shape.batch;
    y.par_chunks_mut((rows * outputs).max(1)).by_task().enumerate().for_each(|(out_row, to)| {
        let mut gathered = Scratch::take(rows * kc);
        gather(shape, x, out_row, 0..kc, kc, &mut gathered);
        for panel in 0..outputs.div_ceil(nr) {
            let product = Product {
                rows,
                cols: nr.min(outputs - panel * nr),
                segments: &[(0, 0)],
                kc,
                a: gathered.as_ptr(),
                a_row_stride: kc,
                a_k_stride: 1,
                b: packed[panel * kc * nr..][..kc * nr].as_ptr(),
                next: Next::default(),
                c: to[panel * nr..].as_mut_ptr(),
                c_stride: outputs,
                accumulate: false,
            };
            // SAFETY: `gathered` holds `rows` rows of `kc`, the slice of `packed` is a whole
            // panel of them, and `to` is one output row of the image, `rows` rows of all
            // output channels.
            unsafe { kernel.run(&product) };
        }
    });
}

/// `dw = dyᵀ x`, with the gathered taps as the columns of x.
pub(super) fn weight_gradient(conv: &Conv2d, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let shape = &conv.shape;
    let (columns, per_row) = (gathered_channels(shape), shape.output()[1] * shape.batch);
    let nr = MicroKernel::for_columns(conv.isa, columns).nr;
    sum_over_rows(conv, dy, dw, [1, columns], |_, out: Range<usize>| {
        let rows = out.len() * per_row;
        let mut packed = Scratch::take(columns.next_multiple_of(nr) * rows);
        packed.par_chunks_mut(rows * nr).by_task().enumerate().for_each(|(panel, to)| {
            let of_panel = panel * nr..columns.min((panel + 1) * nr);
            to.par_chunks_mut(per_row * nr)
                .by_task()
                .zip(out.clone())
                .for_each(|(to, row)| gather(shape, x, row, of_panel.clone(), nr, to));
        });
        let products = vec![Segments { starts: vec![(0, 0)], rows }];
        PackedInput { data: packed, rows, products }
    });
}

/// Writes what the outputs of image row `row` see: columns, each a channel through a tap, of rows
/// `(x, image)`, `stride` apart.
fn gather(
    shape: &ConvShape,
    input: &[f32],
    row: usize,
    columns: Range<usize>,
    stride: usize,
    to: &mut [f32],
) {
    let (taps, channels) = (shape.taps(), shape.in_channels);
    // Where each column is for the first image.
    let mut places = Vec::with_capacity(columns.len());
    for (col, to) in to.chunks_exact_mut(shape.batch * stride).enumerate() {
        places.clear();
        places.extend(columns.clone().map(|column| {
            let (channel, tap) = (column / taps, column % taps);
            let [y, x] = shape.source([row, col], tap)?;
            Some((y * shape.input[1] + x) * shape.batch * channels + channel)
        }));
        for (image, to) in to.chunks_exact_mut(stride).enumerate() {
            for (to, place) in to.iter_mut().zip(&places) {
                *to = place.map_or(0.0, |place| input[place + image * channels]);
            }
        }
    }
}
