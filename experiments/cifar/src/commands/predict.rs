//! `cifar predict`: what is in pictures, and how certain the network is.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::AlreadyReported;
use crate::device;
use crate::prediction::{Answer, Classifier};
use crate::terminal::{self, printable};
use crate::trained::Trained;

/// Arguments of `cifar predict`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder of a run, or an exported folder
    pub run: PathBuf,
    /// Pictures, PNG or JPEG, of any size
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// Average K Monte Carlo samples instead of making one expected pass; 0 turns the noise off
    #[arg(long, value_name = "K")]
    pub samples: Option<u32>,
    /// Show the K most probable classes
    #[arg(long, value_name = "K", default_value_t = 3)]
    pub top: usize,
    /// Seed of the noise in the Monte Carlo samples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Device to compute on: cpu, cuda or cuda:N [default: the best available]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of CPU threads [default: one per processor]
    #[arg(long)]
    pub threads: Option<usize>,
}

/// Classifies pictures. A picture that cannot be read is reported, the others are still classified,
/// and the command fails in the end.
pub fn run(args: &Args) -> Result<()> {
    ensure!(args.top > 0, "--top is 0; it must be at least 1");
    let device = device::choose(args.device.as_deref())?;
    device::use_threads(args.threads)?;
    let trained = Trained::open(&args.run, &device)?;
    let classifier = Classifier::new(&trained, args.samples, args.seed)?;
    let mut all_read = true;
    for path in &args.images {
        let picture = match classifier.frame.read(path) {
            Ok(picture) => picture,
            Err(error) => {
                all_read = false;
                let reason = format!("{error:#}");
                terminal::note(format!("{}: {reason}", printable(path)));
                if args.json {
                    let name = path.display().to_string();
                    terminal::print(serde_json::json!({ "image": name, "error": reason }))?;
                }
                continue;
            }
        };
        let mut answer = classifier.answer(&picture.pixels)?;
        answer.classes.truncate(args.top);
        terminal::print(if args.json {
            let image = path.display().to_string();
            let line = Line { image, warning: picture.warning, answer: &answer };
            serde_json::to_string(&line)?
        } else {
            in_words(path, picture.warning, &answer)
        })?;
    }
    if !all_read {
        return Err(AlreadyReported.into());
    }
    Ok(())
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
    #[serde(flatten)]
    answer: &'a Answer,
}

fn in_words(path: &Path, warning: Option<&str>, answer: &Answer) -> String {
    let widest = answer.classes.iter().map(|class| class.class.chars().count());
    let widest = widest.max().unwrap_or(0);
    let mut lines = vec![printable(path)];
    lines.extend(warning.map(|warning| format!("  warning: {warning}")));
    for class in &answer.classes {
        let mut line = format!("  {:widest$}  {:.3}", class.class, class.probability);
        if answer.has_spread() {
            line += &format!(" ± {:.3}", class.deviation);
        }
        lines.push(line);
    }
    let mut line = format!("  entropy {:.3} nats", answer.entropy);
    if answer.has_spread() {
        line += &format!(", {:.3} of it from not knowing the weights", answer.mutual_information);
    }
    lines.push(line);
    lines.join("\n")
}
