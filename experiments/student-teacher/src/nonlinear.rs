//! A nonlinear teacher, for which there is no closed form: two layers with normalization.
//!
//! ```text
//! f(x) = normalize(v . relu(W x)),   y = f(x) + s z,   rows of W and v of unit norm, x ~ N(0, I), z ~ N(0, 1)
//! ```
//!
//! The student has the same two layers, each with its own sigma_eff, and a learned gain.

use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarMap};
use rand::{Rng, distr::Distribution};
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use vmf_candle::{Forward, Pass, Posterior, VmfConfig, VmfLinear, seeded, vmf_linear};

use crate::diagnostics::mean_and_variance;
use crate::problem::{Purpose, direction, dot, generator, normals};
use crate::settings::{Point, Settings, Variable};
use crate::training::{Batches, Trainee, train};

/// Hidden units of teacher and student.
pub const HIDDEN: usize = 8;

/// The number of test examples.
const TEST: usize = 4000;

/// The point that stays fixed while one variable is swept.
pub const BASE: Point = Point { noise: 0.5, dim: 20, samples: 2000 };

/// The points of one sweep.
pub fn sweep(variable: Variable) -> Vec<Point> {
    match variable {
        Variable::Noise => [0.125, 0.25, 0.5, 1.0].map(|noise| Point { noise, ..BASE }).to_vec(),
        Variable::Dim => [5, 10, 20, 40].map(|dim| Point { dim, ..BASE }).to_vec(),
        Variable::Samples => {
            [1000, 2000, 4000, 8000].map(|samples| Point { samples, ..BASE }).to_vec()
        }
    }
}

/// What a trained student has learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// sigma_eff of the first and the second layer.
    pub sigmas: [f64; 2],
    /// The share of the teacher's variance on new inputs that the student explains, with noise
    /// off.
    pub explained: f64,
}

struct Teacher {
    hidden: Vec<Vec<f64>>,
    output: Vec<f64>,
    mean: f64,
    deviation: f64,
}

impl Teacher {
    fn draw(dim: usize, seed: u64, test_inputs: &[f64]) -> Self {
        let mut rng = generator(seed, Purpose::Teacher);
        let hidden = (0..HIDDEN).map(|_| direction(dim, &mut rng)).collect();
        let mut teacher =
            Self { hidden, output: direction(HIDDEN, &mut rng), mean: 0.0, deviation: 1.0 };
        let (mean, variance) = mean_and_variance(&teacher.answers(test_inputs));
        teacher.mean = mean;
        teacher.deviation = variance.sqrt();
        teacher
    }

    fn answers(&self, inputs: &[f64]) -> Vec<f64> {
        let dim = self.hidden[0].len();
        let answer = |x: &[f64]| {
            let hidden = self.hidden.iter().map(|w| dot(w, x).max(0.0));
            let sum: f64 = hidden.zip(&self.output).map(|(h, v)| h * v).sum();
            (sum - self.mean) / self.deviation
        };
        inputs.chunks_exact(dim).map(answer).collect()
    }

    fn observations(&self, inputs: &[f64], noise: f64, rng: &mut impl Rng) -> Vec<f64> {
        let answers = self.answers(inputs).into_iter();
        answers
            .map(|y| {
                let z: f64 = StandardNormal.sample(rng);
                y + noise * z
            })
            .collect()
    }
}

struct Student {
    hidden: VmfLinear,
    output: VmfLinear,
    gain: Tensor,
}

impl Forward for Student {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        let hidden = self.hidden.forward(xs, pass)?;
        self.output.forward(&hidden, pass)?.broadcast_mul(&self.gain)
    }
}

/// Draws a teacher, trains a student, writes its checkpoint if a path is given, and returns what it
/// has learned.
pub fn teach(
    point: Point,
    settings: &Settings,
    seed: u64,
    checkpoint: Option<&Path>,
) -> Result<Learned> {
    let dim = point.dim;
    let test_inputs = normals(TEST * dim, &mut generator(seed, Purpose::Test));
    let teacher = Teacher::draw(dim, seed, &test_inputs);
    let inputs = normals(point.samples * dim, &mut generator(seed, Purpose::Inputs));
    let mut rng = generator(seed, Purpose::Observations);
    let targets = teacher.observations(&inputs, point.noise, &mut rng);

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, seed, DType::F32, &Device::Cpu);
    let unit = VmfConfig::default;
    let student = Student {
        hidden: vmf_linear(dim, HIDDEN, unit().relu(), &posterior, vb.pp("hidden"))?,
        output: vmf_linear(HIDDEN, 1, unit(), &posterior, vb.pp("output"))?,
        gain: vb.get_with_hints(1, "gain", Init::Const(1.0))?,
    };
    let data = Batches::new(&inputs, &targets, dim)?;
    let trainee = Trainee { model: &student, vars: &vars, posterior: &posterior };
    train(&trainee, &data, point.noise, settings, seed)?;

    let learned = Learned {
        sigmas: [student.hidden.sigma().values()?[0], student.output.sigma().values()?[0]],
        explained: explained(&student, &test_inputs, &teacher.answers(&test_inputs))?,
    };
    if let Some(path) = checkpoint {
        let config = json!({ "teacher": "nonlinear", "point": point });
        trainee.save(path, config, settings, seed, learned)?;
    }
    Ok(learned)
}

/// `1 - mean (f - f*)^2 / Var f*`, where the teacher's answers have unit variance on the test set.
fn explained(student: &Student, inputs: &[f64], answers: &[f64]) -> Result<f64> {
    let xs = Tensor::from_slice(inputs, (answers.len(), ()), &Device::Cpu)?;
    let predictions = student.forward(&xs.to_dtype(DType::F32)?, &Pass::mean())?;
    let predictions = predictions.flatten_all()?.to_vec1::<f32>()?;
    let pairs = predictions.iter().zip(answers);
    let squares: f64 = pairs.map(|(p, y)| (f64::from(*p) - y).powi(2)).sum();
    Ok(1.0 - squares / answers.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_student_with_enough_data_finds_the_teacher() {
        let settings = Settings::default();
        let easy = Point { noise: 0.125, dim: 5, samples: 1000 };
        let hard = Point { noise: 1.0, ..easy };
        let easy = teach(easy, &settings, 1, None).unwrap();
        let hard = teach(hard, &settings, 1, None).unwrap();
        assert!(easy.explained > 0.9, "{easy:?}");
        assert!(hard.explained < easy.explained, "{hard:?}");
        assert!(hard.sigmas[0] > easy.sigmas[0], "{easy:?} {hard:?}");
    }

    #[test]
    fn the_teacher_answers_with_unit_variance() {
        let inputs = normals(500 * 7, &mut generator(3, Purpose::Test));
        let teacher = Teacher::draw(7, 3, &inputs);
        let (mean, variance) = mean_and_variance(&teacher.answers(&inputs));
        assert!(mean.abs() < 1e-12 && (variance - 1.0).abs() < 1e-12);
    }
}
