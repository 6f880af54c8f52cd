//! `cifar predict`: what is in pictures, and how sure the network is.

pub mod picture;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use serde::Serialize;
use vmf_candle::Samples;
use vmf_candle::predict::{Prediction, predict};

use crate::device;
use crate::trained::Trained;
use picture::Frame;

/// What `cifar predict` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of a run, or an exported one
    pub run: PathBuf,
    /// Pictures, PNG or JPEG, of any size
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// Monte Carlo samples; 0 for one pass without noise
    #[arg(long, default_value_t = 32)]
    pub samples: u32,
    /// Show the likeliest so many classes
    #[arg(long, default_value_t = 3)]
    pub top: usize,
    /// Seed of the Monte Carlo samples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Where to compute: cpu, cuda or cuda:N; the best there is, if not given
    #[arg(long)]
    pub device: Option<String>,
    /// Threads that compute on the CPU; all there are, if not given
    #[arg(long)]
    pub threads: Option<usize>,
}

/// What the network says about a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The likeliest classes, from the likeliest on.
    pub classes: Vec<Class>,
    /// Entropy of the probabilities of all classes in nats: all of the uncertainty.
    pub entropy: f64,
    /// The part of it that comes from not knowing the weights; 0 without samples.
    pub mutual_information: f64,
    /// Monte Carlo samples behind it; 0 for one pass without noise.
    pub samples: u32,
}

/// How likely a class is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// Its name.
    pub class: String,
    /// Its probability.
    pub probability: f64,
    /// The standard deviation of its probability between samples; 0 without.
    pub deviation: f64,
}

/// Classifies pictures. One that cannot be read is named, and the others go on; says whether all
/// could be read.
pub fn run(args: &Args) -> Result<bool> {
    ensure!(args.top > 0, "--top 0 shows nothing: say at least 1");
    let device = device::choose(args.device.as_deref())?;
    device::use_threads(args.threads)?;
    let trained = Trained::open(&args.run, &device)?;
    let classifier = Classifier::new(&trained, args.samples, args.seed)?;
    let mut all_read = true;
    for path in &args.images {
        let name = path.display().to_string();
        let pixels = match classifier.frame.read(path) {
            Ok(pixels) => pixels,
            Err(error) => {
                all_read = false;
                let reason = format!("{error:#}");
                eprintln!("{name}: {reason}");
                if args.json {
                    print(&serde_json::json!({ "image": name, "error": reason }).to_string());
                }
                continue;
            }
        };
        let mut answer = classifier.answer(&pixels)?;
        answer.classes.truncate(args.top);
        print(&if args.json {
            let line = Named { image: &name, answer: &answer };
            serde_json::to_string(&line)?
        } else {
            in_words(&name, &answer)
        });
    }
    Ok(all_read)
}

/// A reader that closed the pipe has seen enough: no reason to panic.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[derive(Serialize)]
struct Named<'a> {
    image: &'a str,
    #[serde(flatten)]
    answer: &'a Answer,
}

fn in_words(name: &str, answer: &Answer) -> String {
    let widest = answer.classes.iter().map(|class| class.class.chars().count());
    let widest = widest.max().unwrap_or(0);
    let mut lines = vec![name.to_owned()];
    for class in &answer.classes {
        let mut line = format!("  {:widest$}  {:.3}", class.class, class.probability);
        if answer.samples > 1 {
            line += &format!(" ± {:.3}", class.deviation);
        }
        lines.push(line);
    }
    let mut line = format!("  entropy {:.3} nats", answer.entropy);
    if answer.samples > 1 {
        line += &format!(", {:.3} of it from not knowing the weights", answer.mutual_information);
    }
    lines.push(line);
    lines.join("\n")
}

/// A trained network that says what is in pictures. It needs no data set.
pub struct Classifier<'a> {
    trained: &'a Trained,
    /// How pictures are made to fit.
    pub frame: Frame,
    samples: u32,
    seed: u64,
}

impl<'a> Classifier<'a> {
    /// Answers with so many Monte Carlo samples. A network without noise has none to draw.
    pub fn new(trained: &'a Trained, samples: u32, seed: u64) -> Result<Self> {
        let settings = &trained.config.settings;
        Ok(Self {
            trained,
            frame: Frame::new(&trained.config.interface, settings.data)?,
            samples: if settings.method.is_noisy() { samples } else { 0 },
            seed,
        })
    }

    /// What is in a picture, all classes from the likeliest on. The answer does not depend on what
    /// was asked before.
    pub fn answer(&self, pixels: &[u8]) -> Result<Answer> {
        let image = self.frame.tensor(pixels, &self.trained.device)?;
        let samples = match self.samples {
            0 => Samples::mean(),
            count => Samples::monte_carlo(count, self.seed),
        };
        let prediction = predict(&self.trained.model, &image, samples)?;
        let Prediction { probs, deviation, entropy, mutual_information, .. } = &prediction;
        let names = self.trained.config.interface.classes.iter();
        let mut classes: Vec<Class> = names
            .zip(values(probs)?.into_iter().zip(values(deviation)?))
            .map(|(name, (probability, deviation))| Class {
                class: name.clone(),
                probability,
                deviation,
            })
            .collect();
        classes.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        Ok(Answer {
            classes,
            entropy: values(entropy)?.into_iter().sum(),
            mutual_information: values(mutual_information)?.into_iter().sum(),
            samples: self.samples,
        })
    }
}

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    let values = tensor.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}
