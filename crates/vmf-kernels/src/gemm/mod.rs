//! Dense matrix products, by the algorithm of Goto and van de Geijn, *Anatomy of High-Performance Matrix
//! Multiplication* (2008).
//!
//! A slab of B and a block of A are packed into panels that the micro-kernel (`tile`) reads front to back: a panel
//! of B (`DEPTH` x 16 with AVX2) stays in the first-level cache while the panels of A pass by, which come from the
//! second level. Linear layers are this product three times: `y = x wᵀ`, `dx = dy w`, `dw = dyᵀ x`.

pub(crate) mod tile;

use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::scratch::{Scratch, Shared};
use crate::simd::Isa;
use rayon::prelude::*;
use tile::{MicroKernel, Next, Product};

/// Depth of a packed slab: a panel of B of this depth fits in half of the first-level cache.
const DEPTH: usize = 256;
/// Rows of a packed block of A: with [`DEPTH`], under a megabyte.
const ROWS: usize = 768;
/// Columns of a packed slab of B.
const COLS: usize = 1024;
/// Elements of a row that are packed at a time.
const BLOCK: usize = 16;
/// Tiles of rows, and panels, in one task.
const TASK: (usize, usize) = (16, 8);

/// A matrix in a slice, row-major or transposed.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Result<Self, Error> {
        check_length("data", data.len(), rows * cols)?;
        Ok(Matrix {
            data,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        })
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
    check_length("c", c.len(), a.rows * b.cols)?;
    if a.cols == 0 && !accumulate {
        c.fill(0.0);
    }
    let kernel = MicroKernel::of(isa);
    let stride = b.cols;
    let c = Shared::new(c);
    for col in (0..b.cols).step_by(COLS) {
        let cols = COLS.min(b.cols - col);
        for k in (0..a.cols).step_by(DEPTH) {
            let depth = DEPTH.min(a.cols - k);
            let b_panels = pack(b.transposed(), col, cols, k, depth, kernel.cols);
            for row in (0..a.rows).step_by(ROWS) {
                let rows = ROWS.min(a.rows - row);
                let a_panels = pack(a, row, rows, k, depth, kernel.rows);
                let block = Block {
                    rows,
                    cols,
                    depth,
                    stride,
                    accumulate: accumulate || k > 0,
                };
                block.multiply(kernel, &a_panels, &b_panels, c, row * stride + col);
            }
        }
    }
    Ok(())
}

/// Packs rows `first..first + count`, `depth` elements of each from column `k`, into panels of `width` rows:
/// `[panel][k][row within panel]`, the last panel padded with zeros.
fn pack(m: Matrix, first: usize, count: usize, k: usize, depth: usize, width: usize) -> Scratch {
    let mut packed = Scratch::take(count.div_ceil(width) * width * depth);
    let pack_panel = |(panel, to): (usize, &mut [f32])| {
        let rows = width.min(count - panel * width);
        if rows < width {
            to.fill(0.0);
        }
        let row = first + panel * width;
        if m.row_stride == 1 {
            for (step, to) in to.chunks_exact_mut(width).enumerate() {
                let from = &m.data[(k + step) * m.col_stride + row..][..rows];
                to[..rows].copy_from_slice(from);
            }
        } else {
            // By short blocks of each row, so that the lines written to stay in cache.
            for (block, to) in to.chunks_mut(BLOCK * width).enumerate() {
                let steps = to.len() / width;
                for r in 0..rows {
                    let from = (row + r) * m.row_stride + k + block * BLOCK;
                    let from = &m.data[from..][..steps];
                    for (to, from) in to[r..].iter_mut().step_by(width).zip(from) {
                        *to = *from;
                    }
                }
            }
        }
    };
    packed
        .par_chunks_mut(width * depth)
        .by_task()
        .enumerate()
        .for_each(pack_panel);
    packed
}

/// One packed block of A times one packed slab of B.
struct Block {
    rows: usize,
    cols: usize,
    depth: usize,
    /// From one row of C to the next.
    stride: usize,
    accumulate: bool,
}

impl Block {
    fn multiply(&self, kernel: MicroKernel, a: &[f32], b: &[f32], c: Shared, origin: usize) {
        let (tile_rows, tile_cols) = (kernel.rows, kernel.cols);
        let (a_panels, b_panels) = (self.rows.div_ceil(tile_rows), self.cols.div_ceil(tile_cols));
        let across = b_panels.div_ceil(TASK.1);
        (0..a_panels.div_ceil(TASK.0) * across)
            .into_par_iter()
            .by_task()
            .for_each(|task| {
                let (down, right) = (task / across * TASK.0, task % across * TASK.1);
                for pb in right..b_panels.min(right + TASK.1) {
                    for pa in down..a_panels.min(down + TASK.0) {
                        let rows = tile_rows.min(self.rows - pa * tile_rows);
                        let cols = tile_cols.min(self.cols - pb * tile_cols);
                        let at = origin + pa * tile_rows * self.stride + pb * tile_cols;
                        let product = Product {
                            segments: &[(0, 0)],
                            depth: self.depth,
                            a: a[pa * tile_rows * self.depth..][..tile_rows * self.depth].as_ptr(),
                            a_row: 1,
                            a_step: tile_rows,
                            b: b[pb * tile_cols * self.depth..][..tile_cols * self.depth].as_ptr(),
                            b_step: tile_cols,
                            next: Next::default(),
                            c: c.at(at, (rows - 1) * self.stride + cols),
                            c_row: self.stride,
                            cols,
                            accumulate: self.accumulate,
                        };
                        // SAFETY: the slices above hold whole panels of this depth, `at` checked C's last element,
                        // and each task writes tiles of its own.
                        unsafe { kernel.run(rows, &product) };
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
            (13, 1100, 5),
            (800, 33, 300),
        ];
        for isa in Isa::available() {
            for (m, n, k) in shapes {
                let (a, b) = (rng.normals(m * k), rng.normals(k * n));
                for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false)] {
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
    fn an_empty_sum_is_zero() {
        let mut c = [1.0; 6];
        let (a, b) = (
            Matrix::new(&[], 2, 0).unwrap(),
            Matrix::new(&[], 0, 3).unwrap(),
        );
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
    }
}
