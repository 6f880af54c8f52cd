//! What a network, or an ensemble of several, is worth beyond its test images: on corrupted images
//! and on foreign ones, where it may abstain, in sets of classes, and beside what people see.
//!
//! Each way to predict is scored by itself. `evidence.json` keeps the result.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vmf_core::metrics::{
    Conformal, Conformity, Detection, PROBABILITY_FLOOR, Predictions, SetQuality,
};

use super::measure::{judge, predict};
use super::outputs::{self, Outputs};
use super::results::{FitOn, Measured, Network, Protocol, Way};
use crate::data::corruption::{Corruption, SEVERITIES};
use crate::data::{Dataset, Source, Split, foreign};
use crate::interrupt;
use crate::limits;
use crate::run::Scores;
use crate::trained::Trained;
use vmf_candle::ranks::Ranks;

/// The file that keeps the evidence.
pub const EVIDENCE: &str = "evidence.json";
/// The version of `evidence.json` that this program writes and reads.
pub const VERSION: u64 = 1;
/// The probability with which conformal sets may miss the true class.
pub const MISCOVERAGE: f64 = 0.1;
/// The conformal scores. The penalty of RAPS is the one that its paper uses most.
const SETS: [(&str, Conformity); 3] = [
    ("THR", Conformity::Threshold),
    ("APS", Conformity::Adaptive),
    ("RAPS", Conformity::Regularized { penalty: 0.01, free: 5 }),
];

/// How much of it to gather.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Number of images per corruption and severity, and per foreign set
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub foreign_images: usize,
}

/// The evidence about one network or ensemble.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The version of the file: [`VERSION`].
    pub version: u64,
    /// Its networks; several are an ensemble.
    pub networks: Vec<Network>,
    /// The test images and the noise.
    pub protocol: Protocol,
    /// How many other images.
    pub extent: Extent,
    /// The scores, one entry per way to predict.
    pub ways: Vec<Shown>,
    /// What was not measured, and why.
    pub left_out: Vec<String>,
}

/// The evidence about one way to predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// The way.
    pub way: Way,
    /// The scores on the test images, with and without a temperature.
    pub measured: Measured,
    /// Seconds that the prediction of the test images took, on the machine at hand.
    pub seconds: f64,
    /// Area under the risk-coverage curve.
    pub aurc: f64,
    /// The share of images that can be answered with at most 1 % of errors.
    pub coverage_at_1: f64,
    /// The same with at most 5 % of errors.
    pub coverage_at_5: f64,
    /// Sets that hold the true class with probability 0.9, calibrated on the first half of the test
    /// images and judged on the second.
    pub sets: Vec<Sets>,
    /// Cross-entropy to the labels of people, in nats.
    pub human: Option<f64>,
    /// How well foreign images are told from test images.
    pub foreign: Vec<Told>,
    /// Scores on corrupted images.
    pub shifted: Vec<Shifted>,
}

/// The quality of conformal sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sets {
    /// The score they are made by.
    pub name: String,
    /// The share that holds the true class.
    pub coverage: f64,
    /// Their mean number of classes.
    pub mean_size: f64,
}

/// How well a score tells foreign images from test images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// The foreign images.
    pub images: String,
    /// The score: entropy, mutual information, maximum probability or energy.
    pub score: String,
    /// Area under the ROC curve.
    pub auroc: f64,
    /// Area under the precision-recall curve, with foreign images as positives.
    pub aupr: f64,
    /// The share of test images taken for foreign where 95 % of the foreign ones are found.
    pub fpr95: f64,
}

/// Scores on images with one corruption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shifted {
    /// The corruption.
    pub corruption: Corruption,
    /// Its severity, from 1 to 5.
    pub severity: usize,
    /// The scores.
    pub scores: Scores,
}

impl Evidence {
    /// The evidence about one way to predict.
    pub fn way(&self, way: Way) -> Option<&Shown> {
        self.ways.iter().find(|shown| shown.way == way)
    }

