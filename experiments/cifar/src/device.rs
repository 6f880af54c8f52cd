//! The device and the threads that compute.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::Device;
use vmf_kernels::simd::Isa;

use crate::limits;
use crate::terminal;

/// The device named `cpu`, `cuda` or `cuda:1`.
pub fn parse(name: &str) -> Result<Device> {
    let (kind, number) = name.split_once(':').unwrap_or((name, "0"));
    match kind {
        "cpu" if number == "0" => Ok(Device::Cpu),
        "cuda" => {
            let number: usize = number
                .parse()
                .with_context(|| format!("{number:?} in {name:?} is not the number of a device"))?;
            if !cfg!(feature = "cuda") {
                bail!(
                    "{name:?} cannot be used: this program was built without CUDA. Build it with `--features cuda`, \
                     or use `--device cpu`"
                );
            }
            Device::new_cuda(number).with_context(|| {
                format!(
                    "{name:?} cannot be used: the NVIDIA driver has no such device (`nvidia-smi` lists those it has). \
                     `--device cpu` needs none"
                )
            })
        }
        _ => bail!("{name:?} is not a device: use cpu, cuda or cuda:N"),
    }
}

/// The named device, or the best one available.
pub fn choose(name: Option<&str>) -> Result<Device> {
    match name {
        Some(name) => parse(name),
        None if cfg!(feature = "cuda") => Ok(Device::new_cuda(0).unwrap_or_else(|error| {
            // The first line is the reason; the others may be a backtrace.
            let error = error.to_string();
            let reason = error.lines().next().unwrap_or_default();
            terminal::note(format!("no CUDA device can be used ({reason}): computing on the CPU"));
            Device::Cpu
        })),
        None => Ok(Device::Cpu),
    }
}

/// The name of the device for use in a sentence, with the number of threads of a CPU.
pub fn in_words(device: &Device, threads: usize) -> String {
    match device {
        Device::Cpu if threads == 1 => "the CPU with 1 thread".into(),
        Device::Cpu => format!("the CPU with {threads} threads"),
        _ => "a GPU".into(),
    }
}

/// Starts the given number of threads, by default one per processor, and returns how many there are.
/// Only the first call has an effect, so it must come before anything is computed.
pub fn use_threads(threads: Option<usize>) -> Result<usize> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    if let Some(count) = threads {
        ensure!(
            (1..=limits::THREADS).contains(&count),
            "--threads is {count}; it must be at least 1 and at most {}",
            limits::THREADS
        );
    }
    Isa::requested()
        .context("the environment requests instructions that this machine does not have")?;
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.unwrap_or(0))
            .build_global()
            .context("the threads could not be started")?;
        limit_candle(rayon::current_num_threads());
        *started = true;
    }
    Ok(rayon::current_num_threads())
}

/// Configures the thread pool of Candle's own operations, unless the environment already does. It
/// gets as many threads as ours. Its threads must not spin for long after an operation, because the
/// next operation is usually one of ours and needs the processors.
fn limit_candle(threads: usize) {
    let settings = [
        ("CANDLE_NUM_THREADS", threads.to_string()),
        ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "100".to_string()),
    ];
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            // SAFETY: this is called once, before anything is computed. The threads that exist by
            // then, which are those of the idle pool and the one that waits for signals, do not
            // read the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_or_refused() {
        assert!(parse("cpu").unwrap().is_cpu());
        for wrong in ["cpu:1", "gpu", "", "cuda:one"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_of_threads_that_cannot_be_started_is_refused() {
        for count in [0, 100_000, usize::MAX] {
            let error = use_threads(Some(count)).unwrap_err().to_string();
            assert!(error.contains(&format!("--threads is {count}")), "{error}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_program_without_cuda_says_what_to_do_and_computes_on_the_cpu() {
        let error = format!("{:#}", parse("cuda").unwrap_err());
        assert!(error.contains("--features cuda"), "{error}");
        assert!(error.contains("--device cpu"), "{error}");
        assert!(choose(None).unwrap().is_cpu());
    }
}
