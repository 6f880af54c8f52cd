//! What an evaluation found, as it is kept in evaluation.json.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vmf_core::metrics::{Binning, PROBABILITY_FLOOR, Predictions};

use crate::settings::Settings;
use crate::trained::Trained;

/// The file that keeps it in the folder of a run.
pub const EVALUATION: &str = "evaluation.json";
/// The version of that file that this program writes and reads.
pub const VERSION: u64 = 1;

/// How well one network predicts, in every way in which it can.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The version of the file: [`VERSION`].
    pub version: u64,
    /// Which network.
    pub network: Network,
    /// On which images, and with which noise.
    pub protocol: Protocol,
    /// The scores, one entry for each way to predict.
    pub ways: Vec<Measured>,
    /// The test images of the highest predictive entropy.
    pub most_uncertain: Vec<Example>,
    /// The test images with a wrong prediction of the highest confidence.
    pub confidently_wrong: Vec<Example>,
}

/// Which network was evaluated: a run goes on, and its evaluation must not be taken for that of a
/// later network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The settings it was trained with.
    pub settings: Settings,
    /// Epochs it was trained for.
    pub epoch: u64,
    /// Steps it was trained for.
    pub step: u64,
}

impl Network {
    /// The network that was opened.
    pub fn of(trained: &Trained) -> Self {
        Self {
            settings: trained.config.settings.clone(),
            epoch: trained.epoch,
            step: trained.progress.step,
        }
    }
}

/// On which images a network is evaluated, and with which noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Test images.
    pub test_images: usize,
    /// The first so many of them fit the temperature, and are not among those that it is judged
    /// by.
    pub fit_images: usize,
    /// Monte Carlo samples.
    pub samples: u32,
    /// The seed of their noise.
    pub seed: u64,
}

impl Protocol {
    /// Images that a temperature is judged by.
    pub fn judged_images(&self) -> usize {
        self.test_images - self.fit_images
    }
}

/// A way to predict with a network of noisy units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Noise off, statistics measured with noise off.
    Mean,
    /// Noise off, statistics as training collected them.
    MeanAsTrained,
    /// The mean of several noisy passes, statistics as training collected them.
    MonteCarlo,
}

/// The scores of one way to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The way.
    pub way: Way,
    /// On all test images, as the network predicts.
    pub all: Quality,
    /// The temperature, and the scores with and without it on images that it was not fitted to.
    pub tempered: Tempered,
}

/// What temperature scaling does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tempered {
    /// The temperature: above 1 for a network that is too sure of itself.
    pub temperature: f64,
    /// Mean negative log-likelihood of the images it was fitted to, without it.
    pub fit_nll_before: f64,
    /// The same with it.
    pub fit_nll_after: f64,
    /// The other images without it.
    pub before: Quality,
    /// The other images with it.
    pub after: Quality,
}

/// How good predictions are, and how far their confidence can be believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// The share of images whose likeliest class is right.
    pub accuracy: f64,
    /// Mean negative log-likelihood in nats.
    pub nll: f64,
    /// Brier score, summed over classes: from 0 to 2.
    pub brier: f64,
    /// Expected calibration error, 15 bins of equal width.
    pub ece: f64,
    /// The same with 15 bins of equal mass.
    pub adaptive_ece: f64,
    /// The calibration error of each class's probability, averaged over classes.
    pub classwise_ece: f64,
    /// Mean entropy of the predictions in nats.
    pub entropy: f64,
    /// Mean mutual information of label and weights in nats; a single pass has none.
    pub mutual_information: Option<f64>,
    /// The reliability diagram behind the calibration error: bins that are not empty.
    pub bins: Vec<Bin>,
}

/// Predictions of similar confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bin {
    /// Lower edge of confidence.
    pub lower: f64,
    /// Upper edge of confidence.
    pub upper: f64,
    /// How many predictions.
    pub count: usize,
    /// Their mean confidence.
    pub confidence: f64,
    /// The share of them that is right.
    pub accuracy: f64,
}

/// A test image that is worth looking at, and what the network says of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// Its place in the test set, from 0.
    pub image: usize,
    /// The number of its true class.
    pub label: usize,
    /// The number of the predicted class.
    pub predicted: usize,
    /// The predictive probability of each class.
    pub probabilities: Vec<f64>,
    /// Their entropy in nats.
    pub entropy: f64,
    /// The mutual information of label and weights in nats; a single pass has none.
    pub mutual_information: Option<f64>,
}

impl Quality {
    /// The quality of checked predictions.
    pub fn of<T: Copy + Into<f64>>(
        predictions: &Predictions<'_, T>,
        mutual_information: Option<f64>,
    ) -> Self {
        let diagram = predictions.reliability(Binning::default());
        let bins = diagram.bins().iter().filter_map(|bin| {
            Some(Bin {
                lower: bin.lower,
                upper: bin.upper,
                count: bin.count,
                confidence: bin.confidence()?,
                accuracy: bin.accuracy()?,
            })
        });
        Self {
            accuracy: predictions.accuracy(),
            // A probability that is too small for its type would make the mean infinite.
            nll: predictions.nll_with_floor(PROBABILITY_FLOOR),
            brier: predictions.brier(),
            ece: diagram.ece(),
            adaptive_ece: predictions.adaptive_ece(),
            classwise_ece: predictions.classwise_ece(),
            entropy: predictions.entropy().iter().sum::<f64>() / predictions.len() as f64,
            mutual_information,
            bins: bins.collect(),
        }
    }
}

impl Evaluation {
    /// The scores of a way, if the network can predict in it.
    pub fn way(&self, way: Way) -> Option<&Measured> {
        self.ways.iter().find(|measured| measured.way == way)
    }

    /// The evaluation kept in a folder, if it is of this network under this protocol. One that
    /// cannot be read counts as none: it is made again.
    pub fn stored(folder: &Path, network: &Network, protocol: &Protocol) -> Option<Self> {
        let text = fs::read_to_string(folder.join(EVALUATION)).ok()?;
        let stored: Self = serde_json::from_str(&text).ok()?;
        let fits =
            stored.version == VERSION && stored.network == *network && stored.protocol == *protocol;
        fits.then_some(stored)
    }

    /// Keeps the evaluation in a folder. A folder that cannot be written to is no reason to
    /// withhold what was found.
    pub fn store(&self, folder: &Path) -> serde_json::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        if let Err(error) = lab::write_atomic(folder.join(EVALUATION), text) {
            tracing::warn!("the evaluation is not kept: {error}");
        }
        Ok(())
    }
}
