//! CIFAR-10 from the Hugging Face hub: the data set `uoft-cs/cifar10`, two Parquet files with a
//! picture and a label per row.
//!
//! The pictures are PNGs, which are lossless, and the rows are the images of the official files, one
//! file after another. Hence the official files can be restored exactly.

mod download;
pub mod rows;

use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo};

use super::{BLOCK, Block};
use crate::data::cifar10::{self, RECORDS};
use crate::data::error::{Error, Result};
use crate::limits;

const REPOSITORY: &str = "uoft-cs/cifar10";

/// The files on the hub with their numbers of rows.
const FILES: [(&str, usize); 2] = [
    ("plain_text/train-00000-of-00001.parquet", 5 * RECORDS),
    ("plain_text/test-00000-of-00001.parquet", RECORDS),
];

/// Local files with their numbers of rows.
type Files = Vec<(PathBuf, usize)>;

/// The copy that other programs have put into the hub's cache, which is `~/.cache/huggingface` or
/// `HF_HOME`.
pub(super) fn cached() -> Option<Files> {
    let repository = cache()?.repo(Repo::dataset(REPOSITORY.into()));
    let path = |(file, rows)| Some((repository.get(file)?, rows));
    FILES.into_iter().map(path).collect()
}

/// Decodes the cached files.
pub(super) fn read_cached(_: &Path) -> Result<Vec<Block>> {
    blocks(cached().unwrap_or_default())
}

/// Downloads the files into the temporary folder and decodes them.
pub(super) fn download(temporary: &Path) -> Result<Vec<Block>> {
    if is_offline() {
        let reason = "it is not used, because HF_HUB_OFFLINE is set";
        return Err(Error::Unavailable(reason.into()));
    }
    let folder = temporary.join("hub");
    let path = |(file, rows)| Ok((download::download(REPOSITORY, file, &folder)?, rows));
    blocks(FILES.into_iter().map(path).collect::<Result<_>>()?)
}

/// The hub's cache, or `None` if there is no home folder.
fn cache() -> Option<Cache> {
    let has_place = std::env::var_os("HF_HOME").is_some() || std::env::home_dir().is_some();
    has_place.then(Cache::from_env)
}

/// Whether the user has disabled the hub, by the same variable as for its own programs.
fn is_offline() -> bool {
    let value = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

fn blocks(files: Files) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    for (path, rows) in files {
        check_against_name(&path)?;
        let records = rows::records(&path, rows)?;
        blocks.extend(records.chunks(BLOCK).map(|bytes| Block { bytes: bytes.to_vec() }));
    }
    Ok(blocks)
}

/// Compares a file with its name. The hub and hf-hub name large files by their SHA-256, so a file
/// that was damaged during the download does not match its name.
fn check_against_name(path: &Path) -> Result<()> {
    let file = path.file_name().unwrap_or_default().display();
    // Not an error of the disk: another source may still have the data.
    let unreadable = |error| Error::Foreign(format!("{file} cannot be read: {error}"));
    let stored = fs::canonicalize(path).map_err(unreadable)?;
    let name = stored.file_name().unwrap_or_default().to_string_lossy();
    let is_sha256 = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = limits::read(&stored, limits::DOWNLOAD).map_err(unreadable)?;
    if is_sha256 && cifar10::sha256(&bytes) != name {
        return Err(Error::Foreign(format!(
            "{file} is damaged: its SHA-256 is not the one that the hub has for it"
        )));
    }
    Ok(())
}
