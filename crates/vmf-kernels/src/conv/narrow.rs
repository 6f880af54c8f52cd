//! Few input channels: the taps are gathered into channels, and the convolution becomes one dense
//! product.
//!
//! Three channels make nine sums of length three, too short for the micro-kernel; gathered, they
//! make one of length 27 whose weights are already in order, as `(out, in, taps)` is `(out, in *
//! taps)`.

use super::shape::ConvShape;
use crate::gemm::tile::{MicroKernel, Next, Product};
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use crate::simd::Isa;
use rayon::prelude::*;
use std::ops::Range;

/// Whether gathering pays: it does while a tap is shorter than a register or two.
pub(super) fn is_narrow(shape: &ConvShape) -> bool {
    shape.groups == 1 && shape.in_channels < 8 && shape.taps() > 1
}

/// Channels after gathering.
pub(super) fn channels(shape: &ConvShape) -> usize {
    shape.in_channels * shape.taps()
}

/// `y = x * w`.
pub(super) fn forward(
    isa: Isa,
    shape: &ConvShape,
    input: &[f32],
    weights: &[f32],
    output: &mut [f32],
) {
    let kernel = MicroKernel::of(isa);
    let depth = channels(shape);
    let panel_len = depth * kernel.cols;
    let panels = shape.out_channels.div_ceil(kernel.cols);
    let mut packed = Scratch::take(panels * panel_len);
    packed.fill(0.0);
    for (o, row) in weights.chunks_exact(depth).enumerate() {
        for (k, &w) in row.iter().enumerate() {
            packed[(o / kernel.cols) * panel_len + k * kernel.cols + o % kernel.cols] = w;
        }
    }
    let packed: &[f32] = &packed;
    let width = shape.output()[1];
    output
        .par_chunks_mut((width * shape.batch * shape.out_channels).max(1))
        .by_task()
        .enumerate()
        .for_each(|(y, to)| {
            let rows = width * shape.batch;
            let mut gathered = Scratch::take(rows * depth);
            gather(shape, input, y, 0..depth, depth, &mut gathered);
            for panel in 0..panels {
                let product = Product {
                    segments: &[(0, 0)],
                    depth,
                    a: gathered.as_ptr(),
                    a_row: depth,
                    a_step: 1,
                    b: packed[panel * panel_len..].as_ptr(),
                    b_step: kernel.cols,
                    next: Next::default(),
                    c: to[panel * kernel.cols..].as_mut_ptr(),
                    c_row: shape.out_channels,
                    cols: kernel.cols.min(shape.out_channels - panel * kernel.cols),
                    accumulate: false,
                };
                // SAFETY: `gathered` holds `rows` rows of `depth`, `packed` whole panels of that
                // depth, and `to` is one output row of the image, `rows` rows of
                // all output channels.
                unsafe { kernel.run(rows, &product) };
            }
        });
}

/// The gathered input of some output rows in panels `[panel][row][width]`, for the weight gradient.
pub(super) fn pack(shape: &ConvShape, input: &[f32], out: Range<usize>, width: usize) -> Scratch {
    let (depth, per_row) = (channels(shape), shape.output()[1] * shape.batch);
    let rows = out.len() * per_row;
    let mut packed = Scratch::take(depth.next_multiple_of(width) * rows);
    packed.par_chunks_mut(rows * width).by_task().enumerate().for_each(|(panel, to)| {
        let columns = panel * width..depth.min((panel + 1) * width);
        to.par_chunks_mut(per_row * width)
            .by_task()
            .zip(out.clone())
            .for_each(|(to, y)| gather(shape, input, y, columns.clone(), width, to));
    });
    packed
}

/// Writes what the outputs of row `y` see: columns, each a channel through a tap, of rows `(x,
/// image)`, `stride` apart.
fn gather(
    shape: &ConvShape,
    input: &[f32],
    y: usize,
    columns: Range<usize>,
    stride: usize,
    to: &mut [f32],
) {
    let (taps, channels) = (shape.taps(), shape.in_channels);
    // Where each column is for the first image.
    let mut places = Vec::with_capacity(columns.len());
    for (x, to) in to.chunks_exact_mut(shape.batch * stride).enumerate() {
        places.clear();
        places.extend(columns.clone().map(|column| {
            let (channel, tap) = (column / taps, column % taps);
            let [sy, sx] = shape.source([y, x], [tap / shape.kernel[1], tap % shape.kernel[1]])?;
            Some((sy * shape.input[1] + sx) * shape.batch * channels + channel)
        }));
        for (image, to) in to.chunks_exact_mut(stride).enumerate() {
            for (to, place) in to.iter_mut().zip(&places) {
                *to = place.map_or(0.0, |place| input[place + image * channels]);
            }
        }
    }
}
