//! Images unlike those of training, and what people see in those of the test set. None of these
//! files is needed: what is not there is left out, and named.
//!
//! | data | where in the folder | verified |
//! |---|---|---|
//! | CIFAR-100's test images | `cifar-100-binary/test.bin` or `cifar100/test.bin` | by SHA-256 |
//! | CIFAR-10H, the labels of about fifty people per test image | `cifar10h/cifar10h-probs.npy` | by SHA-256 |
//! | Fashion-MNIST | as for training | by SHA-256 |
//! | CIFAR-10-C | `CIFAR-10-C/*.npy` | by size |
//! | noise | computed | |

use std::path::{Path, PathBuf};

use super::cifar10::{self, PIXELS, RECORDS, sha256};
use super::corruption::{Corruption, SEVERITIES};
use super::error::{Error, Result};
use super::random::{Draws, unit};
use super::{Shape, Split, fashion};
use crate::limits;

const CIFAR100: &str = "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a";
const CIFAR10H: &str = "436ae98620e00073f9d08585ac870573b588853e7af9f54eb1647408114af77d";

/// Bytes before the values of a file of NumPy's format, version 1, as all of these files have it.
const NPY_HEADER: usize = 128;

/// Images of no class that a network knows.
pub struct Foreign {
    /// What they are.
    pub name: &'static str,
    /// The images. Their labels mean nothing.
    pub images: Split,
}

