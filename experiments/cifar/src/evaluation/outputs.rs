//! Runs a network over the images of a data set.

use std::cell::RefCell;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use vmf_candle::predict::{predict_stream, reestimate_across, reestimate_mean};
use vmf_candle::ranks::Ranks;
use vmf_candle::{Forward, Pass, Posterior, Samples};
use vmf_core::metrics::{MonteCarlo, PROBABILITY_FLOOR, Predictions, Temperature};

use crate::data::batches::{Batch, Batches, Plan};
use crate::data::{Dataset, Split};
use crate::run::Scores;
use crate::settings::{Method, Settings};

/// Images per forward pass of an evaluation.
pub const BATCH: usize = 256;

/// The seed of the noise under which statistics are measured. It is fixed, so that a measurement
/// is a function of the network.
const NOISE: u64 = 0x6d65_7468_6f64_7321;

/// The number of batches that statistics are measured on, and their size: they cover about `images`
/// training images, in batches of equal size.
fn statistics_batches(set: &Dataset, images: usize) -> (usize, usize) {
    let batch = BATCH.min(set.train.len());
    ((images.min(set.train.len()) / batch).max(1), batch)
}

/// Measures what prediction needs and stores it in the model and its posterior: the statistics of
/// normalization, and how much activations and outputs vary under noise. The images are augmented if
/// training augments, because the statistics must be those of what the network was trained on.
pub fn measure_statistics<M: Forward>(
    model: &M,
    posterior: &Posterior,
    set: &Dataset,
    settings: &Settings,
    (device, ranks): (&Device, Ranks),
) -> Result<()> {
    let (count, batch) = statistics_batches(set, settings.statistics_images);
    let plan = Plan { batch, seed: settings.seed, augment: settings.augment };
    let batches = Batches::as_trained(set, plan).take(count);
    let batches = batches.map(|batch| Ok(batch.into_tensors(device)?.0));
    match settings.method {
        method if method.is_noisy() => {
            reestimate_across(model, posterior, batches, ranks)?;
        }
        // Their noise is not in units, so that there is no expected pass to measure for.
        Method::Dropout | Method::MeanField => {
            let batches: Vec<Tensor> = batches.collect::<candle_core::Result<_>>()?;
            for (number, images) in batches.iter().enumerate() {
                model.forward(images, &Pass::estimate_noisy(NOISE, number as u32))?;
            }
            reestimate_mean(model, batches.into_iter().map(Ok))?;
        }
        _ => {
            reestimate_mean(model, batches)?;
        }
    }
    Ok(())
}

/// How networks of a method predict in one deterministic pass.
pub fn one_pass(method: Method, posterior: &Posterior) -> Samples {
    if method.is_noisy() { Samples::expected(posterior) } else { Samples::mean() }
}

/// Scores on as many training images as statistics are measured on, without augmentation.
pub fn on_training<M: Forward>(
    model: &M,
    set: &Dataset,
    images: usize,
    samples: Samples,
    on: (&Device, Ranks),
) -> Result<Scores> {
    let (count, batch) = statistics_batches(set, images);
    let batches = Batches::in_order(set, &set.train, batch).take(count);
    scores(model, batches, samples, set.classes.len(), on)
}

/// Scores on all images of a split.
pub fn on_split<M: Forward>(
    model: &M,
    set: &Dataset,
    split: &Arc<Split>,
    samples: Samples,
    on: (&Device, Ranks),
) -> Result<Scores> {
    let batches = Batches::in_order(set, split, BATCH);
    scores(model, batches, samples, set.classes.len(), on)
}

/// Scores of one pass over batches, which the ranks take in turn.
fn scores<M: Forward>(
    model: &M,
    batches: impl Iterator<Item = Batch>,
    samples: Samples,
    classes: usize,
    (device, ranks): (&Device, Ranks),
) -> Result<Scores> {
    let (mut labels, mut places) = (Vec::<u32>::new(), Vec::new());
    let mine = batches.enumerate().filter_map(|(number, batch)| {
        let first = labels.len();
        labels.extend(batch.labels());
        let is_mine = number % ranks.size() == ranks.rank();
        is_mine.then(|| {
            places.push(first * classes..labels.len() * classes);
            batch
        })
    });
    let found = outputs(model, mine, samples, device, || Ok(()))?;
    if ranks.is_alone() {
        return found.scores(classes);
    }
    // Each row is that of one rank and zeros, so their sum is exact.
    let mut probabilities = vec![0.0; labels.len() * classes];
    let mut rows = &found.probabilities[..];
    for place in places {
        let (these, rest) = rows.split_at(place.len());
        probabilities[place].copy_from_slice(these);
        rows = rest;
    }
    ranks.sum_f32(&mut probabilities)?;
    Outputs { labels, probabilities, ..Outputs::default() }.scores(classes)
}

