//! Compares every pass, layout, number type and instruction set with the equations, evaluated one
//! element at a time.

use super::*;
use crate::layout::Layout::{Hwnc, Nchw};
use crate::noise::{Noise, NoiseKey, fill_normals, normal};
use half::{bf16, f16};

/// The operation in double precision, in the order of its equations.
struct Reference {
    y: Vec<f64>,
    du: Vec<f64>,
    dsigma: Vec<f64>,
    statistics: Statistics,
}

/// One problem in the logical order (n, c, p). `given` replaces the batch statistics in evaluation.
struct Problem<'a> {
    config: Config,
    noise: Option<NoiseTerm<'a, f64>>,
    given: Option<&'a Statistics>,
    u: &'a [f64],
    dy: &'a [f64],
}

impl Problem<'_> {
    fn channel(&self, i: usize) -> usize {
        i / self.config.shape.positions % self.config.shape.channels
    }

    fn batch_statistics(&self) -> Statistics {
        let m = self.config.shape.elements_per_channel() as f64;
        let mut mean = vec![0.0; self.config.shape.channels];
        for (i, u) in self.u.iter().enumerate() {
            mean[self.channel(i)] += u / m;
        }
        let mut var = vec![0.0; self.config.shape.channels];
        for (i, u) in self.u.iter().enumerate() {
            let c = self.channel(i);
            var[c] += (u - mean[c]).powi(2) / m;
        }
        Statistics { mean, var }
    }

    /// If `y_for_mask` is given, it decides where ReLU passes: two implementations may differ where
    /// a value is zero up to rounding.
    fn solve(&self, y_for_mask: Option<&[f64]>) -> Reference {
        let Config { shape, eps, relu, .. } = self.config;
        let statistics = self.given.cloned().unwrap_or_else(|| self.batch_statistics());
        let rstd = statistics.rstd(eps);
        let groups = self.noise.map_or(0, |term| term.sigma.len());
        let group = |i: usize| self.channel(i) / (shape.channels / groups);
        let z = |i: usize| {
            let (key, element) = self.noise.unwrap().noise.locate(i as u64);
            normal(key, element)
        };
        let xhat =
            |i: usize| (self.u[i] - statistics.mean[self.channel(i)]) * rstd[self.channel(i)];
        let count = self.u.len();
        let y: Vec<f64> = (0..count)
            .map(|i| match self.noise {
                None => xhat(i),
                Some(term) => xhat(i) + term.sigma[group(i)] * z(i),
            })
            .map(|y| if relu { y.max(0.0) } else { y })
            .collect();
        let mask = y_for_mask.unwrap_or(&y);
        let g = |i: usize| {
            if relu && mask[i] <= 0.0 { 0.0 } else { self.dy[i] }
        };

        let m = shape.elements_per_channel() as f64;
        let mut mean_g = vec![0.0; shape.channels];
        let mut mean_g_xhat = vec![0.0; shape.channels];
        let mut dsigma = vec![0.0; groups];
        for i in 0..count {
            if self.given.is_none() {
                mean_g[self.channel(i)] += g(i) / m;
                mean_g_xhat[self.channel(i)] += g(i) * xhat(i) / m;
            }
            if groups > 0 {
                dsigma[group(i)] += g(i) * z(i);
            }
        }
        let du = (0..count)
            .map(|i| {
                let c = self.channel(i);
                rstd[c] * (g(i) - mean_g[c] - xhat(i) * mean_g_xhat[c])
            })
            .collect();
        Reference { y, du, dsigma, statistics }
    }
}

/// Normals, as numbers of unit size without structure.
fn values(stream: u32, count: usize) -> Vec<f64> {
    let noise = Noise::new(NoiseKey { seed: 99, stream, ..NoiseKey::default() });
    let mut values = vec![0.0; count];
    fill_normals(&noise, 0, &mut values).unwrap();
    values
}

fn store<E: Element>(shape: Shape, logical: &[f64]) -> Vec<E> {
    let mut stored = vec![E::default(); logical.len()];
    for (i, value) in logical.iter().enumerate() {
        stored[offset(shape, i)] = E::from_real(E::Real::from_f64(*value));
    }
    stored
}

fn load<E: Element>(shape: Shape, stored: &[E]) -> Vec<f64> {
    (0..stored.len()).map(|i| stored[offset(shape, i)].to_real().to_f64()).collect()
}

