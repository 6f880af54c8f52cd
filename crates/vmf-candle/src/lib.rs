//! Bayesian layers for Candle: calibrated uncertainty for one extra scalar per layer.
//!
//! # The idea
//!
//! Behind a normalization only the *direction* of a weight matters, since its length is divided
//! away. The posterior over directions is a von Mises-Fisher distribution on the sphere. In high
//! dimension its effect on an activation is close to that of Gaussian noise of one size behind the
//! normalization (the section on limits says what this leaves out):
//!
//! ```text
//! training     y = BN(w~ . x) + sigma_eff * z,      w~ = w / |w|,   z ~ N(0, 1)
//! loss         mean NLL + beta / N * sum over layers of M (D-1)/2 ln(1 + D/(D-1) / sigma_eff^2)
//! prediction   one pass through expected activations, E relu(m + s z), or the mean over noisy passes
//! ```
//!
//! D is the number of inputs of a unit, M the number of units, N the size of the training set.
//! Training a variational network needs no second set of weights and no second pass. The noise is
//! not stored: it is generated again where it is needed. A prediction costs one pass, too.
//!
//! # Quickstart
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Optimizer, VarMap};
//! use vmf_candle::ops::mean_over_positions;
//! use vmf_candle::prelude::*;
//! # fn main() -> candle_core::Result<()> {
//! # let device = Device::Cpu;
//! # let images = Tensor::from_vec((0..32 * 3 * 64).map(|i| (i as f32 * 0.37).sin()).collect(), (32, 3, 8, 8), &device)?;
//! # let labels = Tensor::from_vec((0..32).map(|i| i % 10).collect::<Vec<u32>>(), 32, &device)?;
//! # let (held_out, held_out_labels) = (images.narrow(0, 0, 8)?, labels.narrow(0, 0, 8)?);
//! # let (seed, train_set_len, steps) = (42, 32, 3);
//! // Build the model as with candle-nn. The posterior collects one scalar per layer.
//! let (vars, posterior) = (VarMap::new(), Posterior::new());
//! let vb = seeded(&vars, seed, DType::F32, &device);
//! let unit = || VmfConfig::default().relu().padding(1);
//! let features = ConvStack::new() // convolutions with normalization, noise and ReLU, and pooling
//!     .unit(vmf_conv2d(3, 16, 3, unit(), &posterior, vb.pp("features.0"))?)
//!     .max_pool(2)
//!     .unit(vmf_conv2d(16, 16, 3, unit(), &posterior, vb.pp("features.1"))?);
//! let model = Chain::new()
//!     .add(features)
//!     .add_plain(|xs: &Tensor| mean_over_positions(xs))
//!     .add_plain(candle_nn::linear(16, 10, vb.pp("head"))?);
//!
//! // Train.
//! let config = AdamConfig { lr: 1e-3, ..Default::default() };
//! let mut adam = Adam::for_model(&vars, &posterior, config)?;
//! let mut beta = AutoBeta::new(&posterior, train_set_len, steps)?;
//! for step in 0..steps {
//!     // Always the same batch, for brevity.
//!     let logits = model.forward(&images, &Pass::train(seed, step))?;
//!     let nll = cross_entropy(&logits, &labels)?;
//!     let loss = Elbo::new(train_set_len).beta(beta.value()).loss(&nll, &posterior)?;
//!     adam.backward_step(&loss.total)?; // loss.nll and loss.kl are there to log
//!     if beta.is_due(step) {
//!         beta.update(step, &model, &posterior, (&images, &labels), (&held_out, &held_out_labels))?;
//!     }
//! }
//! reestimate(&model, &posterior, [Ok(images.clone())])?; // how much activations and outputs vary
//!
//! // Predict.
//! let prediction = predict(&model, &images, Samples::expected(&posterior))?; // one pass
//! assert_eq!(prediction.probs.dims(), [32, 10]); // and .entropy, .mutual_information, .deviation
//! println!("{}", prediction.calibration(&labels)?); // accuracy, NLL, ECE
//! println!("{}", posterior.summary()?); // name, D, M, sigma_eff, kappa, expected cosine, KL
//! # Ok(()) }
//! ```
//!
//! `Adam` keeps the weights on the sphere. With another optimizer, call
//! [`Posterior::project_weights`](posterior::Posterior::project_weights) after each step, and take
//! the gradients from [`train::backward`], which is faster than Candle's.
//!
//! A model with skip connections or several inputs is a struct that implements [`Forward`]. It
//! passes the [`Pass`] on to its variational layers and calls all other layers as usual. Where a
//! block changes the shape, its skip connection is a `vmf_conv2d` with kernel 1 and the block's
//! stride, without `.relu()`.
//!
//! ```
//! # use candle_core::{Module, Result, Tensor};
//! # use vmf_candle::{ops, prelude::*};
//! struct Block {
//!     first: VmfConv2d,  // built with `.relu()`
//!     second: VmfConv2d, // built with `.relu()` as well, which here follows the sum; without, there is no activation
//!     head: candle_nn::Linear,
//! }
//!
//! impl Forward for Block {
//!     fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
//!         let ys = self.first.forward(xs, pass)?;
//!         let xs = self.second.forward_residual(&ys, xs, pass)?; // relu(.. + xs)
//!         self.head.forward(&ops::mean_over_positions(&xs)?)
//!     }
//! }
//! ```
//!
//! In f32 on a CPU a layer computes in a memory layout of its own, HWNC, and hands its result on as a
//! view of shape (N, C, H, W), without a copy; the next layer looks behind the view. What the model's
//! own code does with it is Candle's affair, and right. It is also fast if it keeps the layout:
//! `forward_residual`, [`relu_layer`], [`ops::max_pool2d`], [`ops::avg_pool2d`],
//! [`ops::concat_channels`] and [`ops::mean_over_positions`] do. Candle's own operations read a view
//! element by element, and the next layer then has to convert what they return.
//!
//! # Which layer to use
//!
//! - [`vmf_conv2d`] and [`vmf_linear`] replace a convolution or linear layer *and* the batch
//!   normalization behind it.
//! - [`ConvStack`] is a chain of such convolutions and poolings. It computes the same as its layers
//!   would one by one, and is the fastest form on a CPU.
//! - [`VmfConfig::norm`] chooses layer, RMS or group normalization instead, or none, for projections
//!   that no normalization follows. [`Norm`] says what is exact in each.
//! - [`TransformerBlock`] is a transformer block of such units.
//! - [`noise_layer`] goes right after a normalization that the model has already (layer, group, RMS
//!   norm), before that normalization's gain and shift. The posterior is over the weight *in front
//!   of* the normalization, and the layer must know its size: D is the number of inputs of one
//!   unit, M the number of units. A linear layer (512, 256) has M = 512 units of D = 256 inputs; a
//!   convolution (64, 32, 3, 3) has M = 64 and D = 32 * 9 = 288. [`NoiseLayerConfig::behind`] reads
//!   both off the weight. They affect the KL only: if D is too large, training adds too much noise.
//! - The last layer of a classifier has no normalization behind it, and stays a plain
//!   `candle_nn::linear`.
//! - [`checkpoint::Convert`] turns a trained network with batch normalization into a variational
//!   one with the same logits.
//!
//! Do not use Candle's `max_pool2d` in training: its gradient is too small by the size of the
//! window. [`ops::max_pool2d`] has the right gradient. Candle's layer and RMS normalization,
//! `softmax_last_dim` and `rope` return no gradient at all, and no error: use
//! [`ops::layer_norm`], [`ops::rms_norm`], [`ops::softmax_last_dim`] and [`ops::Rotary`]. [`ops::conv2d`] is a plain convolution on
//! the kernels that make these layers fast.
//!
//! # One sigma_eff or several
//!
//! A layer has one `sigma_eff`. [`VmfConfig::sigma_groups`] gives each of several equal groups of
//! neighbouring channels its own, [`VmfConfig::shared`] lets layers share one, and
//! [`VmfConfig::frozen`] keeps it at its initial value:
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use candle_nn::VarMap;
//! # use vmf_candle::prelude::*;
//! use vmf_candle::posterior::{Sigma, SigmaConfig};
//! # fn main() -> candle_core::Result<()> {
//! # let (vars, posterior) = (VarMap::new(), Posterior::new());
//! # let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
//! let grouped = VmfConfig::default().sigma_groups(4); // 64 units: four groups of 16
//! let first = vmf_linear(32, 64, grouped, &posterior, vb.pp("first"))?;
//! let sigma = Sigma::new(SigmaConfig::default(), vb.pp("sigma"))?;
//! let second = vmf_linear(64, 64, VmfConfig::default().shared(&sigma), &posterior, vb.pp("second"))?;
//! let third = vmf_linear(64, 64, VmfConfig::default().shared(&sigma), &posterior, vb.pp("third"))?;
//! assert_eq!(first.sigma().values()?.len(), 4);
//! assert_eq!(second.sigma().values()?, third.sigma().values()?);
//! # Ok(()) }
//! ```
//!
//! # How beta is found
//!
//! `beta = 1` is the evidence lower bound. The KL of a wide network is far larger than the
//! information in its data (a layer of 512 units with 4608 inputs has a million nats), so with
//! `beta = 1` the noise of such a network grows until it drowns the signal. [`train::AutoBeta`]
//! finds beta during training: it watches how overconfident the network is on held-out examples,
//! and needs no starting value.
//!
//! Without held-out examples, begin with
//! [`Posterior::suggested_beta`](posterior::Posterior::suggested_beta), half an example per weight,
//! and warm it up over the first tenth or fifth of training. Divide it by three as long as
//! [`Summary::warn_if_collapsed`](posterior::Summary::warn_if_collapsed) names layers or accuracy
//! suffers. `beta = 1` is right for small problems with more data than weights, such as a linear
//! model.
//!
//! # How to read sigma_eff
//!
//! It is the standard deviation of the noise, relative to a signal of variance 1. At 0.1 a unit is
//! precise; at 1 half of the variance of its output is noise; from about 5 on it transmits next to
//! nothing. `1 / sqrt(1 + sigma_eff^2)` is the expected cosine between a weight drawn from the
//! posterior and its mean. Layers in the middle of a deep network usually end higher than the first
//! ones.
//!
//! # Inference
//!
//! | prediction | passes | what it is |
//! |---|---|---|
//! | `Samples::expected(&posterior)` | 1 | deterministic; each unit hands on the expectation of its activation over the noise |
//! | `Samples::full(&posterior)` | 2.5 | the same with the variance of every element carried along beside its mean, for models that implement [`Forward::propagate`] |
//! | `Samples::monte_carlo(k, seed)` | k | the mean over k noisy passes, which the expected pass approximates |
//! | `Samples::mean()` | 1 | the network at the mean of its weights: overconfident, as a plain network is |
//!
//! The expected pass needs to know how much noise each unit inherits from the units before it, and
//! how much the outputs vary. [`reestimate`] measures both at the end of training, and a
//! [`Checkpoint`] keeps them. In a model's own code, activations belong into layers: `.relu()` of a
//! unit, [`VmfConv2d::forward_residual`] for the sum at the end of a residual block, or
//! [`relu_layer`] for any other sum. `reestimate` warns if the expected pass and Monte Carlo
//! samples disagree, as they do where a plain `.relu()` or a plain maximum stands between noisy
//! layers.
//!
//! # Is it calibrated?
//!
//! [`Prediction::calibration`](predict::Prediction::calibration) gives accuracy, NLL and expected
//! calibration error for given labels. [`Calibration::of`] takes the probabilities of any network,
//! for example the one before a conversion. Compare both on data that was not used in training.
//! [`metrics`] has reliability diagrams, detection of out-of-distribution inputs and temperature
//! scaling. The example `calibrated` compares a network of candle-nn's layers with its variational
//! counterpart. [`AutoBeta`] aims at a calibrated prediction; with a beta of your own, raise it if
//! the prediction is overconfident (confidence above accuracy). Lower it if the prediction is
//! underconfident, as Monte Carlo with too much noise is, or if accuracy falls and
//! [`Posterior::summary`](posterior::Posterior::summary) shows layers above sigma_eff = 2.
//!
//! # Checkpoints
//!
//! A [`Checkpoint`] holds weights, noise, statistics and optimizer in one safetensors file, from
//! which training continues. Python's `safetensors` opens it too. `python/load_checkpoint.py` in
//! this crate runs it in PyTorch, if its configuration lists the parts of the network: chains,
//! residual networks and vision transformers. Logits agree to 1e-4.
//!
//! # Reproducibility
//!
//! Noise and initial weights are functions of the seed, and so is a whole run on the CPU. They do
//! not depend on the number of threads or on the order in which layers are built. A run that is
//! resumed from a checkpoint continues bit for bit.
//!
//! # Devices and precision
//!
//! | device | dtype | a layer is |
//! |---|---|---|
//! | CPU | f32 | one fused operation, several times faster than Candle's convolution |
//! | CPU | f64, f16 | Candle's product, and one fused operation behind it |
//! | CUDA, with feature `cuda` | f32, bf16, f16 | Candle's product, and one fused kernel behind it |
//! | any other | any | Candle's own operations |
//!
//! The dtype is that of the builder: `seeded(&vars, seed, DType::F64, &device)`. sigma_eff and
//! statistics are never in half precision. Candle has no matrix product in bf16 on the CPU. The
//! CUDA kernels have not run on a GPU yet; the project's tests execute them on the CPU.
//!
//! # Limits
//!
//! - The noise of a layer has the same size for all inputs. Far from the data the uncertainty grows
//!   only as far as later layers amplify it, which is less than a Gaussian process would report.
//! - A weight drawn from the posterior is shared by all inputs and positions, but the noise that
//!   replaces it is drawn independently. Averaged over isotropic inputs the two agree in mean and
//!   variance, and nearly in shape. However, the effects of one weight draw on two inputs are
//!   correlated by the cosine of the angle between the inputs (0.87 for neighbouring patches of
//!   CIFAR-10's images), and an average over an image keeps a quarter of their variance, whereas
//!   independent noise averages out. So the spread of Monte Carlo samples understates that of
//!   weight draws in convolutional layers, and does not show how the errors of two predictions are
//!   related. `cargo run --release -p theory-check -- draws` measures this;
//!   `docs/additive-noise.md` has the figure.
//! - With fewer than a few dozen inputs per unit the Gaussian form is approximate. For the first
//!   convolution of an image network, which has 27, the kurtosis of the exact distribution is 3.2
//!   instead of 3.
//! - With the feature `cuda` a program needs the NVIDIA driver's library to start, as every program
//!   does that uses Candle with CUDA.
//!
//! [`Calibration::of`]: metrics::Calibration::of
//! [`Checkpoint`]: checkpoint::Checkpoint
//! [`ConvStack`]: layers::ConvStack
//! [`NoiseLayerConfig::behind`]: layers::NoiseLayerConfig::behind
//! [`VmfConfig::frozen`]: layers::VmfConfig::frozen
//! [`VmfConfig::norm`]: layers::VmfConfig::norm
//! [`VmfConfig::shared`]: layers::VmfConfig::shared
//! [`VmfConfig::sigma_groups`]: layers::VmfConfig::sigma_groups
//! [`VmfConv2d::forward_residual`]: layers::VmfConv2d::forward_residual
//! [`noise_layer`]: layers::noise_layer
//! [`relu_layer`]: layers::relu_layer
//! [`reestimate`]: predict::reestimate
//! [`vmf_conv2d`]: layers::vmf_conv2d
//! [`vmf_linear`]: layers::vmf_linear

