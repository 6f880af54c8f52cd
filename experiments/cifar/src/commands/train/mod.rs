//! `cifar train`: trains a network, or continues a training.

mod show;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use vmf_candle::ranks::Ranks;

pub use show::duration;

use crate::checkpoint;
use crate::data::{self, Dataset};
use crate::device;
use crate::interrupt::{self, Interrupted};
use crate::ranks::{self, agreed, ensure_shared, together};
use crate::run::{self, BEST, CONFIG, LAST, Record, Run};
use crate::settings::{Config, Flags, Machine, Preset, RUN_VERSION, Settings};
use crate::terminal;
use crate::trained::EXPORTED;
use crate::training::{Trainer, images_per_second, seconds_at};

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
    /// With whom to train.
    #[arg(skip)]
    pub ranks: Ranks,
}

/// Trains a network from the beginning, or continues a run. If the program is interrupted, it saves
/// first and then returns [`Interrupted`].
pub fn run(args: &Args) -> Result<()> {
    let session = match &args.resume {
        Some(folder) => Session::resume(folder, &args.machine, args.ranks)?,
        None => Session::begin(args)?,
    };
    session.train()
}

/// A training in progress: the network, and the folder it is saved to.
struct Session {
    /// Only rank 0 writes.
    run: Option<Run>,
    folder: PathBuf,
    trainer: Trainer,
    ranks: Ranks,
    /// How many images a second the ranks would train on together if each were alone.
    ideal_speed: f64,
    settings: Settings,
    save_every: Duration,
    save_epochs: u32,
}

impl Session {
    fn begin(args: &Args) -> Result<Self> {
        let ranks = args.ranks;
        let (config, set, device, threads, preset) = together(ranks, Self::plan(args))?;
        let version = env!("CARGO_PKG_VERSION");
        let common = serde_json::to_vec(&(version, &config.settings, &config.interface))?;
        let what = "the version of the program, the settings or the images";
        agreed(ranks.ensure_equal(what, &common).map_err(Into::into))?;
        let trainer = Trainer::new(config.settings.clone(), set.clone(), device.clone());
        let trainer = together(ranks, trainer.and_then(|trainer| trainer.across(ranks)))?;
        interrupt::listen()?;
        let reserved = match (&args.out, ranks.is_first()) {
            (_, false) => Ok(None),
            (Some(folder), true) => Run::reserve(folder).map(Some),
            (None, true) => reserve_new(&config.settings).map(Some),
        };
        let run = together(ranks, reserved)?;
        let speed = speed_alone(&config.settings, &set, &device, ranks)?;
        let seconds = seconds_at(speed, &config.settings, &set);
        terminal::say(show::beginning(&config.settings, &set, preset, &device, threads, seconds));
        let folder = run.as_ref().map(|run| run.folder().display().to_string());
        let folder =
            PathBuf::from(String::from_utf8(ranks.tell(folder.unwrap_or_default().as_bytes())?)?);
        terminal::say(format!("the run is in {}", folder.display()));
        if ranks.is_alone() {
            interrupt::check()?;
        }
        let begun = run.as_ref().map_or(Ok(()), |run| {
            run.begin(&config)?;
            run.save_last(|path| trainer.save(path))
        });
        together(ranks, begun)?;
        if !ranks.is_alone() {
            ensure_shared(ranks, &folder)?;
        }
        Ok(Self::new((run, folder), trainer, config, ranks, speed))
    }