fn offset(shape: Shape, logical: usize) -> usize {
    let (plane, position) = (logical / shape.positions, logical % shape.positions);
    shape.offset(plane / shape.channels, plane % shape.channels, position)
}

fn assert_close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got - expected).abs() <= tolerance * scale,
            "{what}, element {i}: {got} instead of {expected}"
        );
    }
}

fn check<E: Element>(isa: Isa, config: Config, noise: Option<(Noise, usize)>, tolerance: f64) {
    check_with::<E>(isa, config, noise, 1.0, tolerance);
}

fn check_with<E: Element>(
    isa: Isa,
    config: Config,
    noise: Option<(Noise, usize)>,
    scale: f64,
    tolerance: f64,
) {
    let shape = config.shape;
    let count = shape.elements();
    let what = format!("{isa:?} {} {config:?} {noise:?}", std::any::type_name::<E>());
    let stored_u: Vec<E> = store(shape, &values(1, count));
    let stored_dy: Vec<E> = store(shape, &values(2, count));
    // The stored values are the problem: rounding them for storage is not an error of the kernel.
    let (u, dy) = (load(shape, &stored_u), load(shape, &stored_dy));
    let groups = noise.map_or(0, |(_, groups)| groups);
    let sigma: Vec<E::Real> =
        values(3, groups).iter().map(|s| E::Real::from_f64(scale * s.abs().max(0.1))).collect();
    let sigma_f64: Vec<f64> = sigma.iter().map(|s| s.to_f64()).collect();
    let term = noise.map(|(noise, _)| NoiseTerm { noise, sigma: &sigma[..] });
    let problem = Problem {
        config,
        noise: noise.map(|(noise, _)| NoiseTerm { noise, sigma: &sigma_f64[..] }),
        given: None,
        u: &u,
        dy: &dy,
    };

    let statistics = statistics(isa, &config, &stored_u).unwrap();
    let expected = problem.solve(None);
    let mean = &expected.statistics.mean;
    assert_close(&what, &statistics.mean, mean, tolerance.min(1e-6));
    let var = &expected.statistics.var;
    assert_close(&what, &statistics.var, var, tolerance.min(1e-6));

    let mut y = vec![E::default(); count];
    let mut du = vec![E::default(); count];
    for given in [None, Some(&statistics)] {
        let problem = Problem { given, ..problem };
        let normalization = Normalization::new(isa, &config, term, &statistics);
        normalization.forward(&stored_u, &mut y);
        let got_y = load(shape, &y);
        let expected = problem.solve(Some(&got_y));
        assert_close(&format!("y {what}"), &got_y, &expected.y, tolerance);

        let inputs = Inputs { u: &stored_u[..], y: &y, dy: &stored_dy };
        let dsigma = match given {
            Some(_) => normalization.backward_eval(inputs, &mut du),
            None => normalization.backward_train(inputs, &mut du).unwrap(),
        }
        .sigma;
        let du = load(shape, &du);
        assert_close(&format!("du {what}"), &du, &expected.du, tolerance);
        let dsigma: Vec<f64> = dsigma.iter().map(|d| d.to_f64()).collect();
        // A sum of `count` terms, whose rounding is relative to its root mean square.
        let tolerance = tolerance.min(1e-5) * (count as f64).sqrt();
        assert_close(&format!("dsigma {what}"), &dsigma, &expected.dsigma, tolerance);
    }
}

const KEY: NoiseKey =
    NoiseKey { seed: 0x1234_5678_9abc_def0, stream: 5, step: 17, sample: u32::MAX };

/// (N, C, P): odd sizes, single images, positions and channels, C that is no multiple of a vector,
/// rows longer than a sweep, planes longer than a tile, tensors longer than a task.
const SHAPES: [(usize, usize, usize); 16] = [
    (1, 1, 1),
    (1, 5, 1),
    (7, 1, 1),
    (1, 3, 5),
    (2, 3, 4),
    (3, 7, 9),
    (5, 13, 1),
    (4, 6, 16),
    (2, 33, 12),
    (3, 300, 3),
    (2, 12, 49),
    (1, 2, 2000),
    (5, 4, 1031),
    (130, 17, 2),
    (1, 70, 1024),
    (3, 600, 16),
];

