//! The linear student: one von Mises-Fisher unit with an output gain, `y = g (BN(w.x) + sigma_eff
//! z)`.

use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarMap};
use serde::{Deserialize, Serialize};
use serde_json::json;
use vmf_candle::{Forward, Pass, Posterior, VmfConfig, VmfLinear, seeded, vmf_linear};

use crate::problem::{Problem, cosine};
use crate::settings::{Gain, Settings};
use crate::training::{Batches, Trainee, train};

/// One von Mises-Fisher unit with an output gain.
pub struct Student {
    unit: VmfLinear,
    gain: Option<Tensor>,
    vars: VarMap,
    posterior: Posterior,
}

/// What a trained student has learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// Cosine between its direction and the teacher's.
    pub cosine: f64,
    /// sigma_eff.
    pub sigma: f64,
    /// The output gain.
    pub gain: f64,
    /// Covariance of its normalized activation with the training targets, `c`.
    pub covariance: f64,
    /// Cosine between its direction and that of least squares, which is the stationary point.
    /// `None` if `D >= N - 1`.
    pub stationary: Option<f64>,
}

impl Student {
    /// An untrained student.
    pub fn new(dim: usize, gain: Gain, seed: u64) -> Result<Self> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, seed, DType::F32, &Device::Cpu);
        let unit = vmf_linear(dim, 1, VmfConfig::default(), &posterior, vb.pp("unit"))?;
        let gain = match gain {
            Gain::Learned => Some(vb.get_with_hints(1, "gain", Init::Const(1.0))?),
            Gain::Fixed => None,
        };
        Ok(Self { unit, gain, vars, posterior })
    }

    /// Trains a student of `problem`, writes its checkpoint if a path is given, and returns what it
    /// has learned.
    pub fn teach(
        problem: &Problem,
        gain: Gain,
        settings: &Settings,
        seed: u64,
        checkpoint: Option<&Path>,
    ) -> Result<Learned> {
        let point = problem.point;
        let student = Self::new(point.dim, gain, seed)?;
        let data = Batches::new(&problem.inputs, &problem.targets, point.dim)?;
        let trainee =
            Trainee { model: &student, vars: &student.vars, posterior: &student.posterior };
        train(&trainee, &data, point.noise, settings, seed)?;
        let learned = student.learned(problem)?;
        if let Some(path) = checkpoint {
            let config = json!({ "teacher": "linear", "point": point, "gain": gain });
            trainee.save(path, config, settings, seed, learned)?;
        }
        Ok(learned)
    }

    fn learned(&self, problem: &Problem) -> Result<Learned> {
        let gain = match &self.gain {
            Some(gain) => f64::from(gain.to_vec1::<f32>()?[0]),
            None => 1.0,
        };
        // A negative gain reverses the direction.
        let weight: Vec<f64> = self
            .unit
            .weight()
            .flatten_all()?
            .to_vec1::<f32>()?
            .into_iter()
            .map(|w| f64::from(w) * gain.signum())
            .collect();
        Ok(Learned {
            cosine: cosine(&weight, &problem.teacher),
            sigma: self.unit.sigma().values()?[0],
            gain: gain.abs(),
            covariance: problem.covariance(&weight),
            stationary: problem.least_squares_direction().map(|best| cosine(&weight, &best)),
        })
    }
}

impl Forward for Student {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        let y = self.unit.forward(xs, pass)?;
        match &self.gain {
            Some(gain) => y.broadcast_mul(gain),
            None => Ok(y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closed_form;
    use crate::settings::Point;

    fn teach(gain: Gain, noise: f64, steps: u32) -> (Point, Learned) {
        let point = Point { noise, dim: 30, samples: 300 };
        let settings = Settings { steps, ..Settings::default() };
        let problem = Problem::draw(point, 5);
        let learned = Student::teach(&problem, gain, &settings, 5, None).unwrap();
        (point, learned)
    }

    #[test]
    fn training_ends_at_the_stationary_point() {
        let steps = Settings::default().steps;
        for noise in [0.3, 1.0, 4.0] {
            let (point, fixed) = teach(Gain::Fixed, noise, steps);
            let ratio = fixed.sigma / closed_form::sigma_fixed_gain(&point, 1.0);
            assert!((ratio - 1.0).abs() < 0.02, "fixed, s {noise}: {ratio}");

            let (point, learned) = teach(Gain::Learned, noise, steps);
            let expected = closed_form::sigma_learned_gain(&point, 1.0, learned.covariance);
            let ratio = learned.sigma / expected;
            assert!((ratio - 1.0).abs() < 0.02, "learned, s {noise}: {ratio}");
            let gain = learned.covariance / (1.0 + expected * expected);
            assert!((learned.gain / gain - 1.0).abs() < 0.02, "{learned:?}");

            for stationary in [fixed.stationary, learned.stationary] {
                assert!(stationary.unwrap() > 0.999, "s {noise}: {stationary:?}");
            }
        }
    }

    #[test]
    fn more_steps_change_nothing() {
        let steps = Settings::default().steps;
        for gain in [Gain::Learned, Gain::Fixed] {
            let (_, once) = teach(gain, 1.0, steps);
            let (_, twice) = teach(gain, 1.0, 2 * steps);
            assert!((once.sigma / twice.sigma - 1.0).abs() < 0.015);
            assert!((once.cosine - twice.cosine).abs() < 0.005);
        }
    }
}
