//! `cifar export`: a trained network as a folder for the Hugging Face hub.

use std::path::PathBuf;

use anyhow::Result;
use candle_core::Device;

use crate::export;
use crate::terminal::{self, printable};
use crate::trained::Trained;

/// Arguments of `cifar export`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder of a run
    pub run: PathBuf,
    /// Folder to write; it must not exist, or be empty
    pub dir: PathBuf,
}

/// Exports a network and prints where it is.
pub fn run(args: &Args) -> Result<()> {
    let trained = Trained::open(&args.run, &Device::Cpu)?;
    export::export(&trained, &args.dir)?;
    terminal::print(format!(
        "{} holds the network after {} epochs; try `cifar predict {0} IMAGE`",
        printable(&args.dir),
        trained.epoch
    ))
}