    /// The evidence that a folder keeps, if it is about these networks under this protocol.
    pub fn stored(
        folder: &Path,
        networks: &[Network],
        protocol: &Protocol,
        extent: &Extent,
    ) -> Option<Self> {
        let text = limits::read_text(&folder.join(EVIDENCE), limits::EVALUATION).ok()?;
        let stored: Self = serde_json::from_str(&text).ok()?;
        let fits = stored.version == VERSION
            && stored.networks == networks
            && stored.protocol == *protocol
            && stored.extent == *extent;
        fits.then_some(stored)
    }
}

/// A network with the data set of its own, of which the held-out images may differ.
pub type Member = (Trained, Dataset);

/// Gathers the evidence about a network, or about several as one ensemble. Other images are looked
/// for in `folder`.
pub fn gather(
    members: &[Member],
    mut protocol: Protocol,
    extent: &Extent,
    folder: &Path,
) -> Result<Evidence> {
    let (first, set) = members.first().context("no network was named")?;
    if members.len() > 1 {
        // What one member has held out, another may have been trained on.
        (protocol.fit_on, protocol.fit_images) = (FitOn::Test, (set.test.len() / 2).max(1));
    }
    for (trained, set) in members {
        let on = (&trained.device, Ranks::alone());
        let settings = &trained.config.settings;
        outputs::measure_statistics(&trained.model, &trained.posterior, set, settings, on)?;
    }
    let (foreign, mut left_out) = foreign::sets(folder, set.shape, extent.foreign_images);
    let human = match first.config.settings.data {
        Source::Cifar10 => foreign::human_labels(folder).map_err(|error| error.to_string()),
        _ => Err("these are not the test images of CIFAR-10".into()),
    };
    let human = human.map_err(|reason| left_out.push(format!("CIFAR-10H: {reason}"))).ok();
    let corrupted = corrupted(set, extent, folder, &mut left_out)?;
    let methods: Vec<_> = members.iter().map(|(t, _)| t.config.settings.method).collect();
    let ways = [Way::Mean, Way::Expected, Way::MonteCarlo].into_iter().filter(|way| match way {
        Way::Expected => methods.iter().all(|method| method.is_noisy()),
        Way::MonteCarlo => methods.iter().all(|method| method.has_samples()),
        _ => true,
    });
    let shown = ways.map(|way| -> Result<Shown> {
        let predict = |split: &Arc<Split>| predict_all(members, split, way, &protocol);
        let begin = Instant::now();
        let test = predict(&set.test)?;
        let seconds = begin.elapsed().as_secs_f64();
        let held_out = match protocol.fit_on {
            FitOn::HeldOut => Some(predict(&set.held_out)?),
            FitOn::Test => None,
        };
        let classes = set.classes.len();
        let predictions = test.between(0, test.labels.len(), classes)?;
        let curve = predictions.risk_coverage();
        let told = foreign.iter().map(|other| {
            let outputs = predict(&Arc::new(other.images.clone()))?;
            tell(other.name, &test, &outputs, way, classes)
        });
        let told: Vec<Vec<Told>> = told.collect::<Result<_>>()?;
        let shifted = corrupted.iter().map(|(corruption, severity, split)| {
            let scores = predict(split)?.scores(classes)?;
            Ok(Shifted { corruption: *corruption, severity: *severity, scores })
        });
        Ok(Shown {
            way,
            measured: judge(way, &test, held_out.as_ref(), classes, &protocol)?,
            seconds,
            aurc: curve.aurc(),
            coverage_at_1: curve.coverage_at_risk(0.01)?,
            coverage_at_5: curve.coverage_at_risk(0.05)?,
            sets: sets(&test, classes)?,
            human: human
                .as_ref()
                .map(|labels| {
                    let labels = &labels[..test.labels.len() * classes];
                    predictions.cross_entropy(labels, PROBABILITY_FLOOR)
                })
                .transpose()?,
            foreign: told.concat(),
            shifted: shifted.collect::<Result<_>>()?,
        })
    });
    Ok(Evidence {
        version: VERSION,
        ways: shown.collect::<Result<_>>()?,
        networks: members.iter().map(|(trained, _)| Network::of(trained)).collect(),
        protocol,
        extent: extent.clone(),
        left_out,
    })
}

