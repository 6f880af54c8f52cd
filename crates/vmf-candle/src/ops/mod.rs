//! Operations with their own gradients, each usable in any Candle model.

mod bn_noise;
#[cfg(feature = "cuda")]
mod bn_noise_cuda;
mod conv2d;
mod expected;
mod fused_unit;
mod layout;
mod pool;
mod reference;
mod unit;

pub use bn_noise::{Statistics, bn_noise, bn_noise_config, bn_noise_eval};
pub use conv2d::{FusedConv2d, conv2d};
pub use expected::{expected_activation, expected_relu};
pub use layout::{concat_channels, mean_over_positions};
pub use pool::{avg_pool2d, max_pool2d};
pub use reference::{bn_noise_eval_reference, bn_noise_reference, noise_tensor};
pub use vmf_kernels::bn_noise::Config as BnNoiseConfig;
pub use vmf_kernels::noise::{Noise, NoiseKey};

pub(crate) use layout::Images;
pub(crate) use unit::{Inputs, Unit};
