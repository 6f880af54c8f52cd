//! VGG (Simonyan and Zisserman, 2015) for 32x32 images, built from variational units.
//!
//! The network has stacks of 3x3 convolutions, each followed by batch normalization without scale
//! and shift, noise and ReLU; five max poolings, which reduce 32x32 to 1x1; and one linear
//! classifier. Tensors have the same names as in torchvision's `vgg16_bn`: a convolution is at
//! `features.0`, its normalization at `features.1`, and so on.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use vmf_candle::{ConvStack, Forward, Moments, Pass, Posterior, VmfConfig, vmf_conv2d};

use crate::limits;

/// Which of the four networks; the number is that of the layers with weights in the original.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// 8 convolutions.
    Vgg11,
    /// 10 convolutions.
    Vgg13,
    /// 13 convolutions; the network of the paper.
    #[default]
    Vgg16,
    /// 16 convolutions.
    Vgg19,
}

impl Depth {
    /// Number of convolutions before each of the five poolings.
    fn stacks(self) -> [usize; 5] {
        match self {
            Depth::Vgg11 => [1, 1, 2, 2, 2],
            Depth::Vgg13 => [2, 2, 2, 2, 2],
            Depth::Vgg16 => [2, 2, 3, 3, 3],
            Depth::Vgg19 => [2, 2, 4, 4, 4],
        }
    }
}

impl FromStr for Depth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim_start_matches("vgg") {
            "11" => Ok(Depth::Vgg11),
            "13" => Ok(Depth::Vgg13),
            "16" => Ok(Depth::Vgg16),
            "19" => Ok(Depth::Vgg19),
            _ => Err(format!("{text:?} is not one of vgg11, vgg13, vgg16, vgg19")),
        }
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Depth::Vgg11 => "vgg11",
            Depth::Vgg13 => "vgg13",
            Depth::Vgg16 => "vgg16",
            Depth::Vgg19 => "vgg19",
        })
    }
}

/// The configuration of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VggConfig {
    /// The depth.
    pub depth: Depth,
    /// Factor of all channel counts; 1 is the original.
    pub width: f64,
    /// Number of channels of the images.
    pub in_channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// sigma_eff of every unit before training.
    pub sigma: f64,
}

impl Default for VggConfig {
    fn default() -> Self {
        Self { depth: Depth::Vgg16, width: 1.0, in_channels: 3, classes: 10, sigma: 0.1 }
    }
}

/// Height and width of the images.
pub const IMAGE_SIZE: usize = 32;

/// Channels of the five stacks at full width.
const CHANNELS: [usize; 5] = [64, 128, 256, 512, 512];

/// One convolution of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its index in torchvision's list: its tensors are at `features.{index}`.
    pub index: usize,
    /// Number of input channels.
    pub inputs: usize,
    /// Number of output channels.
    pub outputs: usize,
    /// Height and width of its input.
    pub size: usize,
    /// Whether a pooling follows it.
    pub pool: bool,
}

impl Stage {
    /// The name of its layer, which is also the prefix of its tensors.
    pub fn name(&self) -> String {
        format!("features.{}", self.index)
    }
}

impl VggConfig {
    /// The convolutions, in order.
    pub fn stages(&self) -> Result<Vec<Stage>> {
        ensure!(
            self.width > 0.0 && self.width <= limits::WIDTH,
            "the width is {}; it multiplies the channels and must be positive and at most {}, such as 1 or 0.25",
            self.width,
            limits::WIDTH
        );
        let (mut stages, mut index) = (Vec::new(), 0);
        let (mut inputs, mut size) = (self.in_channels, IMAGE_SIZE);
        for (channels, count) in CHANNELS.into_iter().zip(self.depth.stacks()) {
            let outputs = ((channels as f64 * self.width).round() as usize).max(1);
            for place in 0..count {
                let pool = place + 1 == count;
                stages.push(Stage { index, inputs, outputs, size, pool });
                // Convolution, normalization, activation and pooling have an index each.
                index += 3 + usize::from(pool);
                inputs = outputs;
            }
            size /= 2;
        }
        Ok(stages)
    }

    /// Builds some convolutions of the network, with the poolings that follow them, as one chain.
    /// `vb` is the builder of the whole network.
    pub fn chain(
        &self,
        stages: &[Stage],
        posterior: &Posterior,
        vb: &VarBuilder,
    ) -> Result<ConvStack> {
        let mut chain = ConvStack::new();
        for stage in stages {
            let unit = VmfConfig::default()
                .relu()
                .sigma(self.sigma)
                .norm_at((stage.index + 1).to_string())
                .padding(1);
            let vb = vb.pp(stage.name());
            let unit = vmf_conv2d(stage.inputs, stage.outputs, 3, unit, posterior, vb)?;
            chain = chain.unit(unit);
            if stage.pool {
                chain = chain.max_pool(2);
            }
        }
        Ok(chain)
    }

