//! `cifar eval`: how well a trained network predicts, with noise and without, tempered and not.

mod measure;
pub mod results;
pub mod show;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::data::Dataset;
use crate::device;
use crate::trained::Trained;
use results::{EVALUATION, Evaluation, Network, Protocol};

/// What `cifar eval` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of a run, or an exported folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Print JSON, and nothing else
    #[arg(long)]
    pub json: bool,
    /// How to evaluate.
    #[command(flatten)]
    pub options: Options,
}

/// Where and how to evaluate.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Monte Carlo samples
    #[arg(long, value_name = "K", default_value_t = 8)]
    pub samples: u32,
    /// The seed of their noise
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Evaluate on the first so many test images, 0 for all; as many as in training, if not given
    #[arg(long, value_name = "N")]
    pub test_images: Option<usize>,
    /// Where to compute: cpu, cuda or cuda:N; the best there is, if not given
    #[arg(long)]
    pub device: Option<String>,
    /// Threads that compute on the CPU; all there are, if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// The folder that holds the data set's files; the one of training, if not given
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { samples: 8, seed: 0, test_images: None, device: None, threads: None, data_dir: None }
    }
}

impl Options {
    /// Opens a network that has been trained for at least an epoch.
    pub fn open(&self, folder: &std::path::Path) -> Result<Trained> {
        let device = device::choose(self.device.as_deref())?;
        device::use_threads(self.threads)?;
        let trained = Trained::open(folder, &device)?;
        ensure!(
            trained.epoch > 0,
            "{0} has not finished an epoch yet: there is nothing to evaluate. Train on with `cifar train --resume {0}`",
            folder.display()
        );
        Ok(trained)
    }

    /// The data set of a network, with as many test images as are asked for.
    pub fn dataset(&self, trained: &Trained) -> Result<Dataset> {
        trained.dataset_with(self.data_dir.as_deref(), self.test_images)
    }

    /// On which images networks are evaluated, and with which noise.
    pub fn protocol(&self, set: &Dataset) -> Result<Protocol> {
        measure::protocol(set, self.samples, self.seed)
    }

    /// The evaluation of a network: the one its folder keeps, if that is of this network and was
    /// made in this way; else a new one, which the folder then keeps.
    pub fn evaluation(&self, trained: &Trained, set: &Dataset) -> Result<Evaluation> {
        let protocol = self.protocol(set)?;
        let stored = Evaluation::stored(&trained.folder, &Network::of(trained), &protocol);
        match stored {
            Some(evaluation) => {
                tracing::info!("{} has been evaluated before", trained.folder.display());
                Ok(evaluation)
            }
            None => evaluate(trained, set, protocol),
        }
    }
}

fn evaluate(trained: &Trained, set: &Dataset, protocol: Protocol) -> Result<Evaluation> {
    let evaluation = measure::measure(trained, set, protocol)?;
    evaluation.store(&trained.folder)?;
    Ok(evaluation)
}

/// Evaluates a network, anew, and prints what was found.
pub fn run(args: &Args) -> Result<()> {
    let trained = args.options.open(&args.run)?;
    let set = args.options.dataset(&trained)?;
    let evaluation = evaluate(&trained, &set, args.options.protocol(&set)?)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&evaluation)?);
        return Ok(());
    }
    println!("{}", show::headline(&trained, &set));
    show::print(&evaluation)?;
    println!("kept in {}", args.run.join(EVALUATION).display());
    Ok(())
}