/// The mean prediction of all networks.
fn predict_all(
    members: &[Member],
    split: &Arc<Split>,
    way: Way,
    protocol: &Protocol,
) -> Result<Outputs> {
    let seen = |_| interrupt::check();
    let each = members.iter();
    let each = each.map(|(trained, set)| predict(trained, set, split, way, protocol, &seen));
    let mut each: Vec<Outputs> = each.collect::<Result<_>>()?;
    match each.len() {
        1 => Ok(each.remove(0)),
        _ => Outputs::mixed(&each, members[0].1.classes.len()),
    }
}

/// The first test images under each corruption: the published ones where they are, else our own.
fn corrupted(
    set: &Dataset,
    extent: &Extent,
    folder: &Path,
    left_out: &mut Vec<String>,
) -> Result<Vec<(Corruption, usize, Arc<Split>)>> {
    if set.shape.channels != 3 {
        left_out.push("corruptions: they take colour images".into());
        return Ok(Vec::new());
    }
    let pixels = set.shape.pixels();
    let clean = foreign::first(&set.test, pixels, extent.foreign_images);
    let mut found = Vec::new();
    for &corruption in Corruption::all() {
        for severity in 1..=SEVERITIES {
            let published = match set.name {
                "CIFAR-10" => foreign::published(folder, corruption, severity),
                _ => None,
            };
            let split = match published {
                Some(split) => foreign::first(&split?, pixels, extent.foreign_images),
                None => corruption.apply(&clean, set.shape, severity)?,
            };
            found.push((corruption, severity, Arc::new(split)));
        }
    }
    Ok(found)
}

fn sets(test: &Outputs, classes: usize) -> Result<Vec<Sets>> {
    let (half, all) = (test.labels.len() / 2, test.labels.len());
    let (calibration, judged) =
        (test.between(0, half, classes)?, test.between(half, all, classes)?);
    let quality = |(name, conformity): &(&str, Conformity)| {
        let conformal = Conformal::calibrate(*conformity, &calibration, MISCOVERAGE)?;
        let SetQuality { coverage, mean_size, .. } = conformal.judge(&judged);
        Ok(Sets { name: (*name).into(), coverage, mean_size })
    };
    SETS.iter().map(quality).collect()
}

/// How well each score tells foreign images from test images.
fn tell(
    images: &str,
    test: &Outputs,
    foreign: &Outputs,
    way: Way,
    classes: usize,
) -> Result<Vec<Told>> {
    let is_foreign: Vec<bool> = std::iter::repeat_n(false, test.labels.len())
        .chain(std::iter::repeat_n(true, foreign.labels.len()))
        .collect();
    let both = |number: fn(&Predictions<'_, f32>) -> Vec<f64>| -> Result<Vec<f64>> {
        let part = |outputs: &Outputs| -> Result<Vec<f64>> {
            Ok(number(&outputs.between(0, outputs.labels.len(), classes)?))
        };
        Ok([part(test)?, part(foreign)?].concat())
    };
    let joined =
        |a: &[f32], b: &[f32]| -> Vec<f64> { a.iter().chain(b).map(|x| (*x).into()).collect() };
    let mut scores = vec![
        ("entropy", both(|p| p.entropy())?),
        ("maximum probability", both(|p| p.top().map(|(_, confidence)| -confidence).collect())?),
        ("energy", joined(&test.energy, &foreign.energy)),
    ];
    if way != Way::Mean {
        let information = joined(&test.mutual_information, &foreign.mutual_information);
        scores.insert(1, ("mutual information", information));
    }
    let told = scores.iter().map(|(score, values)| {
        let detection = Detection::new(values, &is_foreign)?;
        Ok(Told {
            images: images.into(),
            score: (*score).into(),
            auroc: detection.auroc(),
            aupr: detection.aupr(),
            fpr95: detection.fpr_at_tpr(0.95)?,
        })
    });
    told.collect()
}
