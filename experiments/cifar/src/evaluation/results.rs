//! The result of an evaluation, as `evaluation.json` keeps it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use vmf_core::metrics::{Binning, PROBABILITY_FLOOR, Predictions};

use crate::limits;
use crate::settings::Settings;
use crate::trained::Trained;

/// The file in the folder of a run that keeps its evaluation.
pub const EVALUATION: &str = "evaluation.json";
/// The version of `evaluation.json` that this program writes and reads.
pub const VERSION: u64 = 1;

/// How well one network predicts, in each way in which it can.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The version of the file: [`VERSION`].
    pub version: u64,
    /// Which network.
    pub network: Network,
    /// Which images and which noise were used.
    pub protocol: Protocol,
    /// The scores, one entry per way to predict.
    pub ways: Vec<Measured>,
    /// The test images with the highest predictive entropy.
    pub most_uncertain: Vec<Example>,
    /// The wrongly predicted test images with the highest confidence.
    pub confidently_wrong: Vec<Example>,
}

/// Which network was evaluated. A run may be trained further, and an old evaluation must not be
/// taken for that of the later network.
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

/// The images and the noise that a network is evaluated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Number of test images.
    pub test_images: usize,
    /// Which images the temperature is fitted to. The scores with a temperature are of the test
    /// images that are not among them.
    #[serde(default)]
    pub fit_on: FitOn,
    /// Their number.
    pub fit_images: usize,
    /// Number of Monte Carlo samples.
    pub samples: u32,
    /// Seed of the noise in them.
    pub seed: u64,
}

impl Protocol {
    /// Number of images that a temperature is judged by.
    pub fn judged_images(&self) -> usize {
        self.test_images - self.fitted_test_images()
    }

    /// Number of test images that the temperature is fitted to: the first ones.
    pub(super) fn fitted_test_images(&self) -> usize {
        match self.fit_on {
            FitOn::HeldOut => 0,
            FitOn::Test => self.fit_images,
        }
    }

    /// Which images the temperature is fitted to and which it is judged by, for people.
    pub fn fit_in_words(&self) -> String {
        let (fit, judged) = (self.fit_images, self.judged_images());
        match self.fit_on {
            FitOn::HeldOut => format!(
                "T is fitted to {fit} training images that were held out, and all of these scores are on the {judged} test images"
            ),
            FitOn::Test => format!(
                "T is fitted to the first {fit} test images, and all of these scores are on the other {judged}"
            ),
        }
    }
}

/// The images that a temperature is fitted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FitOn {
    /// Images of the training set that were held out.
    HeldOut,
    /// The first test images, if no images were held out.
    #[default]
    Test,
}

/// A way to predict with a network of noisy units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One deterministic pass through expected activations.
    Expected,
    /// Noise off, with statistics measured with noise off.
    Mean,
    /// Noise off, with the statistics that training collected under noise.
    MeanAsTrained,
    /// The mean of several noisy passes, with the statistics that training collected under noise.
    MonteCarlo,
}

/// The scores of one way to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The way.
    pub way: Way,
    /// Scores on all test images, without a temperature.
    pub all: Quality,
    /// The temperature, and the scores with and without it on the images that it was not fitted
    /// to.
    pub tempered: Tempered,
}

/// The effect of temperature scaling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tempered {
    /// The temperature. It is above 1 for an overconfident network.
    pub temperature: f64,
    /// Mean negative log-likelihood without the temperature, on the images that it was fitted to.
    pub fit_nll_before: f64,
    /// The same with the temperature.
    pub fit_nll_after: f64,
    /// Scores on the other images without the temperature.
    pub before: Quality,
    /// Scores on the other images with the temperature.
    pub after: Quality,
}

/// Scores of a set of predictions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Share of images whose most probable class is the true one.
    pub accuracy: f64,
    /// Mean negative log-likelihood in nats.
    pub nll: f64,
    /// Brier score, summed over classes: from 0 to 2.
    pub brier: f64,
    /// Expected calibration error, 15 bins of equal width.
    pub ece: f64,
    /// The same with 15 bins that hold equally many predictions.
    pub adaptive_ece: f64,
    /// Calibration error of the probability of each class, averaged over classes.
    pub classwise_ece: f64,
    /// Mean entropy of the predictions in nats.
    pub entropy: f64,
    /// Mean mutual information of label and weights in nats; absent for a single pass.
    pub mutual_information: Option<f64>,
    /// The nonempty bins of the reliability diagram that the calibration error is computed from.
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
    /// Number of predictions.
    pub count: usize,
    /// Their mean confidence.
    pub confidence: f64,
    /// The share of them that is correct.
    pub accuracy: f64,
}

/// A test image that is worth looking at, with the network's prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// Its index in the test set.
    pub image: usize,
    /// Index of its true class.
    pub label: usize,
    /// Index of the predicted class.
    pub predicted: usize,
    /// The predictive probability of each class.
    pub probabilities: Vec<f64>,
    /// Their entropy in nats.
    pub entropy: f64,
    /// Mutual information of label and weights in nats; absent for a single pass.
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
            // A probability that underflows to 0 would make the mean infinite.
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

impl Example {
    /// Whether image and classes exist.
    fn is_within(&self, protocol: &Protocol, classes: usize) -> bool {
        self.image < protocol.test_images
            && self.label < classes
            && self.predicted < classes
            && self.probabilities.len() == classes
    }
}

impl Evaluation {
    fn examples(&self) -> impl Iterator<Item = &Example> {
        self.most_uncertain.iter().chain(&self.confidently_wrong)
    }

    /// The scores of one way to predict, if the network can predict that way.
    pub fn way(&self, way: Way) -> Option<&Measured> {
        self.ways.iter().find(|measured| measured.way == way)
    }

    /// The evaluation that a folder keeps, if it is of this network under this protocol. A file
    /// that cannot be read or used counts as absent, because the evaluation can be made again.
    pub fn stored(
        folder: &Path,
        network: &Network,
        protocol: &Protocol,
        classes: usize,
    ) -> Option<Self> {
        let text = limits::read_text(&folder.join(EVALUATION), limits::EVALUATION).ok()?;
        let stored: Self = serde_json::from_str(&text).ok()?;
        let fits = stored.version == VERSION
            && stored.network == *network
            && stored.protocol == *protocol
            && stored.examples().all(|example| example.is_within(protocol, classes));
        fits.then_some(stored)
    }

    /// Keeps the evaluation in a folder. If the folder cannot be written to, this only warns: the
    /// caller still has the result to show.
    pub fn store(&self, folder: &Path) -> serde_json::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        if let Err(error) = lab::write_atomic(folder.join(EVALUATION), text) {
            tracing::warn!("the evaluation is not kept: {error}");
        }
        Ok(())
    }
}
