//! `cifar compare`: trained networks side by side, over seeds, against a baseline.

mod figure;
pub mod group;
mod sweep;
mod tables;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use vmf_candle::posterior::LayerSummary;

use crate::data::Dataset;
use crate::eval::Options;
use crate::eval::results::{Evaluation, Protocol};
use crate::run::Record;
use crate::settings::{Config, Method};
use crate::trained::Trained;
use group::Group;

/// The folder that a comparison is written to, if none is named.
pub const OUT: &str = "runs/compare";

/// What `cifar compare` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folders of the runs; runs that differ in nothing but their seed are averaged
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The run that the others are measured against; the first with --method none, else the first,
    /// if not given
    #[arg(long, value_name = "RUN")]
    pub baseline: Option<PathBuf>,
    /// The folder to write to
    #[arg(long, value_name = "DIR", default_value = OUT)]
    pub out: PathBuf,
    /// How to evaluate.
    #[command(flatten)]
    pub options: Options,
}

/// A run to compare.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its folder.
    pub folder: PathBuf,
    /// The name of the folder.
    pub name: String,
    /// How it was trained.
    pub config: Config,
    /// Epochs trained.
    pub epoch: u64,
    /// What was recorded after each of them.
    pub records: Vec<Record>,
    /// What its noise has learned, a layer at a time.
    pub layers: Vec<LayerSummary>,
    /// How well it predicts.
    pub evaluation: Evaluation,
}

/// Runs side by side.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The name of the data set.
    pub data: &'static str,
    /// On which images all were evaluated.
    pub protocol: Protocol,
    /// Runs by their configuration, in the order in which they were named.
    pub groups: Vec<Group>,
    /// Which group the others are measured against.
    pub baseline: usize,
}

impl Comparison {
    /// The network that was trained, as far as all runs agree on it.
    pub fn network(&self) -> String {
        let settings = || self.groups.iter().map(|group| &group.settings);
        let first = &self.groups[self.baseline].settings;
        match () {
            () if settings().any(|other| other.depth != first.depth) => "VGG".into(),
            () if settings().any(|other| other.width != first.width) => first.depth.to_string(),
            () => format!("{} of width {}", first.depth, first.width),
        }
    }
}

/// Compares runs, writes what was found and prints the table.
pub fn run(args: &Args) -> Result<()> {
    let comparison = compare(args)?;
    let report = write::write(&comparison, &args.out)?;
    println!();
    tables::scores(&comparison)?.print()?;
    println!();
    println!("the report is {}", report.display());
    Ok(())
}

/// Evaluates runs that were not evaluated yet, and puts all side by side.
pub fn compare(args: &Args) -> Result<Comparison> {
    check_names(args)?;
    let mut first: Option<(Config, PathBuf, Dataset)> = None;
    let mut members = Vec::new();
    for folder in &args.runs {
        let trained = args.options.open(folder)?;
        ensure!(
            !trained.records.is_empty(),
            "{} has no record of its training, which the curves are drawn from: name the folder of the run itself",
            folder.display()
        );
        if let Some((config, other, _)) = &first {
            check_same_images(&trained.config, folder, config, other)?;
        }
        let set = match &first {
            Some((_, _, set)) => set,
            None => {
                let set = args.options.dataset(&trained)?;
                &first.insert((trained.config.clone(), folder.clone(), set)).2
            }
        };
        members.push(member(&trained, set, &args.options)?);
    }
    let (_, _, set) = first.context("no run was named")?;
    let groups = group::by_configuration(members);
    let baseline = baseline(&groups, args.baseline.as_deref())?;
    Ok(Comparison { data: set.name, protocol: args.options.protocol(&set)?, groups, baseline })
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

/// The same folder twice would be a second seed without any deviation.
fn check_names(args: &Args) -> Result<()> {
    let place = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let places: Vec<PathBuf> = args.runs.iter().map(place).collect();
    for (number, path) in places.iter().enumerate() {
        ensure!(
            !places[..number].contains(path),
            "{} is named twice: name each run once",
            args.runs[number].display()
        );
    }
    if let Some(baseline) = &args.baseline {
        ensure!(
            places.contains(&place(baseline)),
            "the baseline {} is not among the runs that are compared: name it there too",
            baseline.display()
        );
    }
    Ok(())
}

/// Scores on different images cannot be compared.
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

fn baseline(groups: &[Group], run: Option<&Path>) -> Result<usize> {
    let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
    let found = match run {
        Some(run) => groups.iter().position(|group| {
            let mut folders = group.members.iter().map(|member| place(&member.folder));
            folders.any(|folder| folder == place(run))
        }),
        None => groups.iter().position(|group| group.settings.method == Method::None).or(Some(0)),
    };
    found.context("there is no baseline")
}
