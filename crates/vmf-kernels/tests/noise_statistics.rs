//! Tests that the noise is standard normal, and independent between elements, streams, steps,
//! samples and seeds.
//!
//! The noise is a fixed function, so these tests cannot fail by chance from one run to the next.
//! Each bound is five standard errors of the statistic under the hypothesis, or the critical value
//! for a probability of 10^-6: a sound generator would fail one of them once in a million choices
//! of the key.

use vmf_kernels::noise::{Noise, NoiseKey, fill_normals};

const COUNT: usize = 1 << 20;

const KEY: NoiseKey = NoiseKey { seed: 42, stream: 1, step: 100, sample: 0 };

fn normals(key: NoiseKey) -> Vec<f64> {
    let mut single = vec![0f32; COUNT];
    fill_normals(&Noise::new(key), 0, &mut single).unwrap();
    single.into_iter().map(f64::from).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    sum / count as f64
}

/// The k-th sample moment has variance (E z^2k - (E z^k)^2) / n: 1, 2, 15 and 96 over n.
#[test]
fn the_first_four_moments_are_normal() {
    for key in [KEY, NoiseKey { seed: u64::MAX, ..KEY }] {
        let z = normals(key);
        for (power, expected, variance) in
            [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
        {
            let moment = mean(z.iter().map(|z: &f64| z.powi(power)));
            let bound = 5.0 * (variance / COUNT as f64).sqrt();
            assert!((moment - expected).abs() < bound, "moment {power} is {moment}");
        }
    }
}

/// The same for each of a block's four normals: cosines and sines, first and second pair of words.
#[test]
fn each_place_of_a_block_is_normal() {
    let z = normals(KEY);
    for place in 0..4 {
        let own = || z.iter().skip(place).step_by(4);
        let error = (COUNT as f64 / 4.0).sqrt().recip();
        assert!(mean(own().copied()).abs() < 5.0 * error);
        assert!((mean(own().map(|z| z * z)) - 1.0).abs() < 5.0 * 2f64.sqrt() * error);
    }
}

/// By Kolmogorov and Smirnov, P(sqrt(n) D > 2.69) = 2 exp(-2 * 2.69^2) = 10^-6.
#[test]
fn the_distribution_is_normal() {
    let mut z = normals(KEY);
    z.sort_by(f64::total_cmp);
    let n = COUNT as f64;
    let distance = z.iter().enumerate().fold(0.0, |distance: f64, (i, &z)| {
        let cdf = 0.5 * erfc(-z / 2f64.sqrt());
        let (below, above) = (i as f64 / n, (i + 1) as f64 / n);
        distance.max((cdf - below).abs()).max((above - cdf).abs())
    });
    assert!(n.sqrt() * distance < 2.69, "{}", n.sqrt() * distance);
}

/// Counts the normals beyond 3, 4 and 5 in absolute value. The counts must be within five
/// deviations of a Poisson variable.
#[test]
fn the_tails_are_normal() {
    let z = normals(KEY);
    for threshold in [3.0, 4.0, 5.0] {
        let count = z.iter().filter(|z| z.abs() > threshold).count() as f64;
        let expected = COUNT as f64 * erfc(threshold / 2f64.sqrt());
        assert!(
            (count - expected).abs() < 5.0 * expected.sqrt().max(1.0),
            "{count} beyond {threshold} instead of {expected}"
        );
    }
}

/// The product of two independent normals has mean 0 and variance 1. So have the product of their
/// (z^2
/// - 1) / sqrt 2, which would show a common radius, and the product of their signs.
fn assert_independent(what: &str, a: &[f64], b: &[f64]) {
    let bound = 5.0 / (a.len().min(b.len()) as f64).sqrt();
    let pairs = || a.iter().zip(b);
    let values = mean(pairs().map(|(a, b)| a * b));
    let squares = mean(pairs().map(|(a, b)| (a * a - 1.0) * (b * b - 1.0) / 2.0));
    let signs = mean(pairs().map(|(a, b)| a.signum() * b.signum()));
    for correlation in [values, squares, signs] {
        assert!(correlation.abs() < bound, "{what}: {values} {squares} {signs}, bound {bound}");
    }
}

#[test]
fn neighbours_are_independent() {
    let z = normals(KEY);
    for lag in [1, 2, 3, 4, 5, 8, 16, 64, 1024, 65536] {
        assert_independent(&format!("lag {lag}"), &z, &z[lag..]);
    }
}

#[test]
fn streams_steps_samples_and_seeds_are_independent() {
    let z = normals(KEY);
    let NoiseKey { seed, stream, step, sample } = KEY;
    let others = [
        NoiseKey { stream: stream + 1, ..KEY },
        NoiseKey { stream: stream ^ 1 << 31, ..KEY },
        NoiseKey { step: step + 1, ..KEY },
        NoiseKey { step: step ^ 1 << 31, ..KEY },
        NoiseKey { sample: sample + 1, ..KEY },
        NoiseKey { sample: sample ^ 1 << 31, ..KEY },
        NoiseKey { seed: seed + 1, ..KEY },
        NoiseKey { seed: seed ^ 1 << 63, ..KEY },
        // The words of the counter must not be interchangeable.
        NoiseKey { stream: step, step: stream, ..KEY },
        NoiseKey { step: sample, sample: step, ..KEY },
    ];
    for other in others {
        assert_independent(&format!("{other:?}"), &z, &normals(other));
    }
}

/// One element with many keys: the noise of one activation from step to step, from layer to layer
/// and from sample to sample.
#[test]
fn one_element_is_normal_over_steps_streams_and_samples() {
    let count = 1 << 17;
    let over = |key_of: &dyn Fn(u32) -> NoiseKey| -> Vec<f64> {
        (0..count).map(|i| vmf_kernels::noise::normal(key_of(i), 5)).collect()
    };
    let series = [
        over(&|step| NoiseKey { step, ..KEY }),
        over(&|stream| NoiseKey { stream, ..KEY }),
        over(&|sample| NoiseKey { sample, ..KEY }),
    ];
    for z in &series {
        let error = f64::from(count).sqrt().recip();
        assert!(mean(z.iter().copied()).abs() < 5.0 * error);
        assert!((mean(z.iter().map(|z| z * z)) - 1.0).abs() < 5.0 * 2f64.sqrt() * error);
        assert_independent("one after another", z, &z[1..]);
    }
}

/// The complementary error function to 12 digits, by its continued fraction for large x and its
/// series for small x (Abramowitz and Stegun 7.1.14 and 7.1.6).
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    let gauss = (-x * x).exp() / std::f64::consts::PI.sqrt();
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..120 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        1.0 - 2.0 * gauss * sum
    } else {
        let mut fraction = x;
        for k in (1..80).rev() {
            fraction = x + f64::from(k) / 2.0 / fraction;
        }
        gauss / fraction
    }
}
