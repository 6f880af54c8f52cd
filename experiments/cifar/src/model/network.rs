//! The networks with their weights.

use anyhow::Result;
use candle_core::Tensor;
use candle_nn::{Linear, Module, VarBuilder};
use vmf_candle::{
    ConvStack, Forward, Moments, Pass, Posterior, VmfConfig, VmfConv2d, ops, vmf_conv2d,
};

use super::vit::Tokens;
use super::{Layer, NetworkConfig, Part};

/// Parts of a network one after the other.
#[derive(Clone, Debug)]
pub struct Features {
    stages: Vec<Stage>,
}

#[derive(Clone, Debug)]
enum Stage {
    Units(ConvStack),
    Residual(Box<Block>),
    Tokens(Box<Tokens>),
}

/// A basic block of a residual network.
#[derive(Clone, Debug)]
struct Block {
    first: VmfConv2d,
    second: VmfConv2d,
    projection: Option<VmfConv2d>,
}

impl NetworkConfig {
    /// Builds some parts of the network. `vb` is the builder of the whole network.
    pub fn features(
        &self,
        parts: &[Part],
        posterior: &Posterior,
        vb: &VarBuilder,
    ) -> Result<Features> {
        let conv = |layer: &Layer, relu: bool| -> Result<VmfConv2d> {
            let unit = VmfConfig::default()
                .sigma(self.sigma)
                .norm_at(&layer.norm)
                .padding(layer.kernel / 2)
                .stride(layer.stride);
            let unit = if relu { unit.relu() } else { unit };
            let unit = if self.affine { unit.affine() } else { unit };
            let (vb, &Layer { inputs, outputs, kernel, .. }) = (vb.pp(&layer.name), layer);
            Ok(vmf_conv2d(inputs, outputs, kernel, unit, posterior, vb)?)
        };
        let mut stages = Vec::new();
        for part in parts {
            match part {
                Part::Unit { layer, pool } => {
                    let chain = match stages.pop() {
                        Some(Stage::Units(chain)) => chain,
                        other => {
                            stages.extend(other);
                            ConvStack::new()
                        }
                    };
                    let chain = chain.unit(conv(layer, true)?);
                    stages.push(Stage::Units(if *pool { chain.max_pool(2) } else { chain }));
                }
                Part::Residual { first, second, projection, .. } => {
                    let (first, second) = (conv(first, true)?, conv(second, true)?);
                    let projection = projection.as_ref().map(|layer| conv(layer, false));
                    let projection = projection.transpose()?;
                    stages.push(Stage::Residual(Box::new(Block { first, second, projection })));
                }
                Part::Patches { .. } | Part::Transformer { .. } => {
                    let tokens = Tokens::new(part, self.sigma, posterior, vb)?;
                    stages.push(Stage::Tokens(Box::new(tokens)));
                }
            }
        }
        Ok(Features { stages })
    }

    /// The linear layer at the end of the network, behind the mean over all positions.
    pub fn classifier(&self, vb: &VarBuilder) -> Result<Classifier> {
        let (name, features) = (self.classifier_name(), self.feature_count()?);
        Ok(Classifier { linear: candle_nn::linear(features, self.classes, vb.pp(name))? })
    }
}

impl Forward for Features {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        self.stages.iter().try_fold(xs.clone(), |xs, stage| match stage {
            Stage::Units(chain) => chain.forward(&xs, pass),
            Stage::Residual(block) => block.forward(&xs, pass),
            Stage::Tokens(tokens) => tokens.forward(&xs, pass),
        })
    }

    fn propagate(&self, xs: &Moments) -> candle_core::Result<Moments> {
        self.stages.iter().try_fold(xs.clone(), |xs, stage| match stage {
            Stage::Units(chain) => chain.propagate(&xs),
            Stage::Residual(block) => block.propagate(&xs),
            Stage::Tokens(tokens) => tokens.propagate(&xs),
        })
    }
}

impl Forward for Block {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        let skip = match &self.projection {
            Some(projection) => projection.forward(xs, pass)?,
            None => xs.clone(),
        };
        self.second.forward_residual(&self.first.forward(xs, pass)?, &skip, pass)
    }

    fn propagate(&self, xs: &Moments) -> candle_core::Result<Moments> {
        let skip = match &self.projection {
            Some(projection) => projection.propagate(xs)?,
            None => xs.clone(),
        };
        self.second.propagate_residual(&self.first.propagate(xs)?, &skip)
    }
}

/// The mean over all positions, or over normalized tokens, and a linear layer.
#[derive(Clone, Debug)]
pub struct Classifier {
    linear: Linear,
}

impl Module for Classifier {
    fn forward(&self, features: &Tensor) -> candle_core::Result<Tensor> {
        let features = match *features.dims() {
            [_, _, _] => ops::rms_norm(features, None, 1e-5)?.mean(1)?,
            [_, _, 1, 1] => features.flatten_from(1)?,
            _ => ops::mean_over_positions(features)?,
        };
        self.linear.forward(&features)
    }
}

impl Classifier {
    fn propagate(&self, features: &Moments) -> candle_core::Result<Moments> {
        features.mean_over((2, 3))?.linear(&self.linear)
    }
}

/// A network.
#[derive(Clone, Debug)]
pub struct Network {
    features: Features,
    classifier: Classifier,
}

impl Network {
    /// Builds the network and registers its units with the posterior.
    pub fn new(config: &NetworkConfig, posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let features = config.features(&config.parts()?, posterior, &vb)?;
        let classifier = config.classifier(&vb)?;
        Ok(Self { features, classifier })
    }
}

impl Forward for Network {
    /// # Shapes
    /// From images (N, channels, 32, 32) to logits (N, classes).
    fn forward(&self, images: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        self.classifier.forward(&self.features.forward(images, pass)?)
    }

    fn propagate(&self, images: &Moments) -> candle_core::Result<Moments> {
        self.classifier.propagate(&self.features.propagate(images)?)
    }
}

#[cfg(test)]
mod tests;
