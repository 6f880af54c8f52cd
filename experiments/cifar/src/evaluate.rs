//! How well the network predicts, without noise.

use anyhow::Result;
use candle_core::Device;
use vmf_candle::{Forward, Samples, predict_stream, reestimate};
use vmf_core::metrics::Predictions;

use crate::data::Dataset;
use crate::data::batches::{Batch, Batches};
use crate::run::Scores;

/// Images in a pass of evaluation.
pub const BATCH: usize = 256;

/// The training images from which statistics are measured: the first so many, in batches of one size.
fn statistics_batches(set: &Dataset, images: usize) -> impl Iterator<Item = Batch> + use<> {
    let batch = BATCH.min(set.train.len());
    let count = (images.min(set.train.len()) / batch).max(1);
    Batches::in_order(set, &set.train, batch).take(count)
}

/// Measures the statistics of the noise-free pass.
pub fn measure_statistics<M: Forward>(
    model: &M,
    set: &Dataset,
    images: usize,
    device: &Device,
) -> Result<()> {
    let batches = statistics_batches(set, images);
    reestimate(
        model,
        batches.map(|batch| Ok(batch.into_tensors(device)?.0)),
    )?;
    Ok(())
}

/// The noise-free network on the training images that its statistics are measured on.
pub fn on_training<M: Forward>(
    model: &M,
    set: &Dataset,
    images: usize,
    device: &Device,
) -> Result<Scores> {
    score(model, set, statistics_batches(set, images), device)
}

/// The noise-free network on all test images.
pub fn on_test<M: Forward>(model: &M, set: &Dataset, device: &Device) -> Result<Scores> {
    let batches = Batches::in_order(set, &set.test, BATCH);
    score(model, set, batches, device)
}

fn score<M: Forward>(
    model: &M,
    set: &Dataset,
    batches: impl Iterator<Item = Batch>,
    device: &Device,
) -> Result<Scores> {
    let mut labels: Vec<u32> = Vec::new();
    let images = batches.map(|batch| {
        labels.extend(batch.labels());
        Ok(batch.into_tensors(device)?.0)
    });
    let mut probabilities: Vec<f32> = Vec::new();
    for prediction in predict_stream(model, images, Samples::mean()) {
        let probs = prediction?.probs;
        probabilities.extend(probs.flatten_all()?.to_vec1::<f32>()?);
    }
    let predictions = Predictions::new(&probabilities, &labels, set.classes.len())?;
    Ok(Scores {
        accuracy: predictions.accuracy(),
        nll: predictions.nll(),
        ece: predictions.ece(),
    })
}
