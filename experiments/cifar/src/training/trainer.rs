//! A network in training, with its optimizer and its counters.

use std::path::Path;
use std::sync::PoisonError;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Optimizer, VarMap};
use serde::{Deserialize, Serialize};
use vmf_candle::posterior::Summary;
use vmf_candle::{
    Adam, AdamConfig, Checkpoint, Elbo, Forward, Pass, Posterior, Progress, cross_entropy, seeded,
};

use crate::data::Dataset;
use crate::data::batches::{Batch, Batches, Plan};
use crate::evaluation::outputs;
use crate::model::{Vgg, in_layer_order, is_finite, layer_order};
use crate::run::{LayerSigma, Record};
use crate::settings::Settings;

/// Training has diverged if the loss of a batch exceeds that of guessing, the logarithm of the
/// number of classes, by this factor.
const DIVERGED: f64 = 10.0;

/// What usually helps against divergence.
const REMEDIES: &str = "Try a lower --lr, --clip 1 or a longer --warmup";

/// Sums over the steps of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    images: u64,
    #[serde(with = "exact")]
    nll: f64,
    correct: u64,
}

impl Sums {
    /// Mean negative log-likelihood of the epoch so far.
    pub fn nll(&self) -> f64 {
        self.nll / self.images.max(1) as f64
    }

    /// Accuracy of the epoch so far.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.images.max(1) as f64
    }
}

/// The state of training besides weights and moments. The checkpoint holds it, so that a resumed
/// run continues exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Number of steps taken in the current epoch.
    step_in_epoch: usize,
    sums: Sums,
    /// Lowest negative log-likelihood on the test images so far.
    #[serde(with = "exact")]
    best_nll: f64,
}

/// Stores an f64 by its bits. This is exact, and it works for the infinity that `best_nll` begins
/// with, which JSON cannot represent.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// A network in training.
pub struct Trainer {
    settings: Settings,
    set: Dataset,
    device: Device,
    vars: VarMap,
    posterior: Posterior,
    model: Vgg,
    adam: Adam,
    epoch: u32,
    step: u32,
    state: State,
    /// The last epoch in which a warning said that training diverges.
    diverged_in: Option<u32>,
}

