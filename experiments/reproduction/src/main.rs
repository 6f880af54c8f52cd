//! `reproduction`: see `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Writes the tables of the documentation anew from the results under docs/results.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Change nothing, only say whether the tables are as the results have them
    #[arg(long)]
    check: bool,
    /// The project's folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let mut exit_code = ExitCode::SUCCESS;
    for document in reproduction::documents(&cli.root)? {
        let path = document.path.display();
        if document.is_current() {
            continue;
        }
        if cli.check {
            println!("{path} is not as the results have it: run `cargo run -p reproduction`");
            exit_code = ExitCode::FAILURE;
        } else {
            lab::write_atomic(&document.path, &document.after)?;
            println!("{path} written");
        }
    }
    Ok(exit_code)
}
