//! The weights that a landscape visits: two families around the trained direction of each filter.
//!
//! ```text
//! 1D:  w' = y w + x r          x in [-1.5, 1.5],  y in [0, 1.5]
//! 2D:  w' = w + a r1 + b r2    (a, b) in [-1.5, 1.5]^2
//! ```
//!
//! For each filter, w is its trained direction, and r = r1 and r2 are random directions; w, r1 and
//! r2 are orthonormal. Hence all filters turn by the same angle theta, which follows from the
//! coordinates.

use candle_core::{DType, Result, Tensor};
use plot::linspace;
use serde::{Deserialize, Serialize};
use vmf_candle::posterior::stream_of;
use vmf_kernels::noise::{NoiseKey, normal};

/// The largest absolute value of a coordinate.
const REACH: f64 = 1.5;

/// One of the paper's two families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    /// `w' = y w + x r`: turns the filter in one direction and changes its length.
    #[serde(rename = "1d")]
    OneDirection,
    /// `w' = w + a r1 + b r2`: a tangent plane of the sphere at the trained direction.
    #[serde(rename = "2d")]
    TwoDirections,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::OneDirection, Self::TwoDirections];

    /// Its name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneDirection => "1D",
            Self::TwoDirections => "2D",
        }
    }

    /// The names of its two coordinates.
    pub fn coordinates(self) -> [&'static str; 2] {
        match self {
            Self::OneDirection => ["x", "y"],
            Self::TwoDirections => ["a", "b"],
        }
    }

    /// The grid of its first and of its second coordinate.
    pub fn grids(self, points: usize) -> [Vec<f64>; 2] {
        let across = linspace(-REACH, REACH, points);
        match self {
            Self::OneDirection => [across, linspace(0.0, REACH, points)],
            Self::TwoDirections => [across.clone(), across],
        }
    }

    /// All points of the grid, row by row.
    pub fn points(self, points: usize) -> Vec<[f64; 2]> {
        let [across, up] = self.grids(points);
        let row = |second: &f64| {
            let second = *second;
            across.clone().into_iter().map(move |first| [first, second])
        };
        up.iter().flat_map(row).collect()
    }

    /// The coefficients of w, r1 and r2 in w'.
    fn parts(self, [first, second]: [f64; 2]) -> [f64; 3] {
        match self {
            Self::OneDirection => [second, first, 0.0],
            Self::TwoDirections => [1.0, first, second],
        }
    }

    /// The angle theta between w' and w, or `None` at the point of the 1D family where w' is zero.
    pub fn angle(self, point: [f64; 2]) -> Option<f64> {
        let [along, r1, r2] = self.parts(point);
        let across = r1.hypot(r2);
        (along != 0.0 || across != 0.0).then(|| across.atan2(along))
    }

    /// `1 - cos theta`, computed as `2 sin^2(theta / 2)`, which does not cancel near 0.
    pub fn turn(self, point: [f64; 2]) -> Option<f64> {
        let half = self.angle(point)? / 2.0;
        Some(2.0 * half.sin().powi(2))
    }
}

/// The trained weight of a layer, with two random directions for each of its filters.
#[derive(Clone, Debug)]
pub struct Directions {
    trained: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
    like: Tensor,
}

impl Directions {
    /// Draws directions for the filters of `weight`, which has the shape (M, ...).
    pub fn draw(weight: &Tensor, seed: u64) -> Result<Self> {
        let flat = weight.flatten_all()?.to_dtype(DType::F64)?;
        let trained = flat.to_vec1::<f64>()?;
        let dim = (trained.len() / weight.dim(0)?.max(1)).max(1);
        let drawn = |name: &str| {
            let key = NoiseKey { seed, stream: stream_of(name), ..NoiseKey::default() };
            let values = (0..trained.len() as u64).map(|element| normal(key, element));
            values.collect::<Vec<f64>>()
        };
        let (mut first, mut second) = (drawn("landscape.first"), drawn("landscape.second"));
        let filters = trained.chunks(dim).zip(first.chunks_mut(dim).zip(second.chunks_mut(dim)));
        for (w, (r1, r2)) in filters {
            make_orthonormal(r1, &[w]);
            make_orthonormal(r2, &[w, r1]);
        }
        Ok(Self { trained, first, second, like: weight.clone() })
    }

