//! `student-teacher show`: the contents of a checkpoint, whichever experiment wrote it.

use std::path::Path;

use anyhow::Result;
use lab::{Cell, Table, say};
use serde_json::Value;
use vmf_candle::Checkpoint;
use vmf_candle::posterior::Thresholds;

/// Prints where training stood and what each layer has learned.
pub fn show(path: &Path) -> Result<()> {
    // Refuses a named pipe, which would keep the next line waiting.
    lab::open_file(path)?;
    let checkpoint = Checkpoint::open(path)?;
    let progress = checkpoint.progress();
    say!(
        "{}: epoch {}, step {}, seed {}",
        path.display(),
        progress.epoch,
        progress.step,
        progress.seed
    )?;
    for (name, value) in [("config", &progress.config), ("state", &progress.state)] {
        if !value.is_null() {
            say!("\n{name}")?;
            print_entries(value)?;
        }
    }
    let variables = checkpoint.variables();
    let numbers: usize = variables.values().map(|t| t.elem_count()).sum();
    say!("\n{} tensors, {numbers} numbers\n", variables.len())?;

    let summary = checkpoint.summary()?;
    layers(&checkpoint)?.print()?;
    say!("\nKL of all layers: {} nats", lab::significant(summary.kl(), 4))?;
    let collapse = summary.collapse(&Thresholds::default());
    if !collapse.is_none() {
        say!("Warning: {collapse}")?;
    }
    Ok(())
}

fn layers(checkpoint: &Checkpoint) -> Result<Table> {
    let mut table = Table::new(["layer", "D", "M", "σ_{eff}", "κ", "A", "KL (nats)"]);
    for layer in &checkpoint.summary()? {
        let mut name = one_line(&layer.name);
        if layer.shared {
            name += " (shared)";
        }
        if layer.frozen {
            name += " (frozen)";
        }
        if layer.sigmas.len() > 1 {
            name += &format!(" (mean of {} groups)", layer.sigmas.len());
        }
        table.row([
            name.into(),
            layer.dim.into(),
            layer.units.into(),
            Cell::from(layer.sigma_eff()),
            Cell::from(layer.kappa),
            Cell::from(layer.expected_cosine),
            Cell::from(layer.kl),
        ])?;
    }
    Ok(table)
}

fn print_entries(value: &Value) -> lab::Result<()> {
    match value {
        Value::Object(entries) => {
            entries.iter().try_for_each(|(name, value)| say!("  {}: {value}", one_line(name)))
        }
        other => say!("  {other}"),
    }
}

/// A name in a checkpoint may hold anything, even a line that looks like one of ours.
fn one_line(name: &str) -> String {
    name.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_cannot_forge_a_line() {
        assert_eq!(super::one_line("unit\nstep 9"), "unit\\nstep 9");
    }
}
