//! `cifar landscape`: the loss around the trained weights of one layer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::OutDir;

use super::train::duration;
use crate::data::Dataset;
use crate::data::batches::{Batches, Plan};
use crate::device;
use crate::interrupt::{self, Interrupted};
use crate::landscape::family::{Directions, Family};
use crate::landscape::measure::{self, Measured, Settings};
use crate::landscape::probe::Probe;
use crate::landscape::{Claimed, Findings, draw};
use crate::limits;
use crate::run;
use crate::terminal::{self, printable};
use crate::trained::Trained;

/// Arguments of `cifar landscape`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder of a run, or an exported folder
    pub run: PathBuf,
    /// Layer whose weights are moved [default: the first]
    #[arg(long, value_name = "NAME")]
    pub layer: Option<String>,
    /// Number of points along each coordinate; odd, so that the trained weights are in the middle
    #[arg(long, default_value_t = 51)]
    pub points: usize,
    /// Number of training images that the loss is measured on, in batches of the size used in
    /// training
    #[arg(long, default_value_t = 128)]
    pub images: usize,
    /// Seed of the choice of images and of the random directions
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Start over instead of continuing; the points so far are kept under another name
    #[arg(long)]
    pub fresh: bool,
    /// Device to compute on: cpu, cuda or cuda:N [default: the best available]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of CPU threads [default: one per processor]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Folder with the files of the data set [default: the one used in training]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Measures a landscape, or continues one that was stopped, and draws it.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        (5..=limits::POINTS).contains(&args.points) && !args.points.is_multiple_of(2),
        "--points is {}; it must be an odd number of at least 5 and at most {}",
        args.points,
        limits::POINTS
    );
    let device = device::choose(args.device.as_deref())?;
    device::use_threads(args.threads)?;
    let trained = Trained::open(&args.run, &device)?;
    let parts = trained.config.network().parts()?;
    let first = parts.first().context("a network has convolutions")?.name();
    let layer = args.layer.clone().unwrap_or_else(|| first.into());
    let set = trained.dataset(args.data_dir.as_deref())?;
    let (batch, images) = batches(args.images, trained.config.settings.batch, &set)?;
    let plan = Plan { batch, seed: args.seed, augment: false };
    let chosen = Batches::training(&set, plan, 0, 0).take(images / batch);
    let probe = Probe::new(&trained, &layer, chosen)?;

    let mut folder = trained.folder.join("landscape");
    if layer != first {
        folder = folder.join(&layer);
    }
    interrupt::listen()?;
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
    let (loss, time) = measure::middle(&probe)?;
    if measured.left() > 0 {
        print_beginning(&measured, &layer, [images, batch], time);
        let directions = Directions::draw(probe.weight()?, args.seed)?;
        if !measured.go_on(&probe, &directions)? {
            print_stopped(&measured, out.path());
            return Err(Interrupted.into());
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
    let figure = draw::write(&findings, &surfaces, &trained.name(), &out)?;
    print_findings(&findings)?;
    terminal::print(format!("the figure is {}", printable(&figure)))
}

/// The number of images per batch and in all batches. Only whole batches are used, because the
/// statistics of normalization depend on the size of a batch.
fn batches(images: usize, batch: usize, set: &Dataset) -> Result<(usize, usize)> {
    let all = set.train.len();
    ensure!(
        images >= 2 && images <= all,
        "--images is {images}; it must be at least 2 and at most {all}, since {} has {all} training images",
        set.name
    );
    let batch = batch.min(images);
    Ok((batch, images / batch * batch))
}

/// The first line: what is measured, and how long it takes.
fn print_beginning(measured: &Measured, layer: &str, [images, batch]: [usize; 2], time: Duration) {
    let left = measured.left();
    let all = measured.total();
    let begun = if left < all {
        format!("{} of {all} points are there; ", all - left)
    } else {
        String::new()
    };
    terminal::say(format!(
        "the loss around {layer}: {begun}{left} points of {images} training images in batches of {batch}, about {}",
        duration(time.mul_f64(left as f64))
    ));
}

/// The last line of a landscape that was interrupted.
fn print_stopped(measured: &Measured, folder: &Path) {
    terminal::say(format!(
        "stopped with {} of {} points in {}; the same command continues",
        measured.total() - measured.left(),
        measured.total(),
        folder.display()
    ));
}

fn print_findings(findings: &Findings) -> Result<()> {
    terminal::print(format!(
        "the trained network has a loss of {:.4} nats on these images",
        findings.loss
    ))?;
    if let Some(claimed) = findings.posterior {
        terminal::print(format!(
            "sigma_eff = {:.4} for {} units with {} inputs corresponds to kappa = {:.1}{}",
            claimed.sigma_eff,
            findings.units,
            findings.dim,
            claimed.kappa,
            match claimed.slope {
                Some(_) => "",
                None => "; the KL had no weight in training, so kappa says nothing about the loss",
            }
        ))?;
    }
    terminal::print(draw::table(findings)?.terminal().trim_end())
}
