//! The matrix product beside those of the crates `gemm`, which Candle uses, and `matrixmultiply`:
//!
//! ```text
//! cargo bench -p vmf-kernels --bench gemm --features gemm/x86-v4 -- [threads]
//! ```
//!
//! The feature lets `gemm` use AVX-512, which Candle does not ask for; `matrixmultiply` uses it by
//! default, but has a single thread and is left out if there are more. The contenders take turns
//! and the fastest run of each counts. The columns of the others are their times as multiples of
//! ours: above 1 ours is faster.
//!
//! The first table has linear layers and 1x1 convolutions (whose rows are positions times images)
//! in all three directions. The second has 3x3 convolutions of VGG16 by Winograd's algorithm: the
//! others only compute the 36 products at the points, while our time is that of the whole
//! convolution with its transforms.

mod common;

use common::{best_in_turns, fma_peak, random, with_threads};
use vmf_kernels::conv::{Algorithm, Conv2d, ConvShape};
use vmf_kernels::gemm::{Matrix, gemm};

/// Rows of the input, outputs and inputs of the layer.
const LAYERS: [(usize, usize, usize); 8] = [
    (64, 10, 512),
    (64, 512, 512),
    (64, 4096, 4096),
    (256, 256, 256),
    (768, 768, 768),
    (4096, 64, 64),
    (16384, 64, 64),
    (4096, 128, 512),
];

/// Size, input and output channels of a convolution, for a batch of 64.
const CONVOLUTIONS: [(usize, usize, usize); 5] =
    [(32, 64, 64), (16, 128, 128), (8, 256, 256), (4, 256, 512), (4, 512, 512)];

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let threads = numbers.first().copied().unwrap_or(1);
    with_threads(threads, || {
        println!("{threads} thread(s), peak {:.0} GFLOP/s", fma_peak() * threads as f64);
        println!("our GFLOP/s, and the times of gemm and matrixmultiply as multiples of ours");
        let forms = ["y = x wᵀ", "dx = dy w", "dw = dyᵀ x"].map(|form| format!("{form:^21}"));
        println!("{:>17} | {}", "rows, out, in", forms.join(" | "));
        LAYERS.into_iter().for_each(layer);
        println!("{:>17} | {:^21}", "size, in, out", "products at 36 points");
        CONVOLUTIONS.into_iter().for_each(convolution);
    });
}

fn layer((m, n, k): (usize, usize, usize)) {
    print!("{m:5} {n:5} {k:5}");
    let (x, w, y) = (random(m * k, 1), random(n * k, 2), random(m * n, 3));
    let [x, w, y] = [Operand::new(&x, m, k), Operand::new(&w, n, k), Operand::new(&y, m, n)];
    for (a, b) in [(x, w.transposed()), (y, w), (y.transposed(), x)] {
        let len = a.sizes[0] * b.sizes[1];
        let [mut ours, mut others] = [vec![0.0; len], vec![0.0; len]];
        let mut product = || gemm(a.matrix, b.matrix, &mut ours, false).unwrap();
        contest(2.0 * (m * n * k) as f64, &mut product, 1, a, b);
        for other in [by_gemm, by_matrixmultiply] {
            other(a, b, &mut others);
            assert!(ours.iter().zip(&others).all(|(x, y)| (x - y).abs() < 1e-3 * x.abs().max(1.0)));
        }
    }
    println!();
}

fn convolution((size, inputs, outputs): (usize, usize, usize)) {
    print!("{size:5} {inputs:5} {outputs:5}");
    let shape = ConvShape::same(64, inputs, outputs, [size; 2], 3);
    let conv = Conv2d::new(shape).unwrap().with_algorithm(Algorithm::Winograd);
    let (x, w) = (random(shape.input_len(), 1), random(shape.weight_len(), 2));
    let mut y = vec![0.0; shape.output_len()];
    let mut forward = || conv.forward(&x, &w, &mut y).unwrap();
    let rows = (size / 4) * (size / 4) * shape.batch;
    let (a, b) = (random(rows * inputs, 3), random(inputs * outputs, 4));
    let (a, b) = (Operand::new(&a, rows, inputs), Operand::new(&b, inputs, outputs));
    contest(shape.flops(), &mut forward, 36, a, b);
    println!();
}

/// Prints GFLOP/s of `ours`, and the times that the others take for `products` times `a b`.
fn contest(flops: f64, ours: &mut dyn FnMut(), products: usize, a: Operand, b: Operand) {
    let [mut c, mut d] = [0, 1].map(|_| vec![0.0; a.sizes[0] * b.sizes[1]]);
    let mut gemm = || (0..products).for_each(|_| by_gemm(a, b, &mut c));
    let mut matrixmultiply = || (0..products).for_each(|_| by_matrixmultiply(a, b, &mut d));
    let reps = ((4e9 / flops) as usize).clamp(7, 300);
    if rayon::current_num_threads() == 1 {
        let times = best_in_turns(reps, [ours, &mut gemm, &mut matrixmultiply]);
        let [ours, gemm, matrixmultiply] = times;
        let speed = flops / ours * 1e-9;
        print!(" | {speed:7.1} {:6.2} {:6.2}", gemm / ours, matrixmultiply / ours);
    } else {
        let [ours, gemm] = best_in_turns(reps, [ours, &mut gemm]);
        print!(" | {:7.1} {:6.2} {:>6}", flops / ours * 1e-9, gemm / ours, "-");
    }
}

/// A matrix, for us and for crates that want pointers and strides.
#[derive(Clone, Copy)]
struct Operand<'a> {
    matrix: Matrix<'a>,
    data: &'a [f32],
    sizes: [usize; 2],
    strides: [isize; 2],
}

impl<'a> Operand<'a> {
    fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        let matrix = Matrix::new(data, rows, cols).unwrap();
        Operand { matrix, data, sizes: [rows, cols], strides: [cols as isize, 1] }
    }

    fn transposed(self) -> Self {
        let ([rows, cols], [row, col]) = (self.sizes, self.strides);
        let matrix = self.matrix.transposed();
        Operand { matrix, sizes: [cols, rows], strides: [col, row], ..self }
    }
}

#[rustfmt::skip]
fn by_gemm(a: Operand, b: Operand, c: &mut [f32]) {
    let ([m, k], [_, n]) = (a.sizes, b.sizes);
    let ([a_row, a_col], [b_row, b_col], c_row) = (a.strides, b.strides, n as isize);
    let parallelism = match rayon::current_num_threads() {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    assert_eq!(c.len(), m * n);
    // SAFETY: the strides are those of matrices in slices that long.
    unsafe {
        gemm::gemm(
            m, n, k, c.as_mut_ptr(), 1, c_row, false,
            a.data.as_ptr(), a_col, a_row, b.data.as_ptr(), b_col, b_row,
            0.0, 1.0, false, false, false, parallelism,
        );
    }
}

#[rustfmt::skip]
fn by_matrixmultiply(a: Operand, b: Operand, c: &mut [f32]) {
    let ([m, k], [_, n]) = (a.sizes, b.sizes);
    let ([a_row, a_col], [b_row, b_col], c_row) = (a.strides, b.strides, n as isize);
    assert_eq!(c.len(), m * n);
    // SAFETY: the strides are those of matrices in slices that long.
    unsafe {
        matrixmultiply::sgemm(
            m, k, n, 1.0, a.data.as_ptr(), a_row, a_col, b.data.as_ptr(), b_row, b_col,
            0.0, c.as_mut_ptr(), c_row, 1,
        );
    }
}
