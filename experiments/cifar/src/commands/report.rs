//! `cifar report`: one run as one HTML file, to send to a colleague.

use std::path::PathBuf;

use anyhow::Result;

use crate::evaluation::Options;
use crate::report;
use crate::terminal::{self, printable};

/// Arguments of `cifar report`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder of a run, or an exported folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// File to write [default: report.html in the folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How to evaluate.
    #[command(flatten)]
    pub options: Options,
}

/// Writes the report of a run and prints its path.
pub fn run(args: &Args) -> Result<()> {
    let path = report::write(&args.run, args.out.as_deref(), &args.options)?;
    terminal::print(format!("the report is {}", printable(&path)))
}
