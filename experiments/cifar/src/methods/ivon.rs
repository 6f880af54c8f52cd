//! IVON, the improved variational online Newton method (Shen et al., *Variational Learning is
//! Effective for Large Deep Networks*, ICML 2024).
//!
//! The posterior is a Gaussian with mean m and, for every weight, the variance that follows from an
//! estimate h of the curvature. With N examples and weight decay d, each step is
//!
//! ```text
//! s     = 1 / sqrt(N (h + d))                 w = m + s z,   z ~ N(0, 1)
//! g     = gradient of the mean loss at w      f = N (h + d) (s z) g
//! mom   <- b1 mom + (1 - b1) g
//! h     <- b2 h + (1 - b2) f + (1 - b2)^2 / 2 (h - f)^2 / (h + d)
//! m     <- m - lr (h0 + d) (mom / (1 - b1^t) + d m) / (h + d)
//! ```
//!
//! The learning rate is scaled by the first curvature h0, as the authors' package does, so that the
//! first step is one of gradient descent at rate lr. Predictions average over draws of w.

use anyhow::{Result, ensure};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use candle_nn::VarMap;
use vmf_candle::ops::{Noise, NoiseKey, noise_tensor};
use vmf_candle::posterior::stream_of;

use super::{keep, parameters};
use crate::settings::{Method, Settings};

/// The decays of momentum and curvature in the paper.
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.99999;

/// What does not change in training.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    /// The first curvature, h0.
    hess_init: f64,
    /// The weight decay, d, which is the precision of the prior over N.
    weight_decay: f64,
    beta1: f64,
    beta2: f64,
}

struct Parameter {
    name: String,
    var: Var,
    momentum: Var,
    hess: Var,
}

/// The mean of a parameter and the noise that was added to it.
struct Drawn {
    mean: Tensor,
    noise: Tensor,
}

/// The posterior over the parameters of a network, and the optimizer that trains it. Between steps
/// the network's variables hold the mean.
pub struct Ivon {
    rule: Rule,
    /// The number of examples, N. It is a variable so that a checkpoint holds it: predictions need
    /// it, and the training images need not be there then.
    examples: Var,
    parameters: Vec<Parameter>,
    drawn: Option<Vec<Drawn>>,
}

impl Ivon {
    /// The posterior over a network that is trained with these settings, if they ask for it.
    pub fn new(settings: &Settings, examples: usize, vars: &VarMap) -> Result<Option<Self>> {
        if settings.method != Method::Ivon {
            return Ok(None);
        }
        let rule = Rule {
            hess_init: settings.hess_init,
            weight_decay: settings.weight_decay,
            beta1: BETA1,
            beta2: BETA2,
        };
        Ok(Some(Self::with_rule(rule, examples as f64, parameters(vars, false))?))
    }

    fn with_rule(rule: Rule, examples: f64, parameters: Vec<(String, Var)>) -> Result<Self> {
        let examples = Var::new(&[examples], &Device::Cpu)?;
        let parameters = parameters.into_iter().map(|(name, var)| {
            let zeros = var.as_detached_tensor().zeros_like()?;
            let hess = Var::from_tensor(&(&zeros + rule.hess_init)?)?;
            Ok(Parameter { name, momentum: Var::from_tensor(&zeros)?, hess, var })
        });
        Ok(Self { rule, examples, parameters: parameters.collect::<Result<_>>()?, drawn: None })
    }

    /// Adds momentum and curvature to the variables that a checkpoint holds.
    pub fn keep_in(&self, vars: &VarMap) {
        let all = || self.parameters.iter();
        keep(vars, "ivon.momentum", all().map(|p| (p.name.as_str(), &p.momentum)));
        keep(vars, "ivon", [("examples", &self.examples)].into_iter());
        keep(vars, "ivon.hess", all().map(|p| (p.name.as_str(), &p.hess)));
    }

    fn examples(&self) -> Result<f64> {
        Ok(self.examples.to_vec1::<f64>()?.first().copied().unwrap_or(1.0))
    }

    /// Puts a draw from the posterior in the place of the mean. Training takes sample 0, and
    /// predictions the others.
    pub fn draw(&mut self, seed: u64, step: u32, sample: u32) -> Result<()> {
        self.draw_with(|name, var| {
            let key = NoiseKey { seed, stream: stream_of(name), step, sample };
            noise_tensor(var.shape(), Noise::new(key), var.dtype(), var.device())
        })
    }

    fn draw_with(&mut self, z: impl Fn(&str, &Var) -> candle_core::Result<Tensor>) -> Result<()> {
        self.restore()?;
        let (examples, weight_decay) = (self.examples()?, self.rule.weight_decay);
        let drawn = self.parameters.iter().map(|p| {
            let precision = ((p.hess.as_detached_tensor() + weight_decay)? * examples)?;
            let noise = (z(&p.name, &p.var)? / precision.sqrt()?)?;
            let mean = p.var.as_detached_tensor().copy()?;
            p.var.set(&(&mean + &noise)?)?;
            Ok(Drawn { mean, noise })
        });
        self.drawn = Some(drawn.collect::<Result<_>>()?);
        Ok(())
    }

    /// Puts the mean back, if a draw is in its place.
    pub fn restore(&mut self) -> Result<()> {
        for (p, drawn) in self.parameters.iter().zip(self.drawn.take().into_iter().flatten()) {
            p.var.set(&drawn.mean)?;
        }
        Ok(())
    }

