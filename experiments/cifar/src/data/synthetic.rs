//! A generated set of ten learnable classes, for tests and for machines without a network.
//!
//! An image shows stripes, and its class is their direction (of five) and their wavelength (of two).
//! Phase, colours and contrast are random, and so is a grain over the picture, so that no single
//! pixel says anything about the class. A shifted image has the same class; a mirrored image
//! usually has another one. A share of the labels in both splits is replaced by one of the other nine
//! labels, which limits the accuracy of any network; a well calibrated network knows this limit.

use std::f64::consts::{PI, TAU};

use super::error::{Error, Result};
use super::random::{Draws, below, unit};
use super::{Dataset, Shape, Split};
use crate::limits;

/// The size of the set and the share of wrong labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Number of training images.
    pub train_images: usize,
    /// Number of test images.
    pub test_images: usize,
    /// Share of wrong labels, from 0 to 0.9; at 0.9 labels carry no information.
    pub label_noise: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { train_images: 10_000, test_images: 2_000, label_noise: 0.0 }
    }
}

const SHAPE: Shape = Shape { channels: 3, size: 32 };
const DIRECTIONS: usize = 5;
const WAVELENGTHS: [f64; 2] = [5.0, 10.0];
/// The seed is fixed, because the seed of a run must not change the data set.
const SEED: u64 = 0x57A1_9E50;

/// Generates the set. The same settings always give the same images.
pub fn generate(config: &Config) -> Result<Dataset> {
    if !(0.0..=0.9).contains(&config.label_noise) {
        return Err(Error::Setting(format!(
            "the label noise is {}; it is the share of wrong labels, from 0 to 0.9",
            config.label_noise
        )));
    }
    if config.train_images == 0 || config.test_images == 0 {
        return Err(Error::Setting(
            "a synthetic set needs at least one training and one test image".into(),
        ));
    }
    let most = config.train_images.max(config.test_images);
    if most > limits::IMAGES {
        return Err(Error::Setting(format!(
            "{most} images were requested; a synthetic set has at most {}",
            limits::IMAGES
        )));
    }
    let split = |name, count| generate_split(&Draws::new(SEED, name, 0), count, config.label_noise);
    let classes = WAVELENGTHS.iter().flat_map(|wavelength| {
        (0..DIRECTIONS).map(move |direction| {
            let degrees = 180 * direction / DIRECTIONS;
            format!("stripes of {wavelength} pixels at {degrees} degrees")
        })
    });
    let set = Dataset::new(
        "the synthetic set",
        SHAPE,
        classes.collect(),
        split("synthetic.train", config.train_images),
        split("synthetic.test", config.test_images),
    );
    Ok(Dataset { mirrors: false, ..set })
}

fn generate_split(draws: &Draws, count: usize, label_noise: f64) -> Split {
    let mut split = Split::with_capacity(count, SHAPE.pixels());
    for index in 0..count as u32 {
        // All classes are equally frequent, up to one image.
        let class = (index % 10) as usize;
        paint(&mut split.images, draws, index, class);
        let [coin, other, ..] = draws.words(index, 1);
        let label = if unit(coin) < label_noise {
            (class + 1 + below(other, 9) as usize) % 10
        } else {
            class
        };
        split.labels.push(label as u8);
    }
    split
}

fn paint(images: &mut Vec<u8>, draws: &Draws, index: u32, class: usize) {
    let angle = PI * (class % DIRECTIONS) as f64 / DIRECTIONS as f64;
    let wavelength = WAVELENGTHS[class / DIRECTIONS];
    let (along, across) = (angle.cos() / wavelength, angle.sin() / wavelength);
    let [phase, contrast, ..] = draws.words(index, 0).map(unit);
    let contrast = 40.0 + 60.0 * contrast;
    for channel in 0..SHAPE.channels as u32 {
        let [level, strength, sign, _] = draws.words(index, 2 + channel).map(unit);
        let strength = contrast * (0.3 + 0.7 * strength) * if sign < 0.5 { -1.0 } else { 1.0 };
        let level = 90.0 + 75.0 * level;
        for row in 0..SHAPE.size {
            for column in 0..SHAPE.size {
                let place = row * SHAPE.size + column;
                let grain_words = draws.words(index, 16 + channel * 256 + place as u32 / 4);
                let wave = (TAU * (along * column as f64 + across * row as f64 + phase)).cos();
                let value = level + strength * wave + 20.0 * grain(grain_words[place % 4]);
                images.push(value.round().clamp(0.0, 255.0) as u8);
            }
        }
    }
}

