//! Compares the operation with the `batch_norm` and autograd of PyTorch. `golden/bn_noise.py` made
//! the numbers.

use serde::Deserialize;
use vmf_kernels::bn_noise::{
    Config, NoiseTerm, Saved, Shape, Statistics, backward_eval, backward_train, forward_eval,
    forward_train,
};
use vmf_kernels::noise::{Noise, NoiseKey, fill_normals};
use vmf_kernels::{Element, Real};

#[derive(Deserialize)]
struct Case {
    shape: (usize, usize, usize),
    relu: bool,
    key: Key,
    elements_per_sample: Option<u64>,
    sigma: Vec<f64>,
    u: Vec<f64>,
    dy: Vec<f64>,
    z: Vec<f64>,
    running_mean: Vec<f64>,
    running_var: Vec<f64>,
    train: Outcome,
    eval: Outcome,
}

#[derive(Deserialize)]
struct Key {
    seed: u64,
    stream: u32,
    step: u32,
    sample: u32,
}

#[derive(Deserialize)]
struct Outcome {
    y: Vec<f64>,
    du: Vec<f64>,
    dsigma: Vec<f64>,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("golden/bn_noise.json")).unwrap()
}

impl Case {
    fn noise(&self) -> Noise {
        let Key { seed, stream, step, sample } = self.key;
        Noise {
            key: NoiseKey { seed, stream, step, sample },
            elements_per_sample: self.elements_per_sample,
            first: 0,
        }
    }

    /// The values, which are in logical order, in the layout of a shape.
    fn laid_out<E: Element>(&self, shape: Shape, values: &[f64]) -> Vec<E> {
        let mut out = vec![E::default(); values.len()];
        for (logical, value) in values.iter().enumerate() {
            out[offset(shape, logical)] = E::from_real(E::Real::from_f64(*value));
        }
        out
    }

    fn check<E: Element>(&self, shape: Shape, tolerance: f64) {
        let config = Config::new(shape).relu(self.relu);
        let sigma: Vec<E::Real> = self.sigma.iter().map(|&s| E::Real::from_f64(s)).collect();
        let term = Some(NoiseTerm { noise: self.noise(), sigma: &sigma });
        let u: Vec<E> = self.laid_out(shape, &self.u);
        let dy: Vec<E> = self.laid_out(shape, &self.dy);
        let mut y = u.clone();
        let mut du = u.clone();

        let statistics = forward_train(&config, term, &u, &mut y).unwrap();
        assert_close("train y", shape, &y, &self.train.y, tolerance);
        // PyTorch's running estimates started at 0 and 1 and took one step with momentum 0.1.
        let unbiased = statistics.unbiased_var(shape.elements_per_channel());
        for (c, unbiased) in unbiased.into_iter().enumerate() {
            let running_mean = 0.1 * statistics.mean[c];
            let running_var = 0.9 + 0.1 * unbiased;
            assert!((running_mean - self.running_mean[c]).abs() < tolerance * (1.0 + running_mean));
            assert!((running_var - self.running_var[c]).abs() < tolerance);
        }
        let saved = Saved { u: &u, y: &y, statistics: &statistics };
        let dsigma = backward_train(&config, term, saved, &dy, &mut du).unwrap();
        let scale = self.train.du.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        assert_close("train du", shape, &du, &self.train.du, tolerance * scale);
        assert_sums("train dsigma", &dsigma, &self.train.dsigma, tolerance);

        let running = Statistics { mean: self.running_mean.clone(), var: self.running_var.clone() };
        forward_eval(&config, term, &running, &u, &mut y).unwrap();
        let scale = self.eval.y.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        assert_close("eval y", shape, &y, &self.eval.y, tolerance * scale);
        let saved = Saved { u: &u, y: &y, statistics: &running };
        let dsigma = backward_eval(&config, term, saved, &dy, &mut du).unwrap();
        assert_close("eval du", shape, &du, &self.eval.du, tolerance);
        assert_sums("eval dsigma", &dsigma, &self.eval.dsigma, tolerance);
    }
}

fn offset(shape: Shape, logical: usize) -> usize {
    let (plane, position) = (logical / shape.positions, logical % shape.positions);
    shape.offset(plane / shape.channels, plane % shape.channels, position)
}

fn assert_close<E: Element>(what: &str, shape: Shape, got: &[E], expected: &[f64], tolerance: f64) {
    for (logical, expected) in expected.iter().enumerate() {
        let got = got[offset(shape, logical)].to_real().to_f64();
        assert!(
            (got - expected).abs() <= tolerance,
            "{what} of {shape:?}, element {logical}: {got} instead of {expected}"
        );
    }
}

fn assert_sums<R: Real>(what: &str, got: &[R], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let error = (got.to_f64() - expected).abs();
        assert!(error <= 20.0 * tolerance, "{what}: {got:?} instead of {expected}");
    }
}

#[test]
fn noise_is_that_of_the_specification() {
    for case in cases() {
        let mut z = vec![0f64; case.z.len()];
        fill_normals(&case.noise(), 0, &mut z).unwrap();
        for (got, expected) in z.iter().zip(&case.z) {
            assert!((got - expected).abs() < 1e-14, "{got} {expected}");
        }
    }
}

#[test]
fn double_precision_agrees_with_pytorch() {
    for case in cases() {
        let (n, c, p) = case.shape;
        case.check::<f64>(Shape::nchw(n, c, p), 1e-11);
        case.check::<f64>(Shape::hwnc(n, c, p), 1e-11);
    }
}

#[test]
fn single_precision_agrees_with_pytorch() {
    // The last case has mean 100 and deviation 0.01, so its inputs lose four digits when they are
    // rounded to f32.
    let cases = cases();
    let (last, others) = cases.split_last().unwrap();
    for (case, tolerance) in others.iter().map(|c| (c, 1e-5)).chain([(last, 2e-3)]) {
        let (n, c, p) = case.shape;
        case.check::<f32>(Shape::nchw(n, c, p), tolerance);
        case.check::<f32>(Shape::hwnc(n, c, p), tolerance);
    }
}
