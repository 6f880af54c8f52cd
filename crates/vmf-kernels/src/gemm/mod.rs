//! Dense matrix products, by the algorithm of Goto and van de Geijn, *Anatomy of High-Performance
//! Matrix Multiplication* (2008).
//!
//! A slab of B is packed into panels that the micro-kernel (`tile`) reads front to back: a panel of
//! B (`DEPTH` x 16 with AVX2) stays in the first-level cache while the rows of A pass by, which
//! come from the second level. Rows of A that lie in memory as such are read in place; a transposed
//! A is packed as well. Linear layers and convolutions with 1x1 kernels are this product three
//! times: `y = x wᵀ`, `dx = dy w`, `dw = dyᵀ x`.

pub(crate) mod tile;

use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::scratch::{Scratch, Shared};
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use crate::transpose::transpose;
use rayon::prelude::*;
use tile::{MicroKernel, Next, Product};

/// Depth of a packed slab: a panel of B has 16 KB with AVX2, 32 KB with AVX-512, as much as a
/// first-level cache.
const DEPTH: usize = 256;
/// Rows of A in a block: with [`DEPTH`], under a megabyte.
const ROWS: usize = 768;
/// Columns of a packed slab of B.
const COLS: usize = 1024;
/// Steps of the sum that are packed at a time, so that the lines written to stay in cache.
const BLOCK: usize = 32;
/// Rows, and panels of B, in one task, at most.
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
}

impl<'a> Matrix<'a> {
    /// A row-major matrix.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Result<Self, Error> {
        check_length("data", data.len(), elements(rows, cols)?)?;
        Ok(Matrix { data, rows, cols, row_stride: cols, col_stride: 1 })
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

    /// Some rows and columns of it, of which there is at least one each.
    fn part(self, row: usize, rows: usize, col: usize, cols: usize) -> Self {
        Matrix {
            data: &self.data[row * self.row_stride + col * self.col_stride..],
            rows,
            cols,
            ..self
        }
    }
}

/// The elements of a matrix. Whatever is reached in one whose elements can be counted has a place
/// that can be, too.
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
    let kernel = MicroKernel::of(isa);
    let stride = b.cols;
    let c = Shared::new(c);
    for col in (0..b.cols).step_by(COLS) {
        let cols = COLS.min(b.cols - col);
        for k in (0..a.cols).step_by(DEPTH) {
            let depth = DEPTH.min(a.cols - k);
            let b_panels = pack(isa, b.transposed().part(col, cols, k, depth), kernel.cols);
            for row in (0..a.rows).step_by(ROWS) {
                let rows = ROWS.min(a.rows - row);
                let block = Block {
                    rows,
                    cols,
                    depth,
                    c,
                    origin: row * stride + col,
                    stride,
                    accumulate: accumulate || k > 0,
                };
                let part = a.part(row, rows, k, depth);
                if a.col_stride == 1 {
                    block.multiply(kernel, Left::in_place(part), &b_panels);
                } else {
                    let packed = pack(isa, part, kernel.panel_rows);
                    block.multiply(kernel, Left::packed(&packed, depth, kernel), &b_panels);
                }
            }
        }
    }
    Ok(())
}

/// Copies a matrix into panels of `width` rows: `[panel][column][row within panel]`, the last panel
/// padded with zeros.
fn pack(isa: Isa, m: Matrix, width: usize) -> Scratch {
    let mut packed = Scratch::take(m.rows.div_ceil(width) * width * m.cols);
    packed.par_chunks_mut(width * m.cols).by_task().enumerate().for_each(|(panel, to)| {
        let first = panel * width;
        let rows = width.min(m.rows - first);
        if rows < width {
            to.fill(0.0);
        }
        let m = m.part(first, rows, 0, m.cols);
        dispatch_to(isa, PackPanel { m, width, to });
    });
    packed
}

struct PackPanel<'a> {
    m: Matrix<'a>,
    width: usize,
    to: &'a mut [f32],
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let PackPanel { m, width, to } = self;
        if m.row_stride == 1 {
            for (col, to) in to.chunks_exact_mut(width).enumerate() {
                to[..m.rows].copy_from_slice(&m.data[col * m.col_stride..][..m.rows]);
            }
            return;
        }
        let places: [usize; BLOCK] = std::array::from_fn(|col| col * width);
        for block in (0..m.cols).step_by(BLOCK) {
            let places = &places[..BLOCK.min(m.cols - block)];
            let (from, to) = (&m.data[block..], &mut to[block * width..]);
            transpose::<S>(from, m.row_stride, m.rows, places, to, BLOCK);
        }
    }
}

