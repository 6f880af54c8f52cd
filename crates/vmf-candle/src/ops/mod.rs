//! Operations with their own gradients, each usable in any Candle model.

mod all_reduce;
mod attention;
mod bn_noise;
#[cfg(feature = "cuda")]
mod bn_noise_cuda;
mod conv2d;
#[cfg(feature = "cuda")]
mod conv2d_cuda;
mod expected;
#[cfg(feature = "cuda")]
mod expected_cuda;
mod fused_unit;
mod layout;
mod linear;
mod mapped;
mod pool;
#[cfg(feature = "cuda")]
mod pool_cuda;
mod propagate;
mod reference;
mod rotary;
mod row_norm;
mod smooth;
mod unit;
#[cfg(feature = "cuda")]
mod unit_cuda;

pub use attention::attention;
pub use bn_noise::{Statistics, bn_noise, bn_noise_config, bn_noise_eval};
pub use conv2d::{FusedConv2d, conv2d};
pub use expected::{expected_activation, expected_relu};
pub use layout::{concat_channels, mean_over_positions};
pub use linear::linear;
pub use pool::{avg_pool2d, max_pool2d};
pub use reference::{bn_noise_eval_reference, bn_noise_reference, noise_tensor};
pub use rotary::Rotary;
pub use row_norm::{group_norm, layer_norm, rms_norm};
pub use smooth::{gelu, silu, softmax_last_dim};
pub use vmf_kernels::bn_noise::Config as BnNoiseConfig;
pub use vmf_kernels::noise::{Noise, NoiseKey};

pub(crate) use expected::{largest_of_windows, relu_moments};
pub(crate) use layout::Images;
pub(crate) use linear::linear_norm;
pub(crate) use propagate::UncertainImages;
pub(crate) use row_norm::{Given, Rows, norm_rows};
pub(crate) use unit::{Inputs, Unit};
#[cfg(feature = "cuda")]
pub(crate) use unit_cuda::{Training, scale_kind};
