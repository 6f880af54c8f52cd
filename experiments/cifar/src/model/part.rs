//! The parts that the networks are made of, with names and sizes, before any weight exists.
//!
//! A part is a piece of the network between two tensors that it hands on: a single unit, a residual
//! block, the patches of a transformer, or one of its blocks. Tensors have the names that
//! torchvision's `vgg16_bn` and `resnet18` give them.

use serde::Serialize;

use super::name::{HEAD, Model, Plan};
use super::vit;

/// Height and width of the images.
pub const IMAGE_SIZE: usize = 32;

/// A convolution, or a linear layer of a transformer, with its normalization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// Its name, which is also the prefix of its tensors.
    pub name: String,
    /// The name of its normalization, beside it.
    pub norm: String,
    /// Number of input channels.
    pub inputs: usize,
    /// Number of output channels.
    pub outputs: usize,
    /// Height and width of the kernel, which is padded by half of it; 0 for a linear layer.
    pub kernel: usize,
    /// Pixels between neighbouring outputs.
    pub stride: usize,
    /// Height and width of its input, in patches for a linear layer.
    pub size: usize,
}

impl Layer {
    /// Multiplications of a forward pass for one image. Taps on the padding are counted.
    pub(super) fn multiplications(&self) -> f64 {
        let positions = (self.size / self.stride).pow(2);
        (positions * self.weights()) as f64
    }

    /// The shape of its weight.
    pub fn weight_shape(&self) -> Vec<usize> {
        match self.kernel {
            0 => vec![self.outputs, self.inputs],
            kernel => vec![self.outputs, self.inputs, kernel, kernel],
        }
    }

    /// The number of its weights.
    pub fn weights(&self) -> usize {
        self.weight_shape().iter().product()
    }
}

/// A part of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A unit with ReLU, and maximum pooling over windows of 2x2 if `pool` is set.
    Unit {
        /// The convolution.
        layer: Layer,
        /// Whether a pooling follows.
        pool: bool,
    },
    /// `relu(second(relu(first(x))) + skip(x))`, where `skip` is a projection or nothing.
    Residual {
        /// The name of the block.
        name: String,
        /// The first convolution, with the stride of the block.
        first: Layer,
        /// The second convolution.
        second: Layer,
        /// The 1x1 convolution of the skip connection, where the shape of the tensor changes.
        projection: Option<Layer>,
    },
    /// The patches of the image as tokens, with learned positions.
    Patches {
        /// The linear layer that all patches go through.
        layer: Layer,
    },
    /// A transformer block.
    Transformer {
        /// The name of the block.
        name: String,
        /// Its heads.
        heads: usize,
        /// Its linear layers.
        layers: Vec<Layer>,
    },
}

impl Part {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Part::Unit { layer, .. } | Part::Patches { layer } => &layer.name,
            Part::Residual { name, .. } | Part::Transformer { name, .. } => name,
        }
    }

    /// Its convolutions and linear layers.
    pub fn layers(&self) -> Vec<&Layer> {
        match self {
            Part::Unit { layer, .. } | Part::Patches { layer } => vec![layer],
            Part::Transformer { layers, .. } => layers.iter().collect(),
            Part::Residual { first, second, projection, .. } => {
                [first, second].into_iter().chain(projection).collect()
            }
        }
    }

    /// Number of output channels.
    pub fn outputs(&self) -> usize {
        match self {
            Part::Unit { layer, .. } | Part::Patches { layer } => layer.outputs,
            Part::Residual { second, .. } => second.outputs,
            Part::Transformer { layers, .. } => layers.last().map_or(0, |layer| layer.outputs),
        }
    }
}

/// The parts of a network, in order, and the name of the linear layer behind them.
pub(super) fn parts(model: Model, width: f64, channels: usize) -> (Vec<Part>, &'static str) {
    let scaled = |channels: usize| ((channels as f64 * width).round() as usize).max(1);
    match model.plan() {
        Plan::Vgg(stacks) => (vgg(stacks, scaled, channels), "classifier"),
        Plan::Residual { stem: (stem, widened), stages } => {
            let stem = if widened { scaled(stem) } else { stem };
            (residual(stem, &stages, scaled, channels), "fc")
        }
        Plan::Transformer { heads, blocks } => {
            (vit::parts(scaled(heads), HEAD, blocks, channels), "classifier")
        }
    }
}

/// VGG (Simonyan and Zisserman, 2015) for 32x32 images: stacks of 3x3 convolutions, and five
/// poolings that reduce 32x32 to 1x1.
fn vgg(stacks: [usize; 5], scaled: impl Fn(usize) -> usize, channels: usize) -> Vec<Part> {
    let (mut parts, mut index, mut inputs, mut size) = (Vec::new(), 0, channels, IMAGE_SIZE);
    for (channels, count) in [64, 128, 256, 512, 512].into_iter().zip(stacks) {
        let outputs = scaled(channels);
        for place in 0..count {
            let pool = place + 1 == count;
            let layer = Layer {
                name: format!("features.{index}"),
                norm: (index + 1).to_string(),
                inputs,
                outputs,
                kernel: 3,
                stride: 1,
                size,
            };
            parts.push(Part::Unit { layer, pool });
            // Convolution, normalization, activation and pooling have an index each.
            index += 3 + usize::from(pool);
            inputs = outputs;
        }
        size /= 2;
    }
    parts
}

