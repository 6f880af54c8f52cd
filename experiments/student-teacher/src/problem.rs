//! A linear teacher and its data: `y = w*.x + s z` with `x ~ N(0, I)`, `z ~ N(0, 1)` and a
//! unit-norm `w*`.

use rand::{Rng, SeedableRng, distr::Distribution};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;

use crate::settings::Point;

/// The purpose of a stream of random numbers. The streams of one seed are independent.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The teacher's weights.
    Teacher,
    /// The inputs.
    Inputs,
    /// The observation noise.
    Observations,
    /// Chains that sample the exact posterior, by number.
    Chain(u32),
    /// Draws from the Gaussian posterior.
    Gaussian,
    /// A nonlinear teacher's test set.
    Test,
}

/// The generator of one purpose.
pub fn generator(seed: u64, purpose: Purpose) -> Pcg64 {
    let stream = match purpose {
        Purpose::Teacher => 0,
        Purpose::Inputs => 1,
        Purpose::Observations => 2,
        Purpose::Gaussian => 3,
        Purpose::Test => 4,
        Purpose::Chain(number) => 1000 + u64::from(number),
    };
    // Seeding hashes its argument; the odd factor keeps the streams of different seeds apart.
    Pcg64::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(stream))
}

/// A teacher with its training set.
///
/// With the same seed, all points of a sweep have the same teacher, and the smaller of two data
/// sets is the beginning of the larger. So they differ only in the variable of the sweep.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Its point in the sweeps.
    pub point: Point,
    /// The teacher's direction.
    pub teacher: Vec<f64>,
    /// The inputs, `N` rows of `D`.
    pub inputs: Vec<f64>,
    /// The targets.
    pub targets: Vec<f64>,
}

impl Problem {
    /// Draws a teacher and its data.
    pub fn draw(point: Point, seed: u64) -> Self {
        let teacher = direction(point.dim, &mut generator(seed, Purpose::Teacher));
        let mut rng = generator(seed, Purpose::Inputs);
        let inputs = normals(point.samples * point.dim, &mut rng);
        let mut rng = generator(seed, Purpose::Observations);
        let targets = inputs
            .chunks_exact(point.dim)
            .map(|x| {
                let z: f64 = StandardNormal.sample(&mut rng);
                dot(&teacher, x) + point.noise * z
            })
            .collect();
        Self { point, teacher, inputs, targets }
    }

    /// The inputs with the mean of each column removed, as normalization removes it.
    pub fn centred_inputs(&self) -> Vec<f64> {
        let dim = self.point.dim;
        let mut means = vec![0.0; dim];
        for x in self.inputs.chunks_exact(dim) {
            add_scaled(&mut means, 1.0 / self.point.samples as f64, x);
        }
        let mut centred = self.inputs.clone();
        for x in centred.chunks_exact_mut(dim) {
            add_scaled(x, -1.0, &means);
        }
        centred
    }

    /// `c = mean(b y)`, where b is the activation along `weight`, normalized over the sample.
    pub fn covariance(&self, weight: &[f64]) -> f64 {
        let dim = self.point.dim;
        let activations: Vec<f64> = self.inputs.chunks_exact(dim).map(|x| dot(weight, x)).collect();
        let count = activations.len() as f64;
        let mean = activations.iter().sum::<f64>() / count;
        let variance = activations.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / count;
        let product: f64 = activations.iter().zip(&self.targets).map(|(u, y)| (u - mean) * y).sum();
        product / count / variance.sqrt()
    }

    /// The direction that maximizes the covariance above: least squares on centred inputs. `None`
    /// if it is not unique, from `D = N - 1` on.
    pub fn least_squares_direction(&self) -> Option<Vec<f64>> {
        if self.point.dim + 1 >= self.point.samples {
            return None;
        }
        let inputs = self.centred_inputs();
        let right = transposed_times(&inputs, &self.targets, self.point.dim);
        let solution = conjugate_gradient(&right, |w| {
            let products: Vec<f64> =
                inputs.chunks_exact(self.point.dim).map(|x| dot(w, x)).collect();
            transposed_times(&inputs, &products, self.point.dim)
        });
        Some(unit(solution))
    }
}