    /// The names and shapes of the weights.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let stages = self.stages()?;
        let last = stages.last().context("a network has convolutions")?;
        let classifier = ("classifier.weight".into(), vec![self.classes, last.outputs]);
        let convolutions = stages.iter().map(|stage| {
            (format!("{}.weight", stage.name()), vec![stage.outputs, stage.inputs, 3, 3])
        });
        Ok(std::iter::once(classifier).chain(convolutions).collect())
    }

    /// The linear layer at the end of the network.
    pub fn classifier(&self, vb: &VarBuilder) -> Result<Linear> {
        let stages = self.stages()?;
        let last = stages.last().context("a network has convolutions")?;
        let linear = candle_nn::linear(last.outputs, self.classes, vb.pp("classifier"))?;
        Ok(linear)
    }

    /// Floating-point operations per image of a training step: the forward pass of each convolution
    /// and its two gradients, except for the gradient with respect to the images. Taps on the
    /// padding are counted.
    pub fn training_flops(&self) -> Result<f64> {
        let stages = self.stages()?;
        let flops = |stage: &Stage| {
            let positions = (stage.size * stage.size) as f64;
            2.0 * positions * (9 * stage.inputs * stage.outputs) as f64
        };
        let total: f64 = stages.iter().map(flops).sum();
        Ok(3.0 * total - flops(&stages[0]))
    }
}

/// A key that sorts the names of variables by their layers, from first to last.
pub fn layer_order(name: &str) -> (usize, String) {
    let index = name.strip_prefix("features.").and_then(|rest| rest.split('.').next());
    let index = index.and_then(|index| index.parse().ok());
    (index.unwrap_or(usize::MAX), name.into())
}

/// The names of variables by their layers, from first to last.
pub fn in_layer_order<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names: Vec<&String> = names.collect();
    names.sort_by_key(|name| layer_order(name));
    names
}

/// Whether all values of a tensor are finite.
pub fn is_finite(tensor: &Tensor) -> candle_core::Result<bool> {
    let values = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    Ok(values.iter().all(|value| value.is_finite()))
}

/// The network.
#[derive(Clone, Debug)]
pub struct Vgg {
    features: ConvStack,
    classifier: Linear,
}

impl Vgg {
    /// Builds the network and registers its units with the posterior.
    pub fn new(config: &VggConfig, posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let features = config.chain(&config.stages()?, posterior, &vb)?;
        let classifier = config.classifier(&vb)?;
        Ok(Self { features, classifier })
    }
}

impl Forward for Vgg {
    /// # Shapes
    /// From images (N, channels, 32, 32) to logits (N, classes).
    fn forward(&self, images: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        let features = self.features.forward(images, pass)?;
        self.classifier.forward(&features.flatten_from(1)?)
    }

    fn propagate(&self, images: &Moments) -> candle_core::Result<Moments> {
        let features = self.features.propagate(images)?;
        features.rearrange(|features| features.flatten_from(1))?.linear(&self.classifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_those_of_torchvision() -> Result<()> {
        let stages = VggConfig::default().stages()?;
        let indices: Vec<usize> = stages.iter().map(|stage| stage.index).collect();
        assert_eq!(indices, [0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40]);
        assert_eq!(stages[12].size, 2);
        assert!(stages[12].pool);
        let config = VggConfig { depth: Depth::Vgg11, ..Default::default() };
        let indices: Vec<usize> = config.stages()?.iter().map(|stage| stage.index).collect();
        assert_eq!(indices, [0, 4, 8, 11, 15, 18, 22, 25]);
        assert_eq!(VggConfig { width: 0.25, ..Default::default() }.stages()?[12].outputs, 128);
        assert!(VggConfig { width: 0.0, ..Default::default() }.stages().is_err());
        Ok(())
    }

    #[test]
    fn variables_are_sorted_by_layer_and_not_by_letter() {
        let names =
            ["classifier.bias", "features.14.rho", "features.4.weight", "features.0.weight"]
                .map(String::from);
        let sorted = in_layer_order(names.iter());
        assert_eq!(sorted, [&names[3], &names[2], &names[1], &names[0]]);
    }
}
