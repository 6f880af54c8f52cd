//! 3x3 convolution (stride 1, padding 1) by Winograd's minimal filtering, F(4x4, 3x3).
//!
//! The image is cut into tiles of 4x4 outputs. A tile sees 6x6 inputs, which are transformed to 36
//! points, and so are the weights. The convolution is then one product of matrices at each point,
//! (tiles x images) by (channels) by (channels), and a transform of the products to outputs: 36
//! multiplications where the taps would take 144. See [`transform`] for the matrices. An image of
//! 2x2 has a [`Scheme`] of its own, with 9 multiplications where the taps inside it take 16
//! ([`corner`]).
//!
//! # Error
//! The transforms add and scale by up to 8 and 1/24 and so lose some digits: for normal inputs the
//! largest error stays below `2e-5` of the largest output, against `4e-6` directly and for 2x2
//! (tested in `conv::tests`).

// Small matrices of registers: the indices are those of the formulas.
#![allow(clippy::needless_range_loop)]

mod activations;
mod corner;
mod gradient;
mod scheme;
mod transform;
mod weights;

use super::Conv2d;
use super::shape::{ConvShape, Direction};
use crate::gemm::Matrix;
use crate::gemm::micro_kernel::{MicroKernel, Next, Product};
use crate::gemm::pack::pack_panel;
use crate::parallel::{ByTask, Shared};
use crate::scratch::Scratch;
use crate::simd::{Isa, dispatch_to};
use activations::{ActivationTransform, Activations, Grid, OutputTransform, Packing, point_stride};
pub(super) use gradient::run as weight_gradient;
use rayon::prelude::*;
use std::ops::Range;
use weights::{Kind, WeightTransform};

/// Whether it is faster than the taps, in all three directions.
pub(super) fn pays(shape: &ConvShape) -> bool {
    let [height, width] = shape.input;
    let fills_tiles = height.min(width) >= 4 || shape.input == [2, 2];
    fills_tiles && shape.in_channels.min(shape.out_channels) >= 16
}

/// Rows that a task multiplies, at best: enough to read the weights seldom, and few enough to stay
/// in cache.
const TASK_ROWS: usize = 48;
/// Rows that a task transforms, where it does nothing else.
const TRANSFORM_ROWS: usize = 16;

/// `y = x * w`, or `dx = dy * w`.
///
/// Of the transformed weights and the transformed source, the smaller is computed as a whole, and
/// the tasks make the other piece by piece in memory of their own: pieces of the source (rows) for
/// large images, pieces of the weights (panels of channels) for small images with many channels.
pub(super) fn run(
    conv: &Conv2d,
    direction: Direction,
    source: &[f32],
    weights: &[f32],
    result: &mut [f32],
) {
    let shape = &conv.shape;
    let [from, to] = shape.channels(direction).map(|channels| Grid::new(shape, channels));
    let winograd = Winograd {
        isa: conv.isa,
        kernel: MicroKernel::for_columns(conv.isa, to.channels),
        from,
        to,
        source,
        weights: shape.weight_matrix(direction, weights, 0),
        rotated: direction == Direction::InputGradient,
        result: Shared::new(result),
    };
    if to.channels <= from.rows() {
        winograd.by_rows();
    } else {
        winograd.by_panels();
    }
}

struct Winograd<'a> {
    isa: Isa,
    kernel: MicroKernel,
    from: Grid,
    to: Grid,
    source: &'a [f32],
    weights: Matrix<'a>,
    /// Whether to rotate the kernel by half a turn, as the gradient with respect to the input is
    /// the convolution with a rotated kernel.
    rotated: bool,
    result: Shared<'a>,
}

/// Some rows of the source at all points.
struct Transformed<'a> {
    /// `[point][row][channel]`
    points: &'a [f32],
    point_stride: usize,
    rows: Range<usize>,
}