/// What a network predicts for images, in the order of the images.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// The true class of each image.
    pub labels: Vec<u32>,
    /// Predictive probabilities: one row of all classes per image.
    pub probabilities: Vec<f32>,
    /// Mutual information of label and weights of each image, in nats; 0 for a single pass.
    pub mutual_information: Vec<f32>,
    /// The energy of each image, `-ln sum exp` of its logits, averaged over passes.
    pub energy: Vec<f32>,
}

impl Outputs {
    /// The predictions for the images `from .. to`.
    pub(super) fn between(
        &self,
        from: usize,
        to: usize,
        classes: usize,
    ) -> Result<Predictions<'_, f32>> {
        let probabilities = &self.probabilities[from * classes..to * classes];
        Predictions::new(probabilities, &self.labels[from..to], classes)
            .context("the network's predictions are no probabilities")
    }

    /// The predictions of several networks, or of several draws of one, as one: the mean of their
    /// probabilities. What they disagree on, and what each of them does not know, is the mutual
    /// information.
    pub fn mixed(parts: &[Self], classes: usize) -> Result<Self> {
        let first = parts.first().context("no predictions were given")?;
        ensure!(
            parts.iter().all(|part| part.labels == first.labels),
            "predictions for different images cannot be averaged"
        );
        let all: Vec<f32> = parts.iter().flat_map(|part| part.probabilities.clone()).collect();
        let samples = MonteCarlo::new(&all, parts.len(), classes)?;
        let between = samples.uncertainty().mutual_information;
        let within = |image: usize| {
            let sum: f64 = parts.iter().map(|p| f64::from(p.mutual_information[image])).sum();
            sum / parts.len() as f64
        };
        let information = between.iter().enumerate().map(|(image, i)| (i + within(image)) as f32);
        Ok(Self {
            labels: first.labels.clone(),
            probabilities: samples.mean().into_iter().map(|p| p as f32).collect(),
            mutual_information: information.collect(),
            energy: (0..first.energy.len())
                .map(|i| parts.iter().map(|part| part.energy[i]).sum::<f32>() / parts.len() as f32)
                .collect(),
        })
    }

    pub(super) fn scores(&self, classes: usize) -> Result<Scores> {
        let predictions = Predictions::new(&self.probabilities, &self.labels, classes)?;
        Ok(Scores {
            accuracy: predictions.accuracy(),
            // A probability that underflows to 0 would make the mean infinite.
            nll: predictions.nll_with_floor(PROBABILITY_FLOOR),
            ece: predictions.ece(),
        })
    }
}

/// Runs the network over batches. `seen` is called after each batch; an error that it returns ends
/// the loop.
pub fn outputs<M: Forward>(
    model: &M,
    batches: impl Iterator<Item = Batch>,
    samples: Samples,
    device: &Device,
    seen: impl Fn() -> Result<()>,
) -> Result<Outputs> {
    let mut labels: Vec<u32> = Vec::new();
    let images = batches.map(|batch| {
        labels.extend(batch.labels());
        Ok(batch.into_tensors(device)?.0)
    });
    // The prediction keeps probabilities, from which the size of the logits cannot be told.
    let seen_logits = RefCell::new(Vec::new());
    let watched = |images: &Tensor, pass: &Pass| {
        let logits = model.forward(images, pass)?;
        seen_logits.borrow_mut().push(logits.clone());
        Ok(logits)
    };
    let (mut probabilities, mut mutual_information) = (Vec::new(), Vec::new());
    let mut energy = Vec::new();
    for prediction in predict_stream(&watched, images, samples) {
        let prediction = prediction?;
        probabilities.extend(prediction.probs.flatten_all()?.to_vec1::<f32>()?);
        mutual_information.extend(prediction.mutual_information.to_vec1::<f32>()?);
        energy.extend(mean_energy(&seen_logits.take(), prediction.probs.dim(0)?)?);
        seen()?;
    }
    Ok(Outputs { labels, probabilities, mutual_information, energy })
}

/// The energy of each of `rows` images, averaged over all passes. A pass may hold several copies of
/// the images.
fn mean_energy(passes: &[Tensor], rows: usize) -> Result<Vec<f32>> {
    let (mut sums, mut copies) = (vec![0.0; rows], 0.0);
    for logits in passes {
        let classes = logits.dim(1)?;
        let values = logits.flatten_all()?.to_vec1::<f32>()?;
        let energies = Temperature::ONE.energy(&values, classes)?;
        for copy in energies.chunks_exact(rows) {
            copies += 1.0;
            sums.iter_mut().zip(copy).for_each(|(sum, energy)| *sum += energy);
        }
    }
    Ok(sums.iter().map(|sum| (sum / copies) as f32).collect())
}
