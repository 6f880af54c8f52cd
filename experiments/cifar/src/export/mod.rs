//! A trained network as a folder for the Hugging Face hub.
//!
//! | file | what |
//! |---|---|
//! | `model.safetensors` | weights, noise and both sets of statistics, without the optimizer's state; with `--temperature` also that of the network without noise |
//! | `config.json` | the settings of its training and its interface, but nothing about the machine |
//! | `metrics.jsonl` | the records of its epochs |
//! | `README.md` | the model card |
//!
//! Every command that takes a run also takes such a folder, except `train --resume`.

mod card;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use vmf_candle::predict::match_temperature;
use vmf_candle::{Checkpoint, Progress, Samples};

use crate::data::batches::Batches;
use crate::evaluation::outputs::BATCH;
use crate::model::{NetworkConfig, Part};
use crate::run::{self, Record};
use crate::settings::{Config, Machine};
use crate::trained::{EXPORTED, Trained};

/// Training images that the temperature is fitted to.
const IMAGES: usize = 2048;
/// Where it stands in the configuration of the exported file.
const TEMPERATURE: &str = "temperature";

/// The temperature at which the network without noise is as certain as the variational one, on
/// training images. Their labels are not used.
pub fn temperature(trained: &Trained, data_dir: Option<&Path>) -> Result<f64> {
    ensure!(
        trained.config.settings.method.is_noisy(),
        "{} was trained without noise: there is nothing that its temperature could be matched to",
        trained.folder.display()
    );
    let set = trained.dataset(data_dir)?;
    let samples = match trained.posterior.output_covariance() {
        Some(_) => Samples::expected(&trained.posterior),
        // Saved before there was an expected pass.
        None => Samples::monte_carlo(32, 0),
    };
    let batches = Batches::in_order(&set, &set.train, BATCH).take(IMAGES.div_ceil(BATCH));
    let images = batches.map(|batch| Ok(batch.into_tensors(&trained.device)?.0));
    let temperature = match_temperature(&trained.model, images, samples)?.temperature.value();
    ensure!(
        temperature > 0.0 && temperature.is_finite(),
        "the network without noise has no best temperature: {temperature} fits best"
    );
    Ok(temperature)
}

/// The temperature of a network that was exported with one.
pub fn stored_temperature(trained: &Trained) -> Option<f64> {
    let temperature = trained.progress.config.get(TEMPERATURE)?.as_f64()?;
    (temperature > 0.0 && temperature.is_finite()).then_some(temperature)
}

/// Writes the folder, completely or not at all, with the temperature of the network without noise
/// if it is known.
pub fn export(trained: &Trained, temperature: Option<f64>, dir: &Path) -> Result<()> {
    ensure_free(dir)?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = dir.file_name();
    let name = name.with_context(|| format!("{} does not name a folder", dir.display()))?;
    let cannot = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
    fs::create_dir_all(parent).with_context(|| cannot("create the folder", parent))?;
    let name = name.to_string_lossy();
    remove_leftovers(parent, &name);
    let unfinished = parent.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = write(trained, temperature, &unfinished).and_then(|()| {
        // The rename replaces an empty folder, but fails if the folder has been filled meanwhile.
        fs::rename(&unfinished, dir).with_context(|| cannot("write the folder", dir))
    });
    if let Err(error) = written {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    lab::sync_folder(parent);
    Ok(())
}

/// Removes the unfinished folders of exports to the same place that were killed. Best effort: they
/// do not disturb this one.
fn remove_leftovers(parent: &Path, name: &str) {
    let process = |entry: &fs::DirEntry| {
        let file_name = entry.file_name();
        let rest = file_name.to_str()?.strip_prefix(&format!(".{name}."))?;
        rest.strip_suffix(".tmp")?.parse::<i32>().ok()
    };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if process(&entry).is_some_and(has_ended) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(unix)]
fn has_ended(process: i32) -> bool {
    // SAFETY: signal 0 is never delivered; it only asks whether the process is there.
    let is_there = process <= 0 || unsafe { libc::kill(process, 0) } == 0;
    // It may be there and belong to somebody else.
    !is_there && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(not(unix))]
fn has_ended(_process: i32) -> bool {
    false
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

fn write(trained: &Trained, temperature: Option<f64>, folder: &Path) -> Result<()> {
    fs::create_dir(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    checkpoint(trained, temperature)?.save(folder.join(EXPORTED))?;
    let config = Config { machine: Machine::default(), ..trained.config.clone() };
    let text = serde_json::to_string_pretty(&config)? + "\n";
    lab::write_atomic(folder.join(run::CONFIG), text)?;
    lab::write_atomic(folder.join(run::METRICS), metrics(trained)?)?;
    lab::write_atomic(folder.join("README.md"), card::text(trained, temperature)?)?;
    Ok(())
}

/// The network without the optimizer. The layers are listed in the file's own document, so that it
/// can be used without this program.
fn checkpoint(trained: &Trained, temperature: Option<f64>) -> Result<Checkpoint> {
    let (settings, network) = (&trained.config.settings, trained.config.network());
    let mut config = json!({
        "plan": plan(&network)?,
        "parts": network.parts()?,
        "classifier": network.classifier_name(),
        "settings": settings,
    });
    if let Some(temperature) = temperature {
        config[TEMPERATURE] = temperature.into();
    }
    let progress = Progress {
        config,
        state: serde_json::to_value(trained.record())?,
        ..trained.progress.clone()
    };
    let checkpoint = Checkpoint::capture(&trained.vars, &trained.posterior, None, progress)?;
    Ok(checkpoint)
}

/// The output channels of each convolution, with a 0 for each pooling, if the network is a chain.
/// vmf-candle's Python script builds the network from this list.
fn plan(network: &NetworkConfig) -> Result<Option<Vec<usize>>> {
    let parts = network.parts()?;
    let numbers = parts.iter().map(|part| match part {
        Part::Unit { layer, pool } => Some(std::iter::once(layer.outputs).chain(pool.then_some(0))),
        _ => None,
    });
    let numbers: Option<Vec<_>> = numbers.collect();
    Ok(numbers.map(|numbers| numbers.into_iter().flatten().collect()))
}

/// The records of the epochs that this network was trained for.
fn metrics(trained: &Trained) -> Result<String> {
    // The lines are copied, not parsed and written again, so that every digit stays as it was.
    let text = run::read_metrics(&trained.folder)?;
    let seen = |record: &&Record| record.epoch <= trained.epoch;
    let count = trained.records.iter().filter(seen).count();
    let lines = text.lines().take(count);
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}
