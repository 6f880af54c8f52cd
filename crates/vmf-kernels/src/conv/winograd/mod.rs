//! 3x3 convolution (stride 1, padding 1) by Winograd's minimal filtering, F(4x4, 3x3).
//!
//! The image is cut into tiles of 4x4 outputs. A tile sees 6x6 inputs, which are transformed to 36
//! points; so are the weights; the convolution is then one product of matrices at each point,
//! (tiles x images) x (channels) x (channels), and a transform back: 36 multiplications where the
//! taps would take 144. See [`transform`] for the matrices. An image of 2x2 has a [`Scheme`] of its
//! own, with 9 multiplications where the taps inside it take 16 ([`corner`]).
//!
//! # Error
//! The transforms add and scale by up to 8 and 1/24 and so lose some digits: for normal inputs the
//! largest error stays below `2e-5` of the largest output, against `4e-6` directly and for 2x2
//! (tested in `conv::tests`).

// Small matrices of registers: the indices are those of the formulas.
#![allow(clippy::needless_range_loop)]

mod corner;
mod gradient;
mod scheme;
mod tiles;
mod transform;

use super::shape::ConvShape;
use super::weights::{Panels, Role};
use crate::gemm::tile::{MicroKernel, Next, Product};
use crate::parallel::ByTask;
use crate::scratch::{Scratch, Shared};
use crate::simd::{Isa, Kernel, Simd, Vector, dispatch_to};
pub(super) use gradient::run as weight_gradient;
use rayon::prelude::*;
use scheme::Scheme;
use std::ops::Range;
use tiles::{Backward, Forward, Grid, Packing, point_stride};
use transform::Constants;

/// Whether it is faster than the taps, forward and backward.
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

/// `result = source * weights`, in the sense of `role`.
///
/// Of the transformed weights and the transformed source, the smaller is computed as a whole, and
/// the tasks make the other piece by piece in memory of their own: pieces of the source (rows) for
/// large images, pieces of the weights (panels of channels) for small images with many channels.
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
    let grid = |channels| Grid {
        scheme: Scheme::of(shape),
        height: shape.input[0],
        width: shape.input[1],
        batch: shape.batch,
        channels,
    };
    let pass = Pass {
        isa,
        kernel,
        panels,
        from: grid(panels.depth),
        to: grid(panels.cols),
        source,
        weights,
        result: Shared::new(result),
    };
    if panels.cols <= pass.from.rows() {
        pass.by_rows();
    } else {
        pass.by_panels();
    }
}

struct Pass<'a> {
    isa: Isa,
    kernel: MicroKernel,
    panels: Panels,
    from: Grid,
    to: Grid,
    source: &'a [f32],
    weights: &'a [f32],
    result: Shared<'a>,
}

impl Pass<'_> {
    fn scheme(&self) -> Scheme {
        self.from.scheme
    }

    /// From one point to the next in a panel of transformed weights, `[point][depth][width]`.
    fn weight_point(&self) -> usize {
        point_stride(self.panels.depth * self.panels.width)
    }

    /// Elements of one panel of transformed weights.
    fn panel_len(&self) -> usize {
        self.scheme().points() * self.weight_point()
    }

    fn by_rows(&self) {
        let mut weights = Scratch::take(self.panels.count() * self.panel_len());
        weights
            .par_chunks_mut(self.panel_len())
            .by_task()
            .enumerate()
            .for_each(|(panel, to)| self.transform_weights(panel, to));
        let weights: &[f32] = &weights;
        let rows = self.from.rows();
        let task_rows = rows_per_task(rows, self.kernel.rows, rayon::current_num_threads());
        (0..rows.div_ceil(task_rows)).into_par_iter().by_task().for_each(|task| {
            let rows = task * task_rows..rows.min((task + 1) * task_rows);
            let packing = Packing::plain(self.scheme(), self.panels.depth, rows.len());
            let mut points = Scratch::take(packing.len());
            self.transform_source(rows.clone(), packing, Shared::new(&mut points), 0);
            self.multiply(&points, packing.point, rows, weights, 0);
        });
    }

    fn by_panels(&self) {
        let rows = self.from.rows();
        let packing = Packing::plain(self.scheme(), self.panels.depth, rows);
        let mut points = Scratch::take(packing.len());
        let shared = Shared::new(&mut points);
        (0..rows.div_ceil(TRANSFORM_ROWS)).into_par_iter().by_task().for_each(|task| {
            let first = task * TRANSFORM_ROWS;
            let rows = first..rows.min(first + TRANSFORM_ROWS);
            self.transform_source(rows, packing, shared, first);
        });
        let points: &[f32] = &points;
        (0..self.panels.count()).into_par_iter().by_task().for_each(|panel| {
            let mut weights = Scratch::take(self.panel_len());
            self.transform_weights(panel, &mut weights);
            self.multiply(points, packing.point, 0..rows, &weights, panel);
        });
    }

    fn transform_source(&self, rows: Range<usize>, packing: Packing, to: Shared, first: usize) {
        let forward = Forward {
            grid: self.from,
            data: self.source,
            gradient: false,
            rows,
            packing,
            to,
            first,
        };
        dispatch_to(self.isa, forward);
    }

    /// `G w G^T` of one panel, `[point][depth][width]`.
    fn transform_weights(&self, panel: usize, to: &mut [f32]) {
        let mut taps = Scratch::take(self.panels.len());
        self.panels.pack(self.isa, self.weights, panel, &mut taps);
        let transform = Weights {
            scheme: self.scheme(),
            taps: &taps,
            // The input gradient is a convolution with the kernel turned around.
            turned: self.panels.role == Role::InputGradient,
            point: self.weight_point(),
            to,
        };
        dispatch_to(self.isa, transform);
    }

    /// Multiplies `rows` of transformed source with the weights of some panels, from `first` on, at
    /// every point, and transforms the products back into the result.
    fn multiply(
        &self,
        points: &[f32],
        source_point: usize,
        rows: Range<usize>,
        weights: &[f32],
        first: usize,
    ) {
        let (depth, width) = (self.panels.depth, self.panels.width);
        let count = weights.len() / self.panel_len();
        let cols = count * width;
        let point = point_stride(rows.len() * cols);
        let points_of_tile = self.scheme().points();
        let mut products = Scratch::take(points_of_tile * point);
        for xi in 0..points_of_tile {
            for panel in 0..count {
                let b = panel * self.panel_len() + xi * self.weight_point();
                let next_b = if panel + 1 < count {
                    b + self.panel_len()
                } else {
                    (xi + 1) * self.weight_point()
                };
                let product = Product {
                    segments: &[(0, 0)],
                    depth,
                    a: points[xi * source_point..][..rows.len() * depth].as_ptr(),
                    a_row: depth,
                    a_step: 1,
                    b: weights[b..][..depth * width].as_ptr(),
                    b_step: width,
                    next: Next { b: weights.get(next_b..).map(<[f32]>::as_ptr), ..Next::default() },
                    c: products[xi * point + panel * width..].as_mut_ptr(),
                    c_row: cols,
                    cols: width,
                    accumulate: false,
                };
                // SAFETY: the slices hold all rows of the source and the whole panel at this point;
                // `products` holds `rows` rows of `cols` at each point, and is our
                // own.
                unsafe { self.kernel.run(rows.len(), &product) };
            }
        }
        let channels = first * width..self.panels.cols.min((first + count) * width);
        let backward = Backward {
            grid: self.to,
            products: &products,
            width: cols,
            point,
            rows,
            channels,
            to: self.result,
        };
        dispatch_to(self.isa, backward);
    }
}

