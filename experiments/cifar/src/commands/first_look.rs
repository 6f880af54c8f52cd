//! `cifar` without a command: trains the paper's baseline and its method, compares them and writes
//! reports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::{compare, train};
use crate::checkpoint;
use crate::data;
use crate::device;
use crate::evaluation::Options;
use crate::interrupt::{self, Interrupted};
use crate::report;
use crate::run::{self, CONFIG, LAST};
use crate::settings::{Flags, Machine, Method, Preset, Settings};
use crate::terminal::{self, printable};
use crate::training::estimated_seconds;

/// The folder of the runs by default.
const OUT: &str = "runs/first";

/// The networks, in the order in which they are trained.
const NETWORKS: [(Method, &str); 2] = [
    (Method::None, "the paper's baseline: noise is learned without the KL"),
    (Method::Vmf, "the paper's method: noise is learned with the KL"),
];

/// Arguments of `cifar first-look`, all of them optional.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folder of the two runs and of their comparison [default: runs/first]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Predefined settings [default: paper on a GPU, quick on a CPU]
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// What to train.
    #[command(flatten)]
    pub flags: Flags,
    /// Where to train.
    #[command(flatten)]
    pub machine: Machine,
}

/// Trains the networks that are not trained yet, compares them and writes reports.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        args.flags.method.is_none(),
        "a first look trains both --method none and --method vmf: use `cifar train` for one of them"
    );
    let device = device::choose(args.machine.device.as_deref())?;
    let threads = device::use_threads(args.machine.threads)?;
    let preset = args.preset.unwrap_or(if device.is_cpu() { Preset::Quick } else { Preset::Paper });
    let out = args.out.clone().unwrap_or_else(|| OUT.into());
    let mut trainings = Vec::new();
    for (method, purpose) in NETWORKS {
        let mut settings = preset.settings();
        args.flags.apply(&mut settings);
        settings.method = method;
        settings.check()?;
        trainings.push(Training {
            folder: out.join(method.name()),
            done: epochs_done(&out.join(method.name()), &settings)?,
            settings,
            purpose,
        });
    }
    introduce(&trainings, args, &device, threads)?;
    for training in &trainings {
        training.run(args, preset)?;
        interrupt::check()?;
    }
    finish(&trainings, &out, args)
}

/// One of the two networks.
struct Training {
    folder: PathBuf,
    settings: Settings,
    purpose: &'static str,
    /// Number of epochs that are already trained; `None` if the run has not begun.
    done: Option<u64>,
}

impl Training {
    fn epochs_left(&self) -> u64 {
        u64::from(self.settings.epochs).saturating_sub(self.done.unwrap_or(0))
    }

    fn run(&self, args: &Args, preset: Preset) -> Result<()> {
        terminal::say("");
        if self.epochs_left() == 0 {
            terminal::say(format!("{} is trained already", self.folder.display()));
            return Ok(());
        }
        let machine = args.machine.clone();
        let training = match self.done {
            Some(_) => {
                train::Args { resume: Some(self.folder.clone()), machine, ..Default::default() }
            }
            None => train::Args {
                preset: Some(preset),
                out: Some(self.folder.clone()),
                flags: Flags { method: Some(self.settings.method), ..args.flags.clone() },
                machine,
                ..Default::default()
            },
        };
        let outcome = train::run(&training);
        if outcome.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
            terminal::say("or run the same command as before, which continues from here");
        }
        outcome
    }
}

/// The number of epochs that a run has finished; `None` if it has not begun.
fn epochs_done(folder: &Path, wanted: &Settings) -> Result<Option<u64>> {
    let config = folder.join(CONFIG);
    if !config.is_file() {
        return Ok(None);
    }
    let stored = run::read_config(&config)?;
    if stored.settings != *wanted {
        bail!(
            "{0} holds a run with other settings: name another folder with --out, or remove {0}",
            folder.display()
        );
    }
    let last = folder.join(LAST);
    if !last.is_file() {
        return Ok(Some(0));
    }
    Ok(Some(checkpoint::open(&last, &stored.network())?.progress().epoch))
}

/// Prints what will be done and how long it will take.
fn introduce(
    trainings: &[Training],
    args: &Args,
    device: &candle_core::Device,
    threads: usize,
) -> Result<()> {
    let settings = &trainings[0].settings;
    let set = data::load(&settings.data_request(args.machine.data_dir.clone()))?;
    terminal::say(format!(
        "a first look: trains two networks on {}, compares them and writes reports",
        set.name
    ));
    for training in trainings {
        let standing = match (training.done, training.epochs_left()) {
            (None, left) => format!("{left} epochs"),
            (Some(_), 0) => "trained already".into(),
            (Some(done), left) => format!("{done} epochs are done, {left} are left"),
        };
        terminal::say(format!(
            "  {}  {} ({standing})",
            training.folder.display(),
            training.purpose
        ));
    }
    let epochs: u64 = trainings.iter().map(Training::epochs_left).sum();
    // The evaluation at the end takes two passes without noise and several with noise per network.
    // A pass costs about a third of a training step.
    let passes = f64::from(Options::default().samples) + 2.0;
    let images = passes / 3.0 * (set.test.len() * trainings.len()) as f64;
    let share = images / set.train.len() as f64 + epochs as f64;
    let seconds = estimated_seconds(settings, &set, device)? / f64::from(settings.epochs) * share;
    terminal::say(format!(
        "all of it takes about {} on {}; Ctrl-C stops, and the same command continues",
        train::duration(Duration::from_secs_f64(seconds.min(1e9))),
        device::in_words(device, threads)
    ));
    Ok(())
}

/// Compares the networks and writes the reports.
fn finish(trainings: &[Training], out: &Path, args: &Args) -> Result<()> {
    let options = Options {
        device: args.machine.device.clone(),
        threads: args.machine.threads,
        data_dir: args.machine.data_dir.clone(),
        ..Options::default()
    };
    terminal::say("\nevaluating and comparing");
    let mut reports = Vec::new();
    for training in trainings {
        reports.push(report::write(&training.folder, None, &options)?);
    }
    compare::run(&compare::Args {
        runs: trainings.iter().map(|training| training.folder.clone()).collect(),
        baseline: None,
        out: out.into(),
        options,
    })?;
    let reports: Vec<String> = reports.iter().map(|path| printable(path)).collect();
    terminal::print(format!("each network has a report of its own: {}", reports.join(" and ")))
}
