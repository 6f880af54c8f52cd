//! Layers: the paper's unit as a linear and a convolutional layer, noise for models with
//! normalizations of their own, chains of layers, and seeded initialisation.

mod chain;
mod config;
mod conv2d;
mod conv_stack;
mod guard;
mod init;
mod linear;
mod noise;
mod norm;
mod propagate;
mod relu;
mod rows;
mod transformer;
mod unit;
mod weight;

pub use chain::{Chain, Deterministic};
pub use config::{Activation, Norm, VmfConfig, WeightConstraint};
pub use conv_stack::ConvStack;
pub use conv2d::{VmfConv2d, vmf_conv2d};
pub use init::seeded;
pub use linear::{VmfLinear, vmf_linear};
pub use noise::{NoiseLayer, NoiseLayerConfig, noise_layer};
pub use norm::NormStats;
pub use relu::{ReluLayer, relu_layer};
pub use transformer::{TransformerBlock, TransformerConfig};