impl Trainer {
    /// Builds a network with its initial weights.
    pub fn new(settings: Settings, set: Dataset, device: Device) -> Result<Self> {
        ensure!(
            settings.batch <= set.train.len(),
            "a batch of {} is larger than the training set of {} images: lower --batch",
            settings.batch,
            set.train.len()
        );
        let steps = u64::from(settings.epochs) * (set.train.len() / settings.batch) as u64;
        ensure!(
            steps <= u32::MAX.into(),
            "{steps} steps are more than this program can count: lower --epochs or raise --batch"
        );
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, settings.seed, DType::F32, &device);
        let network = settings.network(set.shape.channels, set.classes.len());
        let model = Vgg::new(&network, &posterior, vb)?;
        let config = AdamConfig {
            lr: settings.lr,
            noise_lr: settings.noise_lr,
            clip_norm: (settings.clip > 0.0).then_some(settings.clip),
            ..AdamConfig::default()
        };
        let adam = Adam::for_model(&vars, &posterior, config)?;
        Ok(Self {
            settings,
            set,
            device,
            vars,
            posterior,
            model,
            adam,
            epoch: 0,
            step: 0,
            state: State { step_in_epoch: 0, sums: Sums::default(), best_nll: f64::INFINITY },
            diverged_in: None,
        })
    }

    /// Number of finished epochs.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Number of steps taken.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Number of steps taken in the current epoch.
    pub fn step_in_epoch(&self) -> usize {
        self.state.step_in_epoch
    }

    /// Number of steps per epoch.
    pub fn steps_per_epoch(&self) -> usize {
        self.set.train.len() / self.settings.batch
    }

    /// Sums over the steps of the current epoch.
    pub fn sums(&self) -> Sums {
        self.state.sums
    }

    /// Whether all epochs are finished.
    pub fn is_finished(&self) -> bool {
        self.epoch >= self.settings.epochs
    }

    /// The progress of training in epochs, on which the schedules depend.
    fn time(&self) -> f64 {
        f64::from(self.epoch) + self.state.step_in_epoch as f64 / self.steps_per_epoch() as f64
    }

    /// What the noise has learned.
    pub fn summary(&self) -> Result<Summary> {
        Ok(self.posterior.summary()?)
    }

    /// The remaining batches of the current epoch, which another thread prepares.
    pub fn batches(&self) -> Batches {
        let plan = Plan {
            batch: self.settings.batch,
            seed: self.settings.seed,
            augment: self.settings.augment,
        };
        Batches::training(&self.set, plan, self.epoch, self.state.step_in_epoch)
    }

    /// Takes one step. If it fails, the weights are unchanged.
    pub fn train_step(&mut self, batch: Batch) -> Result<()> {
        let count = batch.len();
        let (images, labels) = batch.into_tensors(&self.device)?;
        let pass = if self.settings.method.is_noisy() {
            Pass::train(self.settings.seed, self.step)
        } else {
            Pass::train_noiseless()
        };
        let logits = self.model.forward(&images, &pass).with_context(|| {
            let (step, epoch) = (self.step, self.epoch + 1);
            format!("training cannot continue at step {step} (epoch {epoch}). {REMEDIES}")
        })?;
        let nll = cross_entropy(&logits, &labels)?;
        let loss = Elbo::new(self.set.train.len())
            .beta(self.settings.beta_at(self.time()))
            .loss(&nll, &self.posterior)?;
        let (nll, total) = (scalar(&loss.nll)?, scalar(&loss.total)?);
        if !total.is_finite() {
            bail!(
                "the loss is {total} at step {} (epoch {}): training cannot continue. {REMEDIES}",
                self.step,
                self.epoch + 1
            );
        }
        self.warn_of_divergence(nll);
        self.adam.set_learning_rate(self.settings.lr_at(self.time()));
        self.adam
            .backward_step(&loss.total)
            .with_context(|| format!("step {} (epoch {})", self.step, self.epoch + 1))?;
        self.step += 1;
        self.state.step_in_epoch += 1;
        self.state.sums.images += count as u64;
        self.state.sums.nll += nll * count as f64;
        self.state.sums.correct += correct(&logits, &labels)?;
        Ok(())
    }

    /// Warns if the loss of a batch is far above that of guessing, at most once per epoch.
    fn warn_of_divergence(&mut self, nll: f64) {
        let guessing = (self.set.classes.len() as f64).ln();
        if nll > DIVERGED * guessing && self.diverged_in != Some(self.epoch) {
            self.diverged_in = Some(self.epoch);
            tracing::warn!(
                "the loss is {nll:.3e} at step {} (epoch {}), and guessing has a loss of {guessing:.2}: training diverges. {REMEDIES}",
                self.step,
                self.epoch + 1
            );
        }
    }

    /// Fails if a variable or one of its moments is not finite. An infinite second moment makes
    /// every later step of its variable zero, so that training cannot recover.
    fn ensure_finite(&self) -> Result<()> {
        let broken = |what: &str, name: &str| {
            anyhow!(
                "{what} {name} is not finite any more at step {} (epoch {}): training cannot recover. {REMEDIES}",
                self.step,
                self.epoch + 1
            )
        };
        let vars = self.vars.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut moments = self.adam.state()?;
        moments.sort_by_key(|(name, _)| layer_order(name));
        for name in in_layer_order(vars.keys()) {
            ensure!(is_finite(&vars[name])?, broken("the variable", name));
        }
        for (name, moments) in moments {
            ensure!(is_finite(&moments.first)?, broken("the first moment of", &name));
            ensure!(is_finite(&moments.second)?, broken("the second moment of", &name));
        }
        Ok(())
    }

    /// Ends the epoch: measures the statistics of the noise-free network and evaluates it. Returns
    /// the record of the epoch, and whether this is the best network so far.
    pub fn finish_epoch(&mut self) -> Result<(Record, bool)> {
        self.ensure_finite()?;
        let (beta, lr) = (self.settings.beta_at(self.time()), self.settings.lr_at(self.time()));
        let (model, set, device) = (&self.model, &self.set, &self.device);
        let images = self.settings.statistics_images;
        outputs::measure_statistics(model, &self.posterior, set, images, device)?;
        let train = outputs::on_training(model, set, images, device)?;
        let test = outputs::on_test(model, set, device)?;
        let is_noisy = self.settings.method.is_noisy();
        let summary = self.summary()?;
        let sigma_eff = summary
            .iter()
            .filter(|_| is_noisy)
            .map(|layer| LayerSigma { layer: layer.name.clone(), sigma_eff: layer.sigma_eff() });
        self.epoch += 1;
        let record = Record {
            epoch: self.epoch.into(),
            step: self.step.into(),
            running_nll: self.state.sums.nll(),
            running_accuracy: self.state.sums.accuracy(),
            train,
            test,
            kl: is_noisy.then(|| summary.kl()),
            beta,
            lr,
            sigma_eff: sigma_eff.collect(),
            seconds: 0.0,
        };
        let is_best = test.nll < self.state.best_nll;
        self.state = State {
            step_in_epoch: 0,
            sums: Sums::default(),
            best_nll: test.nll.min(self.state.best_nll),
        };
        Ok((record, is_best))
    }

    /// Writes a checkpoint atomically. A state that training cannot recover from is not written, so
    /// that the checkpoint before stays.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.ensure_finite()?;
        let progress = Progress {
            config: serde_json::to_value(&self.settings)?,
            epoch: self.epoch.into(),
            step: self.step.into(),
            seed: self.settings.seed,
            state: serde_json::to_value(&self.state)?,
        };
        let checkpoint =
            Checkpoint::capture(&self.vars, &self.posterior, Some(&self.adam), progress)?;
        checkpoint.save(path).with_context(|| format!("cannot save to {}", path.display()))
    }

    /// Restores the state of a checkpoint that was made with the same settings.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let progress = checkpoint.progress();
        ensure!(
            progress.config == serde_json::to_value(&self.settings)?,
            "the checkpoint belongs to a run with other settings than config.json"
        );
        let damaged = "the checkpoint does not hold the state of a training";
        let state: State = serde_json::from_value(progress.state.clone()).context(damaged)?;
        // The counters depend on each other, so that damaged ones do not fit.
        let (steps, batch) = (self.steps_per_epoch() as u64, self.settings.batch as u64);
        let in_epoch = state.step_in_epoch as u64;
        let fits = progress.epoch <= self.settings.epochs.into()
            && in_epoch <= steps
            && progress.step == progress.epoch * steps + in_epoch
            && state.sums.images == in_epoch * batch
            && state.sums.correct <= state.sums.images
            && state.sums.nll.is_finite()
            && !state.best_nll.is_nan();
        ensure!(fits, "{damaged}: its counters contradict each other");
        let epoch = u32::try_from(progress.epoch).context(damaged)?;
        let step = u32::try_from(progress.step).context(damaged)?;
        checkpoint.restore(&self.vars, &self.posterior, Some(&mut self.adam))?;
        (self.epoch, self.step, self.state) = (epoch, step, state);
        Ok(())
    }
}

fn scalar(tensor: &Tensor) -> Result<f64> {
    Ok(tensor.to_dtype(DType::F64)?.to_scalar()?)
}

fn correct(logits: &Tensor, labels: &Tensor) -> Result<u64> {
    let predicted = logits.detach().argmax(1)?.to_vec1::<u32>()?;
    let labels = labels.to_vec1::<u32>()?;
    let right = predicted.iter().zip(&labels).filter(|(a, b)| a == b);
    Ok(right.count() as u64)
}
