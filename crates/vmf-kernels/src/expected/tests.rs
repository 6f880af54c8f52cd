//! The kernel against the closed forms in double precision, and both against brute force.

use super::*;
use crate::layout::Shape;
use crate::noise::{Noise, NoiseKey, normal as standard_normal};
use crate::testing::{Rng, with_threads};
use vmf_core::expected::{self as exact, Gaussian};

struct Case {
    config: Config,
    statistics: Statistics,
    deviation: Vec<f32>,
    pool: PoolShape,
    u: Vec<f32>,
    /// The variance of u in front of the normalization.
    q: Vec<f32>,
}

impl Case {
    fn new(batch: usize, channels: usize, side: usize, window: usize) -> Self {
        let mut rng = Rng::new((batch * channels * side) as u64);
        let shape = Shape::hwnc(batch, channels, side * side);
        let statistics = Statistics {
            mean: (0..channels).map(|c| c as f64 * 0.37 - 1.0).collect(),
            var: (0..channels).map(|c| 0.2 + c as f64 * 0.11).collect(),
        };
        // From no noise at all to noise that drowns the signal.
        let deviation = (0..channels).map(|c| [0.0, 1e-4, 0.05, 0.7, 1.0, 5.0][c % 6]).collect();
        Self {
            config: Config::new(shape).relu(true),
            statistics,
            deviation,
            pool: PoolShape::tiling(batch, channels, [side, side], window),
            u: (0..shape.elements()).map(|_| 2.0 * rng.normal()).collect(),
            // Some inputs are certain, and some so much so that rounding has overshot.
            q: (0..shape.elements())
                .map(|i| [0.0, rng.normal().powi(2), -1e-9, 10.0 * rng.normal().powi(2)][i % 4])
                .collect(),
        }
    }

    /// The Gaussian in front of the activation of an element.
    fn gaussian(&self, at: usize) -> Gaussian {
        let c = at % self.config.shape.channels;
        let rstd = self.statistics.rstd(self.config.eps)[c];
        let mean = (f64::from(self.u[at]) - self.statistics.mean[c]) * rstd;
        Gaussian::new(mean, f64::from(self.deviation[c]))
    }

    /// The same with the variance of u.
    fn uncertain(&self, at: usize) -> Gaussian {
        let rstd = self.statistics.rstd(self.config.eps)[at % self.config.shape.channels];
        let Gaussian { mean, variance } = self.gaussian(at);
        Gaussian { mean, variance: variance + f64::from(self.q[at]).max(0.0) * rstd * rstd }
    }

    /// Mean and variance of each element, with or without the variance of u.
    fn propagate(&self, relu: bool, certain: bool) -> [Vec<f32>; 2] {
        let (mut mean, mut variance) = (vec![f32::NAN; self.u.len()], vec![f32::NAN; self.u.len()]);
        let u = Moments { mean: &self.u, variance: (!certain).then_some(&self.q) };
        let y = MomentsMut { mean: &mut mean, variance: &mut variance };
        let Self { config, statistics, deviation, .. } = self;
        propagate(&config.relu(relu), statistics, deviation, u, y).unwrap();
        [mean, variance]
    }

    fn propagate_pooled(&self, relu: bool, certain: bool) -> [Vec<f32>; 2] {
        let length = self.pool.output_len();
        let (mut mean, mut variance) = (vec![f32::NAN; length], vec![f32::NAN; length]);
        let u = Moments { mean: &self.u, variance: (!certain).then_some(&self.q) };
        let y = MomentsMut { mean: &mut mean, variance: &mut variance };
        let Self { config, statistics, deviation, pool, .. } = self;
        propagate_pooled(&config.relu(relu), statistics, deviation, pool, u, y).unwrap();
        [mean, variance]
    }

    fn forward(&self) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.u.len()];
        forward(&self.config, &self.statistics, &self.deviation, &self.u, &mut y).unwrap();
        y
    }

    fn forward_pooled(&self) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.pool.output_len()];
        let Self { config, statistics, deviation, pool, u, .. } = self;
        forward_pooled(config, statistics, deviation, pool, u, &mut y).unwrap();
        y
    }
}

/// The error that `f32` allows for: a few units in the last place of the mean or the deviation.
fn tolerance(x: Gaussian) -> f64 {
    2e-6 * (1.0 + x.mean.abs() + x.deviation())
}

