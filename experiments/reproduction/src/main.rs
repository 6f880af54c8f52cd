//! `reproduction`: see `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use lab::say;

/// Rewrites the tables of the documentation from the results under docs/results.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Change nothing; only say which documents differ from the results
    #[arg(long)]
    check: bool,
    /// The project's folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

fn main() -> ExitCode {
    lab::exit_code(start(&Cli::parse()))
}

fn start(cli: &Cli) -> Result<ExitCode> {
    let mut exit_code = ExitCode::SUCCESS;
    for document in reproduction::documents(&cli.root)? {
        let path = document.path.display();
        if document.is_current() {
            continue;
        }
        if cli.check {
            say!("{path} differs from the results: run `cargo run -p reproduction`")?;
            exit_code = ExitCode::FAILURE;
        } else {
            lab::write_atomic(&document.path, &document.after)?;
            say!("{path} written")?;
        }
    }
    Ok(exit_code)
}
