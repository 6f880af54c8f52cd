//! What the benchmarks share: timing on a busy machine, the processor's peak, repeatable numbers.
#![allow(dead_code)]

use cpu_time::ThreadTime;
use std::hint::black_box;
use std::time::Instant;
use vmf_kernels::simd::{Kernel, Simd, Vector, dispatch};

/// Seconds this thread has been on a processor.
fn thread_seconds() -> f64 {
    ThreadTime::now().as_duration().as_secs_f64()
}

fn wall_seconds() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// The clock to measure with: with one thread the thread's own time, which other programs do not
/// lengthen; otherwise wall time.
pub(crate) fn now() -> f64 {
    match rayon::current_num_threads() {
        1 => thread_seconds(),
        _ => wall_seconds(),
    }
}

/// Seconds that the best of `reps` runs took, after one run to warm up.
pub(crate) fn best(reps: usize, mut f: impl FnMut()) -> f64 {
    f();
    (0..reps)
        .map(|_| {
            let start = now();
            f();
            now() - start
        })
        .fold(f64::MAX, f64::min)
}

/// Seconds that the best of `reps` runs of each contender took. They take turns, so that all see
/// the same machine.
pub(crate) fn best_in_turns<const N: usize>(
    reps: usize,
    mut contenders: [&mut dyn FnMut(); N],
) -> [f64; N] {
    let mut best = [f64::MAX; N];
    for rep in 0..=reps {
        for (best, run) in best.iter_mut().zip(&mut contenders) {
            let start = now();
            run();
            // The first round warms up.
            if rep > 0 {
                *best = best.min(now() - start);
            }
        }
    }
    best
}

/// GFLOP/s of a loop of independent fused multiply-adds in registers: the most that one thread can
/// do with the instruction set in use.
pub(crate) fn fma_peak() -> f64 {
    const ROUNDS: usize = 2_000_000;
    const CHAINS: usize = 12;
    struct Multiply;
    impl Kernel for Multiply {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd>(self) -> usize {
            let x = S::F32::splat(black_box(0.999));
            let mut sums = [S::F32::splat(1.0); CHAINS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = sum.mul_add(x, x);
                }
            }
            black_box(sums);
            2 * ROUNDS * CHAINS * S::LANES
        }
    }
    let mut flops = 0;
    let seconds = best(7, || flops = dispatch(Multiply));
    flops as f64 / seconds * 1e-9
}

/// Numbers between -0.5 and 0.5 by xorshift.
pub(crate) fn random(count: usize, seed: u32) -> Vec<f32> {
    let mut s = seed.wrapping_mul(2_654_435_761).max(1);
    (0..count)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            s as f32 / u32::MAX as f32 - 0.5
        })
        .collect()
}

/// Runs `f` in a pool of `threads`.
pub(crate) fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool").install(f)
}
