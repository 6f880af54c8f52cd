//! The loss as a function of the weight of one layer.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use vmf_candle::{Forward, Pass, Posterior, cross_entropy};

use crate::data::batches::Batch;
use crate::model::{Features, NetworkConfig, Part};
use crate::trained::Trained;

/// Computes the mean negative log-likelihood of fixed images for any weight of one layer.
///
/// The network runs in training mode with its noise off: each normalization uses the statistics of
/// the batch. The KL is not part of the loss, because it depends on sigma_eff alone and would raise
/// every point by the same amount.
///
/// The parts before that of the chosen layer do not depend on its weight, so their outputs are computed
/// once. The probe works on copies: neither the weights nor the statistics of the trained network
/// change.
pub struct Probe {
    network: NetworkConfig,
    tensors: HashMap<String, Tensor>,
    weight: String,
    /// The part with the layer, and all parts after it.
    parts: Vec<Part>,
    /// Inputs of that part, with the labels.
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
        let parts = network.parts()?;
        let names = |part: &Part| part.layers().iter().map(|l| l.name.clone()).collect::<Vec<_>>();
        let place = parts.iter().position(|part| names(part).iter().any(|name| name == layer));
        let place = place.with_context(|| {
            format!(
                "{} has no layer {layer:?}; it has {}",
                trained.folder.display(),
                parts.iter().flat_map(names).collect::<Vec<_>>().join(", ")
            )
        })?;
        let mut probe = Self {
            network,
            tensors: trained.tensors().into_iter().collect(),
            weight: format!("{layer}.weight"),
            parts: parts[place..].to_vec(),
            batches: Vec::new(),
            device: trained.device.clone(),
        };
        let before = probe.features(&parts[..place], &probe.builder(None))?;
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
        let after = self.features(&self.parts, &vb)?;
        let classifier = self.network.classifier(&vb)?;
        let (mut sum, mut images) = (0.0, 0.0);
        for (inputs, labels) in &self.batches {
            let features = after.forward(inputs, &Pass::train_noiseless())?;
            let logits = classifier.forward(&features)?;
            let nll = cross_entropy(&logits, labels)?.to_dtype(DType::F64)?;
            let count = labels.elem_count() as f64;
            sum += nll.to_scalar::<f64>()? * count;
            images += count;
        }
        Ok((sum / images) as f32)
    }

    fn features(&self, parts: &[Part], vb: &VarBuilder) -> Result<Features> {
        // A pass updates running statistics, so each piece has layers of its own.
        self.network.features(parts, &Posterior::new(), vb)
    }

    fn builder(&self, weight: Option<Tensor>) -> VarBuilder<'static> {
        let mut tensors = self.tensors.clone();
        if let Some(weight) = weight {
            tensors.insert(self.weight.clone(), weight);
        }
        VarBuilder::from_tensors(tensors, DType::F32, &self.device)
    }
}
