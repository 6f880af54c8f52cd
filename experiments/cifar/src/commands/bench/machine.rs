//! What this machine can do at most, to relate the measured speed to.

use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;
use vmf_kernels::simd::{Kernel, Simd, dispatch};

/// The time that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Clock {
    /// Wall time
    Wall,
    /// Processor time of all threads; with one thread, the wall time on an idle machine
    Cpu,
}

impl Clock {
    /// Seconds since an arbitrary moment.
    pub fn now(self) -> f64 {
        match self {
            Clock::Wall => wall_seconds(),
            Clock::Cpu => cpu_seconds(),
        }
    }

    /// The seconds of the fastest of several calls of `run`.
    pub fn best_of(self, runs: usize, mut run: impl FnMut()) -> f64 {
        (0..runs)
            .map(|_| {
                let start = self.now();
                run();
                self.now() - start
            })
            .fold(f64::INFINITY, f64::min)
    }
}

fn wall_seconds() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

#[cfg(unix)]
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours to write.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(not(unix))]
fn cpu_seconds() -> f64 {
    wall_seconds()
}

/// The peak memory of the program in bytes, if the system reports it.
#[cfg(unix)]
pub(super) fn peak_memory() -> Option<u64> {
    // SAFETY: all zeros is a valid value of this plain structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is ours to write.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return None;
    }
    // Linux counts in kilobytes, macOS in bytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    Some(usage.ru_maxrss as u64 * unit)
}

/// The peak memory of the program in bytes, if the system reports it.
#[cfg(not(unix))]
pub(super) fn peak_memory() -> Option<u64> {
    None
}

/// FLOP/s of all threads in a loop of independent fused multiply-adds in registers.
///
/// In wall time all threads run at once, so that hyperthreads are not counted as full cores.
pub(super) fn fma_peak(clock: Clock) -> f64 {
    const ROUNDS: usize = 1_000_000;
    let threads = rayon::current_num_threads();
    let seconds = clock.best_of(15, || {
        rayon::broadcast(|_| black_box(dispatch(Multiply(ROUNDS))));
    });
    // Processor time is the sum over all threads.
    let seconds = match clock {
        Clock::Wall => seconds,
        Clock::Cpu => seconds / threads as f64,
    };
    (2 * ROUNDS * CHAINS * threads) as f64 / seconds
}

/// Bytes per second that all threads together read from memory and write to it, in an array that is
/// larger than any cache.
///
/// Normalization, pooling and the optimizer are limited by this number, which, unlike the
/// arithmetic, seldom doubles with a second core.
pub(super) fn bandwidth() -> f64 {
    const LEN: usize = 1 << 25;
    let mut numbers = vec![0f32; LEN];
    let task = LEN.div_ceil(4 * rayon::current_num_threads());
    let seconds = Clock::Wall.best_of(8, || {
        numbers.par_chunks_mut(task).for_each(|numbers| {
            for number in numbers {
                *number += 1.0;
            }
        });
    });
    (2 * size_of_val(&*numbers)) as f64 / seconds
}

/// Number of independent sums. There are enough of them to hide the latency of a multiply-add with
/// vectors of 4 to 16 elements, and few enough to fit into the registers.
const CHAINS: usize = 96;

struct Multiply(usize);

impl Kernel for Multiply {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let factor = black_box(0.999);
        let mut sums = [1.0f32; CHAINS];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = S::mul_add(*sum, factor, factor);
            }
        }
        sums.iter().sum()
    }
}