impl Winograd<'_> {
    /// Points of a tile.
    fn points(&self) -> usize {
        self.from.scheme.points()
    }

    /// Panels of transformed weights.
    fn panels(&self) -> usize {
        self.to.channels.div_ceil(self.kernel.nr)
    }

    /// Elements of a panel at one point, `[k][NR]`.
    fn panel_point_len(&self) -> usize {
        self.from.channels * self.kernel.nr
    }

    /// From one point to the next in a panel of transformed weights.
    fn panel_point_stride(&self) -> usize {
        point_stride(self.panel_point_len())
    }

    /// Elements of one panel of transformed weights, `[point][k][NR]`.
    fn panel_len(&self) -> usize {
        self.points() * self.panel_point_stride()
    }

    fn by_rows(&self) {
        let mut weights = Scratch::take(self.panels() * self.panel_len());
        weights
            .par_chunks_mut(self.panel_len())
            .by_task()
            .enumerate()
            .for_each(|(panel, to)| self.transform_weights(panel, to));
        let weights: &[f32] = &weights;
        let rows = self.from.rows();
        let task_rows = rows_per_task(rows, self.kernel.mr, rayon::current_num_threads());
        (0..rows.div_ceil(task_rows)).into_par_iter().by_task().for_each(|task| {
            let rows = task * task_rows..rows.min((task + 1) * task_rows);
            let packing = Packing::row_major(self.from, rows.len());
            let mut points = Scratch::take(packing.len());
            self.transform_source(rows.clone(), packing, Shared::new(&mut points), 0);
            let point_stride = packing.point_stride;
            self.multiply(Transformed { points: &points, point_stride, rows }, weights, 0);
        });
    }

    fn by_panels(&self) {
        let rows = self.from.rows();
        let packing = Packing::row_major(self.from, rows);
        let mut points = Scratch::take(packing.len());
        let shared = Shared::new(&mut points);
        (0..rows.div_ceil(TRANSFORM_ROWS)).into_par_iter().by_task().for_each(|task| {
            let first = task * TRANSFORM_ROWS;
            let rows = first..rows.min(first + TRANSFORM_ROWS);
            self.transform_source(rows, packing, shared, first);
        });
        let (points, point_stride): (&[f32], _) = (&points, packing.point_stride);
        (0..self.panels()).into_par_iter().by_task().for_each(|panel| {
            let mut weights = Scratch::take(self.panel_len());
            self.transform_weights(panel, &mut weights);
            self.multiply(Transformed { points, point_stride, rows: 0..rows }, &weights, panel);
        });
    }

    /// Writes `rows` of the transformed source from row `first` of the packing on.
    fn transform_source(&self, rows: Range<usize>, packing: Packing, to: Shared, first: usize) {
        let (grid, data) = (self.from, Activations::Input(self.source));
        dispatch_to(self.isa, ActivationTransform { grid, data, rows, packing, to, first });
    }

    /// Writes one panel of transformed weights.
    fn transform_weights(&self, panel: usize, to: &mut [f32]) {
        let len = self.panel_point_len();
        let mut taps = Scratch::take(9 * len);
        pack_panel(self.isa, self.weights, self.kernel.nr, panel, &mut taps);
        let transform = WeightTransform {
            scheme: self.from.scheme,
            kind: Kind::Weights { rotated: self.rotated },
            from: (&taps, len),
            to: (to, self.panel_point_stride()),
            len,
        };
        dispatch_to(self.isa, transform);
    }

    /// Multiplies rows of the transformed source by some panels of transformed weights, from panel
    /// `first` on, at every point, and transforms the products to the result.
    fn multiply(&self, source: Transformed, weights: &[f32], first: usize) {
        let Transformed { points, point_stride: source_stride, rows } = source;
        let (kc, nr) = (self.from.channels, self.kernel.nr);
        let count = weights.len() / self.panel_len();
        let cols = count * nr;
        let product_stride = point_stride(rows.len() * cols);
        let mut products = Scratch::take(self.points() * product_stride);
        for point in 0..self.points() {
            for panel in 0..count {
                let b = panel * self.panel_len() + point * self.panel_point_stride();
                let next_b = match panel + 1 < count {
                    true => b + self.panel_len(),
                    false => (point + 1) * self.panel_point_stride(),
                };
                let product = Product {
                    rows: rows.len(),
                    cols: nr,
                    segments: &[(0, 0)],
                    kc,
                    a: points[point * source_stride..][..rows.len() * kc].as_ptr(),
                    a_row_stride: kc,
                    a_k_stride: 1,
                    b: weights[b..][..kc * nr].as_ptr(),
                    next: Next { a: None, b: weights.get(next_b..).map(<[f32]>::as_ptr) },
                    c: products[point * product_stride + panel * nr..].as_mut_ptr(),
                    c_stride: cols,
                    accumulate: false,
                };
                // SAFETY: the slices hold all rows of the source and the whole panel at this point;
                // `products` holds `rows` rows of `cols` at each point, and is our own.
                unsafe { self.kernel.run(&product) };
            }
        }
        let output = OutputTransform {
            grid: self.to,
            products: &products,
            row_stride: cols,
            point_stride: product_stride,
            rows,
            channels: first * nr..self.to.channels.min((first + count) * nr),
            to: self.result,
        };
        dispatch_to(self.isa, output);
    }
}

/// How many rows to give a task, in whole tiles of the micro-kernel, so that the busiest thread has
/// as few tiles as possible.
fn rows_per_task(rows: usize, mr: usize, threads: usize) -> usize {
    let (tiles, best) = (rows.div_ceil(mr), TASK_ROWS.div_ceil(mr));
    let busiest = |each: usize| {
        let (tasks, rest) = (tiles / each, tiles % each);
        let last = if tasks.is_multiple_of(threads) { rest } else { each };
        tasks / threads * each + last
    };
    let tiles = (best.div_ceil(2)..=best * 3 / 2)
        .min_by_key(|&each| (busiest(each), each.abs_diff(best)))
        .unwrap_or(best);
    tiles * mr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_shared_out_evenly() {
        // 256 rows in tiles of 6, as VGG16 has them at 8x8 with a batch of 64.
        assert_eq!(rows_per_task(256, 6, 1), TASK_ROWS);
        assert_eq!(rows_per_task(256, 6, 2), 7 * 6, "six tasks of 7 and one of 1: 22 and 21 tiles");
        for mr in [6, 12] {
            for tiles in 1..200 {
                for threads in 1..9 {
                    let rows = rows_per_task(tiles * mr, mr, threads);
                    assert!(rows.is_multiple_of(mr));
                    let each = rows / mr;
                    let mut load = vec![0; threads];
                    for task in 0..tiles.div_ceil(each) {
                        // The next task goes to the first thread that is free.
                        let free = (0..threads).min_by_key(|&i| load[i]).unwrap();
                        load[free] += each.min(tiles - task * each);
                    }
                    let most = load.into_iter().max().unwrap();
                    assert!(
                        most < tiles.div_ceil(threads) + TASK_ROWS / mr / 2,
                        "{tiles} tiles of {mr} on {threads}"
                    );
                }
            }
        }
    }
}
