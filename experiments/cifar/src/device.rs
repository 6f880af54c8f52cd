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
    Ok(rayon::current_num_threads())
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

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_says_what_to_do_about_it() {
        let error = format!("{:#}", parse("cuda").unwrap_err());
        assert!(error.contains("--features cuda"), "{error}");
        assert!(error.contains("--device cpu"), "{error}");
    }
}