/// The solution of `A w = right` for a symmetric positive definite A, given as a product.
pub fn conjugate_gradient(right: &[f64], product: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut solution = vec![0.0; right.len()];
    let (mut residual, mut along) = (right.to_vec(), right.to_vec());
    let mut squared = dot(&residual, &residual);
    let small_enough = 1e-24 * squared;
    for _ in 0..10 * right.len() {
        if squared <= small_enough {
            break;
        }
        let image = product(&along);
        let step = squared / dot(&along, &image);
        add_scaled(&mut solution, step, &along);
        add_scaled(&mut residual, -step, &image);
        let next = dot(&residual, &residual);
        for (a, r) in along.iter_mut().zip(&residual) {
            *a = r + next / squared * *a;
        }
        squared = next;
    }
    solution
}

/// `X^T v` for rows of `dim`.
pub fn transposed_times(rows: &[f64], v: &[f64], dim: usize) -> Vec<f64> {
    let mut sum = vec![0.0; dim];
    for (x, v) in rows.chunks_exact(dim).zip(v) {
        add_scaled(&mut sum, *v, x);
    }
    sum
}

/// The inner product.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `target += factor * v`.
pub fn add_scaled(target: &mut [f64], factor: f64, v: &[f64]) {
    for (t, v) in target.iter_mut().zip(v) {
        *t += factor * v;
    }
}

/// A vector divided by its length.
pub fn unit(mut v: Vec<f64>) -> Vec<f64> {
    let length = dot(&v, &v).sqrt();
    v.iter_mut().for_each(|v| *v /= length);
    v
}

/// The cosine between two vectors.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Standard normal numbers.
pub fn normals(count: usize, rng: &mut impl Rng) -> Vec<f64> {
    (0..count).map(|_| StandardNormal.sample(rng)).collect()
}

/// A uniformly distributed direction.
pub fn direction(dim: usize, rng: &mut impl Rng) -> Vec<f64> {
    unit(normals(dim, rng))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closed_form;

    const POINT: Point = Point { noise: 1.0, dim: 20, samples: 400 };

    #[test]
    fn a_longer_sample_begins_with_the_shorter_one() {
        let short = Problem::draw(POINT, 3);
        let long = Problem::draw(Point { samples: 500, ..POINT }, 3);
        assert_eq!(short.teacher, long.teacher);
        assert_eq!(short.inputs, long.inputs[..short.inputs.len()]);
        assert_eq!(short.targets, long.targets[..400]);
        assert_ne!(Problem::draw(POINT, 4).inputs, short.inputs);
    }

    #[test]
    fn least_squares_maximizes_the_covariance_with_the_targets() {
        let problem = Problem::draw(POINT, 1);
        let best = problem.least_squares_direction().unwrap();
        let at_best = problem.covariance(&best);
        let mut rng = generator(9, Purpose::Gaussian);
        for _ in 0..50 {
            let mut other = best.clone();
            add_scaled(&mut other, 0.1, &direction(POINT.dim, &mut rng));
            assert!(problem.covariance(&other) < at_best);
        }
        assert!((at_best / closed_form::expected_covariance(&POINT) - 1.0).abs() < 0.1);
    }

    #[test]
    fn the_cosine_of_least_squares_is_the_one_expected() {
        let cosines: Vec<f64> = (0..40)
            .map(|seed| {
                let problem = Problem::draw(POINT, seed);
                cosine(&problem.least_squares_direction().unwrap(), &problem.teacher)
            })
            .collect();
        let (mean, variance) = crate::diagnostics::mean_and_variance(&cosines);
        let expected = closed_form::least_squares_cosine(&POINT).unwrap();
        let deviation = closed_form::least_squares_cosine_deviation(&POINT).unwrap();
        let standard_errors = (mean - expected) / (deviation / 40f64.sqrt());
        assert!(standard_errors.abs() < 4.0, "{mean} {expected}");
        assert!((0.7..1.4).contains(&(variance.sqrt() / deviation)));
    }
}
