//! The same network built from Candle's own operations, to compare speeds.
//!
//! It is for timing only: Candle's gradient of max pooling is wrong, and its noise cannot be
//! seeded.

use crate::model::{Layer, NetworkConfig, Part};
use anyhow::{Result, bail};
use candle_core::Tensor;
use candle_nn::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, Module, ModuleT, VarBuilder,
};

pub(super) struct StockNetwork {
    parts: Vec<StockPart>,
    classifier: Linear,
}

enum StockPart {
    Unit(StockUnit, bool),
    Residual(Box<StockBlock>),
}

/// A basic block of a residual network.
struct StockBlock {
    first: StockUnit,
    second: StockUnit,
    projection: Option<StockUnit>,
}

/// A convolution with its normalization.
struct StockUnit {
    conv: Conv2d,
    norm: BatchNorm,
    sigma: f64,
}

/// How the network is run.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    pub(super) train: bool,
    pub(super) noise: bool,
}

impl StockUnit {
    fn new(layer: &Layer, network: &NetworkConfig, vb: &VarBuilder) -> Result<Self> {
        let Layer { inputs, outputs, kernel, stride, .. } = *layer;
        let config = Conv2dConfig { padding: kernel / 2, stride, ..Default::default() };
        let vb = vb.pp(&layer.name);
        let conv = candle_nn::conv2d_no_bias(inputs, outputs, kernel, config, vb.clone())?;
        let config = BatchNormConfig { affine: network.affine, ..Default::default() };
        let norm = candle_nn::batch_norm(outputs, config, vb.pp("norm"))?;
        Ok(Self { conv, norm, sigma: network.sigma })
    }

    fn forward(&self, xs: &Tensor, Mode { train, noise }: Mode) -> candle_core::Result<Tensor> {
        let xs = self.norm.forward_t(&self.conv.forward(xs)?, train)?;
        if noise { &xs + (xs.randn_like(0.0, 1.0)? * self.sigma)? } else { Ok(xs) }
    }
}

impl StockNetwork {
    pub(super) fn new(config: &NetworkConfig, vb: VarBuilder) -> Result<Self> {
        let unit = |layer: &Layer| StockUnit::new(layer, config, &vb);
        let parts = config.parts()?;
        let parts = parts.iter().map(|part| match part {
            Part::Unit { layer, pool } => Ok(StockPart::Unit(unit(layer)?, *pool)),
            Part::Residual { first, second, projection, .. } => {
                let projection = projection.as_ref().map(&unit).transpose()?;
                let (first, second) = (unit(first)?, unit(second)?);
                Ok(StockPart::Residual(Box::new(StockBlock { first, second, projection })))
            }
            // Candle's own layer and RMS normalizations and its softmax have no gradients.
            Part::Patches { .. } | Part::Transformer { .. } => {
                bail!("a transformer of Candle's own layers does not train: there is nothing to compare with, so leave out the comparison with stock layers")
            }
        });
        let parts = parts.collect::<Result<_>>()?;
        let features = config.feature_count()?;
        let classifier = candle_nn::linear(features, config.classes, vb.pp("classifier"))?;
        Ok(Self { parts, classifier })
    }

    pub(super) fn forward(&self, images: &Tensor, mode: Mode) -> candle_core::Result<Tensor> {
        let mut xs = images.clone();
        for part in &self.parts {
            xs = match part {
                StockPart::Unit(unit, pool) => {
                    let xs = unit.forward(&xs, mode)?.relu()?;
                    if *pool { xs.max_pool2d(2)? } else { xs }
                }
                StockPart::Residual(block) => {
                    let StockBlock { first, second, projection } = &**block;
                    let ys = second.forward(&first.forward(&xs, mode)?.relu()?, mode)?;
                    let skip = match projection {
                        Some(projection) => projection.forward(&xs, mode)?,
                        None => xs,
                    };
                    (ys + skip)?.relu()?
                }
            };
        }
        self.classifier.forward(&xs.flatten_from(2)?.mean(2)?)
    }
}
