//! Which network, and from what plan it is made.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The networks. The number is that of the layers with weights in the original.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// VGG, 8 convolutions of 64 to 512 channels
    Vgg11,
    /// VGG, 10 convolutions
    Vgg13,
    /// VGG, 13 convolutions; the network of the paper
    #[default]
    Vgg16,
    /// VGG, 16 convolutions
    Vgg19,
    /// Residual network of 64 to 512 channels, 8 blocks
    Resnet18,
    /// Residual network of 64 to 512 channels, 16 blocks
    Resnet34,
    /// Residual network of 16 to 64 channels, 9 blocks
    Resnet20,
    /// Residual network of 16 to 64 channels, 15 blocks
    Resnet32,
    /// Residual network of 16 to 64 channels, 21 blocks
    Resnet44,
    /// Residual network of 16 to 64 channels, 27 blocks
    Resnet56,
    /// Residual network of 16 to 64 channels, 54 blocks
    Resnet110,
    /// Wide residual network, 6 blocks; the width is its widening factor
    Wrn16,
    /// Wide residual network, 9 blocks
    Wrn22,
    /// Wide residual network, 12 blocks; with width 10 the network of its paper
    Wrn28,
    /// Wide residual network, 18 blocks
    Wrn40,
    /// Vision transformer, 64 patches of 4x4 pixels, 6 blocks of 192 channels
    Vit,
}

/// What a network is made of, at width 1.
pub(super) enum Plan {
    /// Stacks of convolutions, each with its channels and followed by a pooling.
    Vgg([usize; 5]),
    /// Stages of residual blocks, each with its channels. All stages but the first begin with a
    /// stride of 2.
    Residual {
        /// Channels of the first convolution, and whether the width multiplies them.
        stem: (usize, bool),
        /// Channels and blocks of each stage.
        stages: Vec<(usize, usize)>,
    },
    /// Transformer blocks over patches of the image.
    Transformer {
        /// Heads, each of [`HEAD`] channels. The width multiplies them.
        heads: usize,
        /// Blocks.
        blocks: usize,
    },
}

/// Channels of a head of a transformer.
pub(super) const HEAD: usize = 32;

impl Model {
    pub(super) fn plan(self) -> Plan {
        // He et al. (2016): 2 layers per block, the first convolution and the classifier are
        // 6 n + 2 layers with n blocks in each of three stages.
        let three = |blocks: usize, widened: bool| Plan::Residual {
            stem: (16, widened),
            stages: vec![(16, blocks), (32, blocks), (64, blocks)],
        };
        let four = |blocks: [usize; 4]| Plan::Residual {
            stem: (64, true),
            stages: [64, 128, 256, 512].into_iter().zip(blocks).collect(),
        };
        match self {
            Model::Vgg11 => Plan::Vgg([1, 1, 2, 2, 2]),
            Model::Vgg13 => Plan::Vgg([2, 2, 2, 2, 2]),
            Model::Vgg16 => Plan::Vgg([2, 2, 3, 3, 3]),
            Model::Vgg19 => Plan::Vgg([2, 2, 4, 4, 4]),
            Model::Resnet18 => four([2, 2, 2, 2]),
            Model::Resnet34 => four([3, 4, 6, 3]),
            Model::Resnet20 => three(3, true),
            Model::Resnet32 => three(5, true),
            Model::Resnet44 => three(7, true),
            Model::Resnet56 => three(9, true),
            Model::Resnet110 => three(18, true),
            // Zagoruyko and Komodakis (2016): the first convolution keeps its 16 channels, and
            // with the three projections there are 6 n + 4 convolutions.
            Model::Wrn16 => three(2, false),
            Model::Wrn22 => three(3, false),
            Model::Wrn28 => three(4, false),
            Model::Wrn40 => three(6, false),
            Model::Vit => Plan::Transformer { heads: 6, blocks: 6 },
        }
    }

    /// The name of the family, for what several networks have in common.
    pub fn family(self) -> &'static str {
        match self {
            Model::Wrn16 | Model::Wrn22 | Model::Wrn28 | Model::Wrn40 => "Wide ResNet",
            _ => match self.plan() {
                Plan::Vgg(_) => "VGG",
                Plan::Residual { .. } => "ResNet",
                Plan::Transformer { .. } => "ViT",
            },
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // No variant is skipped on the command line.
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}
