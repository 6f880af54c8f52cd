//! The same network built from Candle's own operations, to compare speeds.
//!
//! It is for timing only: Candle's gradient of max pooling is wrong, and its noise cannot be seeded.

use crate::model::VggConfig;
use anyhow::Result;
use candle_core::Tensor;
use candle_nn::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, Module, ModuleT, VarBuilder,
};

pub(super) struct StockVgg {
    units: Vec<(Conv2d, BatchNorm, bool)>,
    classifier: Linear,
    sigma: f64,
}

impl StockVgg {
    pub(super) fn new(config: &VggConfig, vb: VarBuilder) -> Result<Self> {
        let (convolution, normalization) = (
            Conv2dConfig { padding: 1, ..Default::default() },
            BatchNormConfig { affine: false, ..Default::default() },
        );
        let stages = config.stages()?;
        let units = stages.iter().map(|stage| {
            let vb = vb.pp(stage.index);
            let conv =
                candle_nn::conv2d_no_bias(stage.inputs, stage.outputs, 3, convolution, vb.clone())?;
            let norm = candle_nn::batch_norm(stage.outputs, normalization, vb.pp("norm"))?;
            Ok((conv, norm, stage.pool))
        });
        let units = units.collect::<candle_core::Result<Vec<_>>>()?;
        let inputs = stages.last().map_or(0, |stage| stage.outputs);
        let classifier = candle_nn::linear(inputs, config.classes, vb.pp("classifier"))?;
        Ok(Self { units, classifier, sigma: config.sigma })
    }

    pub(super) fn forward(
        &self,
        images: &Tensor,
        train: bool,
        noise: bool,
    ) -> candle_core::Result<Tensor> {
        let mut xs = images.clone();
        for (conv, norm, pool) in &self.units {
            xs = conv.forward(&xs)?;
            xs = norm.forward_t(&xs, train)?;
            if noise {
                xs = (&xs + (xs.randn_like(0.0, 1.0)? * self.sigma)?)?;
            }
            xs = xs.relu()?;
            if *pool {
                xs = xs.max_pool2d(2)?;
            }
        }
        self.classifier.forward(&xs.flatten_from(1)?)
    }
}
