//! The networks with their weights.

use anyhow::Result;
use candle_core::Tensor;
use candle_nn::{Linear, Module, VarBuilder};
use vmf_candle::posterior::stream_of;
use vmf_candle::{
    ConvStack, Forward, Moments, Pass, Posterior, VmfConfig, VmfConv2d, ops, vmf_conv2d,
};

use super::vit::Tokens;
use super::{Layer, NetworkConfig, Part, Randomness};
use crate::methods::dropout::Dropout;
use crate::methods::mean_field::{GaussianConv, Gaussians};

/// Parts of a network one after the other.
#[derive(Clone, Debug)]
pub struct Features {
    stages: Vec<Stage>,
    /// The variational parameters of Gaussian weights, if it has such.
    gaussians: Gaussians,
    /// Whether its units add no noise, because dropout does.
    is_quiet: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Units(ConvStack),
    /// A convolution with Gaussian weights, and whether pooling follows.
    Gaussian(Box<GaussianConv>, bool),
    Residual(Box<Block>),
    Tokens(Box<Tokens>),
    Dropout(Dropout),
}

/// A basic block of a residual network.
#[derive(Clone, Debug)]
struct Block {
    first: Conv,
    second: Conv,
    projection: Option<Conv>,
}

/// A convolution with its normalization.
#[derive(Clone, Debug)]
enum Conv {
    Unit(Box<VmfConv2d>),
    Gaussian(GaussianConv),
}

impl Conv {
    fn forward(
        &self,
        xs: &Tensor,
        skip: Option<&Tensor>,
        pass: &Pass,
    ) -> candle_core::Result<Tensor> {
        match (self, skip) {
            (Conv::Unit(unit), None) => unit.forward(xs, pass),
            (Conv::Unit(unit), Some(skip)) => unit.forward_residual(xs, skip, pass),
            (Conv::Gaussian(conv), skip) => conv.forward(xs, skip, pass),
        }
    }

    fn propagate(&self, xs: &Moments, skip: Option<&Moments>) -> candle_core::Result<Moments> {
        match (self, skip) {
            (Conv::Unit(unit), None) => unit.propagate(xs),
            (Conv::Unit(unit), Some(skip)) => unit.propagate_residual(xs, skip),
            (Conv::Gaussian(_), _) => no_moments(),
        }
    }
}

/// Only variational units can hand on means and variances.
fn no_moments() -> candle_core::Result<Moments> {
    candle_core::bail!("this network's noise is not in variational units: predict with samples")
}

impl NetworkConfig {
    /// Builds some parts of the network. `vb` is the builder of the whole network.
    pub fn features(
        &self,
        parts: &[Part],
        posterior: &Posterior,
        vb: &VarBuilder,
    ) -> Result<Features> {
        let unit = |layer: &Layer, relu: bool| -> Result<VmfConv2d> {
            let unit = VmfConfig::default()
                .sigma(self.sigma)
                .sigma_groups(self.sigma_groups)
                .norm_at(&layer.norm)
                .padding(layer.kernel / 2)
                .stride(layer.stride);
            let unit = if relu { unit.relu() } else { unit };
            let unit = if self.affine { unit.affine() } else { unit };
            let unit = if self.fixed_sigma { unit.frozen() } else { unit };
            let (vb, &Layer { inputs, outputs, kernel, .. }) = (vb.pp(&layer.name), layer);
            Ok(vmf_conv2d(inputs, outputs, kernel, unit, posterior, vb)?)
        };
        let gaussians = Gaussians::default();
        let gaussian =
            |layer: &Layer, relu: bool| GaussianConv::new(layer, relu, self.sigma, &gaussians, vb);
        let has_gaussians = self.randomness == Randomness::Weights;
        let conv = |layer: &Layer, relu: bool| -> Result<Conv> {
            Ok(match has_gaussians {
                true => Conv::Gaussian(gaussian(layer, relu)?),
                false => Conv::Unit(Box::new(unit(layer, relu)?)),
            })
        };
        let mut stages = Vec::new();
        for part in parts {
            match part {
                Part::Unit { layer, pool } if has_gaussians => {
                    stages.push(Stage::Gaussian(Box::new(gaussian(layer, true)?), *pool));
                }
                Part::Unit { layer, pool } => {
                    let chain = match stages.pop() {
                        Some(Stage::Units(chain)) => chain,
                        other => {
                            stages.extend(other);
                            ConvStack::new()
                        }
                    };
                    let chain = chain.unit(unit(layer, true)?);
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
            if let Randomness::Dropout(rate) = self.randomness
                && !matches!(part, Part::Unit { pool: false, .. } | Part::Patches { .. })
            {
                let stream = stream_of(&format!("{}.dropout", part.name()));
                stages.push(Stage::Dropout(Dropout::new(rate, stream)));
            }
        }
        let is_quiet = matches!(self.randomness, Randomness::Dropout(_));
        Ok(Features { stages, gaussians, is_quiet })
    }

    /// The linear layer at the end of the network, behind the mean over all positions.
    pub fn classifier(&self, vb: &VarBuilder) -> Result<Classifier> {
        let (name, features) = (self.classifier_name(), self.feature_count()?);
        Ok(Classifier { linear: candle_nn::linear(features, self.classes, vb.pp(name))? })
    }
}

impl Forward for Features {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        let of_units = if self.is_quiet { &pass.without_noise() } else { pass };
        self.stages.iter().try_fold(xs.clone(), |xs, stage| match stage {
            Stage::Units(chain) => chain.forward(&xs, of_units),
            Stage::Gaussian(conv, false) => conv.forward(&xs, None, pass),
            Stage::Gaussian(conv, true) => {
                ops::max_pool2d(&conv.forward(&xs, None, pass)?, 2, 2, 0)
            }
            Stage::Residual(block) => block.forward(&xs, of_units),
            Stage::Tokens(tokens) => tokens.forward(&xs, of_units),
            Stage::Dropout(dropout) => dropout.forward(&xs, pass),
        })
    }

    fn propagate(&self, xs: &Moments) -> candle_core::Result<Moments> {
        self.stages.iter().try_fold(xs.clone(), |xs, stage| match stage {
            Stage::Units(chain) => chain.propagate(&xs),
            Stage::Residual(block) => block.propagate(&xs),
            Stage::Tokens(tokens) => tokens.propagate(&xs),
            Stage::Gaussian(..) | Stage::Dropout(_) => no_moments(),
        })
    }
}

impl Forward for Block {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        let skip = match &self.projection {
            Some(projection) => projection.forward(xs, None, pass)?,
            None => xs.clone(),
        };
        self.second.forward(&self.first.forward(xs, None, pass)?, Some(&skip), pass)
    }

    fn propagate(&self, xs: &Moments) -> candle_core::Result<Moments> {
        let skip = match &self.projection {
            Some(projection) => projection.propagate(xs, None)?,
            None => xs.clone(),
        };
        self.second.propagate(&self.first.propagate(xs, None)?, Some(&skip))
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

    /// The variational parameters of its weights, if those are Gaussian.
    pub fn gaussians(&self) -> &Gaussians {
        &self.features.gaussians
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
