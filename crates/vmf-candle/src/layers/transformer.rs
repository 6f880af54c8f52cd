//! A transformer block of variational units.

use super::config::{Norm, VmfConfig};
use super::linear::{VmfLinear, vmf_linear};
use crate::error::check_setting;
use crate::ops::{Rotary, attention};
use crate::pass::{Forward, Pass};
use crate::posterior::Posterior;
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// The settings of a [`TransformerBlock`].
#[derive(Clone, Debug)]
pub struct TransformerConfig {
    width: usize,
    heads: usize,
    hidden: usize,
    causal: bool,
    rotary: Option<(usize, f64)>,
    unit: VmfConfig,
}

impl TransformerConfig {
    /// For tokens of `width` channels and so many heads, without a causal mask and without rotary
    /// embedding; the hidden layer has `8 / 3 width` units, rounded up to a multiple of 16.
    pub fn new(width: usize, heads: usize) -> Self {
        let hidden = (8 * width).div_ceil(3).next_multiple_of(16);
        Self { width, heads, hidden, causal: false, rotary: None, unit: VmfConfig::default() }
    }

    /// The number of units of the hidden layer.
    pub fn hidden(self, hidden: usize) -> Self {
        Self { hidden, ..self }
    }

    /// No token sees a later one: for language models.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// Rotary position embedding for sequences of up to `tokens` tokens. The customary base is
    /// 10,000.
    pub fn rotary(self, tokens: usize, base: f64) -> Self {
        Self { rotary: Some((tokens, base)), ..self }
    }

    /// What all units of the block have in common, such as their initial sigma_eff. Their
    /// normalizations and activations are those of the block.
    pub fn unit(self, unit: VmfConfig) -> Self {
        Self { unit, ..self }
    }
}

/// A transformer block of variational units, in the style of OLMo 2 and Gemma 2: queries and keys
/// are normalized, and so is the output of each sublayer before it is added to the stream.
///
/// ```text
/// q, k = rotary(RMS(Wq x)), rotary(RMS(Wk x))      D = width,  M = width each
/// v    = Wv x                                      D = width,  M = width
/// x   <- x + RMS(Wo attention(q, k, v))            D = width,  M = width
/// x   <- x + RMS(Wd (silu(Wg x) * (Wu x)))         Wg, Wu: D = width, M = hidden; Wd: D = hidden, M = width
/// ```
///
/// `Wq`, `Wk`, `Wo` and `Wd` stand right in front of a normalization, and their noise behind it,
/// before the gain. Nothing normalizes what `Wv`, `Wg` and `Wu` make: they are units with
/// [`Norm::None`], whose noise is relative to the RMS of their outputs. The RMS normalizations have
/// a gain per channel, and no shift.
///
/// # Shapes
/// (N, T, width), input and output.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::VarMap;
/// use vmf_candle::prelude::*;
/// # let (vars, posterior) = (VarMap::new(), Posterior::new());
/// # let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
/// let config = TransformerConfig::new(32, 4).causal().rotary(64, 10_000.0);
/// let block = TransformerBlock::new(&config, &posterior, vb.pp("blocks.0"))?;
/// let xs = Tensor::randn(0f32, 1.0, (2, 10, 32), &Device::Cpu)?;
/// assert_eq!(block.forward(&xs, &Pass::train(1, 0))?.dims(), [2, 10, 32]);
/// assert_eq!(posterior.len(), 7);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    heads: usize,
    causal: bool,
    rotary: Option<Rotary>,
    query: VmfLinear,
    key: VmfLinear,
    value: VmfLinear,
    output: VmfLinear,
    gate: VmfLinear,
    up: VmfLinear,
    down: VmfLinear,
}

impl TransformerBlock {
    /// Builds a block at the builder's path, and registers its seven layers with the posterior.
    pub fn new(config: &TransformerConfig, posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let TransformerConfig { width, heads, hidden, causal, .. } = *config;
        let valid = heads > 0 && width > 0 && width.is_multiple_of(heads);
        check_setting(valid, "the number of heads", heads, "it must divide the width of a block")?;
        let rotary = match config.rotary {
            Some((tokens, base)) => Some(Rotary::new(tokens, width / heads, base, vb.device())?),
            None => None,
        };
        let plain = || config.unit.clone().norm(Norm::None);
        let normed = || config.unit.clone().norm(Norm::Rms).affine();
        let linear = |name: &str, inputs: usize, outputs: usize, unit: VmfConfig| {
            vmf_linear(inputs, outputs, unit, posterior, vb.pp(name))
        };
        Ok(Self {
            heads,
            causal,
            rotary,
            query: linear("attention.query", width, width, normed())?,
            key: linear("attention.key", width, width, normed())?,
            value: linear("attention.value", width, width, plain())?,
            output: linear("attention.output", width, width, normed())?,
            gate: linear("mlp.gate", width, hidden, plain().silu())?,
            up: linear("mlp.up", width, hidden, plain())?,
            down: linear("mlp.down", hidden, width, normed())?,
        })
    }

    fn turned(&self, xs: Tensor) -> Result<Tensor> {
        match &self.rotary {
            Some(rotary) => rotary.apply_to_heads(&xs),
            None => Ok(xs),
        }
    }
}

impl Forward for TransformerBlock {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let q = self.turned(self.query.forward(xs, pass)?)?;
        let k = self.turned(self.key.forward(xs, pass)?)?;
        let v = self.value.forward(xs, pass)?;
        let mixed = attention([&q, &k, &v], self.heads, self.causal)?;
        let xs = (xs + self.output.forward(&mixed, pass)?)?;
        let hidden = (self.gate.forward(&xs, pass)? * self.up.forward(&xs, pass)?)?;
        &xs + self.down.forward(&hidden, pass)?
    }
}
