//! Compares the gradients with central differences of the forward pass, in double precision.

use vmf_kernels::bn_noise::{
    Config, NoiseTerm, Saved, Shape, Statistics, backward_eval, backward_train, forward_eval,
    forward_train,
};
use vmf_kernels::noise::{Noise, NoiseKey, fill_normals};

const NOISE: Noise = Noise {
    key: NoiseKey { seed: 2024, stream: 3, step: 9, sample: 1 },
    elements_per_sample: None,
    first: 0,
};

fn values(stream: u32, count: usize) -> Vec<f64> {
    let key = NoiseKey { stream, ..NoiseKey::default() };
    let mut values = vec![0.0; count];
    fill_normals(&key.into(), 0, &mut values).unwrap();
    values
}

/// The function whose gradient is checked: y weighted with a fixed dy.
struct Loss {
    config: Config,
    running: Option<Statistics>,
    dy: Vec<f64>,
}

impl Loss {
    fn forward(&self, u: &[f64], sigma: &[f64]) -> (Vec<f64>, Statistics) {
        let term = Some(NoiseTerm { noise: NOISE, sigma });
        let mut y = vec![0.0; u.len()];
        let statistics = match &self.running {
            None => forward_train(&self.config, term, u, &mut y).unwrap(),
            Some(running) => {
                forward_eval(&self.config, term, running, u, &mut y).unwrap();
                running.clone()
            }
        };
        (y, statistics)
    }

    fn value(&self, u: &[f64], sigma: &[f64]) -> f64 {
        let (y, _) = self.forward(u, sigma);
        y.iter().zip(&self.dy).map(|(y, dy)| y * dy).sum()
    }

    fn gradient(&self, u: &[f64], sigma: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (y, statistics) = self.forward(u, sigma);
        let term = Some(NoiseTerm { noise: NOISE, sigma });
        let saved = Saved { u, y: &y, statistics: &statistics };
        let mut du = vec![0.0; u.len()];
        let backward = if self.running.is_some() { backward_eval } else { backward_train };
        let dsigma = backward(&self.config, term, saved, &self.dy, &mut du).unwrap();
        (du, dsigma)
    }
}

/// (f(x + h) - f(x - h)) / 2h has an error of order h^2 = 1e-10, unless an element crosses the
/// corner of ReLU within h, which none of these does.
fn assert_gradient(what: &str, x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-5;
    for i in 0..x.len() {
        let mut moved = x.to_vec();
        moved[i] = x[i] + STEP;
        let above = f(&moved);
        moved[i] = x[i] - STEP;
        let difference = (above - f(&moved)) / (2.0 * STEP);
        assert!(
            (difference - gradient[i]).abs() < 1e-7 * (1.0 + difference.abs()),
            "{what} {i}: {} instead of {difference}",
            gradient[i]
        );
    }
}

#[test]
fn gradients_are_those_of_the_forward_pass() {
    let shapes = [
        Shape::nchw(3, 4, 6),
        Shape::hwnc(3, 4, 6),
        Shape::nchw(2, 6, 8),
        Shape::hwnc(2, 6, 8),
        Shape::nchw(5, 3, 1),
        Shape::hwnc(1, 2, 9),
    ];
    for shape in shapes {
        for relu in [false, true] {
            for groups in [1, shape.channels] {
                for running in [false, true] {
                    let config = Config::new(shape).relu(relu);
                    let what = format!("{config:?}, {groups} groups, running {running}");
                    let loss = Loss {
                        config,
                        running: running.then(|| Statistics {
                            mean: values(4, shape.channels),
                            var: vec![0.7; shape.channels],
                        }),
                        dy: values(2, shape.elements()),
                    };
                    let u = values(1, shape.elements());
                    let sigma: Vec<f64> = (0..groups).map(|g| 0.3 + 0.1 * g as f64).collect();
                    let (du, dsigma) = loss.gradient(&u, &sigma);
                    assert_gradient(&format!("du of {what}"), &u, &du, |u| loss.value(u, &sigma));
                    assert_eq!(dsigma.len(), groups);
                    assert_gradient(&format!("dsigma of {what}"), &sigma, &dsigma, |sigma| {
                        loss.value(&u, sigma)
                    });
                }
            }
        }
    }
}

/// If one element of dy is one and the others are zero, dsigma is the noise of that element in the
/// backward pass.
#[test]
fn the_backward_pass_sees_the_noise_of_the_forward_pass() {
    for shape in [Shape::nchw(2, 3, 8), Shape::hwnc(2, 3, 8), Shape::hwnc(2, 3, 5)] {
        for relu in [false, true] {
            let count = shape.elements();
            let u = values(1, count);
            let mut loss =
                Loss { config: Config::new(shape).relu(relu), running: None, dy: vec![0.0; count] };
            let (without, _) = loss.forward(&u, &[0.0]);
            let (with, _) = loss.forward(&u, &[1.0]);
            for i in 0..count {
                if relu && (with[i] <= 0.0 || without[i] <= 0.0) {
                    continue; // ReLU has cut off the value, so y does not show its noise
                }
                let seen_by_forward = with[i] - without[i];
                loss.dy[i] = 1.0;
                let (_, seen_by_backward) = loss.gradient(&u, &[1.0]);
                loss.dy[i] = 0.0;
                assert!((seen_by_forward - seen_by_backward[0]).abs() < 1e-12);
            }
        }
    }
}
