//! Dense matrix products, by the algorithm of Goto and van de Geijn, *Anatomy of High-Performance
//! Matrix Multiplication* (2008), with the names that BLIS gives its parts.
//!
//! A block of B, `KC x NC`, is packed into panels of NR columns. One panel stays in the first-level
//! cache while the rows of A, `MC` of them at a time from the second level, pass through the
//! micro-kernel (`micro_kernel.rs`). A is read in place unless its columns lie far apart in memory,
//! in which case it is packed as well. Linear layers and convolutions with 1x1 kernels are this
//! product three times: `y = x wᵀ`, `dx = dy w`, `dw = dyᵀ x`.
//!
//! # Beside other crates
//!
//! `benches/gemm.rs` takes turns with two other products. Their times as multiples of ours, one
//! thread, 2026-11-18, Intel Xeon (Sapphire Rapids, AVX-512), beside other work on the machine:
//!
//! | rows, outputs, inputs | `y`, `dx`, `dw`: `gemm` as Candle builds it | `gemm` with AVX-512 | `matrixmultiply` |
//! |---|---|---|---|
//! | 64, 10, 512 | 0.91, 1.00, 0.89 | 1.07, 0.73, 0.47 | 0.94, 1.35, 1.07 |
//! | 64, 512, 512 | 1.51, 1.60, 1.63 | 1.30, 0.98, 0.90 | 0.92, 1.08, 0.85 |
//! | 256, 256, 256 | 1.76, 1.79, 1.84 | 0.96, 0.91, 1.02 | 1.04, 1.01, 1.00 |
//! | 768, 768, 768 | 1.71, 1.79, 1.69 | 0.99, 0.90, 0.89 | 1.05, 1.07, 0.93 |
//! | 16384, 64, 64 | 1.56, 1.59, 1.67 | 0.82, 0.85, 0.79 | 1.12, 1.09, 0.98 |
//! | 4096, 128, 512 | 1.78, 1.69, 1.81 | 0.98, 1.00, 1.03 | 1.15, 1.04, 1.04 |
//!
//! With AVX-512 `gemm` is faster for few channels. We do not call it there because AVX-512 is a
//! feature that a library can only turn on for the whole program, Candle's own products included,
//! and because the length of its partial sums depends on the sizes of the caches that it finds.

pub(crate) mod micro_kernel;
pub(crate) mod pack;

use crate::error::{Error, check_length};
use crate::parallel::{ByTask, Shared};
use crate::simd::Isa;
use micro_kernel::{MicroKernel, Next, Product};
use pack::pack;
use rayon::prelude::*;

/// Steps of the sum in a block: a panel of B has 16 KB with AVX2 and 32 KB with AVX-512, as much as
/// a first-level cache.
const KC: usize = 256;
/// Rows of A in a block: with [`KC`], under a megabyte.
const MC: usize = 768;
/// Columns of B in a block.
const NC: usize = 1024;
/// The largest distance between the columns of a transposed A that is read in place: with [`KC`]
/// columns, half a megabyte of the second-level cache.
const MAX_COL_STRIDE: usize = 512;
/// Rows of A, and panels of B, in one task, at most.
const TASK: (usize, usize) = (96, 8);
/// Tasks that each thread should have, so that none waits long for another.
const TASKS: usize = 4;

