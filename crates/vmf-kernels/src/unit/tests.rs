//! Compares the unit with its definition in double precision, and its gradients with finite
//! differences of that definition.

use super::*;
use crate::conv::{Algorithm, ConvShape};
use crate::noise::{Noise, NoiseKey, normal};
use crate::testing::{Rng, assert_close, with_threads};

struct Case {
    shape: ConvShape,
    relu: bool,
    pool: bool,
    algorithm: Algorithm,
    key: NoiseKey,
    /// How many values of sigma, and whether gain and shift follow them.
    groups: usize,
    affine: bool,
    /// The statistics of an evaluation pass; those of the batch otherwise.
    given: Option<Statistics>,
}

impl Case {
    fn unit(&self) -> Unit {
        let conv = Conv2d::new(self.shape).unwrap().with_algorithm(self.algorithm);
        let unit = Unit::new(conv).relu(self.relu);
        if self.pool { unit.max_pool(2).unwrap() } else { unit }
    }

    /// The unit by its definition, element by element, for a 3x3 kernel with padding 1. The
    /// parameters are those of the noise, then gains and shifts; `skip` may be empty.
    fn reference(&self, x: &[f64], w: &[f64], parameters: &[f64], skip: &[f64]) -> Vec<f64> {
        let s = &self.shape;
        let (sigma, affine) = parameters.split_at(self.groups);
        let ([height, width], batch) = (s.input, s.batch);
        let (inputs, outputs) = (s.in_channels, s.out_channels);
        let (positions, count) = (height * width, (height * width * batch) as f64);
        let mut u = vec![0.0; positions * batch * outputs];
        for (at, u) in u.iter_mut().enumerate() {
            let (position, image, o) = (at / (batch * outputs), at / outputs % batch, at % outputs);
            for tap in 0..9 {
                let y = (position / width + tap / 3).wrapping_sub(1);
                let x_ = (position % width + tap % 3).wrapping_sub(1);
                if y < height && x_ < width {
                    for i in 0..inputs {
                        *u += x[((y * width + x_) * batch + image) * inputs + i]
                            * w[(o * inputs + i) * 9 + tap];
                    }
                }
            }
        }
        for o in 0..outputs {
            let channel =
                |u: &[f64]| u.iter().skip(o).step_by(outputs).copied().collect::<Vec<_>>();
            let values = channel(&u);
            let (mean, var) = match &self.given {
                Some(given) => (given.mean[o], given.var[o]),
                None => {
                    let mean = values.iter().sum::<f64>() / count;
                    (mean, values.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / count)
                }
            };
            let sigma = sigma[o / (outputs / sigma.len())];
            for row in 0..positions * batch {
                let (position, image) = (row / batch, row % batch);
                let element = (image * outputs + o) * positions + position;
                let z = normal(self.key, element as u64);
                let u = &mut u[row * outputs + o];
                *u = (*u - mean) / (var + 1e-5).sqrt() + sigma * z;
                if self.affine {
                    *u = *u * affine[o] + affine[outputs + o];
                }
                *u += skip.get(row * outputs + o).unwrap_or(&0.0);
                if self.relu {
                    *u = u.max(0.0);
                }
            }
        }
        if !self.pool {
            return u;
        }
        let (h, w_, row) = (height / 2, width / 2, batch * outputs);
        (0..h * w_ * row)
            .map(|at| {
                let (position, lane) = (at / row, at % row);
                let corner = position / w_ * 2 * width + position % w_ * 2;
                [corner, corner + 1, corner + width, corner + width + 1]
                    .map(|p| u[p * row + lane])
                    .into_iter()
                    .fold(f64::NEG_INFINITY, f64::max)
            })
            .collect()
    }
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// The derivative of `loss` with respect to each element of `at`, by central differences.
fn differences(at: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-6;
    (0..at.len())
        .map(|i| {
            let moved = |by: f64| {
                let mut at = at.to_vec();
                at[i] += by;
                loss(&at)
            };
            (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
        })
        .collect()
}

#[test]
fn outputs_and_gradients_match_the_definition() {
    let mut rng = Rng::new(9);
    let shapes = [ConvShape::same(3, 3, 4, [4, 6], 3), ConvShape::same(2, 9, 6, [5, 4], 3)];
    for shape in shapes {
        for algorithm in [Algorithm::Direct, Algorithm::Winograd] {
            for (relu, pool, groups, affine, skip) in [
                (true, false, 1, false, false),
                (true, true, 2, false, false),
                (false, true, 1, false, false),
                (false, false, 2, false, false),
                (true, false, 2, true, false),
                (true, true, 1, true, false),
                (true, false, 1, false, true),
                (true, false, 2, true, true),
                (false, false, 1, true, true),
            ] {
                let key = NoiseKey { seed: rng.next(), stream: 3, step: 5, sample: 0 };
                let sigma: Vec<f32> = (0..groups).map(|i| 0.3 + 0.4 * i as f32).collect();
                let given = Statistics {
                    mean: (0..shape.out_channels).map(|_| rng.normal().into()).collect(),
                    var: (0..shape.out_channels).map(|_| rng.between(9, 30) as f64).collect(),
                };
                for given in [None, Some(given)] {
                    let case = Case { shape, relu, pool, algorithm, key, groups, affine, given };
                    let mut parameters = sigma.clone();
                    if affine {
                        // Gains of both signs, and shifts.
                        parameters.extend((0..shape.out_channels).map(|c| c as f32 - 1.4));
                        parameters.extend((0..shape.out_channels).map(|c| 0.3 - c as f32 * 0.2));
                    }
                    check_against_the_definition(&case, &parameters, skip, &mut rng);
                }
            }
        }
    }
}

fn check_against_the_definition(case: &Case, parameters: &[f32], skip: bool, rng: &mut Rng) {
    let (shape, unit) = (case.shape, case.unit());
    let x = rng.normals(shape.input_len());
    let w = rng.normals(shape.weight_len());
    let direction = rng.normals(unit.output_len());
    let skip = if skip { rng.normals(unit.output_len()) } else { Vec::new() };
    let (sigma, affine) = parameters.split_at(case.groups);
    let (gain, shift) = affine.split_at(affine.len() / 2);
    let terms = Terms {
        noise: Some(NoiseTerm { noise: Noise::new(case.key), sigma }),
        affine: case.affine.then_some(Affine { gain, shift }),
        skip: (!skip.is_empty()).then_some(&skip[..]),
    };
    let Case { relu, pool, algorithm, given, affine, .. } = case;
    let what = format!(
        "{shape:?} {algorithm:?} relu {relu} pool {pool} affine {affine} skip {} train {}",
        terms.skip.is_some(),
        given.is_none()
    );

    let (mut y, mut saved) = (vec![f32::NAN; unit.output_len()], Saved::default());
    match given {
        None => unit.forward_train(terms, &x, &w, &mut y, &mut saved).unwrap(),
        Some(given) => unit.forward_eval(terms, given, &x, &w, &mut y).unwrap(),
    }
    let (x64, w64, skip64) = (double(&x), double(&w), double(&skip));
    let parameters64 = double(parameters);
    assert_close(&y, &case.reference(&x64, &w64, &parameters64, &skip64), 2e-5, &what);

    let operands = Operands { x: &x, w: &w, y: &y };
    let backward = |gradients: Gradients| {
        let ParameterGradients { sigma, gain, shift } = match given {
            None => unit.backward_train(terms, operands, &saved, &direction, gradients),
            Some(given) => unit.backward_eval(terms, given, &x, &w, &direction, gradients),
        }
        .unwrap();
        [sigma, gain, shift].concat()
    };
    let (mut dx, mut dw) = (vec![f32::NAN; x.len()], vec![f32::NAN; w.len()]);
    let mut dskip = vec![f32::NAN; skip.len()];
    let dparameters = backward(Gradients {
        dx: Some(&mut dx),
        dw: &mut dw,
        dskip: terms.skip.map(|_| &mut dskip[..]),
    });
    let loss = |x: &[f64], w: &[f64], parameters: &[f64], skip: &[f64]| -> f64 {
        let y = case.reference(x, w, parameters, skip);
        y.iter().zip(&direction).map(|(y, d)| y * f64::from(*d)).sum()
    };
    let expected_dx = differences(&x64, |x| loss(x, &w64, &parameters64, &skip64));
    let expected_dw = differences(&w64, |w| loss(&x64, w, &parameters64, &skip64));
    let expected_dparameters =
        differences(&parameters64, |parameters| loss(&x64, &w64, parameters, &skip64));
    let expected_dskip = differences(&skip64, |skip| loss(&x64, &w64, &parameters64, skip));
    assert_close(&dx, &expected_dx, 1e-4, &format!("dx {what}"));
    assert_close(&dw, &expected_dw, 1e-4, &format!("dw {what}"));
    assert_close(&dparameters, &expected_dparameters, 1e-4, &format!("dparameters {what}"));
    assert_close(&dskip, &expected_dskip, 1e-4, &format!("dskip {what}"));

    // Without the gradients of input and skip connection, the others are the same.
    let mut again = vec![f32::NAN; w.len()];
    assert_eq!(backward(Gradients { dx: None, dw: &mut again, dskip: None }), dparameters);
    assert_eq!(again, dw);
}

/// The backward pass of evaluation, bit for bit, composed of the public operations that the unit
/// fuses.
#[test]
fn evaluation_gradients_are_those_of_the_separate_operations() {
    let mut rng = Rng::new(13);
    for case in 0..12 {
        let (relu, window) = (case % 2 == 0, case % 3);
        let shape = ConvShape::same(rng.between(1, 5), 3, rng.between(1, 40), [7, 6], 3);
        let conv = Conv2d::new(shape).unwrap();
        let unit = Unit::new(conv).relu(relu);
        let unit = if window > 0 { unit.max_pool(window).unwrap() } else { unit };
        let sigma = [0.2];
        let key = NoiseKey { seed: rng.next(), ..NoiseKey::default() };
        let noise = (case % 4 > 0).then(|| NoiseTerm { noise: Noise::new(key), sigma: &sigma });
        let statistics = Statistics {
            mean: (0..shape.out_channels).map(|_| rng.normal().into()).collect(),
            var: vec![20.0; shape.out_channels],
        };
        let (x, w) = (rng.normals(shape.input_len()), rng.normals(shape.weight_len()));
        let dy = rng.normals(unit.output_len());
        let (mut dx, mut dw) = (vec![f32::NAN; x.len()], vec![f32::NAN; w.len()]);
        let gradients = Gradients { dx: Some(&mut dx), dw: &mut dw, dskip: None };
        let dsigma = unit.backward_eval(noise, &statistics, &x, &w, &dy, gradients).unwrap().sigma;

        let mut u = vec![0.0; shape.output_len()];
        conv.forward(&x, &w, &mut u).unwrap();
        let (mut y, mut dwhole) = (vec![0.0; u.len()], dy.clone());
        bn_noise::forward_eval(&unit.norm, noise, &statistics, &u, &mut y).unwrap();
        if let Some(pool) = unit.pool {
            let mut argmax = vec![0; dy.len()];
            pool.max_forward(&y, &mut vec![0.0; dy.len()], &mut argmax).unwrap();
            dwhole.resize(u.len(), 0.0);
            pool.max_backward(&argmax, &dy, &mut dwhole).unwrap();
        }
        let saved = bn_noise::Saved { u: &u, y: &y, statistics: &statistics };
        let mut du = vec![0.0; u.len()];
        let expected_dsigma =
            bn_noise::backward_eval(&unit.norm, noise, saved, &dwhole, &mut du).unwrap();
        let (mut expected_dx, mut expected_dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
        conv.weight_gradient(&x, &du, &mut expected_dw).unwrap();
        conv.input_gradient(&du, &w, &mut expected_dx).unwrap();
        assert_eq!((dx, dw, dsigma), (expected_dx, expected_dw, expected_dsigma), "{unit:?}");
    }
}

#[test]
fn evaluation_with_the_batch_statistics_is_the_training_pass() {
    let mut rng = Rng::new(10);
    let shape = ConvShape::same(4, 16, 20, [6, 6], 3);
    for pool in [false, true] {
        let unit = Unit::new(Conv2d::new(shape).unwrap());
        let unit = if pool { unit.max_pool(2).unwrap() } else { unit };
        let (x, w) = (rng.normals(shape.input_len()), rng.normals(shape.weight_len()));
        let noise = Some(NoiseTerm {
            noise: Noise::new(NoiseKey { seed: 1, ..NoiseKey::default() }),
            sigma: &[0.5],
        });
        let (mut trained, mut saved) = (vec![0.0; unit.output_len()], Saved::default());
        unit.forward_train(noise, &x, &w, &mut trained, &mut saved).unwrap();
        let mut evaluated = vec![1.0; unit.output_len()];
        unit.forward_eval(noise, &saved.statistics, &x, &w, &mut evaluated).unwrap();
        assert_eq!(trained, evaluated);
    }
}

/// Compares units of random shapes with pooling with the unit without pooling, followed by the
/// pooling alone.
///
/// In the backward pass the fused unit reads large noise off y, where the parts make it again.
#[test]
fn fused_pooling_is_pooling_of_the_unpooled_unit() {
    let mut rng = Rng::new(12);
    for case in 0..40 {
        let window = rng.between(1, 3);
        let size = [window + rng.between(0, 9), window + rng.between(0, 9)];
        let shape = ConvShape::same(rng.between(1, 9), 2, rng.between(1, 40), size, 3);
        let relu = case % 2 == 0;
        let sigma = [if case % 5 == 0 { 1e-3 } else { 0.4 }];
        let what = format!("{shape:?} window {window} relu {relu} sigma {sigma:?}");
        let parts = Unit::new(Conv2d::new(shape).unwrap()).relu(relu);
        let unit = parts.max_pool(window).unwrap();
        let key = NoiseKey { seed: rng.next(), ..NoiseKey::default() };
        let noise = (case % 3 > 0).then(|| NoiseTerm { noise: Noise::new(key), sigma: &sigma });
        let x = rng.normals(shape.input_len());
        let w = rng.normals(shape.weight_len());
        let dy = rng.normals(unit.output_len());

        let (mut y, mut saved) = (vec![f32::NAN; dy.len()], Saved::default());
        unit.forward_train(noise, &x, &w, &mut y, &mut saved).unwrap();
        let (mut whole, mut saved_whole) = (vec![0.0; parts.output_len()], Saved::default());
        parts.forward_train(noise, &x, &w, &mut whole, &mut saved_whole).unwrap();
        let pool = unit.pool.unwrap();
        let (mut pooled, mut argmax) = (vec![0.0; dy.len()], vec![0; dy.len()]);
        pool.max_forward(&whole, &mut pooled, &mut argmax).unwrap();
        assert_eq!((&y, &saved.argmax), (&pooled, &argmax), "{what}");

        let mut du = vec![f32::NAN; parts.output_len()];
        let dsigma = {
            let Saved { u, argmax, statistics } = &saved;
            let saved = (bn_noise::Saved { u, y: &y, statistics }, &argmax[..]);
            let to = (None, &mut du[..]);
            unit.conv_gradient(noise.into(), Mode::Train, saved, &dy, to).unwrap().sigma
        };
        let mut dwhole = vec![0.0; whole.len()];
        pool.max_backward(&argmax, &dy, &mut dwhole).unwrap();
        for (dwhole, y) in dwhole.iter_mut().zip(&whole) {
            *dwhole = if relu && *y <= 0.0 { 0.0 } else { *dwhole };
        }
        let inner =
            bn_noise::Saved { u: &saved_whole.u, y: &[], statistics: &saved_whole.statistics };
        let mut expected = vec![0.0; whole.len()];
        let norm = parts.norm.relu(false);
        let expected_dsigma =
            bn_noise::backward_train(&norm, noise, inner, &dwhole, &mut expected).unwrap();
        assert_close(&du, &double(&expected), 1e-5, &what);
        // dsigma is a sum of g z over all elements, whose terms are of the size of z.
        let size = (dy.len() as f32).sqrt();
        for (found, expected) in dsigma.iter().zip(&expected_dsigma) {
            assert!((found - expected).abs() < 1e-4 * size, "{what}");
        }
        assert_eq!(dsigma.len(), expected_dsigma.len(), "{what}");
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let shape = ConvShape::same(2, 3, 4, [4, 4], 3);
    let unit = Unit::new(Conv2d::new(shape).unwrap()).max_pool(2).unwrap();
    let (x, w) = (vec![1.0; shape.input_len()], vec![1.0; shape.weight_len()]);
    let (mut y, mut dw, mut saved) = (vec![0.0; 2 * 4 * 4], w.clone(), Saved::default());
    unit.forward_train(None, &x, &w, &mut y, &mut saved).unwrap();
    assert!(unit.forward_train(None, &x, &w, &mut y[1..], &mut saved).is_err());
    let short = Statistics { mean: vec![0.0; 3], var: vec![1.0; 4] };
    assert!(unit.forward_eval(None, &short, &x, &w, &mut y).is_err());

    let dy = vec![1.0; y.len()];
    let mut train = |dy: &[f32], saved: &Saved, y: &[f32]| {
        let gradients = Gradients { dx: None, dw: &mut dw, dskip: None };
        unit.backward_train(None, Operands { x: &x, w: &w, y }, saved, dy, gradients)
    };
    assert!(train(&dy, &saved, &y).is_ok());
    assert!(train(&dy[1..], &saved, &y).is_err());
    assert!(train(&dy, &saved, &y[1..]).is_err());
    assert!(train(&dy, &Saved::default(), &y).is_err());
    let mut eval = |dy: &[f32], statistics: &Statistics| {
        unit.backward_eval(
            None,
            statistics,
            &x,
            &w,
            dy,
            Gradients { dx: None, dw: &mut dw, dskip: None },
        )
    };
    assert!(eval(&dy, &saved.statistics).is_ok());
    assert!(eval(&dy[1..], &saved.statistics).is_err());
    assert!(eval(&dy, &short).is_err());
}

/// The losses of a small network, two units trained with Adam, that learns to fit random targets.
fn train(algorithm: Algorithm, threads: usize) -> Vec<f64> {
    with_threads(threads, || {
        let mut rng = Rng::new(11);
        let shapes = [ConvShape::same(8, 4, 16, [8, 8], 3), ConvShape::same(8, 16, 16, [4, 4], 3)];
        let units = shapes.map(|shape| {
            let conv = Conv2d::new(shape).unwrap().with_algorithm(algorithm);
            Unit::new(conv)
        });
        let units = [units[0].max_pool(2).unwrap(), units[1].relu(false)];
        let x = rng.normals(shapes[0].input_len());
        let target = rng.normals(units[1].output_len());
        let mut w = shapes.map(|shape| rng.normals(shape.weight_len()));
        let mut moments = w.clone().map(|w| [vec![0.0; w.len()], vec![0.0; w.len()]]);
        let config = crate::adam::AdamConfig { lr: 0.02, ..Default::default() };
        (1..=60)
            .map(|step| {
                let key = NoiseKey { seed: 1, step, ..NoiseKey::default() };
                let noise = |stream| {
                    Some(NoiseTerm {
                        noise: Noise::new(NoiseKey { stream, ..key }),
                        sigma: &[0.05],
                    })
                };
                let (mut hidden, mut y) =
                    (vec![0.0; units[0].output_len()], vec![0.0; units[1].output_len()]);
                let mut saved = [Saved::default(), Saved::default()];
                units[0].forward_train(noise(0), &x, &w[0], &mut hidden, &mut saved[0]).unwrap();
                units[1].forward_train(noise(1), &hidden, &w[1], &mut y, &mut saved[1]).unwrap();
                let dy: Vec<f32> = y.iter().zip(&target).map(|(y, t)| y - t).collect();
                let loss = dy.iter().map(|d| f64::from(*d).powi(2)).sum::<f64>() / dy.len() as f64;

                let mut dw = [vec![0.0; w[0].len()], vec![0.0; w[1].len()]];
                let mut dhidden = vec![0.0; hidden.len()];
                let operands = Operands { x: &hidden, w: &w[1], y: &y };
                let to = Gradients { dx: Some(&mut dhidden), dw: &mut dw[1], dskip: None };
                units[1].backward_train(noise(1), operands, &saved[1], &dy, to).unwrap();
                let operands = Operands { x: &x, w: &w[0], y: &hidden };
                let to = Gradients { dx: None, dw: &mut dw[0], dskip: None };
                units[0].backward_train(noise(0), operands, &saved[0], &dhidden, to).unwrap();
                for ((w, dw), [m, v]) in w.iter_mut().zip(&dw).zip(&mut moments) {
                    crate::adam::adam(&config, step.into(), w, dw, m, v).unwrap();
                }
                loss
            })
            .collect()
    })
}

#[test]
fn a_small_network_trains_alike_with_both_algorithms_and_any_number_of_threads() {
    let direct = train(Algorithm::Direct, 1);
    assert!(direct[59] < 0.6 * direct[0], "loss {} to {}", direct[0], direct[59]);
    assert_eq!(direct, train(Algorithm::Direct, 3));
    let winograd = train(Algorithm::Winograd, 2);
    for (step, (d, w)) in direct.iter().zip(&winograd).enumerate() {
        assert!((d - w).abs() < 0.02 * d, "step {step}: direct {d}, winograd {w}");
    }
}
