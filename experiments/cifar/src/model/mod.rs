//! The networks of the experiment, for images of 32x32, built from variational units: VGG and
//! residual networks, each convolution followed by batch normalization without scale and shift,
//! noise and ReLU; and a vision transformer.
//!
//! `--model` and `--width` choose one ([`Model`], [`NetworkConfig`]). It is a list of [`Part`]s
//! with names and sizes, from which the [`Network`] is built.

mod name;
mod network;
mod part;
mod vit;

pub use name::Model;
pub use network::{Features, Network};
pub use part::{IMAGE_SIZE, Layer, Part};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use serde::Serialize;

use crate::limits;

/// The configuration of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkConfig {
    /// Which network.
    pub model: Model,
    /// Factor of all channel counts; 1 is the original.
    pub width: f64,
    /// Number of channels of the images.
    pub in_channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// sigma_eff of every unit before training.
    pub sigma: f64,
    /// Whether a gain and a shift follow each normalization, as in most pretrained networks.
    pub affine: bool,
    /// Number of groups of channels of each layer with a sigma_eff of their own.
    pub sigma_groups: usize,
    /// Whether sigma_eff stays as it is.
    pub fixed_sigma: bool,
    /// Where its noise is.
    pub randomness: Randomness,
}

/// Where the noise of a network is, in passes with noise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Randomness {
    /// In its variational units.
    Units,
    /// In dropout at this rate, behind each pooling or block.
    Dropout(f64),
    /// In Gaussian weights.
    Weights,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            model: Model::Vgg16,
            width: 1.0,
            in_channels: 3,
            classes: 10,
            sigma: 0.1,
            affine: false,
            sigma_groups: 1,
            fixed_sigma: false,
            randomness: Randomness::Units,
        }
    }
}

impl NetworkConfig {
    /// The parts of the network, in order.
    pub fn parts(&self) -> Result<Vec<Part>> {
        ensure!(
            self.width > 0.0 && self.width <= limits::WIDTH,
            "the width is {}; it multiplies the channels and must be positive and at most {}, such as 1 or 0.25",
            self.width,
            limits::WIDTH
        );
        let (parts, _) = part::parts(self.model, self.width, self.in_channels);
        let weights: usize = parts.iter().flat_map(Part::layers).map(Layer::weights).sum();
        ensure!(
            weights <= limits::WEIGHTS,
            "{} of width {} has {weights} weights, and at most {} are allowed: lower the width",
            self.model,
            self.width,
            limits::WEIGHTS
        );
        Ok(parts)
    }

    /// The name of the linear layer at the end of the network.
    pub fn classifier_name(&self) -> &'static str {
        part::parts(self.model, self.width, self.in_channels).1
    }

    /// The number of features that the linear layer classifies.
    pub fn feature_count(&self) -> Result<usize> {
        Ok(self.parts()?.last().context("a network has convolutions")?.outputs())
    }

    /// The names and shapes of the weights.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let name = format!("{}.weight", self.classifier_name());
        let mut weights = vec![(name, vec![self.classes, self.feature_count()?])];
        for layer in self.parts()?.iter().flat_map(Part::layers) {
            weights.push((format!("{}.weight", layer.name), layer.weight_shape()));
        }
        Ok(weights)
    }

    /// Floating-point operations per image of a training step: the forward pass of each convolution
    /// and its two gradients, except for the gradient with respect to the images. Taps on the
    /// padding are counted; the products of attention are not.
    pub fn training_flops(&self) -> Result<f64> {
        let parts = self.parts()?;
        let layers: Vec<&Layer> = parts.iter().flat_map(Part::layers).collect();
        let total: f64 = layers.iter().map(|layer| layer.multiplications()).sum();
        Ok(2.0 * (3.0 * total - layers.first().map_or(0.0, |first| first.multiplications())))
    }
}

/// A key that sorts the names of variables by their layers, from first to last.
pub fn layer_order(name: &str) -> (usize, Vec<(usize, &str)>) {
    let components: Vec<(usize, &str)> =
        name.split('.').map(|part| (part.parse().unwrap_or(0), part)).collect();
    let first = components.first().map_or("", |(_, text)| *text);
    let place = match first {
        "features" | "conv1" | "bn1" | "patches" | "positions" => 0,
        "blocks" => 1,
        _ => first.strip_prefix("layer").and_then(|n| n.parse().ok()).unwrap_or(usize::MAX),
    };
    (place, components)
}

/// The names of variables by their layers, from first to last.
pub fn in_layer_order<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names: Vec<&String> = names.collect();
    names.sort_by(|a, b| layer_order(a).cmp(&layer_order(b)));
    names
}

/// Whether all values of a tensor are finite.
pub fn is_finite(tensor: &Tensor) -> candle_core::Result<bool> {
    let values = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    Ok(values.iter().all(|value| value.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_sorted_by_layer_and_not_by_letter() {
        let sorted = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            in_layer_order(names.iter()).into_iter().cloned().collect::<Vec<_>>()
        };
        let vgg = ["features.0.weight", "features.4.weight", "features.14.rho", "classifier.bias"];
        let names = [vgg[3], vgg[2], vgg[1], vgg[0]];
        assert_eq!(sorted(&names), vgg);
        let resnet =
            ["conv1.weight", "layer1.2.conv1.rho", "layer1.10.conv1.rho", "layer2.0.bn1.x"];
        let names = [resnet[3], resnet[1], "fc.bias", resnet[2], resnet[0]];
        assert_eq!(sorted(&names)[..4], resnet);
        assert_eq!(sorted(&names)[4], "fc.bias");
    }

    #[test]
    fn widths_that_cannot_be_built_are_refused() {
        let refused = |model, width| {
            NetworkConfig { model, width, ..Default::default() }.parts().unwrap_err().to_string()
        };
        assert!(refused(Model::Vgg16, 0.0).contains("the width is 0"));
        assert!(refused(Model::Resnet20, f64::NAN).contains("the width is NaN"));
        assert!(refused(Model::Resnet110, 16.0).contains("lower the width"));
        let wide = NetworkConfig { model: Model::Wrn28, width: 10.0, ..Default::default() };
        assert!(wide.parts().is_ok());
    }

    /// VGG16 at full width: 313 million multiplications, of which 1.8 million are the first
    /// layer's, whose inputs need no gradient.
    #[test]
    fn operations_are_those_of_three_passes() -> Result<()> {
        let flops = NetworkConfig::default().training_flops()?;
        let multiplications = 313_196_544.0 - 5_120.0 + 5_120.0;
        let first = 1024.0 * 27.0 * 64.0;
        assert_eq!(flops, 2.0 * (3.0 * multiplications - first));
        Ok(())
    }
}
