//! The inputs that a layer gets from pictures: single inputs, pairs that are more or less similar,
//! and averages over neighbouring positions.
//!
//! Inputs are centred, because normalization subtracts their common mean, and scaled to the length
//! of the theory's isotropic inputs, `E |x|^2 = D`.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::dot;
use super::images::{Images, PLANE, SIDE};

/// The distances between the two positions of a pair. A last kind of pair has the same position in
/// two pictures.
const DISTANCES: [usize; 4] = [1, 2, 4, 8];

/// The number of pairs of each kind.
const PAIRS_OF_A_KIND: usize = 30;

/// The number of squares of each size in a picture.
const SQUARES: usize = 4;

/// The sides of the squares of positions that are averaged.
const WINDOWS: [usize; 6] = [1, 2, 4, 8, 16, SIDE];

/// The inputs of a layer.
pub struct Inputs {
    /// Their name in tables and figures.
    pub name: String,
    /// Their dimension.
    pub dim: usize,
    /// Pairs of inputs with the distance between their positions, or `None` if they are from two
    /// pictures.
    pub pairs: Vec<(Option<usize>, [Vec<f64>; 2])>,
    /// For each number of positions in a square, averages of the inputs there.
    pub averages: Vec<(usize, Vec<Vec<f64>>)>,
}

impl Inputs {
    /// The inputs of a 3 x 3 convolution: neighbourhoods of positions.
    pub fn patches(images: &Images, seed: u64) -> Self {
        let all = Patches::new(images);
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut pairs = Vec::new();
        for distance in DISTANCES.map(Some).into_iter().chain([None]) {
            for _ in 0..PAIRS_OF_A_KIND {
                let picture = rng.random_range(0..images.pictures.len());
                let (row, column) = (rng.random_range(0..SIDE), rng.random_range(0..SIDE));
                let first = all.average(picture, (row, column), 1);
                let second = match distance {
                    Some(distance) => all.average(picture, (row, (column + distance) % SIDE), 1),
                    None => {
                        let next = (picture + 1) % images.pictures.len();
                        all.average(next, (row, column), 1)
                    }
                };
                pairs.push((distance, [first, second]));
            }
        }
        let averages = WINDOWS.map(|side| {
            // One small square says little about its picture, so several are taken.
            let squares = if side < SIDE { SQUARES } else { 1 };
            let averages = (0..squares * images.pictures.len())
                .map(|index| {
                    let mut corner = || rng.random_range(0..=SIDE - side);
                    let corner = (corner(), corner());
                    all.average(index / squares, corner, side)
                })
                .collect();
            (side * side, averages)
        });
        Self {
            name: format!("3 × 3 patches of {} planes", images.channels),
            dim: all.dim(),
            pairs,
            averages: averages.into(),
        }
    }

    /// The inputs of a linear layer: whole pictures.
    pub fn whole(images: &Images) -> Self {
        let mut pictures = images.pictures.clone();
        let dim = pictures[0].len();
        let mean = mean_of(&pictures);
        let scale = {
            let squares =
                |x: &Vec<f64>| x.iter().zip(&mean).map(|(x, m)| (x - m).powi(2)).sum::<f64>();
            let length = pictures.iter().map(squares).sum::<f64>() / pictures.len() as f64;
            (dim as f64 / length).sqrt()
        };
        for picture in &mut pictures {
            picture.iter_mut().zip(&mean).for_each(|(x, m)| *x = (*x - m) * scale);
        }
        let pairs = pictures
            .chunks_exact(2)
            .map(|pair| (None, [pair[0].clone(), pair[1].clone()]))
            .collect();
        Self { name: "whole pictures".into(), dim, pairs, averages: Vec::new() }
    }
}

/// All patches of pictures, centred and scaled.
pub struct Patches<'a> {
    images: &'a Images,
    mean: Vec<f64>,
    scale: f64,
}

impl<'a> Patches<'a> {
    /// Measures the mean and the length of all patches.
    pub fn new(images: &'a Images) -> Self {
        let dim = 9 * images.channels;
        let (mut mean, mut squares, mut patch) = (vec![0.0; dim], 0.0, vec![0.0; dim]);
        for picture in &images.pictures {
            for at in 0..PLANE {
                images.patch(picture, at, &mut patch);
                mean.iter_mut().zip(&patch).for_each(|(mean, x)| *mean += x);
                squares += dot(&patch, &patch);
            }
        }
        let count = (images.pictures.len() * PLANE) as f64;
        mean.iter_mut().for_each(|mean| *mean /= count);
        let length = squares / count - dot(&mean, &mean);
        Self { images, mean, scale: (dim as f64 / length).sqrt() }
    }

    /// Their dimension.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// All patches of one picture.
    pub fn of(&self, picture: usize) -> Vec<Vec<f64>> {
        (0..PLANE).map(|at| self.average(picture, (at / SIDE, at % SIDE), 1)).collect()
    }

    /// The average of the patches in a square of `side * side` positions with this upper left
    /// corner (row and column).
    pub fn average(&self, picture: usize, (row, column): (usize, usize), side: usize) -> Vec<f64> {
        let mut patch = vec![0.0; self.dim()];
        let mut sum = vec![0.0; self.dim()];
        for index in 0..side * side {
            let at = (row + index / side) * SIDE + column + index % side;
            self.images.patch(&self.images.pictures[picture], at, &mut patch);
            sum.iter_mut().zip(&patch).for_each(|(sum, x)| *sum += x);
        }
        let count = (side * side) as f64;
        sum.iter().zip(&self.mean).map(|(sum, mean)| (sum / count - mean) * self.scale).collect()
    }
}

fn mean_of(vectors: &[Vec<f64>]) -> Vec<f64> {
    let mut mean = vec![0.0; vectors[0].len()];
    for vector in vectors {
        mean.iter_mut().zip(vector).for_each(|(mean, x)| *mean += x / vectors.len() as f64);
    }
    mean
}