#[test]
fn the_expected_relu_is_that_of_double_precision() {
    for (batch, channels, side) in [(1, 1, 1), (3, 6, 2), (5, 37, 3), (2, 300, 4)] {
        let case = Case::new(batch, channels, side, 1);
        for (at, y) in case.forward().into_iter().enumerate() {
            let x = case.gaussian(at);
            let expected = exact::relu(x).mean;
            assert!((f64::from(y) - expected).abs() < tolerance(x), "{x:?}: {y} {expected}");
        }
    }
}

#[test]
fn pooling_is_that_of_double_precision() {
    for (batch, channels, side) in [(1, 1, 2), (3, 6, 4), (5, 37, 6), (2, 300, 4)] {
        let case = Case::new(batch, channels, side, 2);
        let planes = batch * channels;
        for (at, y) in case.forward_pooled().into_iter().enumerate() {
            let (position, plane) = (at / planes, at % planes);
            let out = [position / (side / 2), position % (side / 2)];
            let window = case.pool.elements_of(out);
            let window = [0, 1, 2, 3].map(|i| case.gaussian(window[i] * planes + plane));
            let expected = exact::relu(exact::maximum_of_window(window)).mean;
            let tolerance = window.map(tolerance).into_iter().fold(0.0, f64::max);
            assert!((f64::from(y) - expected).abs() < 2.0 * tolerance, "{y} {expected}");
        }
    }
}

/// Mean and variance in `f32` against those of double precision.
fn assert_moments([mean, variance]: [f32; 2], exact: Gaussian, inputs: &[Gaussian]) {
    let size = inputs.iter().map(|x| 1.0 + x.mean.abs() + x.deviation()).fold(0.0, f64::max);
    let off = (f64::from(mean) - exact.mean).abs();
    assert!(off < 4e-6 * size, "{mean} {exact:?} {inputs:?}");
    // Relative to the largest of the variances, because a maximum subtracts them from each other.
    let scale = inputs.iter().map(|x| x.variance).fold(1e-12, f64::max);
    let off = (f64::from(variance) - exact.variance).abs();
    assert!(off < 1e-5 * scale * size && variance >= 0.0, "{variance} {exact:?} {inputs:?}");
}

#[test]
fn propagated_moments_are_those_of_double_precision() {
    for (batch, channels, side) in [(1, 1, 1), (3, 6, 2), (5, 37, 3), (2, 300, 4)] {
        let case = Case::new(batch, channels, side, 1);
        for (relu, certain) in [(true, false), (true, true), (false, false), (false, true)] {
            let [mean, variance] = case.propagate(relu, certain);
            for at in 0..mean.len() {
                let x = if certain { case.gaussian(at) } else { case.uncertain(at) };
                let exact = if relu { exact::relu(x) } else { x };
                assert_moments([mean[at], variance[at]], exact, &[x]);
            }
        }
    }
}

#[test]
fn propagated_pooling_is_that_of_double_precision() {
    for (batch, channels, side) in [(1, 1, 2), (3, 6, 4), (5, 37, 6), (2, 300, 4)] {
        let case = Case::new(batch, channels, side, 2);
        let planes = batch * channels;
        for (relu, certain) in [(true, false), (true, true), (false, false), (false, true)] {
            let [mean, variance] = case.propagate_pooled(relu, certain);
            for at in 0..mean.len() {
                let (position, plane) = (at / planes, at % planes);
                let window = case.pool.elements_of([position / (side / 2), position % (side / 2)]);
                let window = [0, 1, 2, 3].map(|i| match certain {
                    true => case.gaussian(window[i] * planes + plane),
                    false => case.uncertain(window[i] * planes + plane),
                });
                let largest = exact::maximum_of_window(window);
                let exact = if relu { exact::relu(largest) } else { largest };
                assert_moments([mean[at], variance[at]], exact, &window);
            }
        }
    }
}

/// Without inherited variance both grades are the same pass.
#[test]
fn a_certain_input_gives_the_mean_of_the_fixed_grade() {
    let case = Case::new(3, 37, 4, 2);
    assert_eq!(case.propagate(true, true)[0], case.forward());
    assert_eq!(case.propagate_pooled(true, true)[0], case.forward_pooled());
}

#[test]
fn windows_of_other_sizes_are_reduced_pair_by_pair() {
    let case = Case::new(2, 5, 3, 3);
    for (plane, y) in case.forward_pooled().into_iter().enumerate() {
        let mut row: Vec<Gaussian> = (0..9).map(|i| case.gaussian(i * 10 + plane)).collect();
        let mut step = 1;
        while step < row.len() {
            for i in (0..row.len() - step).step_by(2 * step) {
                row[i] = exact::maximum(row[i], row[i + step], 0.0);
            }
            step *= 2;
        }
        let expected = exact::relu(row[0]).mean;
        assert!((f64::from(y) - expected).abs() < 1e-4, "{y} {expected}");
    }
}