/// A matrix in a slice, row-major or transposed.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    /// Numbers of an element: one, or the taps of a convolution's weights.
    taps: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Result<Self, Error> {
        check_length("data", data.len(), elements(rows, cols)?)?;
        Ok(Matrix::with_taps(data, rows, cols, 1))
    }

    /// The weights of a convolution, `(outputs, inputs, taps)`, for [`pack`].
    pub(crate) fn with_taps(data: &'a [f32], rows: usize, cols: usize, taps: usize) -> Self {
        Matrix { data, rows, cols, row_stride: cols * taps, col_stride: taps, taps }
    }

    /// The same elements seen as the transpose.
    pub fn transposed(self) -> Self {
        Matrix {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// `rows` rows from `row` on and `cols` columns from `col` on, at least one of each.
    pub(crate) fn part(self, row: usize, rows: usize, col: usize, cols: usize) -> Self {
        let first = row * self.row_stride + col * self.col_stride;
        Matrix { data: &self.data[first..], rows, cols, ..self }
    }
}

/// The elements of a matrix, if they can be counted. Every place inside such a matrix can be, too.
fn elements(rows: usize, cols: usize) -> Result<usize, Error> {
    rows.checked_mul(cols).ok_or_else(|| Error::Value {
        name: "shape",
        value: format!("{rows} x {cols}"),
        requirement: "small enough for its elements to be counted",
    })
}

/// `c = a b`, or `c += a b`, with `c` row-major.
///
/// The result is the same, bit for bit, for any number of threads.
pub fn gemm(a: Matrix, b: Matrix, c: &mut [f32], accumulate: bool) -> Result<(), Error> {
    gemm_on(Isa::current(), a, b, c, accumulate)
}

/// [`gemm`] on a given instruction set.
pub fn gemm_on(
    isa: Isa,
    a: Matrix,
    b: Matrix,
    c: &mut [f32],
    accumulate: bool,
) -> Result<(), Error> {
    if a.cols != b.rows {
        return Err(Error::Value {
            name: "a.cols",
            value: format!("{} for {} rows of b", a.cols, b.rows),
            requirement: "equal to the rows of b",
        });
    }
    check_length("c", c.len(), elements(a.rows, b.cols)?)?;
    if a.cols == 0 && !accumulate {
        c.fill(0.0);
    }
    let kernel = MicroKernel::for_columns(isa, b.cols);
    let c_stride = b.cols;
    let c = Shared::new(c);
    for col in (0..b.cols).step_by(NC) {
        let cols = NC.min(b.cols - col);
        for k in (0..a.cols).step_by(KC) {
            let kc = KC.min(a.cols - k);
            let b_panels = pack(isa, &[b.transposed().part(col, cols, k, kc)], kernel.nr);
            for row in (0..a.rows).step_by(MC) {
                let rows = MC.min(a.rows - row);
                let block = Block {
                    kernel,
                    rows,
                    cols,
                    kc,
                    c,
                    c_first: row * c_stride + col,
                    c_stride,
                    accumulate: accumulate || k > 0,
                };
                let a = a.part(row, rows, k, kc);
                if a.col_stride <= MAX_COL_STRIDE {
                    block.multiply(BlockOfA::InPlace(a), &b_panels);
                } else {
                    let a_panels = pack(isa, &[a], kernel.a_panel);
                    block.multiply(BlockOfA::Packed(&a_panels), &b_panels);
                }
            }
        }
    }
    Ok(())
}

/// `MC x KC` elements of A.
#[derive(Clone, Copy)]
enum BlockOfA<'a> {
    /// Rows, or columns, that are contiguous in memory.
    InPlace(Matrix<'a>),
    /// Panels of [`MicroKernel::a_panel`] rows.
    Packed(&'a [f32]),
}

/// How many rows, and how many panels of B, to give a task, so that every thread has several.
fn task_size(rows: usize, panels: usize, a_panel: usize, threads: usize) -> (usize, usize) {
    let mut size = TASK;
    let tasks = |(r, p): (usize, usize)| rows.div_ceil(r) * panels.div_ceil(p);
    while tasks(size) < TASKS * threads && size != (a_panel, 1) {
        size = match size {
            (rows, 1) => ((rows / 2).max(a_panel), 1),
            (rows, panels) => (rows, panels / 2),
        };
    }
    size
}

/// `MC x NC` elements of C, to which `KC` steps of the sum contribute.
struct Block<'a> {
    kernel: MicroKernel,
    rows: usize,
    cols: usize,
    kc: usize,
    c: Shared<'a>,
    /// The block's first element in C.
    c_first: usize,
    /// From one row of C to the next.
    c_stride: usize,
    accumulate: bool,
}

impl Block<'_> {
    fn multiply(&self, a: BlockOfA, b: &[f32]) {
        let MicroKernel { nr, a_panel, .. } = self.kernel;
        let (kc, panels) = (self.kc, self.cols.div_ceil(nr));
        let threads = rayon::current_num_threads();
        let (task_rows, task_panels) = task_size(self.rows, panels, a_panel, threads);
        // A packed A is multiplied panel by panel.
        let step = match a {
            BlockOfA::InPlace(_) => task_rows,
            BlockOfA::Packed(_) => a_panel,
        };
        assert!(task_rows.is_multiple_of(step));
        let across = panels.div_ceil(task_panels);
        (0..self.rows.div_ceil(task_rows) * across).into_par_iter().by_task().for_each(|task| {
            let (down, right) = (task / across * task_rows, task % across * task_panels);
            let last = panels.min(right + task_panels);
            for panel in right..last {
                let cols = nr.min(self.cols - panel * nr);
                let next_b = (panel + 1 < last).then(|| b[(panel + 1) * nr * kc..].as_ptr());
                for row in (down..self.rows.min(down + task_rows)).step_by(step) {
                    let rows = step.min(self.rows - row);
                    let (a, [a_row_stride, a_k_stride], next_a) = match a {
                        BlockOfA::InPlace(a) => {
                            (&a.data[row * a.row_stride..], [a.row_stride, a.col_stride], None)
                        }
                        BlockOfA::Packed(a) => {
                            let (panel, next) = a[row * kc..].split_at(a_panel * kc);
                            (panel, [1, a_panel], Some(next.as_ptr()))
                        }
                    };
                    assert!((rows - 1) * a_row_stride + (kc - 1) * a_k_stride < a.len());
                    let c = self.c_first + row * self.c_stride + panel * nr;
                    let product = Product {
                        rows,
                        cols,
                        segments: &[(0, 0)],
                        kc,
                        a: a.as_ptr(),
                        a_row_stride,
                        a_k_stride,
                        b: b[panel * nr * kc..][..nr * kc].as_ptr(),
                        next: Next { a: next_a, b: next_b },
                        c: self.c.at(c, (rows - 1) * self.c_stride + cols),
                        c_stride: self.c_stride,
                        accumulate: self.accumulate,
                    };
                    // SAFETY: A's last element was checked above, the slice of B is a whole panel,
                    // `at` checked C's last element. Steps divide tasks, so each task writes
                    // elements of its own.
                    unsafe { self.kernel.run(&product) };
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, assert_close};

    fn naive(a: Matrix, b: Matrix) -> Vec<f64> {
        let at = |m: Matrix, row: usize, col: usize| {
            f64::from(m.data[row * m.row_stride + col * m.col_stride])
        };
        let mut c = vec![0.0; a.rows * b.cols];
        for i in 0..a.rows {
            for j in 0..b.cols {
                c[i * b.cols + j] = (0..a.cols).map(|k| at(a, i, k) * at(b, k, j)).sum();
            }
        }
        c
    }

    #[test]
    fn products_match_a_naive_sum() {
        let mut rng = Rng::new(1);
        let shapes = [
            (1, 1, 1),
            (6, 16, 3),
            (7, 17, 513),
            (64, 10, 512),
            (1, 17, 300),
            (5, 1, 300),
            (97, 9, 257),
            (13, 1100, 5),
            (800, 33, 300),
            (769, 1025, 33),
        ];
        for isa in Isa::available() {
            for (m, n, k) in shapes {
                let (a, b) = (rng.normals(m * k), rng.normals(k * n));
                for (a_transposed, b_transposed) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let view = |data, rows, cols, transposed| match transposed {
                        false => Matrix::new(data, rows, cols).unwrap(),
                        true => Matrix::new(data, cols, rows).unwrap().transposed(),
                    };
                    let (a, b) = (view(&a, m, k, a_transposed), view(&b, k, n, b_transposed));
                    let expected = naive(a, b);
                    let mut c = vec![f32::NAN; m * n];
                    gemm_on(isa, a, b, &mut c, false).unwrap();
                    let tolerance = 1e-6 * (k as f64).sqrt() + 1e-6;
                    assert_close(&c, &expected, tolerance, &format!("{isa:?} {m}x{n}x{k}"));
                    gemm_on(isa, a, b, &mut c, true).unwrap();
                    let doubled: Vec<f64> = expected.iter().map(|x| 2.0 * x).collect();
                    assert_close(&c, &doubled, 2.0 * tolerance, &format!("{isa:?} twice"));
                }
            }
        }
    }

    #[test]
    fn every_thread_has_tasks_of_whole_panels() {
        for a_panel in [12, 24, 48] {
            for threads in [1, 2, 8, 64] {
                for (rows, panels) in [(64, 2), (64, 32), (768, 32), (1, 1)] {
                    let (r, p) = task_size(rows, panels, a_panel, threads);
                    assert!(r.is_multiple_of(a_panel) && (1..=TASK.1).contains(&p));
                    let enough = rows.div_ceil(r) * panels.div_ceil(p) >= TASKS * threads;
                    assert!(enough || (r, p) == (a_panel, 1), "{rows} {panels} {threads}");
                }
            }
        }
    }

    #[test]
    fn an_empty_sum_is_zero() {
        let mut c = [1.0; 6];
        let (a, b) = (Matrix::new(&[], 2, 0).unwrap(), Matrix::new(&[], 0, 3).unwrap());
        gemm(a, b, &mut c, true).unwrap();
        assert_eq!(c, [1.0; 6]);
        gemm(a, b, &mut c, false).unwrap();
        assert_eq!(c, [0.0; 6]);
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let data = [0.0; 6];
        assert!(Matrix::new(&data, 2, 2).is_err());
        let a = Matrix::new(&data, 2, 3).unwrap();
        assert!(gemm(a, a, &mut [0.0; 4], false).is_err());
        assert!(gemm(a, a.transposed(), &mut [0.0; 5], false).is_err());
        let error = Matrix::new(&data, usize::MAX, 2).unwrap_err().to_string();
        assert!(error.contains("elements to be counted"), "{error}");
    }
}
