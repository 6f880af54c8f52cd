//! Realistic inputs: photographs of CIFAR-10, or generated pictures with similar correlations.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng, distr::Distribution};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;

/// The width and height of a picture in pixels.
pub const SIDE: usize = 32;

/// The number of pixels of a plane.
pub const PLANE: usize = SIDE * SIDE;

/// Pictures of 32 x 32 pixels in planes, each plane with mean 0 and variance 1 over all pictures.
pub struct Images {
    /// Where they come from.
    pub source: String,
    /// The number of planes of a picture.
    pub channels: usize,
    /// The pictures, `channels * 32 * 32` numbers each.
    pub pictures: Vec<Vec<f64>>,
}

impl Images {
    /// The first `count` pictures of CIFAR-10's first training file, in `folder` or the official
    /// folder inside it.
    pub fn cifar(folder: &Path, count: usize) -> Result<Self> {
        // A record is a label byte, then the red, green and blue planes.
        const RECORD: usize = 1 + 3 * PLANE;
        const FILE: &str = "data_batch_1.bin";
        let path = [folder.join(FILE), folder.join("cifar-10-batches-bin").join(FILE)]
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| {
                format!(
                    "{} has no {FILE}: --data-dir names a folder with CIFAR-10's binary files; without it generated \
                     pictures are used",
                    folder.display()
                )
            })?;
        let bytes = lab::read_file(&path)?;
        ensure!(
            bytes.len() % RECORD == 0 && bytes.len() >= count * RECORD,
            "{} has {} bytes, which is not {count} or more records of {RECORD}: it is not CIFAR-10's binary form",
            path.display(),
            bytes.len()
        );
        let pictures = bytes
            .chunks(RECORD)
            .take(count)
            .map(|record| record[1..].iter().map(|&pixel| f64::from(pixel)).collect())
            .collect();
        Ok(Self { source: "CIFAR-10".into(), channels: 3, pictures }.standardized())
    }

    /// Pictures whose neighbouring pixels and colours are similar: sums of random fields at five
    /// scales, the coarse ones strongest.
    pub fn generated(count: usize, seed: u64) -> Self {
        let mut rng = Pcg64::seed_from_u64(seed);
        let pictures = (0..count)
            .map(|_| {
                let grey = field(&mut rng);
                (0..3)
                    .flat_map(|_| {
                        let tint = field(&mut rng);
                        grey.iter()
                            .zip(tint)
                            .map(|(grey, tint)| grey + 0.3 * tint)
                            .collect::<Vec<_>>()
                    })
                    .collect()
            })
            .collect();
        Self { source: "generated pictures".into(), channels: 3, pictures }.standardized()
    }

    /// The output of a layer of `units` random directions: 3 x 3 convolution, normalization, ReLU.
    pub fn through_random_units(&self, units: usize, seed: u64) -> Self {
        let dim = 9 * self.channels;
        let mut rng = Pcg64::seed_from_u64(seed);
        let weights: Vec<f64> = (0..units * dim).map(|_| StandardNormal.sample(&mut rng)).collect();
        let mut patch = vec![0.0; dim];
        let mut pictures = vec![vec![0.0; units * PLANE]; self.pictures.len()];
        for (picture, out) in pictures.iter_mut().enumerate() {
            for at in 0..PLANE {
                self.patch(&self.pictures[picture], at, &mut patch);
                for (unit, weight) in weights.chunks(dim).enumerate() {
                    out[unit * PLANE + at] = super::dot(weight, &patch);
                }
            }
        }
        let mut behind = Self {
            source: format!("{}, behind {units} random units", self.source),
            channels: units,
            pictures,
        }
        .standardized();
        behind.pictures.iter_mut().flatten().for_each(|value| *value = value.max(0.0));
        behind
    }

    /// The 3 x 3 neighbourhood of position `at` in all planes, padded with zeros at the edge.
    pub fn patch(&self, picture: &[f64], at: usize, patch: &mut [f64]) {
        let (row, column) = (at / SIDE, at % SIDE);
        for (plane, patch) in picture.chunks(PLANE).zip(patch.chunks_mut(9)) {
            for (tap, value) in patch.iter_mut().enumerate() {
                let (y, x) = ((row + tap / 3).wrapping_sub(1), (column + tap % 3).wrapping_sub(1));
                *value = if y < SIDE && x < SIDE { plane[y * SIDE + x] } else { 0.0 };
            }
        }
    }

    /// Gives each plane mean 0 and variance 1, as batch normalization does.
    fn standardized(mut self) -> Self {
        let count = (self.pictures.len() * PLANE) as f64;
        for channel in 0..self.channels {
            let plane = channel * PLANE..(channel + 1) * PLANE;
            let sum = |f: &dyn Fn(f64) -> f64| {
                self.pictures.iter().flat_map(|p| &p[plane.clone()]).map(|&v| f(v)).sum::<f64>()
            };
            let mean = sum(&|v| v) / count;
            let deviation = (sum(&|v| (v - mean).powi(2)) / count).sqrt().max(1e-12);
            for picture in &mut self.pictures {
                picture[plane.clone()].iter_mut().for_each(|v| *v = (*v - mean) / deviation);
            }
        }
        self
    }
}

/// A random field: the sum of interpolated Gaussian grids of 2 to 32 cells per side, each with an
/// amplitude proportional to the size of its cells.
fn field(rng: &mut impl Rng) -> Vec<f64> {
    let mut field = vec![0.0; PLANE];
    for cells in [2, 4, 8, 16, 32] {
        let grid: Vec<f64> =
            (0..(cells + 1) * (cells + 1)).map(|_| StandardNormal.sample(rng)).collect();
        let at = |y: usize, x: usize| grid[y * (cells + 1) + x];
        for (index, value) in field.iter_mut().enumerate() {
            let place =
                |pixel: usize| (pixel * cells / SIDE, (pixel * cells % SIDE) as f64 / SIDE as f64);
            let ((y, v), (x, u)) = (place(index / SIDE), place(index % SIDE));
            let row = |y: usize| (1.0 - u) * at(y, x) + u * at(y, x + 1);
            *value += ((1.0 - v) * row(y) + v * row(y + 1)) / cells as f64;
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_the_neighbourhood_with_zeros_beyond_the_edge() {
        let images = Images {
            source: String::new(),
            channels: 1,
            pictures: vec![(1..=PLANE).map(|v| v as f64).collect()],
        };
        let mut patch = [9.0; 9];
        images.patch(&images.pictures[0], 0, &mut patch);
        assert_eq!(patch, [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 33.0, 34.0]);
        images.patch(&images.pictures[0], PLANE - 1, &mut patch);
        assert_eq!(patch, [991.0, 992.0, 0.0, 1023.0, 1024.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_file_that_is_not_cifar_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Images::cifar(folder.path(), 2).err().unwrap().to_string();
        assert!(error.contains("has no data_batch_1.bin"), "{error}");
        std::fs::write(folder.path().join("data_batch_1.bin"), [0; 100]).unwrap();
        let error = Images::cifar(folder.path(), 2).err().unwrap().to_string();
        assert!(error.contains("100 bytes"), "{error}");
    }
}
