//! `cifar train`: trains a network, or continues a training.

mod show;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Device;

pub use show::duration;

use crate::checkpoint;
use crate::data::{self, Dataset};
use crate::device;
use crate::interrupt::{self, Interrupted};
use crate::run::{self, Record, Run};
use crate::settings::{Config, Flags, Machine, Preset, RUN_VERSION, Settings};
use crate::terminal;
use crate::trained::EXPORTED;
use crate::training::{Trainer, estimated_seconds};

/// Arguments of `cifar train`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Predefined settings [default: paper on a GPU, quick on a CPU]
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Take the settings from the config.json of another run
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub config: Option<PathBuf>,
    /// Continue the run in this folder with its own settings
    #[arg(long, value_name = "RUN", conflicts_with_all = ["preset", "config", "out", "Flags"])]
    pub resume: Option<PathBuf>,
    /// Folder of the new run [default: a new one in runs/cifar]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// What to train.
    #[command(flatten)]
    pub flags: Flags,
    /// Where to train.
    #[command(flatten)]
    pub machine: Machine,
}

/// Trains a network from the beginning, or continues a run. If the program is interrupted, it saves
/// first and then returns [`Interrupted`].
pub fn run(args: &Args) -> Result<()> {
    let session = match &args.resume {
        Some(folder) => Session::resume(folder, &args.machine)?,
        None => Session::begin(args)?,
    };
    session.train()
}

/// A training in progress: the network, and the folder it is saved to.
struct Session {
    run: Run,
    trainer: Trainer,
    settings: Settings,
    save_every: Duration,
    save_epochs: u32,
}

impl Session {
    fn begin(args: &Args) -> Result<Self> {
        let stored = match &args.config {
            Some(path) => Some(run::read_config(path)?),
            None => None,
        };
        let stored_machine = stored.as_ref().map(|config| config.machine.clone());
        let machine = args.machine.clone().or(stored_machine.unwrap_or_default());
        let (device, threads) = prepare(&machine)?;
        let preset =
            args.preset.unwrap_or(if device.is_cpu() { Preset::Quick } else { Preset::Paper });
        let mut settings = match &stored {
            Some(config) => config.settings.clone(),
            None => preset.settings(),
        };
        args.flags.apply(&mut settings);
        settings.check()?;

        // The data set may have to be fetched first. Until then Ctrl-C ends the program at once.
        let set = load(&settings, &machine)?;
        let config = Config { version: RUN_VERSION, settings, machine, interface: set.interface() };
        let trainer = Trainer::new(config.settings.clone(), set.clone(), device.clone())?;
        interrupt::listen()?;
        let run = match &args.out {
            Some(folder) => Run::reserve(folder)?,
            None => reserve_new(&config.settings)?,
        };
        let preset = stored.is_none().then_some(preset);
        let seconds = estimated_seconds(&config.settings, &set, &device)?;
        terminal::say(show::beginning(&config.settings, &set, preset, &device, threads, seconds));
        terminal::say(format!("the run is in {}", run.folder().display()));
        interrupt::check()?;
        run.begin(&config)?;
        run.save_last(|path| trainer.save(path))?;
        Ok(Self::new(run, trainer, config))
    }

    fn resume(folder: &Path, machine: &Machine) -> Result<Self> {
        ensure!(
            !folder.join(EXPORTED).exists(),
            "{} holds an exported network, without the state of the optimizer: training cannot be continued from it",
            folder.display()
        );
        let (run, stored) = Run::open(folder)?;
        let config = Config { machine: machine.clone().or(stored.machine), ..stored };
        let (device, _) = prepare(&config.machine)?;
        let unusable = || format!("{} cannot be continued. {}", folder.display(), run.ways_out());
        let checkpoint = match run.checkpoint()? {
            Some(path) => Some(checkpoint::open(&path, &config.network()).with_context(unusable)?),
            None => None,
        };
        let set = load(&config.settings, &config.machine)?;
        ensure!(
            set.interface().fits(&config.interface),
            "the run was begun on other images than {} holds now",
            set.name
        );
        interrupt::listen()?;
        let mut trainer = Trainer::new(config.settings.clone(), set, device)?;
        if let Some(checkpoint) = checkpoint {
            trainer
                .restore(&checkpoint)
                .with_context(|| run.last().display().to_string())
                .with_context(unusable)?;
        }
        run.forget_after(trainer.epoch().into())?;
        terminal::say(format!(
            "continuing {} after {} of {} epochs, at step {}",
            folder.display(),
            trainer.epoch(),
            config.settings.epochs,
            trainer.step()
        ));
        Ok(Self::new(run, trainer, config))
    }

