//! Where to compute, as said on the command line.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use candle_core::Device;
use vmf_kernels::simd::Isa;

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
                     or say `--device cpu`"
                );
            }
            Device::new_cuda(number).with_context(|| {
                format!(
                    "{name:?} cannot be used: the NVIDIA driver has no such device (`nvidia-smi` lists those it has). \
                     `--device cpu` needs none"
                )
            })
        }
        _ => bail!("{name:?} is no device: say cpu, cuda or cuda:N"),
    }
}

/// The device that was asked for, or the best there is.
pub fn choose(name: Option<&str>) -> Result<Device> {
    match name {
        Some(name) => parse(name),
        None if cfg!(feature = "cuda") => Ok(Device::new_cuda(0).unwrap_or_else(|error| {
            // With a backtrace, Candle's errors have many lines.
            let error = error.to_string();
            let reason = error.lines().next().unwrap_or_default();
            eprintln!("no CUDA device can be used ({reason}): computing on the CPU");
            Device::Cpu
        })),
        None => Ok(Device::Cpu),
    }
}

/// The device in a sentence, with the threads that compute where it is the CPU.
pub fn in_words(device: &Device, threads: usize) -> String {
    match device {
        Device::Cpu if threads == 1 => "the CPU with 1 thread".into(),
        Device::Cpu => format!("the CPU with {threads} threads"),
        _ => "a GPU".into(),
    }
}

/// Makes this many threads compute; all of the machine's if not said. The first call decides for
/// the whole program: call it before anything is computed.
pub fn use_threads(threads: Option<usize>) -> Result<usize> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    if threads == Some(0) {
        bail!("0 threads cannot compute: say at least 1");
    }
    Isa::requested().context("the environment asks for instructions that cannot be used")?;
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

/// Candle's own operations have threads beside ours: as many, unless the environment says
/// otherwise, and after an operation they do not busily wait for the next one, since then it is
/// usually our turn to compute.
fn limit_candle(threads: usize) {
    let settings = [
        ("CANDLE_NUM_THREADS", threads.to_string()),
        ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "100".to_string()),
    ];
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            // SAFETY: this is called once, before anything is computed, and the threads there are
            // by then (the pool's, which have nothing to do yet, and the one that waits
            // for signals) do not look at the environment.
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

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_program_without_cuda_says_what_to_do_and_computes_on_the_cpu() {
        let error = format!("{:#}", parse("cuda").unwrap_err());
        assert!(error.contains("--features cuda"), "{error}");
        assert!(error.contains("--device cpu"), "{error}");
        assert!(choose(None).unwrap().is_cpu());
    }
}
