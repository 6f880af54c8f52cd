//! A vision transformer (Dosovitskiy et al., 2021) for 32x32 images, of variational units.
//!
//! The image is cut into 8x8 patches of 4x4 pixels. A linear layer with RMS normalization makes a
//! token of each, to which a learned vector for its position is added. Blocks in the style of
//! OLMo 2 follow ([`TransformerBlock`]), and the mean over the tokens, after
//! an RMS normalization, is classified.

use anyhow::{Result, bail};
use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};
use vmf_candle::{
    Forward, Norm, Pass, Posterior, TransformerBlock, TransformerConfig, VmfConfig, VmfLinear,
    vmf_linear,
};

use super::part::{IMAGE_SIZE, Layer, Part};

/// Height and width of a patch.
const PATCH: usize = 4;
/// Height and width of an image in patches.
const PATCHES: usize = IMAGE_SIZE / PATCH;

/// The parts of the network.
pub(super) fn parts(heads: usize, head: usize, blocks: usize, channels: usize) -> Vec<Part> {
    let width = heads * head;
    let hidden = (8 * width).div_ceil(3).next_multiple_of(16);
    let linear = |name: String, inputs: usize, outputs: usize| Layer {
        name,
        norm: "norm".into(),
        inputs,
        outputs,
        kernel: 0,
        stride: 1,
        size: PATCHES,
    };
    let layer = linear("patches".into(), channels * PATCH * PATCH, width);
    let block = |number: usize| {
        let name = format!("blocks.{number}");
        let layers = [
            ("attention.query", width, width),
            ("attention.key", width, width),
            ("attention.value", width, width),
            ("attention.output", width, width),
            ("mlp.gate", width, hidden),
            ("mlp.up", width, hidden),
            ("mlp.down", hidden, width),
        ];
        let layer = |(layer, inputs, outputs): (&str, usize, usize)| {
            linear(format!("{name}.{layer}"), inputs, outputs)
        };
        Part::Transformer { layers: layers.map(layer).to_vec(), heads, name }
    };
    std::iter::once(Part::Patches { layer }).chain((0..blocks).map(block)).collect()
}

/// A part of the network with its weights.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "networks keep it in a box as a whole")]
pub(super) enum Tokens {
    /// From images (N, channels, 32, 32) to tokens (N, 64, width).
    Patches { unit: VmfLinear, positions: Tensor },
    /// From tokens to tokens.
    Block(TransformerBlock),
}

impl Tokens {
    /// Builds a part. `vb` is the builder of the whole network.
    pub(super) fn new(
        part: &Part,
        sigma: f64,
        posterior: &Posterior,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let unit = VmfConfig::default().sigma(sigma);
        match part {
            Part::Patches { layer } => {
                let (inputs, outputs) = (layer.inputs, layer.outputs);
                let unit = unit.norm(Norm::Rms).affine();
                let unit = vmf_linear(inputs, outputs, unit, posterior, vb.pp(&layer.name))?;
                let init = Init::Randn { mean: 0.0, stdev: 0.02 };
                let positions =
                    vb.get_with_hints((PATCHES * PATCHES, outputs), "positions", init)?;
                Ok(Tokens::Patches { unit, positions })
            }
            Part::Transformer { name, heads, layers } => {
                let [first, .., last] = &layers[..] else { bail!("a block has seven layers") };
                let config = TransformerConfig::new(first.inputs, *heads).hidden(last.inputs);
                let block = TransformerBlock::new(&config.unit(unit), posterior, vb.pp(name))?;
                Ok(Tokens::Block(block))
            }
            Part::Unit { .. } | Part::Residual { .. } => bail!("{} has no tokens", part.name()),
        }
    }
}

impl Forward for Tokens {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> candle_core::Result<Tensor> {
        match self {
            Tokens::Patches { unit, positions } => {
                unit.forward(&patches(xs)?, pass)?.broadcast_add(positions)
            }
            Tokens::Block(block) => block.forward(xs, pass),
        }
    }
}

/// The patches of images (N, C, 32, 32), row by row, as (N, 64, 16 C).
fn patches(images: &Tensor) -> candle_core::Result<Tensor> {
    let (batch, channels, _, _) = images.dims4()?;
    images
        .reshape(&[batch, channels, PATCHES, PATCH, PATCHES, PATCH][..])?
        .permute(&[0, 2, 4, 1, 3, 5][..])?
        .reshape((batch, PATCHES * PATCHES, channels * PATCH * PATCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Network, NetworkConfig};
    use candle_core::{DType, Device};
    use candle_nn::VarMap;
    use vmf_candle::{cross_entropy, seeded};

    #[test]
    fn patches_are_cut_row_by_row() -> Result<()> {
        let pixels: Vec<f32> = (0..2 * 32 * 32).map(|i| i as f32).collect();
        let images = Tensor::from_vec(pixels, (1, 2, 32, 32), &Device::Cpu)?;
        let patches = patches(&images)?.to_vec3::<f32>()?;
        // The second patch of the second row: pixel (4, 4) of both channels.
        let patch = &patches[0][9];
        assert_eq!((patch[0], patch[5], patch[16]), (132.0, 165.0, 1024.0 + 132.0));
        Ok(())
    }

    /// Every tensor that the configuration names exists, and every variable has a gradient.
    #[test]
    fn the_network_is_the_one_that_its_parts_describe() -> Result<()> {
        let config = NetworkConfig { model: Model::Vit, width: 0.3, ..Default::default() };
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
        let network = Network::new(&config, &posterior, vb)?;
        let images = Tensor::randn(0f32, 1.0, (2, 3, 32, 32), &Device::Cpu)?;
        let logits = network.forward(&images, &Pass::train(1, 0))?;
        assert_eq!(logits.dims(), [2, 10]);
        let labels = Tensor::new(&[1u32, 7], &Device::Cpu)?;
        let gradients = vmf_candle::train::backward(&cross_entropy(&logits, &labels)?)?;
        let vars = vars.data().lock().unwrap();
        for (name, shape) in config.weights()? {
            assert_eq!(vars[&name].dims(), shape, "{name}");
        }
        for (name, var) in vars.iter().filter(|(name, _)| !name.ends_with("inherited_var")) {
            assert!(gradients.get(var).is_some(), "{name} has no gradient");
        }
        assert_eq!(posterior.len(), 1 + 7 * 6);
        Ok(())
    }
}