    fn new(run: Run, trainer: Trainer, config: Config) -> Self {
        Self {
            run,
            trainer,
            save_every: Duration::from_secs_f64(60.0 * config.machine.minutes()),
            save_epochs: config.machine.epochs(),
            settings: config.settings,
        }
    }

    fn train(mut self) -> Result<()> {
        let begin = Instant::now();
        let first_time = self.epochs_done();
        let mut saved = Instant::now();
        while !self.trainer.is_finished() {
            let epoch_start = Instant::now();
            let first_step = self.trainer.step();
            let bar = show::EpochBar::new(&self.trainer, &self.settings);
            for batch in self.trainer.batches() {
                self.trainer.train_step(batch)?;
                bar.step(&self.trainer, self.settings.batch)?;
                if interrupt::asked() {
                    drop(bar);
                    return self.stop();
                }
                if saved.elapsed() >= self.save_every {
                    self.save()?;
                    saved = Instant::now();
                }
            }
            drop(bar);
            let images = (self.trainer.step() - first_step) as usize * self.settings.batch;
            let images_per_second = images as f64 / epoch_start.elapsed().as_secs_f64();
            let (mut record, is_best) = self.trainer.finish_epoch()?;
            record.seconds = epoch_start.elapsed().as_secs_f64();
            let share = (self.epochs_done() - first_time).max(1e-9);
            let left = (f64::from(self.settings.epochs) - self.epochs_done()) / share;
            let left = begin.elapsed().mul_f64(left.max(0.0));
            self.keep(&record, is_best)?;
            saved = Instant::now();
            show::epoch(&record, self.settings.epochs, images_per_second, left);
            if interrupt::asked() && !self.trainer.is_finished() {
                return self.stop();
            }
        }
        terminal::say(format!(
            "done: {} holds the network with the lowest test NLL, {} the last one",
            self.run.best().display(),
            self.run.last().display()
        ));
        Ok(())
    }

    fn epochs_done(&self) -> f64 {
        let steps = self.trainer.step_in_epoch() as f64 / self.trainer.steps_per_epoch() as f64;
        f64::from(self.trainer.epoch()) + steps
    }

    /// Saves a finished epoch. The record is written before the checkpoint: if the program is
    /// killed in between, the epoch is trained again and its record replaced.
    fn keep(&self, record: &Record, is_best: bool) -> Result<()> {
        self.run.append(record)?;
        if is_best {
            self.run.save_best(|path| self.trainer.save(path))?;
        }
        if self.trainer.epoch().is_multiple_of(self.save_epochs) || self.trainer.is_finished() {
            self.save()?;
        }
        Ok(())
    }

    fn save(&self) -> Result<()> {
        self.run.save_last(|path| self.trainer.save(path))
    }

    /// Saves, says how to continue, and returns [`Interrupted`] as an error.
    fn stop(self) -> Result<()> {
        self.save()?;
        terminal::say(format!(
            "stopped at step {} and saved; continue with `cifar train --resume {}`",
            self.trainer.step(),
            self.run.folder().display()
        ));
        Err(Interrupted.into())
    }
}

/// Chooses the device and starts the threads.
fn prepare(machine: &Machine) -> Result<(Device, usize)> {
    machine.check()?;
    let device = device::choose(machine.device.as_deref())?;
    Ok((device, device::use_threads(machine.threads)?))
}

fn load(settings: &Settings, machine: &Machine) -> Result<Dataset> {
    let request = settings.data_request(machine.data_dir.clone());
    let set = data::load(&request)?;
    tracing::info!(
        "{}: {} training and {} test images; mean {:?}, deviation {:?}",
        set.name,
        set.train.len(),
        set.test.len(),
        set.normalization.mean,
        set.normalization.deviation
    );
    Ok(set)
}

/// Reserves the first folder `runs/cifar/METHOD-seedSEED[-N]` that neither holds a run nor is in
/// use.
fn reserve_new(settings: &Settings) -> Result<Run> {
    let name = format!("{}-seed{}", settings.method.name(), settings.seed);
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    let free = names.find_map(|name| {
        let folder = Path::new("runs/cifar").join(name);
        Run::reserve_free(&folder).transpose()
    });
    free.context("all folders under runs/cifar are taken: name another with --out")?
}
