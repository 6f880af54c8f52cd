//! Random numbers for the corruption of one image, and the fractal cloud of fog.

use std::f64::consts::TAU;

use super::Planes;
use crate::data::random::{Draws, unit};

/// Random numbers of one image, one after the other.
pub(super) struct Stream {
    draws: Draws,
    image: u32,
    part: u32,
    words: Vec<u32>,
}

impl Stream {
    pub(super) fn new(draws: Draws, image: u32) -> Self {
        Self { draws, image, part: 0, words: Vec::new() }
    }

    /// Uniform in [0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        if self.words.is_empty() {
            self.words = self.draws.words(self.image, self.part).to_vec();
            self.part += 1;
        }
        self.words.pop().map_or(0.0, unit)
    }

    /// Standard normal (Box and Muller, 1958).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// Poisson with this mean, which is at most 500 here: the number of uniform factors that fit
    /// into `exp(-mean)` (Knuth).
    pub(super) fn poisson(&mut self, mean: f64) -> f64 {
        let limit = (-mean).exp();
        let (mut product, mut count) = (1.0, -1.0);
        while product >= limit {
            product *= 1.0 - self.uniform();
            count += 1.0;
            if product == 0.0 {
                break;
            }
        }
        f64::max(count, 0.0)
    }
}

/// `(x + amount cloud) max / (max + amount)`, where max is the largest value of the image.
pub(super) fn fog(
    mut planes: Planes,
    size: usize,
    (amount, decay): (f64, f64),
    stream: &mut Stream,
) -> Planes {
    let largest = planes.iter().flatten().copied().fold(0.0, f64::max);
    let map = size.next_power_of_two();
    let cloud = cloud(map, decay, stream);
    for plane in &mut planes {
        for (at, x) in plane.iter_mut().enumerate() {
            *x += amount * cloud[at / size * map + at % size];
            *x *= largest / (largest + amount);
        }
    }
    planes
}

/// A fractal on a torus from 0 to 1: each finer grid is the mean of its neighbours in the coarser
/// one, plus noise that decays from grid to grid (diamond-square).
///
/// The published code adds the corner sums in place, so that its means of four have weights of
/// their own; what matters is the spectrum, which is the decay's.
fn cloud(size: usize, decay: f64, stream: &mut Stream) -> Vec<f64> {
    let mut map = vec![0.0; size * size];
    let (mut step, mut wobble) = (size, 100.0);
    while step >= 2 {
        let half = step / 2;
        let mut noise = || wobble * wobble * (2.0 * stream.uniform() - 1.0);
        let at = |row: usize, column: usize| (row % size) * size + column % size;
        for row in (half..size).step_by(step) {
            for column in (half..size).step_by(step) {
                let corners = [(0, 0), (0, step), (step, 0), (step, step)];
                let near = corners.map(|(r, c)| map[at(row - half + r, column - half + c)]);
                map[at(row, column)] = near.iter().sum::<f64>() / 4.0 + noise();
            }
        }
        for row in (0..size).step_by(half) {
            let first = if (row / half).is_multiple_of(2) { half } else { 0 };
            for column in (first..size).step_by(step) {
                let sides = [(0, half), (half, 0), (0, size - half), (size - half, 0)];
                let near = sides.map(|(r, c)| map[at(row + r, column + c)]);
                map[at(row, column)] = near.iter().sum::<f64>() / 4.0 + noise();
            }
        }
        (step, wobble) = (half, wobble / decay);
    }
    let lowest = map.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = map.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = (highest - lowest).max(f64::MIN_POSITIVE);
    map.iter().map(|height| (height - lowest) / range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_moments() {
        let mut stream = Stream::new(Draws::new(1, "test", 0), 0);
        let count = 20_000;
        let moments = |values: Vec<f64>| {
            let mean = values.iter().sum::<f64>() / f64::from(count);
            let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
            (mean, squares / f64::from(count))
        };
        let (mean, variance) = moments((0..count).map(|_| stream.normal()).collect());
        // Five standard errors of 20,000 draws.
        assert!(mean.abs() < 0.036 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        for rate in [0.0, 3.0, 200.0] {
            let (mean, variance) = moments((0..count).map(|_| stream.poisson(rate)).collect());
            let slack = 5.0 * (rate / f64::from(count)).sqrt();
            assert!((mean - rate).abs() <= slack, "{mean}");
            assert!((variance - rate).abs() <= 0.06 * rate, "{variance}");
        }
    }

    #[test]
    fn a_cloud_is_between_zero_and_one_and_smoother_if_its_noise_decays_faster() {
        let roughness = |decay| {
            let mut stream = Stream::new(Draws::new(1, "test", 0), 0);
            let map = cloud(32, decay, &mut stream);
            let range = (map.contains(&0.0), map.contains(&1.0));
            assert_eq!(range, (true, true));
            map.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum::<f64>()
        };
        assert!(roughness(3.0) < roughness(1.75));
    }
}