/// How many rows to give a task, in whole tiles, so that the busiest thread has as few tiles as
/// possible.
fn rows_per_task(rows: usize, tile_rows: usize, threads: usize) -> usize {
    let (tiles, best) = (rows.div_ceil(tile_rows), TASK_ROWS.div_ceil(tile_rows));
    let busiest = |each: usize| {
        let (tasks, rest) = (tiles / each, tiles % each);
        let last = if tasks.is_multiple_of(threads) { rest } else { each };
        tasks / threads * each + last
    };
    let tiles = (best.div_ceil(2)..=best * 3 / 2)
        .min_by_key(|&each| (busiest(each), each.abs_diff(best)))
        .unwrap_or(best);
    tiles * tile_rows
}

/// `G w G^T`: nine taps to the points, element by element of a panel.
struct Weights<'a> {
    scheme: Scheme,
    taps: &'a [f32],
    turned: bool,
    /// From one point to the next.
    point: usize,
    to: &'a mut [f32],
}

impl Kernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let c = Constants::<S::F32>::new();
        match self.scheme {
            Scheme::Tiles => self.transform::<S, 6>(transform::weights, c),
            Scheme::Corner => self.transform::<S, 3>(corner::weights, c),
        }
    }
}

impl Weights<'_> {
    #[inline(always)]
    fn transform<S: Simd, const POINTS: usize>(
        self,
        matrix: fn([S::F32; 3], Constants<S::F32>) -> [S::F32; POINTS],
        c: Constants<S::F32>,
    ) {
        let len = self.taps.len() / 9;
        assert!(self.to.len() == POINTS * POINTS * self.point && len <= self.point);
        assert!(len.is_multiple_of(S::LANES));
        let (from, to) = (self.taps.as_ptr(), self.to.as_mut_ptr());
        for at in (0..len).step_by(S::LANES) {
            // SAFETY: nine taps and all points have `len` elements each, whole registers of them.
            unsafe {
                let mut w = [[c.zero; 3]; 3];
                for tap in 0..9 {
                    let place = if self.turned { 8 - tap } else { tap };
                    w[place / 3][place % 3] = S::F32::load(from.add(tap * len + at));
                }
                let points = transform::square(w, matrix, c);
                for i in 0..POINTS {
                    for j in 0..POINTS {
                        points[i][j].store(to.add((POINTS * i + j) * self.point + at));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_shared_out_evenly() {
        // 256 rows in tiles of 6, as VGG16 has them at 8x8 with a batch of 64.
        assert_eq!(rows_per_task(256, 6, 1), TASK_ROWS);
        assert_eq!(rows_per_task(256, 6, 2), 7 * 6, "six tasks of 7 and one of 1: 22 and 21 tiles");
        for tile_rows in [6, 12] {
            for tiles in 1..200 {
                for threads in 1..9 {
                    let rows = rows_per_task(tiles * tile_rows, tile_rows, threads);
                    assert!(rows.is_multiple_of(tile_rows));
                    let each = rows / tile_rows;
                    let mut load = vec![0; threads];
                    for task in 0..tiles.div_ceil(each) {
                        // As threads take them: the next goes to whoever is free first.
                        let free = (0..threads).min_by_key(|&i| load[i]).unwrap();
                        load[free] += each.min(tiles - task * each);
                    }
                    let most = load.into_iter().max().unwrap();
                    assert!(
                        most < tiles.div_ceil(threads) + TASK_ROWS / tile_rows / 2,
                        "{tiles} tiles of {tile_rows} on {threads}"
                    );
                }
            }
        }
    }
}