/// The mean over 10^5 draws of what a noisy pass computes, within 4.5 standard errors: 7 in a
/// million for each of the 24 comparisons. For one element it is exact, for the maximum of four it
/// is the approximation by Gaussians that errs, by at most 1 % of s here.
#[test]
fn the_expected_activation_is_the_mean_of_many_draws() {
    let case = Case::new(1, 6, 2, 2);
    let (y, pooled) = (case.forward(), case.forward_pooled());
    let draws = 100_000_u32;
    for channel in 0..6 {
        let mut sums = [[0.0; 2]; 5];
        for draw in 0..draws {
            let noise = Noise::new(NoiseKey { seed: 1, stream: channel, step: 0, sample: draw });
            let values = [0, 1, 2, 3].map(|position| {
                let x = case.gaussian(position * 6 + channel as usize);
                x.mean + x.deviation() * standard_normal(noise.key, position as u64)
            });
            let largest = values.into_iter().fold(f64::NEG_INFINITY, f64::max);
            for (sums, value) in sums.iter_mut().zip(values.into_iter().chain([largest])) {
                let value = value.max(0.0);
                sums[0] += value;
                sums[1] += value * value;
            }
        }
        let computed =
            (0..4).map(|p| y[p * 6 + channel as usize]).chain([pooled[channel as usize]]);
        for (i, (sums, y)) in sums.into_iter().zip(computed).enumerate() {
            let [mean, square] = sums.map(|sum| sum / f64::from(draws));
            let error = 4.5 * ((square - mean * mean).max(0.0) / f64::from(draws)).sqrt();
            let gaussian =
                if i == 4 { 0.01 * f64::from(case.deviation[channel as usize]) } else { 0.0 };
            let difference = (f64::from(y) - mean).abs();
            assert!(difference < error + gaussian + 1e-5, "{channel} {i}: {y} {mean} {error}");
        }
    }
}

#[test]
fn the_number_of_threads_does_not_matter_and_nan_is_not_hidden() {
    let mut case = Case::new(40, 37, 8, 2);
    case.u[5] = f32::NAN;
    let bits = |threads| {
        with_threads(threads, || {
            let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let full = [case.propagate(true, false), case.propagate_pooled(true, false)];
            let full = full.map(|moments| moments.map(bits));
            (bits(case.forward()), bits(case.forward_pooled()), full)
        })
    };
    let (whole, pooled, full) = bits(1);
    assert_eq!((whole.clone(), pooled.clone(), full.clone()), bits(2));
    for moments in full.iter().flatten() {
        assert!(f32::from_bits(moments[5]).is_nan() && !f32::from_bits(moments[6]).is_nan());
    }
    assert!(f32::from_bits(whole[5]).is_nan() && f32::from_bits(pooled[5]).is_nan());
    assert!(!f32::from_bits(whole[6]).is_nan() && !f32::from_bits(pooled[6]).is_nan());
}

#[test]
fn mistakes_are_refused() {
    let case = Case::new(2, 3, 2, 2);
    let Case { config, statistics, deviation, u, .. } = &case;
    let mut y = vec![0.0; u.len()];
    assert!(forward(&config.relu(false), statistics, deviation, u, &mut y).is_err());
    assert!(forward(config, statistics, &deviation[1..], u, &mut y).is_err());
    assert!(forward(config, statistics, deviation, &u[1..], &mut y).is_err());
    let moments = |mean, variance| Moments { mean, variance };
    let propagate = |own: &[f32], u: Moments| {
        let (mut mean, mut variance) = (vec![0.0; u.mean.len()], vec![0.0; 24]);
        let y = MomentsMut { mean: &mut mean, variance: &mut variance };
        propagate(config, statistics, own, u, y)
    };
    assert!(propagate(deviation, moments(u, Some(u))).is_ok());
    assert!(propagate(&deviation[1..], moments(u, Some(u))).is_err());
    assert!(propagate(deviation, moments(u, Some(&u[1..]))).is_err());
    assert!(propagate(deviation, moments(&u[1..], Some(u))).is_err());
    let nchw = Config::new(Shape::nchw(2, 3, 4)).relu(true);
    assert!(forward(&nchw, statistics, deviation, u, &mut y).is_err());
}