/// The standardized sum of the four bytes of a word, which is nearly normal.
fn grain(word: u32) -> f64 {
    let sum: u32 = word.to_le_bytes().iter().map(|byte| u32::from(*byte)).sum();
    (f64::from(sum) - 510.0) / 147.8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(label_noise: f64) -> Dataset {
        generate(&Config { train_images: 2_000, test_images: 100, label_noise }).unwrap()
    }

    #[test]
    fn the_set_is_the_same_every_time_and_its_splits_differ() {
        let (a, b) = (set(0.1), set(0.1));
        assert_eq!(a.train, b.train);
        assert_eq!(a.test, b.test);
        assert_ne!(a.train.images[..3072], a.test.images[..3072]);
        let longer = generate(&Config { train_images: 3_000, ..Config::default() }).unwrap();
        assert_eq!(longer.train.images[..3072], set(0.0).train.images[..3072]);
    }

    #[test]
    fn the_asked_share_of_labels_is_wrong() {
        let (clean, noisy) = (set(0.0), set(0.3));
        assert_eq!(clean.train.images, noisy.train.images);
        let pairs = clean.train.labels.iter().zip(&noisy.train.labels);
        let wrong = pairs.filter(|(a, b)| a != b).count();
        // 600 of 2,000 expected; five standard deviations are 102.
        assert!(wrong.abs_diff(600) < 102, "{wrong}");
        assert!(generate(&Config { label_noise: 1.5, ..Config::default() }).is_err());
        for count in [0, 1 << 40, usize::MAX] {
            assert!(generate(&Config { train_images: count, ..Config::default() }).is_err());
            assert!(generate(&Config { test_images: count, ..Config::default() }).is_err());
        }
    }

    /// The class whose wave is the strongest in the picture, whatever its phase.
    fn strongest(image: &[u8]) -> usize {
        let energy = |class: usize| -> f64 {
            let angle = PI * (class % DIRECTIONS) as f64 / DIRECTIONS as f64;
            let wavelength = WAVELENGTHS[class / DIRECTIONS];
            image
                .chunks_exact(1024)
                .map(|plane| {
                    let mean = plane.iter().map(|p| f64::from(*p)).sum::<f64>() / 1024.0;
                    let (mut re, mut im) = (0.0, 0.0);
                    for (place, pixel) in plane.iter().enumerate() {
                        let (row, column) = ((place / 32) as f64, (place % 32) as f64);
                        let turn = TAU * (angle.cos() * column + angle.sin() * row) / wavelength;
                        re += (f64::from(*pixel) - mean) * turn.cos();
                        im += (f64::from(*pixel) - mean) * turn.sin();
                    }
                    re * re + im * im
                })
                .sum()
        };
        let classes = 0..WAVELENGTHS.len() * DIRECTIONS;
        classes.max_by(|&a, &b| energy(a).total_cmp(&energy(b))).unwrap()
    }

    #[test]
    fn the_classes_can_be_told_apart_by_their_stripes_but_not_in_a_mirror() {
        let set = set(0.0);
        let (mut seen, mut mirrored) = (0, 0);
        for (number, &class) in set.train.labels[..200].iter().enumerate() {
            let image = &set.train.images[number * 3072..][..3072];
            let class = usize::from(class);
            seen += usize::from(strongest(image) == class);
            let mirror: Vec<u8> =
                image.chunks_exact(32).flat_map(|row| row.iter().rev().copied()).collect();
            // An angle becomes 180 degrees less that angle: only upright stripes stay as they are.
            let other =
                class / DIRECTIONS * DIRECTIONS + (DIRECTIONS - class % DIRECTIONS) % DIRECTIONS;
            mirrored += usize::from(strongest(&mirror) == other);
        }
        assert!(seen > 190 && mirrored > 190, "{seen} {mirrored}");
        assert!(!set.mirrors);
    }
}
