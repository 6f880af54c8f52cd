//! `cifar fetch`: downloads CIFAR-10 and verifies it.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::data;
use crate::terminal::{self, printable};

/// Arguments of `cifar fetch`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folder to keep the data set in [default: data]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Fetches CIFAR-10 unless it is already there.
pub fn run(args: &Args) -> Result<()> {
    let folder = args.data_dir.as_deref();
    let folder = data::fetch::cifar10(folder.unwrap_or(Path::new(data::DEFAULT_FOLDER)))?;
    terminal::print(format!("CIFAR-10 is in {}, verified by SHA-256", printable(&folder)))
}