    /// What a new run is: everything that each rank finds out by itself.
    fn plan(args: &Args) -> Result<(Config, Dataset, Device, usize, Option<Preset>)> {
        let stored = match &args.config {
            Some(path) => Some(run::read_config(path)?),
            None => None,
        };
        let stored_machine = stored.as_ref().map(|config| config.machine.clone());
        let machine = args.machine.clone().or(stored_machine.unwrap_or_default());
        let (device, threads) = prepare(&machine, args.ranks)?;
        let preset =
            args.preset.unwrap_or(if device.is_cpu() { Preset::Quick } else { Preset::Paper });
        let mut settings = match &stored {
            Some(config) => config.settings.clone(),
            None => preset.settings(),
        };
        // Without a file that says otherwise, a method begins with its published settings.
        if let (None, Some(method)) = (&stored, args.flags.method) {
            method.recipe(&mut settings);
        }
        args.flags.apply(&mut settings);
        settings.check()?;

        // The data set may have to be fetched first. Until then Ctrl-C ends the program at once.
        let set = load(&settings, &machine)?;
        let config = Config { version: RUN_VERSION, settings, machine, interface: set.interface() };
        let preset = stored.is_none().then_some(preset);
        Ok((config, set, device, threads, preset))
    }

    fn resume(folder: &Path, machine: &Machine, ranks: Ranks) -> Result<Self> {
        let opened = match ranks.is_first() {
            true => Self::open(folder).map(Some),
            false => Ok(None),
        };
        let opened = together(ranks, opened)?;
        if !ranks.is_alone() {
            ensure_shared(ranks, folder)?;
        }
        let (run, stored) = opened.unzip();
        let restored = Self::restore(folder, run.as_ref(), stored, machine, ranks);
        let (trainer, config, set, device) = together(ranks, restored)?;
        agreed(trainer.ensure_equal())?;
        if let Some(run) = &run {
            run.forget_after(trainer.epoch().into())?;
        }
        terminal::say(format!(
            "continuing {} after {} of {} epochs, at step {}",
            folder.display(),
            trainer.epoch(),
            config.settings.epochs,
            trainer.step()
        ));
        let speed = match ranks.is_alone() {
            true => 0.0,
            false => speed_alone(&config.settings, &set, &device, ranks)?,
        };
        Ok(Self::new((run, folder.into()), trainer, config, ranks, speed))
    }

    fn open(folder: &Path) -> Result<(Run, Config)> {
        ensure!(
            !folder.join(EXPORTED).exists(),
            "{} holds an exported network, without the state of the optimizer: training cannot be continued from it",
            folder.display()
        );
        Run::open(folder)
    }

