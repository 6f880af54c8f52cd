//! The training loop: mean NLL plus scaled KL, by Adam with a learning rate that falls to zero.

use std::path::Path;

use anyhow::Result;
use candle_core::{Device, Tensor};
use candle_nn::{Optimizer, VarMap};
use serde::Serialize;
use serde_json::Value;
use vmf_candle::{
    Adam, AdamConfig, Checkpoint, Elbo, Forward, Pass, Posterior, Progress, Schedule, gaussian_nll,
    reestimate,
};

use crate::settings::Settings;

/// Larger training sets are split into batches of about this size.
///
/// The mean and variance of such a batch are close to those of the set, so its stationary point is
/// the same. A step on more examples would only take longer.
const BATCH: usize = 1000;

/// The noise parameter has further to go than the weights.
const NOISE_LR: f64 = 2.0;

/// A model that is to be trained, with its variables and its posterior.
pub struct Trainee<'a, M> {
    /// The model.
    pub model: &'a M,
    /// Its variables.
    pub vars: &'a VarMap,
    /// Its posterior.
    pub posterior: &'a Posterior,
}

/// A training set in batches.
pub struct Batches {
    batches: Vec<(Tensor, Tensor)>,
    len: usize,
}

impl Batches {
    /// Rows of `dim` inputs with their targets.
    pub fn new(inputs: &[f64], targets: &[f64], dim: usize) -> Result<Self> {
        let len = targets.len();
        let count = len.div_ceil(BATCH);
        let batches = (0..count)
            .map(|i| {
                let (from, to) = (i * len / count, (i + 1) * len / count);
                let single = |values: &[f64]| -> Vec<f32> {
                    values.iter().map(|value| *value as f32).collect()
                };
                let (rows, cpu) = (to - from, &Device::Cpu);
                let xs = Tensor::from_vec(single(&inputs[from * dim..to * dim]), (rows, dim), cpu)?;
                let ys = Tensor::from_vec(single(&targets[from..to]), (rows, 1), cpu)?;
                Ok((xs, ys))
            })
            .collect::<Result<_>>()?;
        Ok(Self { batches, len })
    }
}

impl<M: Forward> Trainee<'_, M> {
    /// Writes a checkpoint with what the model has learned. `config` says what it was trained on.
    pub fn save(
        &self,
        path: &Path,
        mut config: Value,
        settings: &Settings,
        seed: u64,
        learned: impl Serialize,
    ) -> Result<()> {
        config["experiment"] = "student-teacher".into();
        config["beta"] = settings.beta.into();
        config["lr"] = settings.lr.into();
        let state = serde_json::to_value(learned)?;
        let step = settings.steps.into();
        let progress = Progress { config, step, seed, state, ..Progress::default() };
        Ok(Checkpoint::capture(self.vars, self.posterior, None, progress)?.save(path)?)
    }
}

/// Trains to the stationary point of `NLL + beta / N * KL`, where `noise` is the known standard
/// deviation of the observations, and measures what prediction needs.
pub fn train<M: Forward>(
    trainee: &Trainee<M>,
    data: &Batches,
    noise: f64,
    settings: &Settings,
    seed: u64,
) -> Result<()> {
    let objective = Elbo::new(data.len).beta(settings.beta);
    let config =
        AdamConfig { lr: settings.lr, noise_lr: NOISE_LR * settings.lr, ..AdamConfig::default() };
    let mut adam = Adam::for_model(trainee.vars, trainee.posterior, config)?;
    let rate = Schedule::cosine(settings.lr, 0.0, f64::from(settings.steps));
    for step in 0..settings.steps {
        let lr = rate.at(f64::from(step));
        adam.set_learning_rate(lr);
        adam.set_noise_learning_rate(NOISE_LR * lr);
        let (xs, ys) = &data.batches[step as usize % data.batches.len()];
        let predictions = trainee.model.forward(xs, &Pass::train(seed, step))?;
        let nll = gaussian_nll(&predictions, ys, noise)?;
        let loss = objective.loss(&nll, trainee.posterior)?;
        adam.backward_step(&loss.total)?;
    }
    let inputs = data.batches.iter().map(|(xs, _)| Ok(xs.clone()));
    reestimate(trainee.model, trainee.posterior, inputs)?;
    Ok(())
}
