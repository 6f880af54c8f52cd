//! `cifar export`: a trained network as a folder for the Hugging Face hub.
//!
//! | file | what |
//! |---|---|
//! | `model.safetensors` | weights, noise and both sets of statistics; no optimizer |
//! | `config.json` | what was trained, and what the network takes and says; nothing of the machine |
//! | `metrics.jsonl` | the epochs of its training |
//! | `README.md` | the model card |
//!
//! Every command that takes a run takes such a folder.

mod card;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::Device;
use serde_json::json;
use vmf_candle::{Checkpoint, Progress};

use crate::model::VggConfig;
use crate::run::{self, Record};
use crate::settings::{Config, Machine};
use crate::trained::{EXPORTED, Trained};

/// What `cifar export` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of a run
    pub run: PathBuf,
    /// The folder to write, which must not be there or be empty
    pub dir: PathBuf,
}

/// Writes the folder, whole or not at all.
pub fn run(args: &Args) -> Result<()> {
    let trained = Trained::open(&args.run, &Device::Cpu)?;
    ensure_free(&args.dir)?;
    let parent = match args.dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = args.dir.file_name();
    let name = name.with_context(|| format!("{} names no folder", args.dir.display()))?;
    let cannot = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
    fs::create_dir_all(parent).with_context(|| cannot("create the folder", parent))?;
    let unfinished = parent.join(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = write(&trained, &unfinished).and_then(|()| {
        // An empty folder gives way; one that has been filled since does not.
        fs::rename(&unfinished, &args.dir).with_context(|| cannot("write the folder", &args.dir))
    });
    if let Err(error) = written {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    println!(
        "{} holds the network after {} epochs; try `cifar predict {0} IMAGE`",
        args.dir.display(),
        trained.epoch
    );
    Ok(())
}

fn ensure_free(folder: &Path) -> Result<()> {
    match fs::read_dir(folder) {
        Ok(mut entries) => ensure!(
            entries.next().is_none(),
            "{} is not empty: name a folder that is not there yet",
            folder.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            bail!("{} is a file: name a folder that is not there yet", folder.display())
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", folder.display()));
        }
    }
    Ok(())
}

fn write(trained: &Trained, folder: &Path) -> Result<()> {
    fs::create_dir(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    checkpoint(trained)?.save(folder.join(EXPORTED))?;
    let config = Config { machine: Machine::default(), ..trained.config.clone() };
    let text = serde_json::to_string_pretty(&config)? + "\n";
    lab::write_atomic(folder.join(run::CONFIG), text)?;
    lab::write_atomic(folder.join(run::METRICS), metrics(trained)?)?;
    lab::write_atomic(folder.join("README.md"), card::text(trained)?)?;
    Ok(())
}

/// The network alone. Its document says in a few words what it is made of, so that the file can be
/// used without this program.
fn checkpoint(trained: &Trained) -> Result<Checkpoint> {
    let settings = &trained.config.settings;
    let progress = Progress {
        config: json!({
            "plan": plan(&trained.config.network())?,
            "settings": settings,
        }),
        state: serde_json::to_value(trained.record())?,
        ..trained.progress.clone()
    };
    let checkpoint = Checkpoint::capture(&trained.vars, &trained.posterior, None, progress)?;
    Ok(checkpoint)
}

/// The output channels of each convolution, and 0 for a pooling: what vmf-candle's Python script
/// builds networks from.
fn plan(network: &VggConfig) -> Result<Vec<usize>> {
    let stages = network.stages()?;
    let parts = stages.iter().map(|stage| {
        let pooling = stage.pool.then_some(0);
        std::iter::once(stage.outputs).chain(pooling)
    });
    Ok(parts.flatten().collect())
}

/// The epochs that this network has seen, as the run recorded them.
fn metrics(trained: &Trained) -> Result<String> {
    // The lines themselves: read and written again, a number could change in its last digit.
    let path = trained.folder.join(run::METRICS);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let seen = |record: &&Record| record.epoch <= trained.epoch;
    let count = trained.records.iter().filter(seen).count();
    let lines = text.lines().take(count);
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}