    /// The training as its last checkpoint holds it, on one of the ranks.
    fn restore(
        folder: &Path,
        run: Option<&Run>,
        stored: Option<Config>,
        machine: &Machine,
        ranks: Ranks,
    ) -> Result<(Trainer, Config, Dataset, Device)> {
        let stored = match stored {
            Some(config) => config,
            None => run::read_config(&folder.join(CONFIG))?,
        };
        let config = Config { machine: machine.clone().or(stored.machine), ..stored };
        let (device, _) = prepare(&config.machine, ranks)?;
        let unusable = || {
            let ways_out = run.map(Run::ways_out).unwrap_or_default();
            format!("{} cannot be continued. {ways_out}", folder.display())
        };
        // Rank 0 says whether there is a checkpoint. If it cannot be told, it fails with the others.
        let last = match run {
            Some(run) => run.checkpoint()?,
            None => Some(folder.join(LAST)).filter(|last| last.is_file()),
        };
        let checkpoint = match last {
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
        let trainer = Trainer::new(config.settings.clone(), set.clone(), device.clone())?;
        let mut trainer = trainer.across(ranks)?;
        if let Some(checkpoint) = checkpoint {
            trainer
                .restore(&checkpoint)
                .with_context(|| folder.join(LAST).display().to_string())
                .with_context(unusable)?;
        }
        Ok((trainer, config, set, device))
    }

    fn new(
        (run, folder): (Option<Run>, PathBuf),
        trainer: Trainer,
        config: Config,
        ranks: Ranks,
        ideal_speed: f64,
    ) -> Self {
        Self {
            run,
            folder,
            trainer,
            ranks,
            ideal_speed,
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
            let communication = self.ranks.time_in_communication();
            let is_first = self.ranks.is_first();
            let bar = is_first.then(|| show::EpochBar::new(&self.trainer, &self.settings));
            for batch in self.trainer.batches() {
                self.trainer.train_step(batch)?;
                if let Some(bar) = &bar {
                    bar.step(&self.trainer, self.settings.batch)?;
                }
                if self.is_asked_to_stop() {
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
            let seconds = epoch_start.elapsed().as_secs_f64();
            let images_per_second = images as f64 / seconds;
            let communication = self.ranks.time_in_communication() - communication;
            let communication = communication.as_secs_f64() / seconds;
            let (mut record, is_best) = self.trainer.finish_epoch()?;
            record.seconds = epoch_start.elapsed().as_secs_f64();
            let share = (self.epochs_done() - first_time).max(1e-9);
            let left = (f64::from(self.settings.epochs) - self.epochs_done()) / share;
            let left = begin.elapsed().mul_f64(left.max(0.0));
            self.keep(&record, is_best)?;
            saved = Instant::now();
            show::epoch(&record, self.settings.epochs, images_per_second, left);
            if !self.ranks.is_alone() {
                let efficiency = images_per_second / self.ideal_speed;
                terminal::say(show::ranks(self.ranks, communication, efficiency));
            }
            let asked = !self.ranks.which(interrupt::asked())?.is_empty();
            if asked && !self.trainer.is_finished() {
                return self.stop();
            }
        }
        terminal::say(format!(
            "done: {} holds the network with the lowest NLL on {}, {} the last one",
            self.folder.join(BEST).display(),
            if self.settings.held_out > 0.0 { "held-out images" } else { "training images" },
            self.folder.join(LAST).display()
        ));
        Ok(())
    }

    /// Whether to stop after this step. Several ranks stop after the same step.
    fn is_asked_to_stop(&self) -> bool {
        match self.ranks.is_alone() {
            true => interrupt::asked(),
            false => self.trainer.is_stop_agreed(),
        }
    }

    fn epochs_done(&self) -> f64 {
        let steps = self.trainer.step_in_epoch() as f64 / self.trainer.steps_per_epoch() as f64;
        f64::from(self.trainer.epoch()) + steps
    }

    /// Saves a finished epoch. The record is written before the checkpoint: if the program is
    /// killed in between, the epoch is trained again and its record replaced.
    fn keep(&self, record: &Record, is_best: bool) -> Result<()> {
        let Some(run) = &self.run else { return Ok(()) };
        run.append(record)?;
        if is_best {
            run.save_best(|path| self.trainer.save(path))?;
        }
        if self.trainer.epoch().is_multiple_of(self.save_epochs) || self.trainer.is_finished() {
            self.save()?;
        }
        Ok(())
    }

    fn save(&self) -> Result<()> {
        self.run.as_ref().map_or(Ok(()), |run| run.save_last(|path| self.trainer.save(path)))
    }

    /// Saves, says how to continue, and returns [`Interrupted`] as an error.
    fn stop(self) -> Result<()> {
        self.save()?;
        terminal::say(format!(
            "stopped at step {} and saved; continue with `cifar train --resume {}`",
            self.trainer.step(),
            self.folder.display()
        ));
        // A launcher may end all ranks as soon as the first of them has ended.
        self.ranks.barrier()?;
        Err(Interrupted.into())
    }
}

/// Chooses the device and starts the threads.
fn prepare(machine: &Machine, ranks: Ranks) -> Result<(Device, usize)> {
    machine.check()?;
    let device = ranks::device(ranks, machine.device.as_deref());
    let device = device::choose(device.as_deref())?;
    let threads = machine.threads.or_else(|| ranks::threads(ranks));
    Ok((device, device::use_threads(threads)?))
}

/// How many images a second all ranks together train on, if none has to wait for another. They
/// measure it at the same time, since ranks on one machine share its memory.
fn speed_alone(settings: &Settings, set: &Dataset, device: &Device, ranks: Ranks) -> Result<f64> {
    let batch = ranks.share(settings.batch)?.count().max(2);
    let speed = images_per_second(&Settings { batch, ..settings.clone() }, set, device);
    let mut sum = [together(ranks, speed)?];
    ranks.sum_f64(&mut sum)?;
    Ok(sum[0])
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
