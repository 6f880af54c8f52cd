//! CIFAR-10 in its official binary format.
//!
//! There are six files of 10,000 records. A record is a label byte and 3,072 bytes of pixels: the
//! red, green and blue planes of 32 rows of 32 pixels. A file is used only if its SHA-256 is that of
//! the official release.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::{Dataset, Shape, Split};
use crate::limits;

/// The folder of the files, named as in the official archive.
pub const FOLDER: &str = "cifar-10-batches-bin";

/// Number of records per file.
pub const RECORDS: usize = 10_000;

/// Number of bytes per record: label and pixels.
pub const RECORD: usize = 1 + PIXELS;

/// Number of bytes per image.
pub const PIXELS: usize = 3 * 32 * 32;

/// The official files with their SHA-256: five of training images, then the test images.
pub const FILES: [(&str, &str); 6] = [
    ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
];

/// The classes, in the order of their labels.
pub const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The SHA-256 of some bytes, in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder with the files: `folder` itself, or the official folder inside it.
pub fn locate(folder: &Path) -> PathBuf {
    let inside = folder.join(FOLDER);
    if !folder.join(FILES[0].0).exists() && inside.is_dir() { inside } else { folder.to_owned() }
}

/// Reads one file and checks it.
fn read_file(folder: &Path, name: &str, expected: &str) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let bytes = match limits::read(&path, limits::DOWNLOAD) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing {
                name: name.into(),
                folder: folder.into(),
                remedy: "`cifar fetch` downloads CIFAR-10, --data-dir names a folder that has it, \
                         --data synthetic needs no files",
            });
        }
        Err(source) => return Err(Error::io("read", path)(source)),
    };
    let reason = if bytes.len() != RECORDS * RECORD {
        format!("it has {} bytes, but the official file has {}", bytes.len(), RECORDS * RECORD)
    } else if sha256(&bytes) != expected {
        "its SHA-256 is not that of the official file: it was changed or damaged".into()
    } else {
        return Ok(bytes);
    };
    let reason = format!("{reason}. Remove it and run `cifar fetch`");
    Err(Error::Wrong { path, reason })
}

/// Whether the folder holds all six official files unchanged.
pub fn is_complete(folder: &Path) -> bool {
    FILES.iter().all(|(name, sha)| read_file(folder, name, sha).is_ok())
}

/// Reads the data set from the folder of the binary files or from its parent.
pub fn read(folder: &Path) -> Result<Dataset> {
    let folder = locate(folder);
    let mut train = Split::with_capacity(5 * RECORDS, PIXELS);
    let mut test = Split::with_capacity(RECORDS, PIXELS);
    for (number, (name, sha)) in FILES.iter().enumerate() {
        let split = if number < 5 { &mut train } else { &mut test };
        for record in read_file(&folder, name, sha)?.chunks_exact(RECORD) {
            split.labels.push(record[0]);
            split.images.extend_from_slice(&record[1..]);
        }
    }
    Ok(Dataset::new(
        "CIFAR-10",
        Shape { channels: 3, size: 32 },
        CLASSES.map(String::from).to_vec(),
        train,
        test,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn sha256_is_that_of_the_standard() {
        // FIPS 180-4's example.
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn missing_short_and_changed_files_are_named() {
        let temp = tempfile::tempdir().unwrap();
        let message = |folder: &Path| read(folder).unwrap_err().to_string();
        let missing = message(temp.path());
        assert!(missing.contains("data_batch_1.bin is missing"), "{missing}");
        assert!(missing.contains("--data-dir") && missing.contains("--data synthetic"));

        let first = temp.path().join("data_batch_1.bin");
        fs::write(&first, [0; 100]).unwrap();
        let short = message(temp.path());
        assert!(short.contains("data_batch_1.bin is not used"), "{short}");
        assert!(short.contains("100 bytes") && short.contains("30730000"));

        fs::write(&first, vec![0; RECORDS * RECORD]).unwrap();
        let changed = message(temp.path());
        assert!(changed.contains("data_batch_1.bin is not used"));
        assert!(changed.contains("SHA-256"), "{changed}");
        assert!(!is_complete(temp.path()));
    }

    #[test]
    fn the_official_folder_is_found_inside_its_parent() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(locate(temp.path()), temp.path());
        fs::create_dir(temp.path().join(FOLDER)).unwrap();
        assert_eq!(locate(temp.path()), temp.path().join(FOLDER));
        fs::write(temp.path().join("data_batch_1.bin"), []).unwrap();
        assert_eq!(locate(temp.path()), temp.path());
    }
}
