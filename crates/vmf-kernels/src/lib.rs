//! Kernels for Bayesian neural networks whose noise sits behind a normalization layer: operations
//! on plain slices, on the CPU and on CUDA, with no tensor library in between.
//!
//! # Why there is such a crate
//!
//! Behind a normalization layer only the direction of a weight matters. In high dimension, a von
//! Mises-Fisher posterior over that direction amounts to one number per layer: the layer computes
//! ```text
//! y = BN(w . x) + sigma * z,     z standard normal
//! ```
//! With the operations of a tensor library, the right-hand side takes about a dozen passes over
//! memory, and a tensor of noise that is saved for the backward pass. Here it is one operation,
//! [`bn_noise`], which reads its input twice, writes its output once and saves no noise. This is
//! possible because of the idea of [`noise`]: z is a *function* of the element's index, not the
//! next number of a generator, so every pass that needs z computes it.
//!
//! # What is here
//!
//! Each operation has a folder with its equations, its types and its kernels side by side.
//!
//! | module | operation |
//! |---|---|
//! | [`noise`] | standard normals as a function of (seed, stream, step, sample, element): the specification, and fast code for it |
//! | [`bn_noise`] | batch normalization + noise + ReLU, forward and backward, training and evaluation |
//! | [`mod@unit`] | the variational unit: convolution, normalization, noise, ReLU and pooling as one operation |
//! | [`expected`] | normalization + expected ReLU (+ pooling): prediction in one deterministic pass |
//! | [`row_norm`] | layer, RMS and group normalization + noise + gain and shift, and noise without normalization |
//! | [`attention`] | self-attention with its gradients |
//! | [`softmax`], [`smooth`], [`rotary`] | softmax over rows, GELU and SiLU, rotary position embedding |
//! | [`conv`] | convolution and its gradients, directly and by Winograd's algorithm |
//! | [`gemm`] | the matrix product they are made of |
//! | [`pool`] | maximum and average pooling with their gradients |
//! | [`cross_entropy`], [`mod@objective`] | the loss of a step with its gradient, and the KL that is added to it |
//! | [`adam`] | Adam in one pass over memory, optionally on the sphere |
//! | [`normal_cdf`] | the normal distribution function, for expected activations |
//! | [`across`] | batches that several processes share |
//! | [`simd`] | how one source is compiled for several instruction sets and chosen at run time |
//!
//! # What it guarantees
//!
//! - **Results do not depend on the number of threads.** A tensor is cut into tasks by its shape
//!   alone, and sums are merged in the order of the tasks. One thread and twenty give the same bits
//!   on one machine.
//! - **Noise does not depend on layout, threads or device**: integers are equal bit for bit,
//!   normals up to rounding.
//! - **Arguments are checked.** A wrong length or an impossible shape is an [`Error`] that says
//!   what to do.
//! - **Results go to slices that the caller provides.** Memory for intermediate results is reused
//!   ([`Scratch`]).
//! - **It runs on any x86-64 and any 64-bit ARM.** It uses AVX-512 or AVX2 if the processor has it.
//!   `VMF_ISA=portable` turns that off.
//!
//! Tensors are stored in `f32`, `f64`, `f16` or `bf16` ([`Element`]), and kernels compute in `f32`
//! or `f64` ([`Real`]).
//!
//! # An example
//!
//! ```
//! use vmf_kernels::bn_noise::{Config, NoiseTerm, Saved, Shape, backward_train, forward_train};
//! use vmf_kernels::noise::{Noise, NoiseKey};
//!
//! let shape = Shape::nchw(8, 3, 4 * 4); // 8 images, 3 channels, 4 x 4
//! let config = Config::new(shape).relu(true);
//! let key = NoiseKey { seed: 42, stream: 0, step: 0, sample: 0 };
//! let noise = Some(NoiseTerm { noise: Noise::new(key), sigma: &[0.1_f32] });
//!
//! let u: Vec<f32> = (0..shape.elements()).map(|i| (i % 7) as f32).collect();
//! let mut y = vec![0.0; shape.elements()];
//! let statistics = forward_train(&config, noise, &u, &mut y)?;
//! assert_eq!(statistics.mean.len(), 3);
//!
//! let dy = vec![1.0; shape.elements()];
//! let mut du = vec![0.0; shape.elements()];
//! let saved = Saved { u: &u, y: &y, statistics: &statistics };
//! let dsigma = backward_train(&config, noise, saved, &dy, &mut du)?;
//! assert_eq!(dsigma.len(), 1);
//! # Ok::<(), vmf_kernels::Error>(())
//! ```

mod box_muller;
mod element;
mod elementary;
mod error;
mod layout;
mod parallel;
mod scratch;
#[cfg(test)]
mod testing;
mod transpose;

pub mod across;
pub mod adam;
pub mod attention;
pub mod bn_noise;
pub mod conv;
pub mod cross_entropy;
pub mod expected;
pub mod gemm;
pub mod noise;
pub mod normal_cdf;
pub mod objective;
pub mod pool;
pub mod rotary;
pub mod row_norm;
pub mod simd;
pub mod smooth;
pub mod softmax;
pub mod unit;

pub use element::{Element, Real};
pub use elementary::Elementary;
pub use error::Error;
pub use layout::Layout;
pub use scratch::Scratch;
