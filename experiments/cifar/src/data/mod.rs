//! Data sets: images of one byte per value with their labels, and the batches made of them.
//!
//! | set | where from |
//! |---|---|
//! | [`cifar10`] | the official binary files, fetched and verified by [`fetch`] |
//! | [`fashion`] | Fashion-MNIST's IDX files, from a folder |
//! | [`synthetic`] | generated, for tests and for machines without a network |

pub mod batches;
pub mod cifar10;
pub mod corruption;
mod error;
pub mod fashion;
pub mod fetch;
pub mod foreign;
pub mod random;
pub mod synthetic;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use random::Draws;

pub use error::{Error, Result};

/// Images with their labels, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// The pixels of all images, each image channel by channel and row by row.
    pub images: Vec<u8>,
    /// One label per image.
    pub labels: Vec<u8>,
}

impl Split {
    fn with_capacity(images: usize, pixels: usize) -> Self {
        Self { images: Vec::with_capacity(images * pixels), labels: Vec::with_capacity(images) }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The shape of one image, which is square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// 3 for colour, 1 for grey.
    pub channels: usize,
    /// Height and width.
    pub size: usize,
}

impl Shape {
    /// The number of values per image.
    pub fn pixels(&self) -> usize {
        self.channels * self.size * self.size
    }
}

/// Mean and standard deviation of each channel, for pixels from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalization {
    /// Mean of each channel.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel.
    pub deviation: Vec<f64>,
}

impl Normalization {
    /// The normalization of these images. The sums are of integers, and hence exact.
    fn of(split: &Split, shape: Shape) -> Self {
        let plane = shape.size * shape.size;
        let (mut mean, mut deviation) = (Vec::new(), Vec::new());
        for channel in 0..shape.channels {
            let (mut sum, mut squares) = (0_u64, 0_u64);
            for image in split.images.chunks_exact(shape.pixels()) {
                for &pixel in &image[channel * plane..][..plane] {
                    sum += u64::from(pixel);
                    squares += u64::from(pixel) * u64::from(pixel);
                }
            }
            let count = (split.len() * plane).max(1) as f64;
            let average = sum as f64 / count;
            let variance = (squares as f64 / count - average * average).max(0.0);
            mean.push(average / 255.0);
            // Images of a single colour have a deviation of 0, which cannot be divided by.
            deviation.push((variance.sqrt() / 255.0).max(1.0 / 255.0));
        }
        Self { mean, deviation }
    }

    /// For each channel, the normalized value of each of the 256 possible pixels.
    pub fn tables(&self) -> Vec<[f32; 256]> {
        let table = |(mean, deviation): (&f64, &f64)| {
            std::array::from_fn(|value| ((value as f64 / 255.0 - mean) / deviation) as f32)
        };
        self.mean.iter().zip(&self.deviation).map(table).collect()
    }
}

/// The format of a network's input and output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// The shape of its images.
    pub shape: Shape,
    /// How pixels are normalized.
    pub normalization: Normalization,
    /// The names of its classes, in the order of their labels.
    pub classes: Vec<String>,
}

impl Interface {
    /// Whether both describe the same images and the same classes. Decimal numbers may differ in
    /// the last digit after they are read back.
    pub fn fits(&self, other: &Self) -> bool {
        let numbers = |interface: &Self| {
            let Normalization { mean, deviation } = &interface.normalization;
            [mean.clone(), deviation.clone()].concat()
        };
        let (ours, theirs) = (numbers(self), numbers(other));
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12;
        (self.shape, &self.classes) == (other.shape, &other.classes)
            && ours.len() == theirs.len()
            && ours.iter().zip(&theirs).all(close)
    }
}

/// A data set: training images and test images.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its name.
    pub name: &'static str,
    /// The shape of its images.
    pub shape: Shape,
    /// The names of its classes, in the order of their labels.
    pub classes: Vec<String>,
    /// Mean and deviation of the training images.
    pub normalization: Normalization,
    /// Whether a mirrored image is of the same class.
    pub mirrors: bool,
    /// Training images.
    pub train: Arc<Split>,
    /// Images of the training set that are never trained on. What has to be chosen is chosen on
    /// them. There are none unless [`load`] is asked for them.
    pub held_out: Arc<Split>,
    /// Test images.
    pub test: Arc<Split>,
}

impl Dataset {
    fn new(
        name: &'static str,
        shape: Shape,
        classes: Vec<String>,
        train: Split,
        test: Split,
    ) -> Self {
        Self {
            name,
            shape,
            classes,
            normalization: Normalization::of(&train, shape),
            mirrors: true,
            train: train.into(),
            held_out: Arc::default(),
            test: test.into(),
        }
    }

    /// The format of the input and output of a network for this data set.
    pub fn interface(&self) -> Interface {
        Interface {
            shape: self.shape,
            normalization: self.normalization.clone(),
            classes: self.classes.clone(),
        }
    }

    /// The first images of each split. The normalization remains that of all training images.
    fn first(mut self, train: Option<usize>, test: Option<usize>) -> Result<Self> {
        let pixels = self.shape.pixels();
        for (split, count, what) in
            [(&mut self.train, train, "training"), (&mut self.test, test, "test")]
        {
            let Some(count) = count else { continue };
            if count == 0 || count > split.len() {
                return Err(Error::Setting(format!(
                    "{count} {what} images were requested, but {} has {}",
                    self.name,
                    split.len()
                )));
            }
            *split = Arc::new(Split {
                images: split.images[..count * pixels].to_vec(),
                labels: split.labels[..count].to_vec(),
            });
        }
        Ok(self)
    }