/// The rows of A in a block, as the micro-kernel reads them.
#[derive(Clone, Copy)]
struct Left<'a> {
    data: &'a [f32],
    /// From one row to the next, and from one step of the sum to the next.
    row: usize,
    step: usize,
    /// The rows of a panel and its elements, if A was packed.
    panel: Option<(usize, usize)>,
}

impl<'a> Left<'a> {
    /// Rows that lie in memory as such.
    fn in_place(m: Matrix<'a>) -> Self {
        Left { data: m.data, row: m.row_stride, step: 1, panel: None }
    }

    /// Rows that were packed into panels.
    fn packed(data: &'a [f32], depth: usize, kernel: MicroKernel) -> Self {
        let width = kernel.panel_rows;
        Left { data, row: 1, step: width, panel: Some((width, width * depth)) }
    }

    /// The elements from `row` on, which is the first of a panel if there are any, and those of the
    /// panel that follows.
    fn at_row(&self, row: usize) -> (&'a [f32], Option<&'a [f32]>) {
        match self.panel {
            None => (&self.data[row * self.row..], None),
            Some((rows, len)) => {
                let (own, following) = self.data[row / rows * len..].split_at(len);
                (own, Some(following))
            }
        }
    }
}

/// How many rows, and how many panels of B, to give a task, so that every thread has several.
fn task_size(rows: usize, panels: usize, least_rows: usize, threads: usize) -> (usize, usize) {
    let mut size = TASK;
    let tasks = |(r, p): (usize, usize)| rows.div_ceil(r) * panels.div_ceil(p);
    while tasks(size) < TASKS * threads && size != (least_rows, 1) {
        size = match size {
            (rows, 1) => ((rows / 2).max(least_rows), 1),
            (rows, panels) => (rows, panels / 2),
        };
    }
    size
}

/// Some rows and columns of C, to which a slab of the sum contributes.
struct Block<'a> {
    rows: usize,
    cols: usize,
    depth: usize,
    c: Shared<'a>,
    /// The first element, and from one row to the next.
    origin: usize,
    stride: usize,
    accumulate: bool,
}

impl Block<'_> {
    fn multiply(&self, kernel: MicroKernel, a: Left, b: &[f32]) {
        let (width, panel_len) = (kernel.cols, kernel.cols * self.depth);
        let panels = self.cols.div_ceil(width);
        let (least, threads) = (kernel.panel_rows, rayon::current_num_threads());
        let (task_rows, task_panels) = task_size(self.rows, panels, least, threads);
        let step = a.panel.map_or(task_rows, |(rows, _)| rows);
        assert!(task_rows.is_multiple_of(step));
        let across = panels.div_ceil(task_panels);
        (0..self.rows.div_ceil(task_rows) * across).into_par_iter().by_task().for_each(|task| {
            let (down, right) = (task / across * task_rows, task % across * task_panels);
            let last = panels.min(right + task_panels);
            for panel in right..last {
                let cols = width.min(self.cols - panel * width);
                let next_b = (panel + 1 < last).then(|| b[(panel + 1) * panel_len..].as_ptr());
                for row in (down..self.rows.min(down + task_rows)).step_by(step) {
                    let rows = step.min(self.rows - row);
                    let (left, next_a) = a.at_row(row);
                    assert!((rows - 1) * a.row + (self.depth - 1) * a.step < left.len());
                    let at = self.origin + row * self.stride + panel * width;
                    let product = Product {
                        segments: &[(0, 0)],
                        depth: self.depth,
                        a: left.as_ptr(),
                        a_row: a.row,
                        a_step: a.step,
                        b: b[panel * panel_len..][..panel_len].as_ptr(),
                        b_step: width,
                        next: Next { a: next_a.map(<[f32]>::as_ptr), b: next_b },
                        c: self.c.at(at, (rows - 1) * self.stride + cols),
                        c_row: self.stride,
                        cols,
                        accumulate: self.accumulate,
                    };
                    // SAFETY: A's last element was checked above, the slice of B is a whole panel,
                    // `at` checked C's last element. Steps divide tasks, so
                    // each task writes elements of its own.
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
        for least in [12, 24, 48] {
            for threads in [1, 2, 8, 64] {
                for (rows, panels) in [(64, 2), (64, 32), (768, 32), (1, 1)] {
                    let (r, p) = task_size(rows, panels, least, threads);
                    assert!(r.is_multiple_of(least) && (1..=TASK.1).contains(&p));
                    let enough = rows.div_ceil(r) * panels.div_ceil(p) >= TASKS * threads;
                    assert!(enough || (r, p) == (least, 1), "{rows} {panels} {threads}");
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