/// The sets that can be read or computed for images of this shape, and what was left out.
pub fn sets(folder: &Path, shape: Shape, images: usize) -> (Vec<Foreign>, Vec<String>) {
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    let readers: [(&'static str, Result<Split>); 2] =
        [("CIFAR-100", cifar100(folder)), ("Fashion-MNIST", fashion_in_color(folder))];
    for (name, read) in readers {
        match read {
            Ok(split) if shape.channels == 3 => {
                found.push(Foreign { name, images: first(&split, PIXELS, images) });
            }
            Ok(_) => left_out.push(format!("{name}: this network takes grey images")),
            Err(error) => left_out.push(format!("{name}: {error}")),
        }
    }
    left_out.push("SVHN: there is no reader for its files yet".into());
    for (name, noise) in [("uniform noise", false), ("Gaussian noise", true)] {
        found.push(Foreign { name, images: noise_images(shape, images, noise) });
    }
    (found, left_out)
}

/// The first images of a split.
pub fn first(split: &Split, pixels: usize, images: usize) -> Split {
    let count = images.min(split.len());
    Split {
        images: split.images[..count * pixels].to_vec(),
        labels: split.labels[..count].to_vec(),
    }
}

/// Reads a file that may be in one of several places, and compares its SHA-256.
fn verified(folder: &Path, places: &[&str], expected: &str) -> Result<Vec<u8>> {
    let paths: Vec<PathBuf> = places.iter().map(|place| folder.join(place)).collect();
    let Some(path) = paths.iter().find(|path| path.is_file()) else {
        return Err(Error::Missing {
            name: places[0].into(),
            folder: folder.into(),
            remedy: "download it there to have it counted",
        });
    };
    let bytes = limits::read(path, limits::DOWNLOAD).map_err(Error::io("read", path))?;
    if sha256(&bytes) != expected {
        let reason = "its SHA-256 is not that of the official file".into();
        return Err(Error::Wrong { path: path.clone(), reason });
    }
    Ok(bytes)
}

/// The test images of CIFAR-100. A record has a coarse and a fine label before its pixels.
fn cifar100(folder: &Path) -> Result<Split> {
    let bytes = verified(folder, &["cifar-100-binary/test.bin", "cifar100/test.bin"], CIFAR100)?;
    let records = bytes.chunks_exact(2 + PIXELS);
    Ok(Split {
        images: records.flat_map(|record| record[2..].to_vec()).collect(),
        labels: vec![0; RECORDS],
    })
}

fn fashion_in_color(folder: &Path) -> Result<Split> {
    let set = fashion::read(&fashion::default_folder())
        .or_else(|_| fashion::read(&folder.join("fashion-mnist")))?;
    let plane = set.shape.pixels();
    let images = set.test.images.chunks_exact(plane).flat_map(|image| image.repeat(3));
    Ok(Split { images: images.collect(), labels: vec![0; set.test.len()] })
}

/// Pixels drawn one by one: uniform, or normal with the mean and deviation of half a range each.
fn noise_images(shape: Shape, images: usize, is_normal: bool) -> Split {
    let draws = Draws::new(0, if is_normal { "foreign.normal" } else { "foreign.uniform" }, 0);
    let pixel = |image: u32, at: u32| {
        let [a, b, ..] = draws.words(image, at);
        let value = match is_normal {
            true => {
                let radius = (-2.0 * (1.0 - unit(a)).ln()).sqrt();
                0.5 + 0.25 * radius * (std::f64::consts::TAU * unit(b)).cos()
            }
            false => unit(a),
        };
        (value.clamp(0.0, 1.0) * 255.0) as u8
    };
    let pixels = shape.pixels() as u32;
    let values = (0..images as u32).flat_map(|i| (0..pixels).map(move |at| (i, at)));
    Split { images: values.map(|(image, at)| pixel(image, at)).collect(), labels: vec![0; images] }
}

/// The share of people who gave each of the ten classes to each test image of CIFAR-10.
pub fn human_labels(folder: &Path) -> Result<Vec<f64>> {
    let bytes = verified(folder, &["cifar10h/cifar10h-probs.npy"], CIFAR10H)?;
    let values = bytes[NPY_HEADER..].as_chunks::<8>().0.iter();
    Ok(values.map(|value| f64::from_le_bytes(*value)).collect())
}

/// The published images of a corruption, at one severity; `None` if the folder does not have them.
pub fn published(folder: &Path, corruption: Corruption, severity: usize) -> Option<Result<Split>> {
    let name = match corruption {
        Corruption::Jpeg => "jpeg_compression".into(),
        Corruption::Elastic => "elastic_transform".into(),
        other => other.name().replace('-', "_"),
    };
    let path = folder.join("CIFAR-10-C").join(format!("{name}.npy"));
    let labels = path.with_file_name("labels.npy");
    if !path.is_file() || !labels.is_file() {
        return None;
    }
    Some(read_published(&path, &labels, severity))
}

fn read_published(path: &Path, labels: &Path, severity: usize) -> Result<Split> {
    let read = |path: &Path, length: usize| {
        let bytes = limits::read(path, limits::DOWNLOAD).map_err(Error::io("read", path))?;
        if bytes.len() != length {
            let reason =
                format!("it has {} bytes, but the published file has {length}", bytes.len());
            return Err(Error::Wrong { path: path.into(), reason });
        }
        Ok(bytes)
    };
    let images = read(path, NPY_HEADER + SEVERITIES * RECORDS * PIXELS)?;
    let labels = read(labels, NPY_HEADER + SEVERITIES * RECORDS)?;
    let start = (severity - 1) * RECORDS;
    let images = &images[NPY_HEADER + start * PIXELS..][..RECORDS * PIXELS];
    let planes = |image: &[u8]| -> Vec<u8> {
        (0..3).flat_map(|channel| image.iter().skip(channel).step_by(3).copied()).collect()
    };
    let labels = labels[NPY_HEADER + start..][..RECORDS].to_vec();
    if let Some(wrong) = labels.iter().find(|label| usize::from(**label) >= cifar10::CLASSES.len())
    {
        let reason = format!("it holds the label {wrong}");
        return Err(Error::Wrong { path: path.with_file_name("labels.npy"), reason });
    }
    Ok(Split { images: images.chunks_exact(PIXELS).flat_map(planes).collect(), labels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_missing_or_changed_is_named_and_the_rest_is_there() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("cifar100")).unwrap();
        fs::write(temp.path().join("cifar100/test.bin"), [0; 10]).unwrap();
        let (found, left_out) = sets(temp.path(), Shape { channels: 3, size: 32 }, 4);
        let names: Vec<&str> = found.iter().map(|set| set.name).collect();
        assert!(names.ends_with(&["uniform noise", "Gaussian noise"]), "{names:?}");
        assert!(found.iter().all(|set| set.images.images.len() == 4 * PIXELS));
        assert!(left_out.iter().any(|line| line.contains("CIFAR-100") && line.contains("SHA-256")));
        assert!(left_out.iter().any(|line| line.contains("SVHN")));
        assert!(human_labels(temp.path()).unwrap_err().to_string().contains("cifar10h-probs.npy"));
        assert!(published(temp.path(), Corruption::Fog, 1).is_none());
    }

    #[test]
    fn published_files_are_cut_by_severity_and_turned_into_planes() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("CIFAR-10-C");
        fs::create_dir(&folder).unwrap();
        let mut images = vec![0; NPY_HEADER + SEVERITIES * RECORDS * PIXELS];
        let second = NPY_HEADER + RECORDS * PIXELS;
        images[second..second + 6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let mut labels = vec![7; NPY_HEADER + SEVERITIES * RECORDS];
        labels[NPY_HEADER + RECORDS] = 9;
        fs::write(folder.join("fog.npy"), images).unwrap();
        fs::write(folder.join("labels.npy"), labels).unwrap();
        let split = published(temp.path(), Corruption::Fog, 2).unwrap().unwrap();
        assert_eq!((split.len(), split.labels[0], split.labels[1]), (RECORDS, 9, 7));
        assert_eq!([split.images[0], split.images[1]], [1, 4]);
        assert_eq!([split.images[1024], split.images[2048]], [2, 3]);
        fs::write(folder.join("fog.npy"), [0; 5]).unwrap();
        assert!(published(temp.path(), Corruption::Fog, 2).unwrap().is_err());
    }
}
