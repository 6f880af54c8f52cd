//! What is in a picture, and how certain the network is of it.

pub mod picture;

use anyhow::{Result, bail};
use candle_core::{Device, Tensor};
use serde::Serialize;
use vmf_candle::predict::Prediction;
use vmf_candle::{Pass, Samples, predict};

use crate::model::is_finite;
use crate::trained::Trained;
use picture::Frame;

/// Number of Monte Carlo samples for a network that was saved without what the expected pass needs.
const FALLBACK: u32 = 32;

/// The network's prediction for a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The classes, most probable first.
    pub classes: Vec<Class>,
    /// Entropy of the predictive distribution in nats: the total uncertainty.
    pub entropy: f64,
    /// The part of the entropy that comes from not knowing the weights; 0 with noise off.
    pub mutual_information: f64,
    /// How it was predicted: `expected`, `noise off` or `Monte Carlo`.
    pub prediction: &'static str,
    /// Number of Monte Carlo samples; 0 without.
    pub samples: u32,
}

impl Answer {
    /// Whether it knows how much the probabilities vary over draws of the weights.
    pub fn has_spread(&self) -> bool {
        self.prediction == "expected" || self.samples > 1
    }
}

/// The probability of a class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// The name of the class.
    pub class: String,
    /// Its predictive probability.
    pub probability: f64,
    /// Standard deviation of the probability over draws of the weights; 0 with noise off.
    pub deviation: f64,
}

/// A trained network that classifies pictures. The data set is not needed.
pub struct Classifier<'a> {
    trained: &'a Trained,
    /// How pictures are made to fit the network.
    pub frame: Frame,
    samples: Option<u32>,
    seed: u64,
}

impl<'a> Classifier<'a> {
    /// A classifier that predicts in one deterministic pass, or averages `samples` Monte Carlo
    /// samples; with 0 of them it turns the noise off. For a network that was trained without
    /// noise, `samples` is ignored: its passes are all equal. So is, with a warning, the
    /// expected pass for a network whose file does not hold what that needs.
    pub fn new(trained: &'a Trained, samples: Option<u32>, seed: u64) -> Result<Self> {
        let settings = &trained.config.settings;
        let is_measured = trained.posterior.output_covariance().is_some();
        if settings.method.is_noisy() && samples.is_none() && !is_measured {
            tracing::warn!(
                "{} was saved before there was an expected pass: averaging {FALLBACK} Monte Carlo samples instead",
                trained.folder.display()
            );
        }
        Ok(Self {
            trained,
            frame: Frame::new(&trained.config.interface, settings.data)?,
            samples: match samples {
                _ if !settings.method.is_noisy() => Some(0),
                None if !is_measured => Some(FALLBACK),
                samples => samples,
            },
            seed,
        })
    }

    /// Classifies the pixels of a picture. The answer does not depend on earlier calls.
    pub fn answer(&self, pixels: &[u8]) -> Result<Answer> {
        let image = self.frame.tensor(pixels, &self.trained.device)?;
        let (way, samples) = match self.samples {
            None => ("expected", Samples::expected(&self.trained.posterior)),
            Some(0) => ("noise off", Samples::mean()),
            Some(count) => ("Monte Carlo", Samples::monte_carlo(count, self.seed)),
        };
        let prediction = match predict(&self.trained.model, &image, samples) {
            Ok(prediction) if is_finite(&prediction.probs)? => prediction,
            failed => {
                let pass = match self.samples {
                    None => Pass::expected(),
                    Some(0) => Pass::mean(),
                    Some(_) => Pass::sample(self.seed, 0),
                };
                if let Some(layer) = self.trained.first_overflow(&image, &pass)? {
                    bail!("the prediction is not finite, because the output of {layer} is not");
                }
                failed?
            }
        };
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
            prediction: way,
            samples: self.samples.unwrap_or(0),
        })
    }
}

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    let values = tensor.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}
