//! Convolution as dense products in the layout `[position][image][channel]`.
//!
//! At each output position the activations of the batch are a matrix (images x channels), so the
//! output is
//!
//! ```text
//! y[position] = sum over taps t that fall inside the image of  x[source(position, t)] * w[t]
//! ```
//!
//! Nothing is copied but the weights: each tap is one segment of the micro-kernel's sum, and taps
//! on the padding are skipped rather than multiplied by zero. The gradient with respect to the
//! input is the same sum over the outputs that see a position. Any kernel size, stride, padding,
//! dilation and number of groups is only another list of segments.

use super::Conv2d;
use super::shape::Direction;
use crate::gemm::micro_kernel::{MicroKernel, Next, Product};
use crate::gemm::pack::pack;
use crate::parallel::ByTask;
use rayon::prelude::*;

/// `y = x * w`, or `dx = dy * w`.
pub(super) fn run(
    conv: &Conv2d,
    direction: Direction,
    source: &[f32],
    weights: &[f32],
    result: &mut [f32],
) {
    let shape = &conv.shape;
    let [source_channels, result_channels] = shape.channels(direction);
    let (kc, cols) = (source_channels / shape.groups, result_channels / shape.groups);
    let kernel = MicroKernel::for_columns(conv.isa, cols);
    let (groups, batch, nr) = (shape.groups, shape.batch, kernel.nr);
    let matrices: Vec<_> =
        (0..groups).map(|group| shape.weight_matrix(direction, weights, group)).collect();
    // `[group][panel][tap][k][NR]`
    let packed = pack(conv.isa, &matrices, nr);
    let (panels, tap_len) = (cols.div_ceil(nr), kc * nr);
    let panel_len = shape.taps() * tap_len;
    let positions = result.len() / (batch * result_channels).max(1);
    let images_per_task = images_per_task(batch, positions, kernel.mr);

    let one_task = |position: usize, first: usize, to: &mut [f32]| {
        let segments: Vec<_> = shape
            .terms(direction, position)
            .map(|(tap, from)| ((from * batch + first) * source_channels, tap * tap_len))
            .collect();
        for group in 0..groups {
            for panel in 0..panels {
                let b = (group * panels + panel) * panel_len;
                let col = panel * nr;
                let product = Product {
                    rows: to.len() / result_channels,
                    cols: nr.min(cols - col),
                    segments: &segments,
                    kc,
                    a: source[group * kc..].as_ptr(),
                    a_row_stride: source_channels,
                    a_k_stride: 1,
                    b: packed[b..][..panel_len].as_ptr(),
                    next: Next::default(),
                    c: to[group * cols + col..].as_mut_ptr(),
                    c_stride: result_channels,
                    accumulate: false,
                };
                // SAFETY: a segment begins at the group's channels of image `first` at a position
                // of the source, which has as many images from there on as the task has rows; the
                // panel holds every tap at full width; `to` holds whole rows of the result and
                // belongs to this task.
                unsafe { kernel.run(&product) };
            }
        }
    };
    result.par_chunks_mut((batch * result_channels).max(1)).by_task().enumerate().for_each(
        |(position, to)| {
            to.par_chunks_mut(images_per_task * result_channels)
                .by_task()
                .enumerate()
                .for_each(|(block, to)| one_task(position, block * images_per_task, to));
        },
    );
}

/// Positions alone make enough tasks for large images; small ones also divide the batch.
fn images_per_task(batch: usize, positions: usize, mr: usize) -> usize {
    let wanted = (4 * rayon::current_num_threads()).div_ceil(positions.max(1));
    batch.div_ceil(wanted).next_multiple_of(mr).min(batch).max(1)
}
