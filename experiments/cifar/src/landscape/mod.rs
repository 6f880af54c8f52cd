//! The loss around the trained weights of one layer, compared with what the posterior claims.
//!
//! The paper visits two families of weights ([`family`]), measures the training loss at each with
//! batch statistics and noise off ([`probe`]), and compares it with `kappa (1 - cos theta)`, the
//! energy of a von Mises-Fisher distribution. Here the comparison is also made in numbers
//! ([`shape`]).

pub mod draw;
pub mod family;
pub mod measure;
pub mod probe;
pub mod shape;

use serde::{Deserialize, Serialize};
use vmf_candle::posterior::LayerSummary;

use crate::trained::Trained;
use family::Family;
use shape::Agreement;

/// The numbers of a landscape, as landscape.json keeps them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The layer.
    pub layer: String,
    /// Number of inputs per unit, the D of the formulas.
    pub dim: usize,
    /// Number of units of the layer.
    pub units: usize,
    /// Number of epochs that the network was trained for.
    pub epoch: u64,
    /// Number of training images that the loss was measured on.
    pub images: usize,
    /// Number of images per batch, which are normalized together.
    pub batch: usize,
    /// Number of points along each coordinate.
    pub points: usize,
    /// Seed of the choice of images and of the random directions.
    pub seed: u64,
    /// The loss of the trained network in the same mode, in nats per image.
    pub loss: f64,
    /// What the posterior claims; absent if the network has no noise.
    pub posterior: Option<Claimed>,
    /// `w' = y w + x r`.
    #[serde(rename = "1d")]
    pub one_direction: Agreement,
    /// `w' = w + a r1 + b r2`.
    #[serde(rename = "2d")]
    pub two_directions: Agreement,
}

/// What the posterior of the layer claims about the loss around its mean direction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Claimed {
    /// The sigma_eff of the layer.
    pub sigma_eff: f64,
    /// The concentration that corresponds to it.
    pub kappa: f64,
    /// `beta M kappa / N`: this is the optimal posterior if the loss per image is this number
    /// times `1 - cos theta`. Absent if the KL had no weight in training.
    ///
    /// The optimum of `loss + beta KL / N` is the density `exp(-N loss / beta)`, and each of the
    /// layer's M filters adds `kappa (1 - cos theta)` to its negative logarithm.
    pub slope: Option<f64>,
}

impl Claimed {
    /// The claim of a layer that was trained on `images` images, or `None` without noise.
    pub fn of(trained: &Trained, learned: &LayerSummary, images: usize) -> Option<Self> {
        let slope = trained.beta() * learned.units as f64 * learned.kappa / images as f64;
        let is_noisy = trained.config.settings.method.is_noisy();
        is_noisy.then(|| Self {
            sigma_eff: learned.sigma_eff(),
            kappa: learned.kappa,
            slope: (slope > 0.0).then_some(slope),
        })
    }
}

impl Findings {
    fn agreement(&self, family: Family) -> &Agreement {
        match family {
            Family::OneDirection => &self.one_direction,
            Family::TwoDirections => &self.two_directions,
        }
    }
}
