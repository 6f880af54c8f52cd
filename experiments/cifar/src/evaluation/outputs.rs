//! Runs a network over the images of a data set.

use anyhow::Result;
use candle_core::Device;
use vmf_candle::predict::predict_stream;
use vmf_candle::{Forward, Posterior, Samples, reestimate};
use vmf_core::metrics::{PROBABILITY_FLOOR, Predictions};

use crate::data::Dataset;
use crate::data::batches::{Batch, Batches};
use crate::run::Scores;

/// Images per forward pass of an evaluation.
pub const BATCH: usize = 256;

/// The batches that normalization statistics are measured on: the first `images` training images,
/// in batches of equal size.
fn statistics_batches(set: &Dataset, images: usize) -> impl Iterator<Item = Batch> + use<> {
    let batch = BATCH.min(set.train.len());
    let count = (images.min(set.train.len()) / batch).max(1);
    Batches::in_order(set, &set.train, batch).take(count)
}

/// Measures what the deterministic passes need and stores it in the model and its posterior: the
/// normalization statistics of the noise-free network, and how much its activations and outputs
/// vary under noise.
pub fn measure_statistics<M: Forward>(
    model: &M,
    posterior: &Posterior,
    set: &Dataset,
    images: usize,
    device: &Device,
) -> Result<()> {
    let batches = statistics_batches(set, images);
    reestimate(model, posterior, batches.map(|batch| Ok(batch.into_tensors(device)?.0)))?;
    Ok(())
}

/// Scores of the noise-free network on the training images that its statistics are measured on.
pub fn on_training<M: Forward>(
    model: &M,
    set: &Dataset,
    images: usize,
    device: &Device,
) -> Result<Scores> {
    let batches = statistics_batches(set, images);
    outputs(model, batches, Samples::mean(), device, || Ok(()))?.scores(set.classes.len())
}

/// Scores of the noise-free network on all test images.
pub fn on_test<M: Forward>(model: &M, set: &Dataset, device: &Device) -> Result<Scores> {
    let batches = Batches::in_order(set, &set.test, BATCH);
    outputs(model, batches, Samples::mean(), device, || Ok(()))?.scores(set.classes.len())
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
}

impl Outputs {
    fn scores(&self, classes: usize) -> Result<Scores> {
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
    let (mut probabilities, mut mutual_information) = (Vec::new(), Vec::new());
    for prediction in predict_stream(model, images, samples) {
        let prediction = prediction?;
        probabilities.extend(prediction.probs.flatten_all()?.to_vec1::<f32>()?);
        mutual_information.extend(prediction.mutual_information.to_vec1::<f32>()?);
        seen()?;
    }
    Ok(Outputs { labels, probabilities, mutual_information })
}
