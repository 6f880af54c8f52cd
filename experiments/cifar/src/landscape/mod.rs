//! `cifar landscape`: the loss around the trained weights of one layer, beside what the posterior
//! says of it.
//!
//! The paper draws two families of weights ([`family`]), measures the training loss at each with
//! normalization by batch statistics and noise off ([`probe`]), and compares with `kappa (1 - cos
//! theta)`, the energy of a von Mises-Fisher distribution. Here the comparison is also made in
//! numbers ([`shape`]).

pub mod family;
mod measure;
pub mod probe;
pub mod shape;
mod show;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::OutDir;
use serde::{Deserialize, Serialize};
use vmf_candle::posterior::LayerSummary;

use crate::data::Dataset;
use crate::data::batches::{Batches, Plan};
use crate::device;
use crate::interrupt;
use crate::run;
use crate::train::Outcome;
use crate::trained::Trained;
use family::{Directions, Family};
use measure::{Measured, Settings};
use probe::Probe;
use shape::Agreement;

/// What `cifar landscape` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of a run, or an exported one
    pub run: PathBuf,
    /// The layer whose weights are moved; the first, if not given
    #[arg(long, value_name = "NAME")]
    pub layer: Option<String>,
    /// Points along each coordinate, an odd number: the trained weights are amid them
    #[arg(long, default_value_t = 51)]
    pub points: usize,
    /// Training images that the loss is measured on, in batches as large as those of training
    #[arg(long, default_value_t = 128)]
    pub images: usize,
    /// Seed of the images and of the directions
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Start over, where a landscape was begun: it is kept under another name
    #[arg(long)]
    pub fresh: bool,
    /// Where to compute: cpu, cuda or cuda:N; the best there is, if not given
    #[arg(long)]
    pub device: Option<String>,
    /// Threads that compute on the CPU; all there are, if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// The folder that holds the data set's files; that of training, if not given
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// What was found, as it is written to landscape.json.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The layer.
    pub layer: String,
    /// Inputs of a unit, the D of the formulas.
    pub dim: usize,
    /// Units of the layer.
    pub units: usize,
    /// Epochs the network was trained for.
    pub epoch: u64,
    /// Training images that the loss was measured on.
    pub images: usize,
    /// Images that were normalized together.
    pub batch: usize,
    /// Points along each coordinate.
    pub points: usize,
    /// Seed of images and directions.
    pub seed: u64,
    /// The loss of the trained network in the same mode, in nats an image.
    pub loss: f64,
    /// What the posterior says; absent where the network has no noise.
    pub posterior: Option<Claimed>,
    /// `w' = y w + x r`.
    #[serde(rename = "1d")]
    pub one_direction: Agreement,
    /// `w' = w + a r1 + b r2`.
    #[serde(rename = "2d")]
    pub two_directions: Agreement,
}

/// What the layer's posterior says about the loss around its mean.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Claimed {
    /// The layer's noise.
    pub sigma_eff: f64,
    /// The concentration that belongs to it.
    pub kappa: f64,
    /// `beta M kappa / N`: the loss of an image in front of `1 - cos theta` for which this is the
    /// best posterior; absent where the KL does not count.
    ///
    /// The optimum of `loss + beta KL / N` is a density `exp(-N loss / beta)`, and each of the
    /// layer's M filters adds `kappa (1 - cos theta)` to its logarithm.
    pub slope: Option<f64>,
}

impl Claimed {
    /// What a layer that was trained on so many images claims, if its network has noise.
    fn of(trained: &Trained, learned: &LayerSummary, images: usize) -> Option<Self> {
        let slope = trained.beta() * learned.units as f64 * learned.kappa / images as f64;
        let is_noisy = trained.config.settings.method.is_noisy();
        is_noisy.then(|| Self {
            sigma_eff: learned.sigma_eff(),
            kappa: learned.kappa,
            slope: (slope > 0.0).then_some(slope),
        })
    }
}

impl Findings {
    fn agreement(&self, family: Family) -> &Agreement {
        match family {
            Family::OneDirection => &self.one_direction,
            Family::TwoDirections => &self.two_directions,
        }
    }
}

/// Measures a landscape, or goes on with one that was stopped, and draws it.
pub fn run(args: &Args) -> Result<Outcome> {
    ensure!(
        args.points >= 5 && !args.points.is_multiple_of(2),
        "--points is {}; it must be an odd number from 5 on",
        args.points
    );
    let device = device::choose(args.device.as_deref())?;
    device::use_threads(args.threads)?;
    let trained = Trained::open(&args.run, &device)?;
    let stages = trained.config.network().stages()?;
    let first = stages.first().context("a network has convolutions")?.name();
    let layer = args.layer.clone().unwrap_or_else(|| first.clone());
    let set = trained.dataset(args.data_dir.as_deref())?;
    let (batch, images) = batches(args.images, trained.config.settings.batch, &set)?;
    let plan = Plan { batch, seed: args.seed, augment: false };
    let chosen = Batches::training(&set, plan, 0, 0).take(images / batch);
    let probe = Probe::new(&trained, &layer, chosen)?;

    let mut folder = trained.folder.join("landscape");
    if layer != first {
        folder = folder.join(&layer);
    }
    let out = OutDir::create(folder)?;
    let _held = run::hold(out.path(), "wait for it")?;
    let settings = Settings {
        layer: layer.clone(),
        points: args.points,
        images,
        batch,
        seed: args.seed,
        data: set.name.into(),
        network: trained.fingerprint()?,
    };
    let mut measured = Measured::open(&out, settings, args.fresh)?;
    interrupt::listen()?;
    let (loss, time) = measure::middle(&probe)?;
    if measured.left() > 0 {
        show::beginning(&measured, &layer, [images, batch], time);
        let directions = Directions::draw(probe.weight()?, args.seed)?;
        if !measured.go_on(&probe, &directions)? {
            show::stopped(&measured, out.path());
            return Ok(Outcome::Interrupted);
        }
    }

    let surfaces = Family::ALL.map(|family| measured.surface(family));
    let [one_direction, two_directions] = &surfaces;
    let summary = trained.summary()?;
    let learned = summary.iter().find(|summary| summary.name == layer);
    let learned = learned.with_context(|| format!("{layer} has no posterior"))?;
    let findings = Findings {
        dim: learned.dim,
        units: learned.units,
        layer,
        epoch: trained.epoch,
        images,
        batch,
        points: args.points,
        seed: args.seed,
        loss: loss.into(),
        posterior: Claimed::of(&trained, learned, set.train.len()),
        one_direction: one_direction.agreement(),
        two_directions: two_directions.agreement(),
    };
    show::write(&findings, &surfaces, &trained.name(), &out)?;
    Ok(Outcome::Finished)
}

/// Images in a batch and in all batches: whole batches of the size of training.
fn batches(images: usize, batch: usize, set: &Dataset) -> Result<(usize, usize)> {
    let all = set.train.len();
    ensure!(
        images >= 2 && images <= all,
        "--images is {images}; {} has {all} training images, and 2 are the fewest that have a variance",
        set.name
    );
    let batch = batch.min(images);
    Ok((batch, images / batch * batch))
}
