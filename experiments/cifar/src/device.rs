//! Where to compute, as said on the command line.

use anyhow::{Context, Result, bail};
use candle_core::Device;

/// The device named `cpu`, `cuda` or `cuda:1`.
pub fn parse(name: &str) -> Result<Device> {
    let (kind, number) = name.split_once(':').unwrap_or((name, "0"));
    match kind {
        "cpu" if number == "0" => Ok(Device::Cpu),
        "cuda" => {
            let number: usize = number
                .parse()
                .with_context(|| format!("{number:?} in {name:?} is not the number of a device"))?;
            Device::new_cuda(number).with_context(|| {
                format!("{name:?} cannot be used: build with `--features cuda` on a machine with an NVIDIA driver, or say `--device cpu`")
            })
        }
        _ => bail!("{name:?} is no device: say cpu, cuda or cuda:N"),
    }
}

/// The device that was asked for, or the best there is.
pub fn choose(name: Option<&str>) -> Result<Device> {
    match name {
        Some(name) => parse(name),
        None if cfg!(feature = "cuda") => Ok(parse("cuda").unwrap_or_else(|_| {
            eprintln!("there is no CUDA device that can be used: computing on the CPU");
            Device::Cpu
        })),
        None => Ok(Device::Cpu),
    }
}

/// Makes this many threads compute; all of the machine's if not said. Call it once, before anything is computed.
pub fn use_threads(threads: Option<usize>) -> Result<usize> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(threads) = threads {
        if threads == 0 {
            bail!("0 threads cannot compute: say at least 1");
        }
        pool = pool.num_threads(threads);
    }
    pool.build_global()
        .context("the threads could not be started")?;
    let threads = rayon::current_num_threads();
    limit_candle(threads);
    Ok(threads)
}

/// Candle's own operations have threads beside ours: as many, unless the environment says otherwise, and after an
/// operation they do not busily wait for the next one, since then it is usually our turn to compute.
fn limit_candle(threads: usize) {
    let settings = [
        ("CANDLE_NUM_THREADS", threads.to_string()),
        ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "100".to_string()),
    ];
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            // SAFETY: this is called before anything is computed, and the threads there are by then (the pool's, which
            // have nothing to do yet, and the one that waits for signals) do not look at the environment.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn names_are_understood_or_refused() {
        assert!(parse("cpu").unwrap().is_cpu());
        for wrong in ["cpu:1", "gpu", "", "cuda:one"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
