//! The elastic transform (Simard et al., 2003): a random affine map, then a smooth random
//! displacement of every pixel.

use super::Planes;
use super::filter::filtered;
use super::noise::Stream;

/// Three corners are moved by up to `affine`, and each pixel by `alpha` times uniform noise that a
/// Gaussian of width `sigma` has smoothed; all in widths of the image.
pub(super) fn elastic(
    planes: Planes,
    size: usize,
    (alpha, sigma, affine): (f64, f64, f64),
    stream: &mut Stream,
) -> Planes {
    let width = size as f64;
    let map = affine_map(size, affine * width, stream);
    let field = |stream: &mut Stream| -> Vec<f64> {
        let noise: Vec<f64> = (0..size * size).map(|_| 2.0 * stream.uniform() - 1.0).collect();
        let smooth =
            filtered(&noise, size, sigma * width, 3.0, |place| reflected(place as f64, size));
        smooth.into_iter().map(|x| x * alpha * width).collect()
    };
    let (right, down) = (field(stream), field(stream));
    let moved = |plane: &Vec<f64>| {
        let place = |at: usize| {
            let (x, y) = ((at % size) as f64 + right[at], (at / size) as f64 + down[at]);
            bilinear(plane, size, map([x, y]))
        };
        (0..size * size).map(place).collect()
    };
    planes.iter().map(moved).collect()
}

/// The map from a place in the warped image to one in the original: the corners of a square around
/// the centre and where they came from.
fn affine_map(
    size: usize,
    reach: f64,
    stream: &mut Stream,
) -> impl Fn([f64; 2]) -> [f64; 2] + use<> {
    let (centre, side) = ((size / 2) as f64, (size / 3) as f64);
    let corners =
        [[centre + side, centre + side], [centre + side, centre - side], [centre - side; 2]];
    let moved = corners.map(|corner| corner.map(|x| x + reach * (2.0 * stream.uniform() - 1.0)));
    // From the moved corners back: x = corner 2 + a (moved 0 - moved 2) + b (moved 1 - moved 2).
    let [u, v] = [0, 1].map(|i| [moved[i][0] - moved[2][0], moved[i][1] - moved[2][1]]);
    let determinant = u[0] * v[1] - u[1] * v[0];
    move |[x, y]| {
        let (dx, dy) = (x - moved[2][0], y - moved[2][1]);
        let a = (dx * v[1] - dy * v[0]) / determinant;
        let b = (u[0] * dy - u[1] * dx) / determinant;
        let along = |axis: usize| {
            corners[2][axis]
                + a * (corners[0][axis] - corners[2][axis])
                + b * (corners[1][axis] - corners[2][axis])
        };
        [along(0), along(1)]
    }
}

fn bilinear(plane: &[f64], size: usize, [x, y]: [f64; 2]) -> f64 {
    let at = |x: f64, y: f64| plane[reflected(y, size) * size + reflected(x, size)];
    let (left, top) = (x.floor(), y.floor());
    let (right, down) = (x - left, y - top);
    let upper = at(left, top) * (1.0 - right) + at(left + 1.0, top) * right;
    let lower = at(left, top + 1.0) * (1.0 - right) + at(left + 1.0, top + 1.0) * right;
    upper * (1.0 - down) + lower * down
}

/// A whole place, mirrored at the outer edges of the image.
fn reflected(place: f64, size: usize) -> usize {
    let period = 2 * size as i64;
    let place = (place as i64).rem_euclid(period);
    place.min(period - 1 - place) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random::Draws;

    #[test]
    fn without_strength_nothing_moves() {
        let mut stream = Stream::new(Draws::new(1, "test", 0), 0);
        let plane: Vec<f64> = (0..64).map(|x| f64::from(x) / 64.0).collect();
        let still = elastic(vec![plane.clone()], 8, (0.0, 0.1, 0.0), &mut stream);
        let close = still[0].iter().zip(&plane).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close, "{still:?}");
    }

    #[test]
    fn places_beyond_the_border_are_mirrored() {
        let places = [-2.0, -1.0, 0.0, 3.0, 4.0, 5.0];
        assert_eq!(places.map(|place| reflected(place, 4)), [1, 0, 0, 3, 3, 2]);
    }
}
