//! Layers: the paper's unit as a linear and a convolutional layer, noise for models with
//! normalizations of their own, and a container to chain them.

mod config;
mod conv2d;
mod conv_stack;
mod linear;
mod noise;
mod norm;
mod sequential;
mod weight;

pub use config::{VmfConfig, VmfConv2dConfig, WeightConstraint};
pub use conv_stack::ConvStack;
pub use conv2d::{VmfConv2d, vmf_conv2d};
pub use linear::{VmfLinear, vmf_linear};
pub use noise::{NoiseLayer, NoiseLayerConfig, noise_layer};
pub use norm::BatchNorm;
pub use sequential::{Deterministic, Sequential};
pub(crate) use weight::unit_rows;
