use super::*;
use crate::noise::{NoiseKey, normal};
use crate::testing::{Rng, assert_close, with_threads};

const KEY: NoiseKey = NoiseKey { seed: 5, stream: 2, step: 3, sample: 0 };

/// An operation with all its tensors, in double precision.
#[derive(Clone)]
struct Case {
    config: Config,
    u: Vec<f64>,
    gain: Vec<f64>,
    shift: Vec<f64>,
    sigma: Vec<f64>,
    dy: Vec<f64>,
}

impl Case {
    fn new(shape: Shape, norm: Norm, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut draw = |count: usize, offset: f64| -> Vec<f64> {
            rng.normals(count).iter().map(|&x| f64::from(x) + offset).collect()
        };
        let (elements, channels) = (shape.elements(), shape.channels);
        Self {
            config: Config { shape, norm, eps: 1e-5 },
            u: draw(elements, 0.7),
            gain: draw(channels, 1.0),
            shift: draw(channels, 0.0),
            sigma: draw(channels, 0.5),
            dy: draw(elements, 0.0),
        }
    }

    fn parameters(&self) -> Parameters<'_, f64> {
        Parameters {
            gain: Some(&self.gain),
            shift: Some(&self.shift),
            noise: Some((Noise::folded(KEY, self.u.len() as u64), &self.sigma)),
        }
    }

    /// The definition, written out.
    fn definition(&self) -> Vec<f64> {
        let Config { shape, norm, eps } = self.config;
        let length = shape.length();
        let row = |i: usize| &self.u[i / length * length..][..length];
        (0..self.u.len())
            .map(|i| {
                let row = row(i);
                let count = length as f64;
                let mean = match norm {
                    Norm::Layer => row.iter().sum::<f64>() / count,
                    _ => 0.0,
                };
                let square = row.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / count;
                let root = (square + eps).sqrt();
                let channel = i / shape.positions % shape.channels;
                let noise = self.sigma[channel] * normal(KEY, i as u64);
                let value = match norm {
                    Norm::None => self.u[i] + root * noise,
                    _ => (self.u[i] - mean) / root + noise,
                };
                self.gain[channel] * value + self.shift[channel]
            })
            .collect()
    }

    fn loss(&self) -> f64 {
        self.definition().iter().zip(&self.dy).map(|(y, dy)| y * dy).sum()
    }

    fn gradients(&self) -> (Vec<f64>, Gradients<f64>) {
        let mut y = vec![f64::NAN; self.u.len()];
        let mut du = y.clone();
        let parameters = self.parameters();
        let statistics = forward(&self.config, parameters, &self.u, &mut y).unwrap();
        let gradients =
            backward(&self.config, parameters, (&self.u, &statistics), &self.dy, &mut du);
        (du, gradients.unwrap())
    }
}

fn shapes() -> Vec<Shape> {
    vec![
        Shape::tokens(1, 2),
        Shape::tokens(7, 33),
        Shape::tokens(300, 64),
        Shape { batch: 3, channels: 6, positions: 5, groups: 2 },
        Shape { batch: 2, channels: 4, positions: 9, groups: 4 },
        Shape { batch: 2, channels: 8, positions: 300, groups: 1 },
    ]
}

const NORMS: [Norm; 3] = [Norm::Layer, Norm::Rms, Norm::None];

#[test]
fn values_are_those_of_the_definition() {
    for shape in shapes() {
        for norm in NORMS {
            let case = Case::new(shape, norm, 1);
            let expected = case.definition();
            let mut y = vec![f64::NAN; expected.len()];
            forward(&case.config, case.parameters(), &case.u, &mut y).unwrap();
            for (found, expected) in y.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-12 * (1.0 + expected.abs()), "{shape:?}");
            }
        }
    }
}

#[test]
fn gradients_are_those_of_central_differences() {
    for shape in shapes().into_iter().filter(|shape| shape.elements() < 300) {
        for norm in NORMS {
            let case = Case::new(shape, norm, 2);
            let (du, gradients) = case.gradients();
            let check = |what: &str, found: &[f64], part: fn(&mut Case) -> &mut Vec<f64>| {
                for (i, found) in found.iter().enumerate() {
                    let at = |step: f64| {
                        let mut moved = case.clone();
                        part(&mut moved)[i] += step;
                        moved.loss()
                    };
                    let step = 1e-5;
                    let slope = (at(step) - at(-step)) / (2.0 * step);
                    let error = (found - slope).abs() / (1.0 + slope.abs());
                    // Two elements have a large curvature: their differences are coarse.
                    let bound = if shape.length() == 2 { 1e-5 } else { 1e-7 };
                    assert!(error < bound, "{norm:?} {shape:?} {what} {i}: {found} {slope}");
                }
            };
            check("u", &du, |case| &mut case.u);
            check("gain", &gradients.gain, |case| &mut case.gain);
            check("shift", &gradients.shift, |case| &mut case.shift);
            check("sigma", &gradients.sigma, |case| &mut case.sigma);
        }
    }
}

#[test]
fn single_precision_agrees_with_double_on_every_instruction_set() {
    for isa in Isa::available() {
        for shape in shapes() {
            for norm in NORMS {
                let case = Case::new(shape, norm, 3);
                let single = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<_>>();
                let (u, dy) = (single(&case.u), single(&case.dy));
                let (gain, shift, sigma) =
                    (single(&case.gain), single(&case.shift), single(&case.sigma));
                let noise = case.parameters().noise.map(|(noise, _)| (noise, &*sigma));
                let parameters = Parameters { gain: Some(&gain), shift: Some(&shift), noise };
                let (mut y, mut du) = (vec![f32::NAN; u.len()], vec![f32::NAN; u.len()]);
                let statistics = forward_on(isa, &case.config, parameters, &u, &mut y).unwrap();
                let found =
                    backward_on(isa, &case.config, parameters, (&u, &statistics), &dy, &mut du)
                        .unwrap();
                let what = format!("{isa:?} {norm:?} {shape:?}");
                let (expected_du, expected) = case.gradients();
                let close = |a: &[f32], b: &[f64], name: &str| {
                    assert_close(a, b, 1e-5, &format!("{what} {name}"));
                };
                close(&y, &case.definition(), "y");
                // Two elements are -1 and 1 whatever they were: their gradient is all rounding.
                if shape.length() > 2 || norm == Norm::None {
                    close(&du, &expected_du, "du");
                }
                close(&found.gain, &expected.gain, "dgain");
                close(&found.shift, &expected.shift, "dshift");
                close(&found.sigma, &expected.sigma, "dsigma");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_and_wrong_arguments_are_errors() {
    let shape = Shape::tokens(1000, 64);
    let case = Case::new(shape, Norm::Layer, 4);
    assert_eq!(with_threads(1, || case.gradients()), with_threads(3, || case.gradients()));
    let (plain, mut y) = (Parameters { gain: None, shift: None, noise: None }, [0.0; 64]);
    let mut run = |config: Config| forward(&config, plain, &case.u[..64], &mut y).is_ok();
    let one = Config { shape: Shape::tokens(1, 64), ..case.config };
    assert!(run(one));
    assert!(!run(case.config), "too few elements");
    assert!(!run(Config { eps: 0.0, ..one }));
    assert!(!run(Config { shape: Shape { groups: 3, ..one.shape }, ..one }));
    assert!(!run(Config { shape: Shape { channels: 0, ..one.shape }, ..one }));
    let wrong = Parameters { gain: Some(&case.gain[..3]), ..plain };
    assert!(forward(&one, wrong, &case.u[..64], &mut [0.0; 64]).is_err());
}
