//! `student-teacher show`: what is in a checkpoint, whichever experiment wrote it.

use std::path::Path;

use anyhow::Result;
use lab::{Cell, Table};
use serde_json::Value;
use vmf_candle::Checkpoint;
use vmf_candle::posterior::Thresholds;

/// Prints where the run stood and what each layer has learned.
pub fn show(path: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    let progress = checkpoint.progress();
    println!(
        "{}: epoch {}, step {}, seed {}",
        path.display(),
        progress.epoch,
        progress.step,
        progress.seed
    );
    for (name, value) in [("config", &progress.config), ("state", &progress.state)] {
        if !value.is_null() {
            println!("\n{name}");
            print_entries(value);
        }
    }
    let variables = checkpoint.variables();
    let numbers: usize = variables.values().map(|t| t.elem_count()).sum();
    println!("\n{} tensors, {numbers} numbers\n", variables.len());

    let summary = checkpoint.summary()?;
    layers(&checkpoint)?.print();
    println!("\nKL of all layers: {} nats", lab::significant(summary.kl(), 4));
    let collapse = summary.collapse(&Thresholds::default());
    if !collapse.is_none() {
        println!("Warning: {collapse}");
    }
    Ok(())
}

fn layers(checkpoint: &Checkpoint) -> Result<Table> {
    let mut table = Table::new(["layer", "D", "M", "σ_{eff}", "κ", "A", "KL (nats)"]);
    for layer in &checkpoint.summary()? {
        let mut name = layer.name.clone();
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

fn print_entries(value: &Value) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                println!("  {name}: {value}");
            }
        }
        other => println!("  {other}"),
    }
}