fn configs(most_elements: usize) -> impl Iterator<Item = Config> {
    SHAPES
        .into_iter()
        .filter(move |(n, c, p)| n * c * p <= most_elements)
        .flat_map(|(n, c, p)| [Shape::nchw(n, c, p), Shape::hwnc(n, c, p)])
        .flat_map(|shape| [false, true].map(|relu| Config::new(shape).relu(relu)))
}

fn check_all<E: Element>(most_elements: usize, tolerance: f64) {
    for isa in Isa::available() {
        for config in configs(most_elements) {
            let whole = Noise::new(KEY);
            let shape = config.shape;
            let folded = Noise::folded(KEY, (shape.channels * shape.positions) as u64);
            check::<E>(isa, config, None, tolerance);
            check::<E>(isa, config, Some((whole, 1)), tolerance);
            check::<E>(isa, config, Some((folded, shape.channels)), tolerance);
        }
    }
}

#[test]
fn single_precision_follows_the_equations() {
    check_all::<f32>(usize::MAX, 1e-5);
}

#[test]
fn double_precision_follows_the_equations() {
    check_all::<f64>(usize::MAX, 1e-11);
}

#[test]
fn half_precision_follows_the_equations() {
    check_all::<f16>(6000, 1e-3);
    check_all::<bf16>(6000, 8e-3);
}

#[test]
fn groups_of_channels_have_their_own_scale() {
    for isa in Isa::available() {
        for layout in [Nchw, Hwnc] {
            let shape = Shape { layout, ..Shape::nchw(3, 12, 10) };
            for groups in [1, 2, 3, 4, 6, 12] {
                let config = Config::new(shape).relu(true);
                check::<f32>(isa, config, Some((Noise::new(KEY), groups)), 1e-5);
            }
        }
    }
}

/// With ReLU the backward pass reads large noise off y and makes small noise again. A negative
/// scale works as well.
#[test]
fn the_backward_pass_recovers_noise_of_any_size() {
    for isa in Isa::available() {
        for shape in [Shape::nchw(8, 6, 40), Shape::hwnc(8, 6, 40)] {
            for scale in [-20.0, -1.0, 0.0, 1e-3, 1e-2, 0.1] {
                let config = Config::new(shape).relu(true);
                let noise = Some((Noise::new(KEY), 1));
                check_with::<f32>(isa, config, noise, scale, 1e-5);
                check_with::<f64>(isa, config, noise, scale, 1e-11);
            }
        }
    }
}

#[test]
fn samples_may_end_anywhere() {
    // 4 * 6 * 20 = 480 elements: samples of whole images, of part of an image, of part of a plane,
    // of single elements.
    for isa in Isa::available() {
        for shape in [Shape::nchw(4, 6, 20), Shape::hwnc(4, 6, 20)] {
            for per_sample in [480, 240, 120, 60, 40, 30, 8, 3, 1] {
                let noise = Noise::folded(KEY, per_sample);
                check::<f32>(isa, Config::new(shape), Some((noise, 2)), 1e-5);
            }
        }
    }
}

/// With mean 10^4 and deviation 10^-2 in f32, one unit in the last place is 10^-3.
#[test]
fn a_channel_far_from_zero_is_normalized_right() {
    for isa in Isa::available() {
        for shape in [Shape::nchw(16, 3, 256), Shape::hwnc(16, 3, 256)] {
            let centers = [1e4, 0.0, -1e4];
            let logical: Vec<f64> = values(4, shape.elements())
                .iter()
                .enumerate()
                .map(|(i, value)| centers[i / shape.positions % 3] + 1e-2 * value)
                .collect();
            let u: Vec<f32> = store(shape, &logical);
            let rounded = load(shape, &u);
            let config = Config::new(shape).eps(1e-12);
            let problem = Problem { config, noise: None, given: None, u: &rounded, dy: &logical };
            let expected = problem.solve(None);
            let statistics = statistics(isa, &config, &u).unwrap();
            for c in 0..3 {
                let mean = (statistics.mean[c] - expected.statistics.mean[c]).abs();
                let var = statistics.var[c] / expected.statistics.var[c] - 1.0;
                assert!(mean < 1e-8, "{shape:?} mean of channel {c} is off by {mean}");
                assert!(var.abs() < 1e-5, "{shape:?} var of channel {c} is off by {var}");
            }
            let mut y = vec![0f32; u.len()];
            Normalization::new(isa, &config, None, &statistics).forward(&u, &mut y);
            assert_close("far", &load(shape, &y), &expected.y, 1e-5);
        }
    }
}
