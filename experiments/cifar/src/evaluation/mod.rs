//! How well a trained network predicts: with noise and without, with temperature scaling and
//! without.
//!
//! [`outputs`] runs the network over images, `measure` scores its predictions, [`results`] is what
//! `evaluation.json` holds, and [`tables`] shows it to people.

pub mod evidence;
mod measure;
pub mod outputs;
pub mod results;
pub mod tables;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::data::Dataset;
use crate::device;
use crate::trained::Trained;
use results::{Evaluation, Network, Protocol};

/// How to evaluate a network, and on which machine.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of Monte Carlo samples
    #[arg(long, value_name = "K", default_value_t = 8)]
    pub samples: u32,
    /// Seed of the noise in the Monte Carlo samples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Evaluate on the first N test images, 0 for all [default: as many as in training]
    #[arg(long, value_name = "N")]
    pub test_images: Option<usize>,
    /// Device to compute on: cpu, cuda or cuda:N [default: the best available]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of CPU threads [default: one per processor]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Folder with the files of the data set [default: the one used in training]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { samples: 8, seed: 0, test_images: None, device: None, threads: None, data_dir: None }
    }
}

impl Options {
    /// Opens a network that has been trained for at least one epoch.
    pub fn open(&self, folder: &Path) -> Result<Trained> {
        let device = device::choose(self.device.as_deref())?;
        device::use_threads(self.threads)?;
        let trained = Trained::open(folder, &device)?;
        ensure!(
            trained.epoch > 0,
            "{0} has not finished an epoch yet: there is nothing to evaluate. Continue its training with `cifar train --resume {0}`",
            folder.display()
        );
        Ok(trained)
    }

    /// The data set of a network, with the requested number of test images.
    pub fn dataset(&self, trained: &Trained) -> Result<Dataset> {
        trained.dataset_with(self.data_dir.as_deref(), self.test_images)
    }

    /// The images and the noise that networks are evaluated with.
    pub fn protocol(&self, set: &Dataset) -> Result<Protocol> {
        measure::protocol(set, self.samples, self.seed)
    }

    /// The evaluation of a network. If the network's folder keeps one that was made of the same
    /// weights in the same way, that one is returned; otherwise the network is evaluated.
    pub fn evaluation(&self, trained: &Trained, set: &Dataset) -> Result<Evaluation> {
        let protocol = self.protocol(set)?;
        let (network, classes) = (Network::of(trained), set.classes.len());
        match Evaluation::stored(&trained.folder, &network, &protocol, classes) {
            Some(evaluation) => {
                tracing::info!("{} has been evaluated before", trained.folder.display());
                Ok(evaluation)
            }
            None => evaluate(trained, set, protocol),
        }
    }
}

/// Evaluates a network and keeps the result in its folder.
pub fn evaluate(trained: &Trained, set: &Dataset, protocol: Protocol) -> Result<Evaluation> {
    let evaluation = measure::measure(trained, set, protocol)?;
    evaluation.store(&trained.folder)?;
    Ok(evaluation)
}
