//! GFLOP/s of the matrix product against the processor's peak: `cargo bench -p vmf-kernels --bench gemm`.

mod common;

use common::{best, fma_peak, random, with_threads};
use vmf_kernels::gemm::{Matrix, gemm};

fn main() {
    with_threads(1, || {
        let peak = fma_peak();
        println!("one thread, peak {peak:.0} GFLOP/s");
        for (m, n, k) in [
            (64, 512, 512),
            (64, 10, 512),
            (256, 256, 256),
            (768, 768, 768),
            (4096, 64, 64),
            (64, 4096, 4096),
        ] {
            let (a, b, mut c) = (random(m * k, 1), random(k * n, 2), vec![0.0; m * n]);
            let (a, b) = (
                Matrix::new(&a, m, k).unwrap(),
                Matrix::new(&b, n, k).unwrap().transposed(),
            );
            let flops = 2.0 * (m * n * k) as f64;
            let reps = ((2e9 / flops) as usize).clamp(5, 200);
            let seconds = best(reps, || gemm(a, b, &mut c, false).unwrap());
            let speed = flops / seconds * 1e-9;
            println!(
                "{m:5} x {n:5} x {k:5}: {:8.3} ms {speed:6.1} GFLOP/s, {:3.0} % of peak",
                seconds * 1e3,
                100.0 * speed / peak
            );
        }
    });
}