/// Residual networks (He et al., 2016) for 32x32 images: a 3x3 convolution, then stages of basic
/// blocks, and the mean over the positions that are left.
///
/// A skip connection that changes the shape is a 1x1 convolution, as in torchvision. Each
/// convolution is followed by its normalization, in wide networks too, because that is where the
/// noise belongs.
fn residual(
    stem: usize,
    stages: &[(usize, usize)],
    scaled: impl Fn(usize) -> usize,
    channels: usize,
) -> Vec<Part> {
    let conv = |name: String, norm: &str, [inputs, outputs]: [usize; 2], size, stride| Layer {
        kernel: if norm == "1" { 1 } else { 3 },
        norm: norm.into(),
        name,
        inputs,
        outputs,
        stride,
        size,
    };
    let layer = conv("conv1".into(), "bn1", [channels, stem], IMAGE_SIZE, 1);
    let mut parts = vec![Part::Unit { layer, pool: false }];
    let (mut inputs, mut size) = (stem, IMAGE_SIZE);
    for (stage, &(channels, blocks)) in stages.iter().enumerate() {
        let outputs = scaled(channels);
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("layer{}.{block}", stage + 1);
            let named = |layer: &str| format!("{name}.{layer}");
            let reshapes = stride != 1 || inputs != outputs;
            parts.push(Part::Residual {
                first: conv(named("conv1"), "bn1", [inputs, outputs], size, stride),
                second: conv(named("conv2"), "bn2", [outputs; 2], size / stride, 1),
                projection: reshapes
                    .then(|| conv(named("downsample.0"), "1", [inputs, outputs], size, stride)),
                name,
            });
            (inputs, size) = (outputs, size / stride);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All weights of the convolutions and of the classifier for CIFAR-10, without its bias.
    fn weights(model: Model, width: f64) -> usize {
        let (parts, _) = parts(model, width, 3);
        let convolutions = parts.iter().flat_map(Part::layers);
        let convolutions = convolutions.map(Layer::weights);
        convolutions.sum::<usize>() + 10 * parts.last().unwrap().outputs()
    }

    #[test]
    fn names_and_sizes_of_vgg_are_those_of_torchvision() {
        let (stages, head) = parts(Model::Vgg16, 1.0, 3);
        let indices: Vec<&str> = stages.iter().map(|part| &part.name()[9..]).collect();
        let expected = ["0", "3", "7", "10", "14", "17", "20", "24", "27", "30", "34", "37", "40"];
        assert_eq!((indices.as_slice(), head), (&expected[..], "classifier"));
        let Part::Unit { layer, pool } = &stages[12] else { panic!("{stages:?}") };
        assert_eq!((layer.size, *pool, layer.norm.as_str()), (2, true, "41"));
        let (stages, _) = parts(Model::Vgg11, 1.0, 3);
        let indices: Vec<&str> = stages.iter().map(|part| &part.name()[9..]).collect();
        assert_eq!(indices, ["0", "4", "8", "11", "15", "18", "22", "25"]);
        assert_eq!(parts(Model::Vgg16, 0.25, 3).0[12].outputs(), 128);
    }

    #[test]
    fn names_and_sizes_of_residual_networks_are_those_of_torchvision() {
        let (parts, head) = parts(Model::Resnet18, 1.0, 3);
        let names: Vec<&str> =
            parts.iter().flat_map(Part::layers).map(|layer| layer.name.as_str()).collect();
        let expected = [
            "conv1",
            "layer1.0.conv1",
            "layer1.0.conv2",
            "layer1.1.conv1",
            "layer1.1.conv2",
            "layer2.0.conv1",
            "layer2.0.conv2",
            "layer2.0.downsample.0",
        ];
        assert_eq!((&names[..8], names.len(), head), (&expected[..], 20, "fc"));
        let Part::Residual { first, second, projection, .. } = &parts[3] else { panic!() };
        assert_eq!((first.inputs, first.outputs, first.size, first.stride), (64, 128, 32, 2));
        assert_eq!((second.size, second.stride), (16, 1));
        let projection = projection.as_ref().unwrap();
        assert_eq!((projection.kernel, projection.stride), (1, 2));
        assert_eq!(projection.norm, "1");
    }

    /// The published numbers of parameters, less what these networks do not have: gain and shift
    /// of each normalization, and the bias of the classifier. ResNet-20 with skip connections
    /// without parameters has 269,722; the two projections add 16 * 32 + 32 * 64.
    #[test]
    fn the_numbers_of_weights_are_those_of_the_papers() {
        assert_eq!(weights(Model::Resnet20, 1.0), 269_722 - 2 * 688 - 10 + 512 + 2048);
        assert_eq!(weights(Model::Resnet18, 1.0), 11_173_962 - 2 * 4_800 - 10);
        assert_eq!(weights(Model::Wrn28, 10.0), 36_479_194 - 2 * 8_976 - 10);
        assert_eq!(weights(Model::Vgg16, 1.0), 14_710_464 + 5_120);
    }
}
