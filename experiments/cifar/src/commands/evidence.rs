//! `cifar evidence`: what a network, or an ensemble, is worth beyond its test images.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use lab::{Cell, Table};

use crate::evaluation::evidence::{EVIDENCE, Evidence, Extent, gather};
use crate::evaluation::results::Network;
use crate::evaluation::{Options, tables};
use crate::terminal::{self, printable};

/// Arguments of `cifar evidence`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder of a run; several are one ensemble
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Folder to write evidence.json to [default: that of the run, if there is one]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Folder with CIFAR-100, CIFAR-10H, Fashion-MNIST and CIFAR-10-C, as far as they are there
    #[arg(long, value_name = "DIR", default_value = "data")]
    pub others: PathBuf,
    /// How many other images.
    #[command(flatten)]
    pub extent: Extent,
    /// How to evaluate.
    #[command(flatten)]
    pub options: Options,
}

/// Gathers the evidence, unless the folder has it already, and prints it.
pub fn run(args: &Args) -> Result<()> {
    let evidence = evidence(args)?;
    terminal::print(format!("\n{}", summary(&evidence)?.terminal()))?;
    for line in &evidence.left_out {
        terminal::print(format!("left out: {line}"))?;
    }
    Ok(())
}

/// The evidence about the runs, stored or new.
pub fn evidence(args: &Args) -> Result<Evidence> {
    let out = match (&args.out, &args.runs[..]) {
        (Some(out), _) => out,
        (None, [run]) => run,
        (None, _) => {
            anyhow::bail!("an ensemble has no folder of its own: name one with --out DIR")
        }
    };
    let mut members = Vec::new();
    for run in &args.runs {
        let trained = args.options.open(run)?;
        let set = args.options.dataset(&trained)?;
        members.push((trained, set));
    }
    let first = members[0].0.config.settings.data;
    ensure!(
        members.iter().all(|(trained, _)| trained.config.settings.data == first),
        "these networks were trained on different data sets: they are no ensemble"
    );
    let protocol = args.options.protocol(&members[0].1)?;
    let networks: Vec<Network> = members.iter().map(|(trained, _)| Network::of(trained)).collect();
    if let Some(stored) = Evidence::stored(out, &networks, &protocol, &args.extent) {
        return Ok(stored);
    }
    let evidence = gather(&members, protocol, &args.extent, &args.others)?;
    std::fs::create_dir_all(out)?;
    let text = serde_json::to_string_pretty(&evidence)? + "\n";
    lab::write_atomic(out.join(EVIDENCE), text)?;
    terminal::note(format!("kept in {}", printable(&out.join(EVIDENCE))));
    Ok(evidence)
}

/// The evidence in a few numbers per way to predict.
fn summary(evidence: &Evidence) -> Result<Table> {
    let mut table = Table::new([
        "prediction",
        "accuracy",
        "NLL",
        "ECE",
        "AURC",
        "cov. 1 %",
        "cov. 5 %",
        "THR size",
        "people",
        "corrupted NLL",
        "corrupted ECE",
        "CIFAR-100 AUROC",
    ]);
    let number =
        |value: Option<f64>| Cell::from(value.map_or("–".into(), |value| format!("{value:.4}")));
    for shown in &evidence.ways {
        let all = &shown.measured.all;
        let mean = |score: fn(&crate::run::Scores) -> f64| {
            let values: Vec<f64> = shown.shifted.iter().map(|s| score(&s.scores)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let near = shown.foreign.iter();
        let near = near.clone().find(|told| told.images == "CIFAR-100" && told.score == "entropy");
        let cells = [
            Some(all.accuracy),
            Some(all.nll),
            Some(all.ece),
            Some(shown.aurc),
            Some(shown.coverage_at_1),
            Some(shown.coverage_at_5),
            shown.sets.first().map(|sets| sets.mean_size),
            shown.human,
            mean(|scores| scores.nll),
            mean(|scores| scores.ece),
            near.map(|told| told.auroc),
        ];
        let name = Cell::from(tables::name(shown.way, &evidence.protocol));
        table.row([name].into_iter().chain(cells.map(number)))?;
    }
    Ok(table)
}