    /// The weight w' at a point of a family.
    pub fn weight(&self, family: Family, point: [f64; 2]) -> Result<Tensor> {
        let [along, a, b] = family.parts(point);
        let directions = self.trained.iter().zip(self.first.iter().zip(&self.second));
        let values = directions.map(|(w, (r1, r2))| along * w + a * r1 + b * r2);
        Tensor::from_vec(values.collect::<Vec<f64>>(), self.like.shape(), self.like.device())?
            .to_dtype(self.like.dtype())
    }
}

/// Makes `vector` orthogonal to `others`, which are orthogonal to each other, and normalizes it.
/// The Gram-Schmidt step is done twice, because once leaves rounding errors.
fn make_orthonormal(vector: &mut [f64], others: &[&[f64]]) {
    for _ in 0..2 {
        for other in others {
            let share = dot(vector, other) / dot(other, other).max(f64::MIN_POSITIVE);
            for (value, along) in vector.iter_mut().zip(*other) {
                *value -= share * along;
            }
        }
    }
    let length = dot(vector, vector).sqrt().max(f64::MIN_POSITIVE);
    for value in vector {
        *value /= length;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, IndexOp};

    /// Two filters of 27 weights with length 1, in single precision as a network has them.
    fn weight() -> Tensor {
        let raw: Vec<f64> = (0..54).map(|i| (1.7 * f64::from(i)).sin()).collect();
        let unit = raw.chunks(27).flat_map(|filter| {
            let length = dot(filter, filter).sqrt();
            filter.iter().map(move |value| (value / length) as f32)
        });
        Tensor::from_vec(unit.collect::<Vec<f32>>(), (2, 3, 3, 3), &Device::Cpu).unwrap()
    }

    fn filter(tensor: &Tensor, index: usize) -> Vec<f64> {
        let filter = tensor.i(index).unwrap().flatten_all().unwrap();
        filter.to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
    }

    #[test]
    fn every_filter_turns_by_the_angle_that_the_coordinates_say() {
        let weight = weight();
        let directions = Directions::draw(&weight, 3).unwrap();
        for (family, point) in [
            (Family::OneDirection, [0.9, 0.3]),
            (Family::OneDirection, [-1.5, 0.0]),
            (Family::TwoDirections, [0.6, -1.2]),
            (Family::TwoDirections, [0.0, 0.06]),
        ] {
            let moved = directions.weight(family, point).unwrap();
            for index in 0..2 {
                let (w, moved) = (filter(&weight, index), filter(&moved, index));
                let cosine = dot(&w, &moved) / (dot(&w, &w) * dot(&moved, &moved)).sqrt();
                let expected = 1.0 - family.turn(point).unwrap();
                assert!((cosine - expected).abs() < 1e-6, "{cosine} {expected}");
            }
        }
        // Length: Pythagoras.
        let moved = directions.weight(Family::TwoDirections, [0.6, -1.2]).unwrap();
        let length = dot(&filter(&moved, 1), &filter(&moved, 1));
        assert!((length - (1.0 + 0.36 + 1.44)).abs() < 1e-5, "{length}");
    }

    #[test]
    fn the_centre_is_the_trained_weight_bit_for_bit() {
        let weight = weight();
        let directions = Directions::draw(&weight, 3).unwrap();
        for (family, point) in
            [(Family::OneDirection, [0.0, 1.0]), (Family::TwoDirections, [0.0, 0.0])]
        {
            let centre = directions.weight(family, point).unwrap();
            let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(values(&centre), values(&weight));
            assert_eq!(family.turn(point), Some(0.0));
        }
        assert_eq!(Family::OneDirection.angle([0.0, 0.0]), None);
    }

    #[test]
    fn grids_hold_the_centre_and_their_ends() {
        let points = Family::TwoDirections.points(51);
        assert_eq!(points.len(), 51 * 51);
        assert_eq!((points[0], points[51 * 51 - 1]), ([-1.5, -1.5], [1.5, 1.5]));
        assert_eq!(points[25 * 51 + 25], [0.0, 0.0]);
        // Rows first: the first coordinate changes fastest.
        assert_eq!(Family::OneDirection.points(3)[1], [0.0, 0.0]);
        assert_eq!(Family::OneDirection.points(3)[3], [-1.5, 0.75]);
    }

    #[test]
    fn other_seeds_give_other_directions() {
        let weight = weight();
        let moved = |seed| {
            let directions = Directions::draw(&weight, seed).unwrap();
            filter(&directions.weight(Family::OneDirection, [1.0, 0.0]).unwrap(), 0)
        };
        assert_eq!(moved(1), moved(1));
        assert_ne!(moved(1), moved(2));
    }
}
