//! A small language model of variational units: trained, predicted with, saved.

mod common;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{Embedding, Linear, Optimizer, VarBuilder, VarMap};
use common::{largest_difference, named, values};
use vmf_candle::ops::rms_norm;
use vmf_candle::prelude::*;

const TOKENS: usize = 12;
const CLASSES: usize = 5;

struct Model {
    embedding: Embedding,
    blocks: Vec<TransformerBlock>,
    head: Linear,
}

impl Model {
    fn new(posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let config = TransformerConfig::new(16, 2).hidden(32).causal().rotary(TOKENS, 100.0);
        let block = |i| TransformerBlock::new(&config, posterior, vb.pp(format!("blocks.{i}")));
        Ok(Self {
            embedding: candle_nn::embedding(CLASSES, 16, vb.pp("embedding"))?,
            blocks: (0..2).map(block).collect::<Result<_>>()?,
            head: candle_nn::linear(16, CLASSES, vb.pp("head"))?,
        })
    }
}

impl Forward for Model {
    fn forward(&self, tokens: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut xs = self.embedding.forward(tokens)?;
        for block in &self.blocks {
            xs = block.forward(&xs, pass)?;
        }
        self.head.forward(&rms_norm(&xs, None, 1e-5)?)
    }
}

/// Sequences that count up by a step of their own, modulo the number of classes.
fn sequences(count: usize) -> Result<(Tensor, Tensor)> {
    let token = |i: usize| {
        let (sequence, place) = (i / (TOKENS + 1), i % (TOKENS + 1));
        ((sequence / CLASSES + place * (1 + sequence % (CLASSES - 1))) % CLASSES) as u32
    };
    let all: Vec<u32> = (0..count * (TOKENS + 1)).map(token).collect();
    let all = Tensor::from_vec(all, (count, TOKENS + 1), &Device::Cpu)?;
    Ok((all.narrow(1, 0, TOKENS)?.contiguous()?, all.narrow(1, 1, TOKENS)?.contiguous()?))
}

#[test]
fn a_small_language_model_learns_and_predicts() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = Model::new(&posterior, seeded(&vars, 1, DType::F32, &Device::Cpu))?;
    let (tokens, next) = sequences(40)?;
    let before: Vec<(String, Vec<f64>)> =
        named(&vars).iter().map(|(name, var)| (name.clone(), values(var))).collect();
    let config = AdamConfig { lr: 5e-3, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let examples = next.elem_count();
    for step in 0..120 {
        let logits = model.forward(&tokens, &Pass::train(1, step))?;
        assert_eq!(logits.dims(), [40, TOKENS, CLASSES]);
        let nll = cross_entropy(&logits, &next)?;
        let loss = Elbo::new(examples).beta(0.01).loss(&nll, &posterior)?;
        adam.backward_step(&loss.total)?;
    }
    // Every variable has learned; nothing in front of a normalization stayed where it was.
    for ((name, before), (_, after)) in before.iter().zip(named(&vars)) {
        if !name.ends_with("inherited_var") {
            assert_ne!(before, &values(&after), "{name} has not moved");
        }
    }
    let found = reestimate(&model, &posterior, [Ok(tokens.clone())])?;
    assert!(found.discrepancy.is_finite());
    for samples in [Samples::monte_carlo(8, 3), Samples::expected(&posterior), Samples::mean()] {
        let prediction = predict(&model, &tokens, samples)?;
        assert_eq!(prediction.probs.dims(), [40, TOKENS, CLASSES]);
        assert_eq!(prediction.entropy.dims(), [40, TOKENS]);
        let calibration = prediction.calibration(&next)?;
        assert_eq!(calibration.examples, 40 * TOKENS);
        // The first token does not tell the step: one in four of it, and all of the others.
        assert!(calibration.accuracy > 0.85, "{calibration}");
    }
    Ok(())
}

/// No output depends on later tokens.
#[test]
fn the_mask_is_causal() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = Model::new(&posterior, seeded(&vars, 1, DType::F32, &Device::Cpu))?;
    let (tokens, _) = sequences(2)?;
    let mut changed = tokens.to_vec2::<u32>()?;
    changed[0][7] = (changed[0][7] + 1) % CLASSES as u32;
    let changed = Tensor::new(changed, &Device::Cpu)?;
    let difference = |from: usize, count: usize| -> Result<f64> {
        let logits = |tokens: &Tensor| -> Result<Vec<f64>> {
            let logits = model.forward(tokens, &Pass::sample(1, 0))?;
            Ok(values(&logits.narrow(0, 0, 1)?.narrow(1, from, count)?))
        };
        Ok(largest_difference(&logits(&tokens)?, &logits(&changed)?))
    };
    assert_eq!(difference(0, 7)?, 0.0);
    assert!(difference(7, 5)? > 1e-3);
    Ok(())
}

/// Folded samples see the noise of samples one by one.
#[test]
fn samples_can_be_folded() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = Model::new(&posterior, seeded(&vars, 1, DType::F32, &Device::Cpu))?;
    let (tokens, _) = sequences(3)?;
    let pass = Pass::folded(5, 0, 2);
    let folded = model.forward(&pass.repeat(&tokens)?, &pass)?;
    for k in 0..2 {
        let one = values(&model.forward(&tokens, &Pass::sample(5, k as u32))?);
        let part = values(&folded.narrow(0, 3 * k, 3)?);
        assert!(largest_difference(&one, &part) < 1e-5);
    }
    Ok(())
}
