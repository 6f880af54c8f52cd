//! The weight gradient through the points:
//! `dw = Gᵀ [ sum over tiles of (A dy Aᵀ) . (Bᵀ x B) ] G`.

use super::activations::{ActivationTransform, Activations, Grid, Packing};
use super::weights::{Kind, WeightTransform};
use crate::conv::Conv2d;
use crate::conv::weight_gradient::{Chunk, Segments, Sums, balanced};
use crate::gemm::micro_kernel::MicroKernel;
use crate::parallel::{ByTask, Shared};
use crate::scratch::Scratch;
use crate::simd::dispatch_to;
use rayon::prelude::*;

/// Elements of transformed activations in a chunk, at least: four megabytes.
const CHUNK_LEN: usize = 1 << 20;
/// Rows that a task transforms.
const TASK_ROWS: usize = 16;

/// `dw = dyᵀ x` through the points.
pub(in crate::conv) fn run(conv: &Conv2d, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (isa, shape) = (conv.isa, &conv.shape);
    let (inputs, outputs) = (shape.in_channels, shape.out_channels);
    let kernel = MicroKernel::for_columns(isa, inputs);
    let [x_grid, dy_grid] = [inputs, outputs].map(|channels| Grid::new(shape, channels));
    let (scheme, points, rows) = (x_grid.scheme, x_grid.scheme.points(), x_grid.rows());
    if rows == 0 {
        dw.fill(0.0);
        return;
    }
    // The sums are read and written once per chunk: a chunk larger than they are keeps that cheap.
    let sums_len = points * inputs * outputs;
    let chunk_rows = CHUNK_LEN.max(2 * sums_len).div_ceil(points * (inputs + outputs));
    let chunk_rows = rows.div_ceil(balanced(rows.div_ceil(chunk_rows)));
    let chunks = rows.div_ceil(chunk_rows);
    let a_packing = Packing::panels(dy_grid, kernel.a_panel, chunk_rows);
    let b_packing = Packing::panels(x_grid, kernel.nr, chunk_rows);
    let pack = |chunk: usize| {
        let mut a = Scratch::take(a_packing.len());
        let mut b = Scratch::take(b_packing.len());
        let start = chunk * chunk_rows;
        let count = chunk_rows.min(rows - start);
        let (to_a, to_b) = (Shared::new(&mut a), Shared::new(&mut b));
        (0..count.div_ceil(TASK_ROWS)).into_par_iter().by_task().for_each(|task| {
            let first = task * TASK_ROWS;
            let rows = start + first..start + count.min(first + TASK_ROWS);
            let dy = ActivationTransform {
                grid: dy_grid,
                data: Activations::OutputGradient(dy),
                rows: rows.clone(),
                packing: a_packing,
                to: to_a,
                first,
            };
            dispatch_to(isa, dy);
            let x = ActivationTransform {
                grid: x_grid,
                data: Activations::Input(x),
                rows,
                packing: b_packing,
                to: to_b,
                first,
            };
            dispatch_to(isa, x);
        });
        let at_point = |point: usize| Segments {
            starts: vec![(point * a_packing.point_stride, point * b_packing.point_stride)],
            rows: count,
        };
        let products = (0..points).map(at_point).collect();
        Chunk { a, a_rows: chunk_rows, b, b_rows: chunk_rows, products }
    };
    let dw = Shared::new(dw);
    Sums::new(kernel, points, outputs, inputs).run(chunks, pack, |block, sums| {
        let stride = block.product_stride;
        let mut taps = Scratch::take(9 * stride);
        let transform = WeightTransform {
            scheme,
            kind: Kind::Gradient,
            from: (sums, stride),
            to: (&mut taps, stride),
            len: block.rows * block.row_stride,
        };
        dispatch_to(isa, transform);
        block.store(&taps, 9, inputs, dw);
    });
}
