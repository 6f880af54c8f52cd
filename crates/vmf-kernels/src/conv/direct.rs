//! Convolution as dense products in the layout `[position][image][channel]`.
//!
//! At each output position the activations of the batch are a matrix (images x channels), so the
//! output is
//!
//! ```text
//! y[position] = sum over taps t that fall inside the image of  x[source(position, t)] * w[t]
//! ```
//!
//! with nothing copied but the weights: each tap is one segment of the micro-kernel's sum, and taps
//! on the padding are skipped rather than multiplied by zero. The input gradient is the same sum
//! over the outputs that saw a position. Any kernel size, stride, padding, dilation and number of
//! groups is only another list of segments.

use super::shape::ConvShape;
use super::weights::{Panels, Role};
use crate::gemm::tile::{MicroKernel, Next, Product};
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use crate::simd::Isa;
use rayon::prelude::*;

/// `result = source * weights`, in the sense of `role`.
pub(super) fn run(
    isa: Isa,
    shape: &ConvShape,
    role: Role,
    source: &[f32],
    weights: &[f32],
    result: &mut [f32],
) {
    let kernel = MicroKernel::of(isa);
    let panels = Panels::new(shape, role, kernel.cols);
    let packed = pack_all(isa, shape, &panels, weights);
    let (source_channels, result_channels) = match role {
        Role::Forward => (shape.in_channels, shape.out_channels),
        Role::InputGradient => (shape.out_channels, shape.in_channels),
    };
    let batch = shape.batch;
    let positions = result.len() / (batch * result_channels).max(1);
    let images_per_task = images_per_task(batch, positions, kernel.rows);

    let one_task = |position: usize, first: usize, to: &mut [f32]| {
        let images = to.len() / result_channels;
        let mut taps = Vec::with_capacity(shape.taps());
        contributions(shape, role, position, |tap, from| {
            taps.push((
                (from * batch + first) * source_channels,
                tap * panels.depth * panels.width,
            ));
        });
        for group in 0..shape.groups {
            for panel in 0..panels.count() {
                let index = group * panels.count() + panel;
                let col = panel * panels.width;
                let product = Product {
                    segments: &taps,
                    depth: panels.depth,
                    a: source[group * panels.depth..].as_ptr(),
                    a_row: source_channels,
                    a_step: 1,
                    b: packed[index * panels.len()..][..panels.len()].as_ptr(),
                    b_step: panels.width,
                    next: Next::default(),
                    c: to[group * panels.cols + col..].as_mut_ptr(),
                    c_row: result_channels,
                    cols: panels.width.min(panels.cols - col),
                    accumulate: false,
                };
                // SAFETY: a segment begins at the group's channels of image `first` of a position
                // of the source, whose next `images` rows of `source_channels`
                // exist; the panel holds every tap at full width; `to` holds
                // `images` whole rows of the result and belongs to this task.
                unsafe { kernel.run(images, &product) };
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

/// All panels of all groups, `[group][panel]`.
fn pack_all(isa: Isa, shape: &ConvShape, panels: &Panels, weights: &[f32]) -> Scratch {
    let mut packed = Scratch::take(shape.groups * panels.count() * panels.len());
    let group_len = panels.depth * panels.cols * panels.taps;
    packed.par_chunks_mut(panels.len()).by_task().enumerate().for_each(|(index, to)| {
        let (group, panel) = (index / panels.count(), index % panels.count());
        panels.pack(isa, &weights[group * group_len..][..group_len], panel, to);
    });
    packed
}

/// Positions alone make enough tasks for large images; small ones also divide the batch.
fn images_per_task(batch: usize, positions: usize, tile_rows: usize) -> usize {
    let wanted = (4 * rayon::current_num_threads()).div_ceil(positions.max(1));
    batch.div_ceil(wanted).next_multiple_of(tile_rows).min(batch).max(1)
}

/// Calls `f(tap, position of the source)` for each term of the sum at `position` of the result.
fn contributions(shape: &ConvShape, role: Role, position: usize, mut f: impl FnMut(usize, usize)) {
    let ([_, width], [_, source_width]) = match role {
        Role::Forward => (shape.output(), shape.input),
        Role::InputGradient => (shape.input, shape.output()),
    };
    let at = [position / width, position % width];
    for ky in 0..shape.kernel[0] {
        for kx in 0..shape.kernel[1] {
            let source = match role {
                Role::Forward => shape.source(at, [ky, kx]),
                Role::InputGradient => shape.target(at, [ky, kx]),
            };
            if let Some([y, x]) = source {
                f(ky * shape.kernel[1] + kx, y * source_width + x);
            }
        }
    }
}
