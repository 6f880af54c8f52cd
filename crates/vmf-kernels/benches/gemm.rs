//! GFLOP/s of the matrix product against the processor's peak, in the three forms that a linear
//! layer needs: `cargo bench -p vmf-kernels --bench gemm -- [threads]`.

mod common;

use common::{best, fma_peak, random, with_threads};
use vmf_kernels::gemm::{Matrix, gemm};

/// Rows of the input, outputs and inputs of the layer.
const LAYERS: [(usize, usize, usize); 6] = [
    (64, 512, 512),
    (64, 10, 512),
    (256, 256, 256),
    (768, 768, 768),
    (4096, 64, 64),
    (64, 4096, 4096),
];

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let threads = numbers.first().copied().unwrap_or(1);
    with_threads(threads, || {
        let peak = fma_peak() * threads as f64;
        println!("{threads} thread(s), peak {peak:.0} GFLOP/s; GFLOP/s and % of peak");
        println!(
            "{:>18} | {:^14} | {:^14} | {:^14}",
            "rows, out, in", "y = x wᵀ", "dx = dy w", "dw = dyᵀ x"
        );
        for (m, n, k) in LAYERS {
            print!("{m:5} {n:5} {k:5} ");
            let speeds = layer(m, n, k);
            for speed in speeds {
                print!(" | {speed:6.1} {:5.0} %", 100.0 * speed / peak);
            }
            println!();
        }
    });
}

/// GFLOP/s of output, input gradient and weight gradient.
fn layer(m: usize, n: usize, k: usize) -> [f64; 3] {
    let (mut x, mut w, mut y) = (random(m * k, 1), random(n * k, 2), random(m * n, 3));
    let flops = 2.0 * (m * n * k) as f64;
    let reps = ((2e9 / flops) as usize).clamp(5, 200);
    let forward = best(reps, || {
        gemm(matrix(&x, m, k), matrix(&w, n, k).transposed(), &mut y, false).unwrap();
    });
    let input_gradient = best(reps, || {
        gemm(matrix(&y, m, n), matrix(&w, n, k), &mut x, false).unwrap();
    });
    let weight_gradient = best(reps, || {
        gemm(matrix(&y, m, n).transposed(), matrix(&x, m, k), &mut w, false).unwrap();
    });
    [forward, input_gradient, weight_gradient].map(|seconds| flops / seconds * 1e-9)
}

fn matrix(data: &[f32], rows: usize, cols: usize) -> Matrix<'_> {
    Matrix::new(data, rows, cols).unwrap()
}
