//! The loss as a function of the weight of one layer.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use vmf_candle::{ConvStack, Forward, Pass, Posterior, cross_entropy};

use crate::data::batches::Batch;
use crate::model::{Stage, VggConfig};
use crate::trained::Trained;

/// Computes the mean negative log-likelihood of fixed images for any weight of one layer.
///
/// The network runs in training mode with its noise off: each normalization uses the statistics of
/// the batch. The KL is not part of the loss, because it depends on sigma_eff alone and would raise
/// every point by the same amount.
///
/// The layers before the chosen one do not depend on its weight, so their outputs are computed
/// once. The probe works on copies: neither the weights nor the statistics of the trained network
/// change.
pub struct Probe {
    network: VggConfig,
    tensors: HashMap<String, Tensor>,
    weight: String,
    /// The layer and all convolutions after it.
    stages: Vec<Stage>,
    /// Inputs of the layer, with the labels.
    batches: Vec<(Tensor, Tensor)>,
    device: Device,
}

impl Probe {
    /// A probe of `layer` on these images.
    pub fn new(
        trained: &Trained,
        layer: &str,
        batches: impl Iterator<Item = Batch>,
    ) -> Result<Self> {
        let network = trained.config.network();
        let stages = network.stages()?;
        let names: Vec<String> = stages.iter().map(Stage::name).collect();
        let place = names.iter().position(|name| name == layer);
        let place = place.with_context(|| {
            format!(
                "{} has no layer {layer:?}; it has {}",
                trained.folder.display(),
                names.join(", ")
            )
        })?;
        let mut probe = Self {
            network,
            tensors: trained.tensors().into_iter().collect(),
            weight: format!("{layer}.weight"),
            stages: stages[place..].to_vec(),
            batches: Vec::new(),
            device: trained.device.clone(),
        };
        let before = probe.chain(&stages[..place], &probe.builder(None))?;
        for batch in batches {
            let (images, labels) = batch.into_tensors(&probe.device)?;
            let inputs = before.forward(&images, &Pass::train_noiseless())?;
            probe.batches.push((inputs, labels));
        }
        ensure!(!probe.batches.is_empty(), "a landscape needs images");
        Ok(probe)
    }

    /// The trained weight of the layer.
    pub fn weight(&self) -> Result<&Tensor> {
        let weight = self.tensors.get(&self.weight);
        weight.with_context(|| format!("there is no tensor {}", self.weight))
    }

    /// The loss with `weight` in place of the trained weight, or of the trained network if `None`.
    pub fn loss(&self, weight: Option<Tensor>) -> Result<f32> {
        let vb = self.builder(weight);
        let chain = self.chain(&self.stages, &vb)?;
        let classifier = self.network.classifier(&vb)?;
        let (mut sum, mut images) = (0.0, 0.0);
        for (inputs, labels) in &self.batches {
            let features = chain.forward(inputs, &Pass::train_noiseless())?;
            let logits = classifier.forward(&features.flatten_from(1)?)?;
            let nll = cross_entropy(&logits, labels)?.to_dtype(DType::F64)?;
            let count = labels.elem_count() as f64;
            sum += nll.to_scalar::<f64>()? * count;
            images += count;
        }
        Ok((sum / images) as f32)
    }

    fn chain(&self, stages: &[Stage], vb: &VarBuilder) -> Result<ConvStack> {
        // A pass updates running statistics, so each chain has layers of its own.
        self.network.chain(stages, &Posterior::new(), vb)
    }

    fn builder(&self, weight: Option<Tensor>) -> VarBuilder<'static> {
        let mut tensors = self.tensors.clone();
        if let Some(weight) = weight {
            tensors.insert(self.weight.clone(), weight);
        }
        VarBuilder::from_tensors(tensors, DType::F32, &self.device)
    }
}
