//! `cifar study`: a list of trainings and evaluations from a file.

use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};

use crate::evaluation::Options;
use crate::settings::Machine;
use crate::study::{Shard, Study};
use crate::terminal::{self, printable};

/// Arguments of `cifar study`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The list, such as experiments/cifar/studies/realistic.json
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Train only this part of the list, and evaluate nothing: for an array of jobs
    #[arg(long, value_name = "I/N", conflicts_with = "jobs")]
    pub shard: Option<Shard>,
    /// Number of trainings at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
    /// Train nothing: evaluate what is finished, and write tables and figures
    #[arg(long, conflicts_with = "shard")]
    pub no_training: bool,
    /// Folder with CIFAR-100, CIFAR-10H, Fashion-MNIST and CIFAR-10-C, as far as they are there
    #[arg(long, value_name = "DIR", default_value = "data")]
    pub others: PathBuf,
    /// Where to train.
    #[command(flatten)]
    pub machine: Machine,
}

/// Trains what is not trained yet, evaluates it, and writes tables and figures.
pub fn run(args: &Args) -> Result<()> {
    let study = Study::read(&args.file)?;
    if let Some(shard) = args.shard {
        return study.train(Some(shard), &args.machine);
    }
    if !args.no_training {
        match args.jobs {
            0 | 1 => study.train(None, &args.machine)?,
            jobs => in_parallel(args, jobs)?,
        }
    }
    for task in study.unfinished()? {
        terminal::note(format!("not finished: {}", printable(&task.folder)));
    }
    let options = Options {
        device: args.machine.device.clone(),
        threads: args.machine.threads,
        data_dir: args.machine.data_dir.clone(),
        ..Options::default()
    };
    let rows = study.rows(&options, &args.others)?;
    ensure!(!rows.is_empty(), "no run of {} is finished yet", args.file.display());
    let main = study.write(&rows)?;
    terminal::print(format!("\n{}", main.terminal()))?;
    terminal::print(format!("tables and figures are in {}", printable(&study.out)))
}

/// Starts a process for each part of the list, and waits for all of them.
fn in_parallel(args: &Args, jobs: usize) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.machine.threads.unwrap_or((threads / jobs).max(1));
    let Machine { device, data_dir, checkpoint_minutes, checkpoint_epochs, .. } = &args.machine;
    let start = |index: usize| -> Result<Child> {
        let mut command = Command::new(&program);
        command.arg("study").arg(&args.file);
        command.args(["--shard", &Shard::new(index, jobs).to_string()]);
        command.args(["--threads", &threads.to_string()]);
        for (flag, value) in [
            ("--device", device.clone()),
            ("--checkpoint-minutes", checkpoint_minutes.map(|minutes| minutes.to_string())),
            ("--checkpoint-epochs", checkpoint_epochs.map(|epochs| epochs.to_string())),
        ] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
        if let Some(folder) = data_dir {
            command.arg("--data-dir").arg(folder);
        }
        command.spawn().with_context(|| format!("cannot start {}", program.display()))
    };
    let children: Vec<Child> = (1..=jobs).map(start).collect::<Result<_>>()?;
    let mut failed = 0;
    for mut child in children {
        failed += usize::from(!child.wait()?.success());
    }
    ensure!(
        failed == 0,
        "{failed} of {jobs} processes stopped early: the same command continues where they were"
    );
    Ok(())
}
