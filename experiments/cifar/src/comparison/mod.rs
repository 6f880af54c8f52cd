//! Trained networks side by side, averaged over seeds and measured against a baseline.

mod figure;
pub mod group;
mod sweep;
pub mod tables;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use vmf_candle::posterior::LayerSummary;

use crate::data::Dataset;
use crate::evaluation::Options;
use crate::evaluation::results::{Evaluation, Protocol};
use crate::run::Record;
use crate::settings::{Config, Method};
use crate::trained::Trained;
use group::Group;

/// A run to compare.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its folder.
    pub folder: PathBuf,
    /// The name of the folder.
    pub name: String,
    /// How it was trained.
    pub config: Config,
    /// Number of epochs it was trained for.
    pub epoch: u64,
    /// The record of each epoch.
    pub records: Vec<Record>,
    /// What the noise of each layer has learned; empty without noise.
    pub layers: Vec<LayerSummary>,
    /// How well it predicts.
    pub evaluation: Evaluation,
}

/// Runs side by side.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The name of the data set.
    pub data: &'static str,
    /// The images and the noise that all runs were evaluated with.
    pub protocol: Protocol,
    /// The runs by configuration, in the order in which they were named.
    pub groups: Vec<Group>,
    /// Index of the group that the others are compared with.
    pub baseline: usize,
}

impl Comparison {
    /// Opens runs, evaluates those that have not been evaluated yet, and groups them by
    /// configuration.
    pub fn new(runs: &[PathBuf], baseline: Option<&Path>, options: &Options) -> Result<Self> {
        check_names(runs, baseline)?;
        let mut first: Option<(Config, PathBuf)> = None;
        let mut last: Option<(Config, Dataset)> = None;
        let mut members = Vec::new();
        for folder in runs {
            let trained = options.open(folder)?;
            ensure!(
                !trained.records.is_empty(),
                "{} has no record of its training, which the curves are drawn from: name the folder of the run itself",
                folder.display()
            );
            let (config, other) =
                first.get_or_insert_with(|| (trained.config.clone(), folder.clone()));
            check_same_images(&trained.config, folder, config, other)?;
            // Which images were held out depends on the seed of a run.
            let held_out = |config: &Config| (config.settings.held_out, config.settings.seed);
            let set = match last.take() {
                Some((config, set)) if held_out(&config) == held_out(&trained.config) => set,
                _ => options.dataset(&trained)?,
            };
            members.push(member(&trained, &set, options)?);
            last = Some((trained.config, set));
        }
        let (_, set) = last.context("no run was named")?;
        let groups = group::by_configuration(members);
        let baseline = find_baseline(&groups, baseline)?;
        Ok(Self { data: set.name, protocol: options.protocol(&set)?, groups, baseline })
    }

    /// Writes the figures, the tables and the report to a folder, and returns the path of the
    /// report.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        write::write(self, folder)
    }

    /// Describes the network as far as all runs agree on it.
    pub fn network(&self) -> String {
        let settings = || self.groups.iter().map(|group| &group.settings);
        let first = &self.groups[self.baseline].settings;
        match () {
            () if settings().any(|other| other.model.family() != first.model.family()) => {
                "several networks".into()
            }
            () if settings().any(|other| other.model != first.model) => first.model.family().into(),
            () if settings().any(|other| other.width != first.width) => first.model.to_string(),
            () => format!("{} of width {}", first.model, first.width),
        }
    }
}

fn member(trained: &Trained, set: &Dataset, options: &Options) -> Result<Member> {
    let is_noisy = trained.config.settings.method.is_noisy();
    let layers = trained.summary()?.into_iter().filter(|_| is_noisy);
    Ok(Member {
        folder: trained.folder.clone(),
        name: trained.name(),
        config: trained.config.clone(),
        epoch: trained.epoch,
        records: trained.records.clone(),
        layers: layers.collect(),
        evaluation: options.evaluation(trained, set)?,
    })
}

/// Refuses a run that is named twice, which would look like a second seed with the same scores, and
/// a baseline that is not among the runs.
fn check_names(runs: &[PathBuf], baseline: Option<&Path>) -> Result<()> {
    let folders: Vec<PathBuf> = runs.iter().map(|run| canonical(run)).collect();
    for (number, folder) in folders.iter().enumerate() {
        ensure!(
            !folders[..number].contains(folder),
            "{} is named twice: name each run once",
            runs[number].display()
        );
    }
    if let Some(baseline) = baseline {
        ensure!(
            folders.contains(&canonical(baseline)),
            "the baseline {} is not among the runs that are compared: name it there too",
            baseline.display()
        );
    }
    Ok(())
}

/// Refuses two runs that were tested on different images: their scores cannot be compared.
fn check_same_images(
    config: &Config,
    folder: &Path,
    other: &Config,
    other_folder: &Path,
) -> Result<()> {
    let images = |config: &Config| {
        let settings = &config.settings;
        (settings.data, settings.test_images, settings.label_noise.to_bits())
    };
    if images(config) == images(other) && config.interface.fits(&other.interface) {
        return Ok(());
    }
    bail!(
        "{} and {} were not tested on the same images ({}; {}): their scores cannot be compared",
        other_folder.display(),
        folder.display(),
        describe(other),
        describe(config)
    )
}

fn describe(config: &Config) -> String {
    let settings = &config.settings;
    let data = serde_json::to_value(settings.data).ok();
    let data = data.as_ref().and_then(|data| data.as_str());
    let images = match settings.test_images {
        0 => "all test images".into(),
        count => format!("{count} test images"),
    };
    let mut text = format!("{}, {images}", data.unwrap_or("unknown data"));
    if settings.label_noise > 0.0 {
        text += &format!(", label noise {}", settings.label_noise);
    }
    text
}

/// The path without symbolic links, so that two names of one folder are equal.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

fn find_baseline(groups: &[Group], run: Option<&Path>) -> Result<usize> {
    let found = match run {
        Some(run) => groups.iter().position(|group| {
            let mut folders = group.members.iter().map(|member| canonical(&member.folder));
            folders.any(|folder| folder == canonical(run))
        }),
        None => groups.iter().position(|group| group.settings.method == Method::None).or(Some(0)),
    };
    found.context("there is no baseline")
}