    /// Holds out a share of the training images, at random by seed. The normalization remains that
    /// of all training images.
    fn hold_out(mut self, share: f64, seed: u64) -> Self {
        let all = self.train.len();
        let count = (share * all as f64).round() as usize;
        if count == 0 {
            return self;
        }
        let mut is_held_out = vec![false; all];
        for place in &Draws::new(seed, "data.held-out", 0).permutation(all)[..count] {
            is_held_out[*place as usize] = true;
        }
        let pixels = self.shape.pixels();
        let mut train = Split::with_capacity(all - count, pixels);
        let mut held_out = Split::with_capacity(count, pixels);
        for (place, is_held_out) in is_held_out.into_iter().enumerate() {
            let split = if is_held_out { &mut held_out } else { &mut train };
            split.images.extend(&self.train.images[place * pixels..][..pixels]);
            split.labels.push(self.train.labels[place]);
        }
        (self.train, self.held_out) = (train.into(), held_out.into());
        self
    }
}

/// Which data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// CIFAR-10, which is fetched if necessary
    #[default]
    Cifar10,
    /// Fashion-MNIST, from --data-dir
    FashionMnist,
    /// Generated images of ten classes
    Synthetic,
}

/// Which data set, and how much of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The set.
    pub source: Source,
    /// The folder with its files. By default CIFAR-10 is kept in `data` and fetched if necessary.
    pub folder: Option<PathBuf>,
    /// Number of training images; all by default.
    pub train_images: Option<usize>,
    /// Number of test images; all by default.
    pub test_images: Option<usize>,
    /// The share of wrong labels in the synthetic set.
    pub label_noise: f64,
    /// The share of the training images that are held out.
    pub held_out: f64,
    /// Decides which images are held out.
    pub seed: u64,
}

/// The folder in which data sets are kept by default.
pub const DEFAULT_FOLDER: &str = "data";

/// Reads or generates a data set. CIFAR-10 is fetched first if no folder is given.
pub fn load(request: &Request) -> Result<Dataset> {
    let dataset = match (request.source, &request.folder) {
        (Source::Cifar10, Some(folder)) => cifar10::read(folder)?,
        (Source::Cifar10, None) => cifar10::read(&fetch::cifar10(Path::new(DEFAULT_FOLDER))?)?,
        (Source::FashionMnist, folder) => {
            let folder = folder.clone().unwrap_or_else(fashion::default_folder);
            fashion::read(&folder)?
        }
        (Source::Synthetic, _) => {
            let config = synthetic::Config::default();
            synthetic::generate(&synthetic::Config {
                train_images: request.train_images.unwrap_or(config.train_images),
                test_images: request.test_images.unwrap_or(config.test_images),
                label_noise: request.label_noise,
            })?
        }
    };
    let dataset = dataset.first(request.train_images, request.test_images)?;
    Ok(dataset.hold_out(request.held_out, request.seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalized_pixels_have_mean_zero_and_deviation_one() {
        let shape = Shape { channels: 2, size: 2 };
        let split = Split {
            images: vec![0, 50, 100, 150, 7, 7, 7, 7, 200, 10, 30, 60, 7, 7, 7, 7],
            labels: vec![0, 1],
        };
        let normalization = Normalization::of(&split, shape);
        let tables = normalization.tables();
        let values: Vec<f64> =
            [0, 50, 100, 150, 200, 10, 30, 60].map(|pixel| f64::from(tables[0][pixel])).to_vec();
        let mean = values.iter().sum::<f64>() / 8.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 8.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6);
        // A channel of one value has no deviation, and stays finite.
        assert_eq!(tables[1][7], 0.0);
        assert!(tables[1].iter().all(|value| value.is_finite()));
    }

    #[test]
    fn images_that_are_held_out_leave_the_training_images() {
        let set = |held_out, seed| {
            let request = Request {
                source: Source::Synthetic,
                train_images: Some(40),
                test_images: Some(10),
                held_out,
                seed,
                ..Request::default()
            };
            load(&request).unwrap()
        };
        let whole = set(0.0, 1);
        assert_eq!((whole.train.len(), whole.held_out.len()), (40, 0));
        let parts = set(0.1, 1);
        assert_eq!((parts.train.len(), parts.held_out.len()), (36, 4));
        assert_eq!(parts.normalization, whole.normalization);
        let pixels = whole.shape.pixels();
        let images = |splits: &[&Split]| -> Vec<(Vec<u8>, u8)> {
            let mut all: Vec<_> = splits
                .iter()
                .flat_map(|split| split.images.chunks(pixels).zip(&split.labels))
                .map(|(image, label)| (image.to_vec(), *label))
                .collect();
            all.sort();
            all
        };
        assert_eq!(images(&[&parts.train, &parts.held_out]), images(&[&whole.train]));
        assert_eq!(set(0.1, 1).held_out, parts.held_out);
        assert_ne!(set(0.1, 2).held_out, parts.held_out);
    }

    #[test]
    fn a_subset_is_the_beginning_and_cannot_exceed_the_set() {
        let set = synthetic::generate(&synthetic::Config {
            train_images: 30,
            test_images: 20,
            label_noise: 0.0,
        })
        .unwrap();
        let part = set.clone().first(Some(10), None).unwrap();
        assert_eq!((part.train.len(), part.test.len()), (10, 20));
        assert_eq!(part.train.labels[..], set.train.labels[..10]);
        let error = set.first(None, Some(21)).unwrap_err().to_string();
        assert!(error.contains("21 test images") && error.contains("20"), "{error}");
    }
}
