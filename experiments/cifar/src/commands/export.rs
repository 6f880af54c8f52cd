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
    /// Also find the temperature that the logits without noise are to be divided by, so that a
    /// plain network is as certain as the variational one; needs the training images, but no labels
    #[arg(long)]
    pub temperature: bool,
    /// Folder with the files of the data set, for `--temperature` [default: the run's]
    #[arg(long, value_name = "DIR", requires = "temperature")]
    pub data_dir: Option<PathBuf>,
}

/// Exports a network and prints where it is.
pub fn run(args: &Args) -> Result<()> {
    let trained = Trained::open(&args.run, &Device::Cpu)?;
    let temperature = match args.temperature {
        true => Some(export::temperature(&trained, args.data_dir.as_deref())?),
        // That of an exported network stays with it.
        false => export::stored_temperature(&trained),
    };
    export::export(&trained, temperature, &args.dir)?;
    let note = match temperature {
        Some(temperature) => format!("; its temperature without noise is {temperature:.4}"),
        None => String::new(),
    };
    terminal::print(format!(
        "{} holds the network after {} epochs{note}; try `cifar predict {0} IMAGE`",
        printable(&args.dir),
        trained.epoch
    ))
}
