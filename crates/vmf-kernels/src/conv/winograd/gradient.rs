//! The weight gradient through the points: `dw = G^T [ sum over tiles of (A dy A^T) . (B^T x B) ]
//! G`.

use super::scheme::Scheme;
use super::tiles::{Forward, Grid, Packing};
use super::transform::{Constants, square};
use super::{corner, transform};
use crate::conv::direct_gradient::store;
use crate::conv::shape::ConvShape;
use crate::conv::weight_gradient::{Block, Chunk, Sums, balanced};
use crate::gemm::tile::MicroKernel;
use crate::parallel::ByTask;
use crate::scratch::{Scratch, Shared};
use crate::simd::{Isa, Kernel, Simd, Vector, dispatch_to};
use rayon::prelude::*;

/// Elements of transformed activations in a chunk, at least: four megabytes.
const CHUNK_LEN: usize = 1 << 20;
/// Rows that a task transforms.
const TASK_ROWS: usize = 16;

/// `dw = dy^T * x` through the points.
pub(in crate::conv) fn run(
    isa: Isa,
    shape: &ConvShape,
    input: &[f32],
    gradient: &[f32],
    dw: &mut [f32],
) {
    let kernel = MicroKernel::of(isa);
    let (inputs, outputs) = (shape.in_channels, shape.out_channels);
    let scheme = Scheme::of(shape);
    let grid = |channels| Grid {
        scheme,
        height: shape.input[0],
        width: shape.input[1],
        batch: shape.batch,
        channels,
    };
    let rows = grid(inputs).rows();
    if rows == 0 {
        dw.fill(0.0);
        return;
    }
    // The sums are read and written once per chunk: a chunk larger than they are keeps that cheap.
    let points = scheme.points();
    let sums_len = points * inputs * outputs;
    let chunk_rows = CHUNK_LEN.max(2 * sums_len).div_ceil(points * (inputs + outputs));
    let chunk_rows = rows.div_ceil(balanced(rows.div_ceil(chunk_rows)));
    let chunks = rows.div_ceil(chunk_rows);
    let a_packing = Packing::panels(scheme, outputs, kernel.panel_rows, chunk_rows);
    let b_packing = Packing::panels(scheme, inputs, kernel.cols, chunk_rows);
    let pack = |chunk: usize, add: &mut dyn FnMut(&Chunk)| {
        let mut a = Scratch::take(a_packing.len());
        let mut b = Scratch::take(b_packing.len());
        let start = chunk * chunk_rows;
        let count = chunk_rows.min(rows - start);
        let (to_a, to_b) = (Shared::new(&mut a), Shared::new(&mut b));
        (0..count.div_ceil(TASK_ROWS)).into_par_iter().by_task().for_each(|task| {
            let first = task * TASK_ROWS;
            let rows = start + first..start + count.min(first + TASK_ROWS);
            let gradient = Forward {
                grid: grid(outputs),
                data: gradient,
                gradient: true,
                rows: rows.clone(),
                packing: a_packing,
                to: to_a,
                first,
            };
            dispatch_to(isa, gradient);
            let input = Forward {
                grid: grid(inputs),
                data: input,
                gradient: false,
                rows,
                packing: b_packing,
                to: to_b,
                first,
            };
            dispatch_to(isa, input);
        });
        let places: Vec<_> = (0..points)
            .map(|xi| (vec![(xi * a_packing.point, xi * b_packing.point)], count))
            .collect();
        add(&Chunk { a: &a, a_rows: chunk_rows, b: &b, b_rows: chunk_rows, points: &places });
    };
    let dw = Shared::new(dw);
    let finish = |block: Block, sums: &[f32]| {
        let mut taps = Scratch::take(9 * block.point);
        let transform = Finish {
            scheme,
            sums,
            len: block.rows * block.stride,
            point: block.point,
            taps: &mut taps,
        };
        dispatch_to(isa, transform);
        store(&block, &taps, 9, inputs, dw);
    };
    Sums::new(kernel, points, outputs, inputs).run(chunks, pack, finish);
}

/// `G^T u G` of a block of sums, element by element.
struct Finish<'a> {
    scheme: Scheme,
    sums: &'a [f32],
    /// Elements used at each point.
    len: usize,
    /// From one point, or tap, to the next.
    point: usize,
    taps: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let c = Constants::<S::F32>::new();
        match self.scheme {
            Scheme::Tiles => self.transform::<S, 6>(transform::weight_gradient, c),
            Scheme::Corner => self.transform::<S, 3>(corner::weight_gradient, c),
        }
    }
}

impl Finish<'_> {
    #[inline(always)]
    fn transform<S: Simd, const POINTS: usize>(
        self,
        matrix: fn([S::F32; POINTS], Constants<S::F32>) -> [S::F32; 3],
        c: Constants<S::F32>,
    ) {
        assert!(self.len <= self.point && self.len.is_multiple_of(S::LANES));
        assert!(self.sums.len() >= POINTS * POINTS * self.point);
        assert!(self.taps.len() >= 9 * self.point);
        let (from, to) = (self.sums.as_ptr(), self.taps.as_mut_ptr());
        for at in (0..self.len).step_by(S::LANES) {
            // SAFETY: the assertions above.
            unsafe {
                let mut u = [[c.zero; POINTS]; POINTS];
                for i in 0..POINTS {
                    for j in 0..POINTS {
                        u[i][j] = S::F32::load(from.add((POINTS * i + j) * self.point + at));
                    }
                }
                let taps = square(u, matrix, c);
                for i in 0..3 {
                    for j in 0..3 {
                        taps[i][j].store(to.add((3 * i + j) * self.point + at));
                    }
                }
            }
        }
    }
}
