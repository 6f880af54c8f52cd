//! `cifar eval`: how well a trained network predicts.

use std::path::PathBuf;

use anyhow::Result;

use crate::data::Dataset;
use crate::evaluation::results::{EVALUATION, Evaluation};
use crate::evaluation::{Options, evaluate, tables};
use crate::terminal::{self, printable};
use crate::trained::Trained;

/// Arguments of `cifar eval`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder of a run, or an exported folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Print JSON and nothing else
    #[arg(long)]
    pub json: bool,
    /// How to evaluate.
    #[command(flatten)]
    pub options: Options,
}

/// Evaluates a network, even if its folder already holds an evaluation, and prints the scores.
pub fn run(args: &Args) -> Result<()> {
    let trained = args.options.open(&args.run)?;
    let set = args.options.dataset(&trained)?;
    let evaluation = evaluate(&trained, &set, args.options.protocol(&set)?)?;
    if args.json {
        return terminal::print(serde_json::to_string_pretty(&evaluation)?);
    }
    terminal::print(headline(&trained, &set))?;
    print_tables(&evaluation)?;
    terminal::print(format!("kept in {}", printable(&args.run.join(EVALUATION))))
}

/// One line about the network: its size, its training, and how far that has come.
fn headline(trained: &Trained, set: &Dataset) -> String {
    let settings = &trained.config.settings;
    format!(
        "{}: {} of width {} on {}, --method {}, seed {}, after {} of {} epochs",
        printable(&trained.folder),
        settings.model,
        settings.width,
        set.name,
        settings.method.name(),
        settings.seed,
        trained.epoch,
        settings.epochs
    )
}

fn print_tables(evaluation: &Evaluation) -> Result<()> {
    let [scores, tempered] = [tables::scores(evaluation)?, tables::tempered(evaluation)?];
    terminal::print(format!("\n{}\n{}", scores.terminal(), tempered.terminal()))?;
    // The backquotes are for the HTML report.
    let note = tables::explanation(evaluation.network.settings.method).replace('`', "");
    terminal::print(format!("{note}\n"))
}
