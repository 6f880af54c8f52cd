//! Opens checkpoints, which may come from anywhere.
//!
//! A checkpoint is compared with the network that config.json describes before its tensors are
//! read, and before that network is built: neither file can make the program allocate more than the
//! other one accounts for.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use vmf_candle::Checkpoint;

use crate::limits;
use crate::model::NetworkConfig;

/// Whether checksums are left alone.
static UNVERIFIED: AtomicBool = AtomicBool::new(false);

/// Opens checkpoints from now on without comparing their checksums: to save time, or because
/// another program has changed them.
pub fn skip_verification() {
    UNVERIFIED.store(true, Ordering::Relaxed);
}

/// Whether a file is a checkpoint that is what was saved.
pub fn is_sound(path: &Path) -> bool {
    limits::open(path).is_ok() && Checkpoint::open(path).is_ok()
}

/// Opens a checkpoint of this network.
pub fn open(path: &Path, network: &NetworkConfig) -> Result<Checkpoint> {
    let weights = network.weights()?;
    check_size(path, &weights)?;
    let checkpoint = match UNVERIFIED.load(Ordering::Relaxed) {
        true => Checkpoint::open_unverified(path)?,
        false => Checkpoint::open(path)?,
    };
    for (name, expected) in &weights {
        let found = checkpoint.variables().get(name).map(|tensor| tensor.dims());
        ensure!(
            found == Some(expected),
            "{} is not the network that config.json describes, they do not fit: {name} is {}, and should be {expected:?}",
            path.display(),
            found.map_or("missing".into(), |shape| format!("{shape:?}")),
        );
    }
    Ok(checkpoint)
}

/// Refuses a file that is larger than a checkpoint of these weights can be.
fn check_size(path: &Path, weights: &[(String, Vec<usize>)]) -> Result<()> {
    let cannot_read = || format!("cannot read {}", path.display());
    let mut file = limits::open(path).with_context(cannot_read)?;
    let size = file.metadata().with_context(cannot_read)?.len();
    let mut prefix = [0; 8];
    if file.read_exact(&mut prefix).is_err() {
        // `Checkpoint::open` says what is wrong with such a file.
        return Ok(());
    }
    let header = u64::from_le_bytes(prefix);
    ensure!(
        header.min(size) <= limits::HEADER,
        "{} is not a checkpoint of this program: its header has {header} bytes, more than the {} that are read",
        path.display(),
        limits::HEADER
    );
    // Each weight has two moments, and all are numbers of up to eight bytes. The other variables,
    // which are one or two values per channel, are less than the weights.
    let values: usize = weights.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let largest = 2 * 3 * 8 * values as u64 + limits::HEADER;
    ensure!(
        size <= largest,
        "{} is not the network that config.json describes: it has {size} bytes, and a checkpoint of that network has at most {largest}",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    fn refused(path: &Path) -> String {
        let network = NetworkConfig { width: 0.0625, ..NetworkConfig::default() };
        format!("{:#}", open(path, &network).unwrap_err())
    }

    #[test]
    fn a_file_that_claims_too_much_is_refused_before_it_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("last.safetensors");
        // A header of sixty megabytes.
        let header = 60_u64 << 20;
        fs::write(&path, header.to_le_bytes()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(header + 8).unwrap();
        assert!(refused(&path).contains("its header has 62914560 bytes"), "{}", refused(&path));
        // A terabyte of tensors.
        fs::write(&path, 100_u64.to_le_bytes()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(refused(&path).contains("1099511627776 bytes"), "{}", refused(&path));
        // What is too short is named by the library.
        fs::write(&path, "short").unwrap();
        assert!(refused(&path).contains("not a usable checkpoint"), "{}", refused(&path));
    }
}
