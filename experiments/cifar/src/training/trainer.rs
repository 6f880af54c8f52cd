//! A network in training, with its optimizer and its counters.

use std::path::Path;
use std::sync::PoisonError;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Optimizer, VarMap};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vmf_candle::posterior::Summary;
use vmf_candle::ranks::{Ranks, Share};
use vmf_candle::train::backward;
use vmf_candle::{
    Adam, AdamConfig, AutoBeta, Checkpoint, Elbo, Forward, Moments, Posterior, Progress,
    cross_entropy_counted, seeded,
};

use crate::data::Dataset;
use crate::data::batches::{Batch, Batches, Plan};
use crate::evaluation::outputs;
use crate::interrupt;
use crate::methods::ivon::Ivon;
use crate::methods::swa::Swa;
use crate::methods::{self, Method};
use crate::model::{Network, in_layer_order, is_finite, layer_order};
use crate::ranks::agreed;
use crate::run::{LayerSigma, Record};
use crate::settings::Settings;

/// Training has diverged if the loss of a batch exceeds that of guessing, the logarithm of the
/// number of classes, by this factor.
const DIVERGED: f64 = 10.0;

/// Number of held-out images on which automatic beta measures overconfidence at a time.
const MEASURED: usize = 1000;

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
    /// Lowest negative log-likelihood so far on the images that the best network is chosen on.
    #[serde(with = "exact")]
    best_nll: f64,
    /// What automatic beta has learned so far.
    #[serde(default)]
    auto_beta: Option<AutoBeta>,
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
    /// The variables of the network, and those that the method keeps beside them.
    vars: VarMap,
    posterior: Posterior,
    model: Network,
    adam: Adam,
    ivon: Option<Ivon>,
    swa: Option<Swa>,
    epoch: u32,
    step: u32,
    state: State,
    /// The images of each batch that this process has.
    share: Share,
    /// Whether a rank had been asked to stop when the last step was taken.
    is_stop_agreed: bool,
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
        let model = Network::new(&network, &posterior, vb)?;
        let config = AdamConfig {
            lr: settings.lr,
            noise_lr: settings.noise_lr,
            clip_norm: (settings.clip > 0.0).then_some(settings.clip),
            ..AdamConfig::default()
        };
        let adam = match settings.method {
            // It has no units, and its parameters are all of one kind.
            Method::MeanField => {
                let parameters = methods::parameters(&vars, true).into_iter();
                Adam::new(parameters.map(|(_, var)| var).collect(), config)?
            }
            _ => Adam::for_model(&vars, &posterior, config)?,
        };
        let ivon = Ivon::new(&settings, set.train.len(), &vars)?;
        let swa = Swa::new(&settings, &vars)?;
        let vars = methods::copy_of(&vars);
        ivon.iter().for_each(|ivon| ivon.keep_in(&vars));
        swa.iter().for_each(|swa| swa.keep_in(&vars));
        let auto_beta = match settings.beta_at(0.0) {
            Some(_) => None,
            None => {
                ensure!(
                    !set.held_out.is_empty(),
                    "--held-out {} holds out none of {} training images, and --beta auto needs some: raise it, or give a number as --beta",
                    settings.held_out,
                    set.train.len()
                );
                Some(AutoBeta::new(&posterior, set.train.len(), steps as u32)?)
            }
        };
        let share = Ranks::alone().share(settings.batch)?;
        Ok(Self {
            settings,
            set,
            device,
            vars,
            posterior,
            model,
            adam,
            ivon,
            swa,
            epoch: 0,
            step: 0,
            state: State {
                step_in_epoch: 0,
                sums: Sums::default(),
                best_nll: f64::INFINITY,
                auto_beta,
            },
            share,
            is_stop_agreed: false,
            diverged_in: None,
        })
    }

    /// The same training, shared with other ranks.
    pub fn across(self, ranks: Ranks) -> Result<Self> {
        ensure!(
            ranks.is_alone() || !self.settings.propagate,
            "--propagate trains in one process: propagated statistics are not merged across ranks"
        );
        let method = self.settings.method;
        ensure!(
            ranks.is_alone() || !matches!(method, Method::Ivon | Method::MeanField),
            "--method {} trains on one process, and not on {}",
            method.name(),
            ranks.size()
        );
        let share = ranks.share(self.settings.batch).with_context(|| {
            format!("{} ranks cannot share batches of {}", ranks.size(), self.settings.batch)
        })?;
        Ok(Self { share, adam: self.adam.across(ranks), ..self })
    }

    /// Whether a rank had been asked to stop when the last step was taken. All ranks agree on it.
    pub fn is_stop_agreed(&self) -> bool {
        self.is_stop_agreed
    }

    /// Whether it computes on a GPU, where every look at a value waits for the device.
    pub fn is_on_gpu(&self) -> bool {
        !self.device.is_cpu()
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

    /// The present weight of the KL.
    pub fn beta(&self) -> f64 {
        let found = || self.state.auto_beta.as_ref().map_or(0.0, AutoBeta::value);
        self.settings.beta_at(self.time()).unwrap_or_else(found)
    }

    /// What the noise has learned.
    pub fn summary(&self) -> Result<Summary> {
        Ok(self.posterior.summary()?)
    }

    fn plan(&self) -> Plan {
        Plan {
            batch: self.settings.batch,
            seed: self.settings.seed,
            augment: self.settings.augment,
        }
    }

    /// The remaining batches of the current epoch, which another thread prepares: of each of them
    /// the images that this process has.
    pub fn batches(&self) -> Batches {
        let plan = self.plan();
        let (share, first) = (self.share.range(), self.state.step_in_epoch);
        Batches::training_share(&self.set, plan, share, self.epoch, first)
    }

    /// Takes one step. If it fails, weights and statistics are unchanged.
    pub fn train_step(&mut self, batch: Batch) -> Result<()> {
        let taken = self.try_step(batch);
        if taken.is_err() {
            self.posterior.undo_statistics()?;
        }
        taken
    }

    fn try_step(&mut self, batch: Batch) -> Result<()> {
        let (count, ranks) = (batch.len(), self.share.ranks());
        let (images, labels) = batch.into_tensors(&self.device)?;
        if let Some(ivon) = &mut self.ivon {
            ivon.draw(self.settings.seed, self.step, 0)?;
        }
        let (nll, right, loss) = match self.loss(&images, &labels) {
            Ok(found) => found,
            Err(error) => return self.restored(error),
        };
        if self.device.is_cuda() && ranks.is_alone() && self.ivon.is_none() {
            return self.finish_step(&loss, &[&nll, &right], (&images, &labels));
        }
        // All ranks learn the same, so that they fail or stop together.
        let mut sums = [
            scalar(&nll)? * count as f64,
            scalar(&loss)?,
            scalar(&right)?,
            f64::from(u8::from(interrupt::asked())),
        ];
        ranks.sum_f64(&mut sums)?;
        let [nll, total, correct, asked] = sums;
        self.is_stop_agreed = asked > 0.0;
        let images_of_batch = self.share.batch() as u64;
        if !total.is_finite() {
            let error = anyhow!(
                "the loss is {total} at step {} (epoch {}): training cannot continue. {REMEDIES}",
                self.step,
                self.epoch + 1
            );
            return self.restored(error).or_else(|error| agreed(Err(error)));
        }
        self.warn_of_divergence(nll / images_of_batch as f64);
        let taken = self.take_step(&loss);
        if let Err(error) = taken {
            let place = format!("step {} (epoch {})", self.step, self.epoch + 1);
            return self.restored(error.context(place));
        }
        self.find_beta((&images, &labels))?;
        self.step += 1;
        self.state.step_in_epoch += 1;
        self.state.sums.images += images_of_batch;
        self.state.sums.nll += nll;
        self.state.sums.correct += correct as u64;
        Ok(())
    }

    /// The mean negative log-likelihood of a batch, the number of right predictions, and the loss.
    fn loss(&self, images: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let (nll, right) = self.outputs(images, labels).with_context(|| {
            let (step, epoch) = (self.step, self.epoch + 1);
            format!("training cannot continue at step {step} (epoch {epoch}). {REMEDIES}")
        })?;
        let (examples, beta) = (self.set.train.len(), self.beta());
        let loss = match self.model.gaussians().kl()? {
            Some(kl) => {
                let kl = (kl * (beta / examples as f64))?;
                (&nll + kl.to_dtype(nll.dtype())?)?
            }
            None => {
                let elbo = Elbo::new(examples).beta(beta).share(&self.share);
                elbo.loss(&nll, &self.posterior)?.total
            }
        };
        Ok((nll, right, loss))
    }

    /// The cross-entropy of a batch, and the number of right predictions.
    fn outputs(&self, images: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
        if self.settings.propagate {
            let logits = self.model.propagate(&Moments::training(images))?;
            let (_, right) = cross_entropy_counted(logits.mean(), labels)?;
            return Ok((logits.cross_entropy(labels)?, right));
        }
        let pass = self.settings.method.pass(self.settings.seed, self.step).shared(&self.share);
        let logits = self.model.forward(images, &pass)?;
        Ok(cross_entropy_counted(&logits, labels)?)
    }

    fn take_step(&mut self, loss: &Tensor) -> Result<()> {
        let lr = self.settings.lr_at(self.time());
        match &mut self.ivon {
            Some(ivon) => ivon.step(&backward(loss)?, lr, self.step + 1),
            None => {
                self.adam.set_learning_rate(lr);
                Ok(self.adam.backward_step(loss)?)
            }
        }
    }

    /// Returns an error, after the weights are what they were before the step.
    fn restored(&mut self, error: anyhow::Error) -> Result<()> {
        if let Some(ivon) = &mut self.ivon {
            ivon.restore()?;
        }
        Err(error)
    }

    /// The rest of a step on a GPU, which is read back once: everything is queued first, and the
    /// device itself leaves the weights as they are if the loss or a gradient is not finite.
    fn finish_step(
        &mut self,
        total: &Tensor,
        scalars: &[&Tensor],
        trained: (&Tensor, &Tensor),
    ) -> Result<()> {
        self.is_stop_agreed = interrupt::asked();
        self.adam.set_learning_rate(self.settings.lr_at(self.time()));
        let values = self.adam.backward_step_watching(total, scalars).with_context(|| {
            let (step, epoch) = (self.step, self.epoch + 1);
            format!("training cannot continue at step {step} (epoch {epoch}). {REMEDIES}")
        })?;
        let [nll, correct] = values[..] else { bail!("a step reported {values:?}") };
        self.warn_of_divergence(nll);
        self.find_beta(trained)?;
        let images = self.share.batch() as u64;
        self.step += 1;
        self.state.step_in_epoch += 1;
        self.state.sums.images += images;
        self.state.sums.nll += nll * images as f64;
        self.state.sums.correct += correct as u64;
        Ok(())
    }

    /// Measures on held-out images whether the network is overconfident, and moves beta, if beta is
    /// automatic and it is time. `trained` are the images and labels of
    /// the step.
    fn find_beta(&mut self, trained: (&Tensor, &Tensor)) -> Result<()> {
        let plan = self.plan();
        let Some(auto_beta) = &mut self.state.auto_beta else { return Ok(()) };
        if !auto_beta.is_due(self.step) {
            return Ok(());
        }
        // Every rank measures on the whole batch, as one process would.
        let ranks = self.share.ranks();
        let whole = match ranks.is_alone() {
            true => None,
            false => {
                Batches::training(&self.set, plan, self.epoch, self.state.step_in_epoch).next()
            }
        };
        let whole = whole.map(|batch| batch.into_tensors(&self.device)).transpose()?;
        let trained = whole.as_ref().map_or(trained, |(images, labels)| (images, labels));
        // Other images each time, so that all of them count in the long run.
        let all = self.set.held_out.len();
        let count = all.min(MEASURED);
        let first = self.step as usize * count;
        let places: Vec<u32> = (first..first + count).map(|place| (place % all) as u32).collect();
        let batch = Batch::of(&self.set, &self.set.held_out, &places);
        let (held_out, labels) = batch.into_tensors(&self.device)?;
        let (model, posterior) = (&self.model, &self.posterior);
        let signal = auto_beta
            .update(self.step, model, posterior, trained, (&held_out, &labels))
            .with_context(|| {
            format!(
                "step {} (epoch {}): automatic beta cannot be measured. {REMEDIES}",
                self.step,
                self.epoch + 1
            )
        })?;
        // Processors of different kinds round differently; what rank 0 has found counts.
        if !ranks.is_alone() {
            *auto_beta = serde_json::from_slice(&ranks.tell(&serde_json::to_vec(&auto_beta)?)?)?;
        }
        tracing::info!(
            "step {}: held-out ln T {:.4} +- {:.4}, beta {:.3e}",
            self.step,
            signal.ln_temperature,
            signal.standard_error,
            auto_beta.value()
        );
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
        moments.sort_by(|(a, _), (b, _)| layer_order(a).cmp(&layer_order(b)));
        for name in in_layer_order(vars.keys()) {
            ensure!(is_finite(&vars[name])?, broken("the variable", name));
        }
        for (name, moments) in moments {
            ensure!(is_finite(&moments.first)?, broken("the first moment of", &name));
            ensure!(is_finite(&moments.second)?, broken("the second moment of", &name));
        }
        Ok(())
    }

    /// Fails if the ranks do not have the same weights, to the last bit, and the same counters.
    pub fn ensure_equal(&self) -> Result<()> {
        let ranks = self.share.ranks();
        if ranks.is_alone() {
            return Ok(());
        }
        let mut digest = Sha256::new();
        digest.update(format!("{} {} {:?}", self.epoch, self.step, self.state));
        let vars = self.vars.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = self.adam.state()?.into_iter().map(|(name, _)| name).collect();
        names.sort();
        for name in names {
            for value in vars[&name].flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()? {
                digest.update(value.to_le_bytes());
            }
        }
        ranks
            .ensure_equal("the weights", &digest.finalize())
            .context("the ranks have drifted apart, which points to faulty hardware or to different versions of a library: continue from the last checkpoint")
    }

    /// Ends the epoch: measures statistics and evaluates the network in one pass. Returns the
    /// record of the epoch, and whether this is the best network so far.
    pub fn finish_epoch(&mut self) -> Result<(Record, bool)> {
        self.ensure_finite()?;
        agreed(self.ensure_equal())?;
        self.ivon.as_ref().map_or(Ok(()), Ivon::check)?;
        let (beta, lr) = (self.beta(), self.settings.lr_at(self.time()));
        // The network that counts is the averaged one.
        let weights = self.swa.as_ref().map(|swa| {
            swa.update(self.epoch + 1)?;
            swa.install(self.epoch + 1)
        });
        let weights = weights.transpose()?;
        let (model, posterior) = (&self.model, &self.posterior);
        let (settings, set, on) = (&self.settings, &self.set, (&self.device, self.share.ranks()));
        outputs::measure_statistics(model, posterior, set, settings, on)?;
        let samples = || outputs::one_pass(settings.method, posterior);
        let images = settings.statistics_images;
        let train = outputs::on_training(model, set, images, samples(), on)?;
        let scores = |split| outputs::on_split(model, set, split, samples(), on);
        let test = scores(&set.test)?;
        let held_out = (!set.held_out.is_empty()).then(|| scores(&set.held_out)).transpose()?;
        let is_noisy = self.settings.method.is_noisy();
        let summary = self.summary()?;
        let sigma_eff = summary
            .iter()
            .filter(|_| is_noisy)
            .map(|layer| LayerSigma { layer: layer.name.clone(), sigma_eff: layer.sigma_eff() });
        let kl = match self.model.gaussians().kl()? {
            Some(kl) => Some(kl.to_scalar()?),
            None => is_noisy.then(|| summary.kl()),
        };
        let sigma_eff: Vec<LayerSigma> = sigma_eff.collect();
        if let (Some(swa), Some(weights)) = (&self.swa, &weights) {
            swa.restore(weights)?;
        }
        self.epoch += 1;
        let record = Record {
            epoch: self.epoch.into(),
            step: self.step.into(),
            running_nll: self.state.sums.nll(),
            running_accuracy: self.state.sums.accuracy(),
            train,
            held_out,
            test,
            kl,
            beta,
            lr,
            sigma_eff,
            seconds: 0.0,
        };
        // Nothing is chosen by test scores.
        let nll = held_out.unwrap_or(train).nll;
        let is_best = nll < self.state.best_nll;
        self.state.best_nll = nll.min(self.state.best_nll);
        (self.state.step_in_epoch, self.state.sums) = (0, Sums::default());
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
        let settings = serde_json::from_value::<Settings>(progress.config.clone());
        ensure!(
            settings.is_ok_and(|settings| settings == self.settings),
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
            && !state.best_nll.is_nan()
            && state.auto_beta.is_some() == self.state.auto_beta.is_some();
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
