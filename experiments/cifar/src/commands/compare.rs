//! `cifar compare`: trained networks side by side, over seeds, against a baseline.

use std::path::PathBuf;

use anyhow::Result;

use crate::comparison::{Comparison, tables};
use crate::evaluation::Options;
use crate::terminal::{self, printable};

/// The folder that a comparison is written to by default.
const OUT: &str = "runs/compare";

/// Arguments of `cifar compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folders of the runs; runs that differ only in their seed are averaged
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Run that the others are compared with [default: the first with --method none, else the
    /// first]
    #[arg(long, value_name = "RUN")]
    pub baseline: Option<PathBuf>,
    /// Folder to write to
    #[arg(long, value_name = "DIR", default_value = OUT)]
    pub out: PathBuf,
    /// How to evaluate.
    #[command(flatten)]
    pub options: Options,
}

/// Compares runs, writes the comparison to a folder and prints its main table.
pub fn run(args: &Args) -> Result<()> {
    let comparison = Comparison::new(&args.runs, args.baseline.as_deref(), &args.options)?;
    let report = comparison.write(&args.out)?;
    let table = tables::scores(&comparison)?.terminal();
    let in_short = comparison.in_short().map_or_else(String::new, |sentence| sentence + "\n");
    terminal::print(format!("\n{table}\n{in_short}the report is {}", printable(&report)))
}