    /// Takes step number `step`, counted from 1, with the gradients at the draw. Puts the new mean
    /// in its place.
    pub fn step(&mut self, gradients: &GradStore, lr: f64, step: u32) -> Result<()> {
        let Some(drawn) = self.drawn.take() else {
            anyhow::bail!("IVON steps from a draw of the weights, and none was drawn")
        };
        let examples = self.examples()?;
        let Rule { hess_init, weight_decay: decay, beta1, beta2 } = self.rule;
        let debias = 1.0 - beta1.powi(i32::try_from(step).unwrap_or(i32::MAX));
        for (p, Drawn { mean, noise }) in self.parameters.iter().zip(&drawn) {
            let Some(gradient) = gradients.get(&p.var) else {
                p.var.set(mean)?;
                continue;
            };
            let gradient = gradient.detach();
            let momentum = p.momentum.as_detached_tensor();
            let momentum = ((momentum * beta1)? + (&gradient * (1.0 - beta1))?)?;
            let hess = p.hess.as_detached_tensor();
            let shifted = (&hess + decay)?;
            let estimate = (((noise * &gradient)? * &shifted)? * examples)?;
            let correction = ((&hess - &estimate)?.sqr()? / &shifted)?;
            let hess = ((hess * beta2)? + (estimate * (1.0 - beta2))?)?;
            let hess = (hess + (correction * (0.5 * (1.0 - beta2).powi(2)))?)?;
            let slope = ((&momentum / debias)? + (mean * decay)?)?;
            let update = ((slope / (&hess + decay)?)? * (lr * (hess_init + decay)))?;
            p.var.set(&(mean - update)?)?;
            p.momentum.set(&momentum)?;
            p.hess.set(&hess)?;
        }
        Ok(())
    }

    /// Refuses a learned curvature that is no precision.
    pub fn check(&self) -> Result<()> {
        for p in &self.parameters {
            let lowest = p.hess.as_detached_tensor().flatten_all()?.min(0)?;
            let lowest = f64::from(lowest.to_scalar::<f32>()?);
            ensure!(
                lowest + self.rule.weight_decay > 0.0,
                "the curvature of {} is {lowest}, so that the posterior has no variance: raise --weight-decay or --hess-init",
                p.name
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        examples: f64,
        hess_init: f64,
        weight_decay: f64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        start: Vec<f64>,
        scale: Vec<f64>,
        steps: Vec<Step>,
    }

    #[derive(Deserialize)]
    struct Step {
        z: Vec<f64>,
        drawn: Vec<f64>,
        mean: Vec<f64>,
        hess: Vec<f64>,
        momentum: Vec<f64>,
    }

    fn assert_close(what: &str, actual: &Var, expected: &[f64]) -> Result<()> {
        for (actual, expected) in actual.to_vec1::<f64>()?.iter().zip(expected) {
            let error = (actual - expected).abs();
            assert!(error <= 1e-12 * expected.abs().max(1.0), "{what}: {actual} {expected}");
        }
        Ok(())
    }

    /// The authors' package, on a loss whose gradient is known: `tests/golden/ivon_steps.py`.
    #[test]
    fn steps_are_those_of_the_authors_package() -> Result<()> {
        let golden: Golden =
            serde_json::from_str(include_str!("../../tests/golden/ivon_steps.json"))?;
        let var = Var::new(golden.start.as_slice(), &Device::Cpu)?;
        let scale = Tensor::new(golden.scale.as_slice(), &Device::Cpu)?;
        let rule = Rule {
            hess_init: golden.hess_init,
            weight_decay: golden.weight_decay,
            beta1: golden.beta1,
            beta2: golden.beta2,
        };
        let mut ivon = Ivon::with_rule(rule, golden.examples, vec![("w".into(), var.clone())])?;
        for (number, step) in golden.steps.iter().enumerate() {
            let z = Tensor::new(step.z.as_slice(), &Device::Cpu)?;
            ivon.draw_with(|_, _| Ok(z.clone()))?;
            assert_close("drawn", &var, &step.drawn)?;
            // sum(scale * (1 - cos w)) / 2 + sum(w)^4 / 100
            let w = var.as_tensor();
            let fourth = w.sum_all()?.sqr()?.sqr()?;
            let waves = (&scale * (1.0 - w.cos()?)?)?.sum_all()?;
            let loss = ((waves * 0.5)? + (fourth * 0.01)?)?;
            ivon.step(&loss.backward()?, golden.lr, number as u32 + 1)?;
            let p = &ivon.parameters[0];
            assert_close("mean", &var, &step.mean)?;
            assert_close("hess", &p.hess, &step.hess)?;
            assert_close("momentum", &p.momentum, &step.momentum)?;
        }
        Ok(())
    }

    #[test]
    fn a_draw_is_taken_back_exactly() -> Result<()> {
        let var = Var::new(&[1f32, -2.0, 3.0], &Device::Cpu)?;
        let rule = Rule { hess_init: 0.9, weight_decay: 0.1, beta1: BETA1, beta2: BETA2 };
        let mut ivon = Ivon::with_rule(rule, 100.0, vec![("w".into(), var.clone())])?;
        ivon.draw(1, 2, 3)?;
        let first = var.to_vec1::<f32>()?;
        assert!(first.iter().zip([1.0, -2.0, 3.0]).all(|(a, b)| a != &b && (a - b).abs() < 0.6));
        ivon.draw(1, 2, 4)?;
        assert_ne!(var.to_vec1::<f32>()?, first);
        ivon.restore()?;
        assert_eq!(var.to_vec1::<f32>()?, [1.0, -2.0, 3.0]);
        ivon.check()
    }
}