#[cfg(feature = "cuda")]
mod cuda;
mod dtype;
mod error;
mod finite;
mod moments;
mod pass;
mod sphere;
mod storage;
mod vars;
mod warning;
mod watch;

pub mod checkpoint;
pub mod layers;
pub mod metrics;
pub mod ops;
pub mod posterior;
pub mod predict;
pub mod ranks;
pub mod train;

pub use error::{Error, Result};
pub use moments::Moments;
pub use pass::{Forward, Pass, StatisticsSource};
pub use prelude::*;

/// The names that most programs need: `use vmf_candle::prelude::*;`.
///
/// They shadow nothing of the standard library or of candle-nn.
pub mod prelude {
    pub use crate::checkpoint::{Checkpoint, Progress};
    pub use crate::layers::{
        Chain, ConvStack, NoiseLayerConfig, Norm, TransformerBlock, TransformerConfig, VmfConfig,
        VmfConv2d, VmfLinear, noise_layer, relu_layer, seeded, vmf_conv2d, vmf_linear,
    };
    pub use crate::metrics::Calibration;
    pub use crate::moments::Moments;
    pub use crate::pass::{Forward, Pass};
    pub use crate::posterior::Posterior;
    pub use crate::predict::{Samples, predict, predict_values, reestimate};
    pub use crate::train::{
        Adam, AdamConfig, AutoBeta, Elbo, Schedule, cross_entropy, cross_entropy_counted,
        gaussian_nll,
    };
}
