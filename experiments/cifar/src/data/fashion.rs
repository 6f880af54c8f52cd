//! Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 grey images of clothing in IDX files.
//!
//! An IDX file has two zero bytes, the type of its values (8 for bytes), the number of dimensions,
//! the dimensions as big-endian words, and the values. The images of 28 x 28 pixels are padded with
//! black to 32 x 32, which is the input size of the networks.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use super::cifar10::sha256;
use super::error::{Error, Result};
use super::{Dataset, Shape, Split};
use crate::limits;

/// The four files with the SHA-256 of their uncompressed contents.
const FILES: [(&str, &str); 4] = [
    ("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    ("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    ("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    ("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
];

const CLASSES: [&str; 10] = [
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
];

/// Largest number of bytes that is read or unpacked. The largest file has 47 MB.
const UNPACKED: u64 = 64 << 20;

const SIZE: usize = 28;
const PADDED: usize = 32;

/// The folder of Debian's package `dataset-fashion-mnist` if it is installed, else
/// `data/fashion-mnist`.
pub fn default_folder() -> PathBuf {
    let debian = Path::new("/usr/share/datasets/fashion-mnist");
    if debian.is_dir() {
        return debian.to_owned();
    }
    Path::new(super::DEFAULT_FOLDER).join("fashion-mnist")
}

/// Reads the data set from a folder with the four files, compressed (`.gz`) or not.
pub fn read(folder: &Path) -> Result<Dataset> {
    let [train_images, train_labels, test_images, test_labels] =
        FILES.map(|(name, sha)| read_file(folder, name, sha));
    let train = split(&train_images?, &train_labels?, 60_000);
    let test = split(&test_images?, &test_labels?, 10_000);
    Ok(Dataset::new(
        "Fashion-MNIST",
        Shape { channels: 1, size: PADDED },
        CLASSES.map(String::from).to_vec(),
        train,
        test,
    ))
}

fn read_file(folder: &Path, name: &str, expected: &str) -> Result<Vec<u8>> {
    let (plain, packed) = (folder.join(name), folder.join(format!("{name}.gz")));
    let path = if plain.exists() { plain } else { packed };
    let stored = match limits::read(&path, UNPACKED) {
        Ok(stored) => stored,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing {
                name: name.into(),
                folder: folder.into(),
                remedy: "Debian's package dataset-fashion-mnist has it, and --data-dir names its folder",
            });
        }
        Err(source) => return Err(Error::io("read", path)(source)),
    };
    let wrong = |reason: String| Error::Wrong { path: path.clone(), reason };
    let mut bytes = stored;
    if path.extension().is_some_and(|kind| kind == "gz") {
        let mut unpacked = Vec::new();
        GzDecoder::new(&bytes[..])
            .take(UNPACKED)
            .read_to_end(&mut unpacked)
            .map_err(|error| wrong(format!("it cannot be unpacked: {error}")))?;
        bytes = unpacked;
    }
    if sha256(&bytes) != expected {
        return Err(wrong(format!(
            "its contents ({} bytes) are not those of Fashion-MNIST, by their SHA-256",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// Pads the images of verified files.
fn split(images: &[u8], labels: &[u8], count: usize) -> Split {
    let mut split = Split::with_capacity(count, PADDED * PADDED);
    split.labels.extend_from_slice(&labels[8..]);
    let margin = (PADDED - SIZE) / 2;
    for picture in images[16..].chunks_exact(SIZE * SIZE) {
        let mut padded = [0; PADDED * PADDED];
        for (row, pixels) in picture.chunks_exact(SIZE).enumerate() {
            let start = (row + margin) * PADDED + margin;
            padded[start..start + SIZE].copy_from_slice(pixels);
        }
        split.images.extend_from_slice(&padded);
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn pictures_stand_in_the_middle() {
        let mut images = vec![0; 16];
        images.extend((0..SIZE * SIZE).map(|place| (place % 251) as u8 + 1));
        let labels = [0, 0, 8, 1, 0, 0, 0, 1, 9];
        let split = split(&images, &labels, 1);
        assert_eq!(split.labels, [9]);
        let at = |row: usize, column: usize| split.images[row * PADDED + column];
        assert_eq!((at(2, 2), at(2, 3), at(3, 2)), (1, 2, 29));
        assert!(
            (0..PADDED).all(|i| at(1, i) == 0 && at(i, 1) == 0 && at(30, i) == 0 && at(i, 30) == 0)
        );
        assert!(at(29, 29) > 0);
    }

    #[test]
    fn missing_and_foreign_files_are_named() {
        let temp = tempfile::tempdir().unwrap();
        let message = || read(temp.path()).unwrap_err().to_string();
        assert!(message().contains("train-images-idx3-ubyte is missing"));
        for (name, _) in FILES {
            fs::write(temp.path().join(name), b"none of it").unwrap();
        }
        let foreign = message();
        assert!(foreign.contains("train-images-idx3-ubyte is not used"), "{foreign}");
        assert!(foreign.contains("10 bytes"), "{foreign}");
    }
}
