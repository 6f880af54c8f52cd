//! 3x3 convolution (stride 1, padding 1) by Winograd's minimal filtering, F(4x4, 3x3).
//!
//! The image is cut into tiles of 4x4 outputs. A tile sees 6x6 inputs, which are transformed to 36 points; so are the
//! weights; the convolution is then one product of matrices at each point, (tiles x images) x (channels) x (channels),
//! and a transform back: 36 multiplications where the taps would take 144. See [`transform`] for the matrices.
//!
//! # Error
//! The transforms add and scale by up to 8 and 1/24 and so lose some digits: for normal inputs the largest error
//! stays below `2e-5` of the largest output, against `4e-6` directly (both tested in `conv::tests`).

// Small matrices of registers: the indices are those of the formulas.
#![allow(clippy::needless_range_loop)]

mod gradient;
mod tiles;
mod transform;

use super::shape::ConvShape;
use super::weights::{Panels, Role};
use crate::gemm::tile::{MicroKernel, Product};
use crate::parallel::ByTask;
use crate::scratch::{Scratch, Shared};
use crate::simd::Isa;
use crate::vector::{Vector, VectorKernel, dispatch_vector};
pub(super) use gradient::run as weight_gradient;
use rayon::prelude::*;
use std::ops::Range;
use tiles::{Backward, Forward, Grid, POINTS, Packing, point_stride};
use transform::Constants;

/// Whether it is faster than the taps for the forward pass and the input gradient.
pub(super) fn pays_forward(shape: &ConvShape) -> bool {
    let [height, width] = shape.input;
    height.min(width) >= 4 && shape.in_channels.min(shape.out_channels) >= 16
}

/// Whether it is faster than the taps for the weight gradient.
pub(super) fn pays_weight_gradient(shape: &ConvShape) -> bool {
    pays_forward(shape)
}

/// Rows that a task transforms at once: their products at one point stay in the second-level cache.
const TASK_ROWS: usize = 48;
/// Panels that a task multiplies before it transforms them back.
const TASK_PANELS: usize = 2;

/// `result = source * weights`, in the sense of `role`.
///
/// Of the transformed weights and the transformed source, the smaller is computed as a whole, and the tasks make the
/// other piece by piece in memory of their own: pieces of the source (rows) for large images, pieces of the weights
/// (panels of channels) for small images with many channels.
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
    /// From one point to the next in a panel of transformed weights, `[point][depth][width]`.
    fn weight_point(&self) -> usize {
        point_stride(self.panels.depth * self.panels.width)
    }

    /// Elements of one panel of transformed weights.
    fn panel_len(&self) -> usize {
        POINTS * self.weight_point()
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
        (0..rows.div_ceil(TASK_ROWS))
            .into_par_iter()
            .by_task()
            .for_each(|task| {
                let rows = task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS);
                let packing = Packing::plain(self.panels.depth, rows.len());
                let mut points = Scratch::take(packing.len());
                self.transform_source(rows.clone(), packing, Shared::new(&mut points), 0);
                for first in (0..self.panels.count()).step_by(TASK_PANELS) {
                    let count = TASK_PANELS.min(self.panels.count() - first);
                    let weights = &weights[first * self.panel_len()..][..count * self.panel_len()];
                    self.multiply(&points, packing.point, rows.clone(), weights, first);
                }
            });
    }

    fn by_panels(&self) {
        let rows = self.from.rows();
        let packing = Packing::plain(self.panels.depth, rows);
        let mut points = Scratch::take(packing.len());
        let shared = Shared::new(&mut points);
        (0..rows.div_ceil(TASK_ROWS))
            .into_par_iter()
            .by_task()
            .for_each(|task| {
                let first = task * TASK_ROWS;
                let rows = first..rows.min(first + TASK_ROWS);
                self.transform_source(rows, packing, shared, first);
            });
        let points: &[f32] = &points;
        (0..self.panels.count().div_ceil(TASK_PANELS))
            .into_par_iter()
            .by_task()
            .for_each(|task| {
                let first = task * TASK_PANELS;
                let count = TASK_PANELS.min(self.panels.count() - first);
                let mut weights = Scratch::take(count * self.panel_len());
                for (i, to) in weights.chunks_exact_mut(self.panel_len()).enumerate() {
                    self.transform_weights(first + i, to);
                }
                self.multiply(points, packing.point, 0..rows, &weights, first);
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
        dispatch_vector(self.isa, forward);
    }

    /// `G w G^T` of one panel, `[point][depth][width]`.
    fn transform_weights(&self, panel: usize, to: &mut [f32]) {
        let mut taps = Scratch::take(self.panels.len());
        self.panels.pack(self.weights, panel, &mut taps);
        let transform = Weights {
            taps: &taps,
            // The input gradient is a convolution with the kernel turned around.
            turned: self.panels.role == Role::InputGradient,
            point: self.weight_point(),
            to,
        };
        dispatch_vector(self.isa, transform);
    }

    /// Multiplies `rows` of transformed source with the weights of some panels, from `first` on, at every point, and
    /// transforms the products back into the result.
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
        let mut products = Scratch::take(POINTS * point);
        for xi in 0..POINTS {
            for panel in 0..count {
                let product = Product {
                    segments: &[(0, 0)],
                    depth,
                    a: points[xi * source_point..][..rows.len() * depth].as_ptr(),
                    a_row: depth,
                    a_step: 1,
                    b: weights[panel * self.panel_len() + xi * self.weight_point()..]
                        [..depth * width]
                        .as_ptr(),
                    b_step: width,
                    c: products[xi * point + panel * width..].as_mut_ptr(),
                    c_row: cols,
                    cols: width,
                    accumulate: false,
                };
                // SAFETY: the slices hold all rows of the source and the whole panel at this point; `products` holds
                // `rows` rows of `cols` at each point, and is our own.
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
        dispatch_vector(self.isa, backward);
    }
}

/// `G w G^T` of nine taps to 36 points, element by element of a panel.
struct Weights<'a> {
    taps: &'a [f32],
    turned: bool,
    /// From one point to the next.
    point: usize,
    to: &'a mut [f32],
}

impl VectorKernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let len = self.taps.len() / 9;
        assert!(self.to.len() == POINTS * self.point && len <= self.point);
        let (from, to) = (self.taps.as_ptr(), self.to.as_mut_ptr());
        // SAFETY: nine taps and 36 points of `len` elements each, a multiple of the register's lanes as panels are.
        unsafe {
            let c = Constants::<V>::new();
            for at in (0..len).step_by(V::LANES) {
                let mut w = [[c.zero; 3]; 3];
                for tap in 0..9 {
                    let place = if self.turned { 8 - tap } else { tap };
                    w[place / 3][place % 3] = V::load(from.add(tap * len + at));
                }
                let points = transform::square(w, transform::weights, c);
                for i in 0..6 {
                    for j in 0..6 {
                        points[i][j].store(to.add((6 * i + j) * self.point + at));
                    }
                }
            }
        }
    }
}
