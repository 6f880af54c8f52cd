//! Bayesian layers for Candle: calibrated uncertainty for one scalar a layer.
//!
//! # The idea
//!
//! Behind a normalization only the *direction* of a weight matters: its length is divided away. The
//! posterior over directions is taken to be a von Mises-Fisher distribution on the sphere. In high
//! dimension what it does to an activation is close to adding Gaussian noise of one size behind the
//! normalization (the limits below say what that leaves out):
//!
//! ```text
//! training     y = BN(w~ . x) + sigma_eff * eps,      w~ = w / |w|,   eps ~ N(0, 1)
//! loss         mean NLL + beta / N * sum over layers of M (D-1)/2 ln(1 + D/(D-1) / sigma_eff^2)
//! prediction   at the mean directions (noise off), or the mean over a few noisy passes
//! ```
//!
//! D is the number of inputs of a unit, M the number of units, N the size of the training set.
//! Training a variational network needs no second set of weights, no second pass, and nothing to
//! store for the noise, which is generated again where it is needed. A Monte Carlo prediction costs
//! as many passes as it has samples.
//!
//! # Quickstart
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Optimizer, VarMap};
//! use vmf_candle::*;
//! # fn main() -> candle_core::Result<()> {
//! # let device = Device::Cpu;
//! # let images = Tensor::from_vec((0..32 * 3 * 64).map(|i| (i as f32 * 0.37).sin()).collect(), (32, 3, 8, 8), &device)?;
//! # let labels = Tensor::from_vec((0..32).map(|i| i % 10).collect::<Vec<u32>>(), 32, &device)?;
//! # let (seed, train_set_len, epochs) = (42, 32, 3);
//! // Build as with candle-nn; the posterior collects one scalar a layer.
//! let (vars, posterior) = (VarMap::new(), Posterior::new());
//! let vb = seeded(&vars, seed, DType::F32, &device);
//! let unit = || VmfConfig::default().relu().padding(1);
//! let model = Sequential::new()
//!     .add(vmf_conv2d(3, 16, 3, unit(), &posterior, vb.pp("features.0"))?)
//!     .add_plain(|xs: &Tensor| ops::max_pool2d(xs, 2, 2, 0))
//!     .add(vmf_conv2d(16, 16, 3, unit(), &posterior, vb.pp("features.1"))?)
//!     .add_plain(|xs: &Tensor| xs.mean((2, 3)))
//!     .add_plain(candle_nn::linear(16, 10, vb.pp("head"))?);
//!
//! // Train.
//! // (`Adam` keeps the weights on the sphere. With another optimizer call `posterior.project_weights()` after each step;
//! // `backward(&loss.total)` has the gradients of `loss.total.backward()` sooner.)
//! let mut adam = Adam::for_model(&vars, &posterior, AdamConfig { lr: 1e-3, ..Default::default() })?;
//! let beta = Schedule::warmup(posterior.suggested_beta(train_set_len), 0.2 * f64::from(epochs));
//! for epoch in 0..epochs {
//!     let logits = model.forward(&images, &Pass::train(seed, epoch))?; // one batch an epoch, for brevity
//!     let nll = cross_entropy(&logits, &labels)?;
//!     let loss = Elbo::new(train_set_len).beta(beta.at(epoch.into())).loss(&nll, &posterior)?;
//!     adam.backward_step(&loss.total)?; // loss.nll and loss.kl are there to log
//! }
//! reestimate(&model, [Ok(images.clone())])?; // statistics for the noise-free pass
//!
//! // Use.
//! let prediction = predict(&model, &images, Samples::monte_carlo(8, seed))?;
//! assert_eq!(prediction.probs.dims(), [32, 10]); // and .entropy, .mutual_information, .deviation
//! println!("{}", prediction.calibration(&labels)?); // accuracy, NLL, ECE
//! println!("{}", posterior.summary()?); // name, D, M, sigma_eff, kappa, expected cosine, KL
//! # Ok(()) }
//! ```
//!
//! A model of one's own, with skip connections or several inputs, is a struct that implements
//! [`Forward`]: it hands the [`Pass`] on to its variational layers, and calls all others as ever.
//!
//! ```
//! # use candle_core::{Module, Result, Tensor};
//! # use vmf_candle::*;
//! struct Block {
//!     first: VmfConv2d,
//!     second: VmfConv2d,
//!     head: candle_nn::Linear,
//! }
//!
//! impl Forward for Block {
//!     fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
//!         let ys = self.first.forward(xs, pass)?; // built with `.relu()`
//!         let ys = self.second.forward(&ys, pass)?; // and this without: its activation follows the sum
//!         let xs = (ys + xs)?.relu()?;
//!         self.head.forward(&xs.mean((2, 3))?)
//!     }
//! }
//! ```
//!
//! # Which layer to pick
//!
//! - [`vmf_conv2d`] and [`vmf_linear`]: in place of a convolution or linear layer *and* the batch
//!   normalization behind it.
//! - [`ConvStack`]: a chain of such convolutions and poolings, which is what a CPU runs fastest. It
//!   computes the same.
//! - [`noise_layer`]: right after a normalization that the model has already (layer, group, RMS
//!   norm), before that normalization's gain and shift, if it has any. The posterior is over the
//!   weight *in front of* the normalization, and the layer must know its size: D is the number of
//!   inputs of one of its units, M the number of units. A linear layer (512, 256) has M = 512 units
//!   of D = 256 inputs; a convolution (64, 32, 3, 3) has M = 64 and D = 32 * 9 = 288.
//!   [`NoiseLayerConfig::behind`] reads both off the weight. They enter the KL alone: a D that is
//!   too large asks for too much noise.
//! - The last layer of a classifier, which no normalization follows, stays a plain
//!   `candle_nn::linear`.
//! - A trained network with batch normalization is carried over by [`Convert`], with its logits
//!   unchanged.
//!
//! Do not use Candle's `max_pool2d` in training: its gradient is too small by the size of the
//! window. [`ops::max_pool2d`] has the right one. [`ops::conv2d`] is a plain convolution on the
//! kernels that make these layers fast.
//!
//! # One sigma_eff, or several
//!
//! `sigma_eff` is one value a layer. [`VmfConfig::groups`] gives each of so many equal groups of
//! neighbouring channels its own, [`VmfConfig::shared`] lets layers share one, and
//! [`VmfConfig::frozen`] keeps it where it is:
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use candle_nn::VarMap;
//! # use vmf_candle::*;
//! # fn main() -> candle_core::Result<()> {
//! # let (vars, posterior) = (VarMap::new(), Posterior::new());
//! # let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
//! let per_group = VmfConfig::default().groups(4); // 64 units: four groups of 16
//! let first = vmf_linear(32, 64, per_group, &posterior, vb.pp("first"))?;
//! let sigma = Sigma::new(SigmaConfig::default(), vb.pp("sigma"))?;
//! let second = vmf_linear(64, 64, VmfConfig::default().shared(&sigma), &posterior, vb.pp("second"))?;
//! let third = vmf_linear(64, 64, VmfConfig::default().shared(&sigma), &posterior, vb.pp("third"))?;
//! assert_eq!(first.sigma().values()?.len(), 4);
//! assert_eq!(second.sigma().values()?, third.sigma().values()?);
//! # Ok(()) }
//! ```
//!
//! # How to choose beta
//!
//! `beta = 1` is the evidence lower bound. The KL of a wide network is far larger than the
//! information in its data (a layer of 512 units with 4608 inputs has a million nats), so with
//! `beta = 1` the noise of such a network grows until it drowns the signal. Treat beta as a
//! temperature: begin with [`Posterior::suggested_beta`], half an example a weight, warm it up over
//! the first tenth or fifth of training, and lower it threefold while
//! [`Summary::warn_if_collapsed`] names layers or accuracy suffers. Small problems with more data
//! than weights, such as a linear model, are at home at `beta = 1`.
//!
//! # How to read sigma_eff
//!
//! It is noise against a signal of variance 1. At 0.1 a unit is precise; at 1 half of its output's
//! variance is noise; from about 5 on it transmits next to nothing. `1 / sqrt(1 + sigma_eff^2)` is
//! the expected cosine between a weight drawn from the posterior and its mean. Layers in the middle
//! of a deep network usually end higher than the first ones.
//!
//! # Inference
//!
//! `Pass::mean()` is one deterministic pass, for which [`reestimate`] must have measured the
//! statistics with noise off. `predict(.., Samples::monte_carlo(k, seed))` averages k noisy passes
//! and tells the two kinds of uncertainty apart. Both sets of statistics are kept in a
//! [`Checkpoint`].
//!
//! # Is it calibrated?
//!
//! [`Prediction::calibration`] gives accuracy, NLL and expected calibration error against labels;
//! [`Calibration::of`] does for the probabilities of any network, such as the one before the
//! conversion. Compare both on data that was not trained on. [`metrics`] has reliability diagrams,
//! detection of foreign inputs and temperature scaling. The example `calibrated` shows a network of
//! candle-nn's layers before and after. If the prediction is too sure (confidence above accuracy),
//! raise beta. If it is not sure enough, which Monte Carlo with too much noise is, or if accuracy
//! falls and [`Posterior::summary`] shows layers beyond sigma_eff = 2, lower it.
//!
//! # Checkpoints
//!
//! [`Checkpoint`] keeps weights, noise, statistics and optimizer in one safetensors file, from
//! which training continues. Python's `safetensors` opens it too: `python/load_checkpoint.py` in
//! this crate runs a VGG-like one, whose configuration holds a `plan`, in PyTorch, and its logits
//! agree to 1e-4.
//!
//! # Reproducibility
//!
//! Noise, initial weights and so a whole run on the CPU are functions of the seed: they depend
//! neither on the number of threads nor on the order in which layers are built. A run resumed from
//! a checkpoint continues bit for bit.
//!
//! # Devices and precision
//!
//! | device | dtype | a layer is |
//! |---|---|---|
//! | CPU | f32 | one fused operation, several times faster than Candle's convolution |
//! | CPU | f64, bf16, f16 | Candle's product, and one fused operation behind it |
//! | CUDA, with feature `cuda` | f32, bf16, f16 | Candle's product, and one fused kernel behind it |
//! | any other | any | Candle's own operations |
//!
//! The dtype is that of the builder: `seeded(&vars, seed, DType::BF16, &device)`. sigma_eff and
//! statistics are never in half precision. The CUDA kernels have not run on a GPU yet; they are
//! executed on the CPU by the project's tests.
//!
//! # Limits
//!
//! - The noise of a layer is the same for all inputs. Far from the data uncertainty grows only as
//!   far as the layers behind spread it, which is less than what a Gaussian process would say.
//! - A weight drawn from the posterior is shared by all inputs and positions; the noise that stands
//!   for it is drawn independently. Averaged over isotropic inputs they agree in mean and variance,
//!   and nearly in shape. But the noise of a draw at two inputs is correlated by the cosine of the
//!   angle between them (0.87 for neighbouring patches of CIFAR-10's pictures), and an average over
//!   a picture keeps a quarter of its variance, where independent noise is averaged away. So the
//!   spread of Monte Carlo samples understates that of weight draws in convolutional layers, and
//!   says nothing about how two predictions err together. `cargo run --release -p theory-check --
//!   draws` measures it; `docs/additive-noise.md` has the figure.
//! - Below a few dozen inputs a unit the Gaussian form is approximate: the kurtosis of what it
//!   replaces is 3.2 in place of 3 for the first convolution of an image network, which has 27.
//! - With feature `cuda`, programs need the NVIDIA driver's library to start, as all programs do
//!   that use Candle with CUDA.

mod adam;
mod assign;
mod backward;
mod calibration;
mod checkpoint;
mod convert;
mod error;
mod init;
mod layers;
mod loss;
mod objective;
pub mod ops;
mod pass;
mod posterior;
mod predict;
mod schedule;
mod sigma;
mod stream;
mod summary;

pub use adam::{Adam, AdamConfig, Moments};
pub use backward::backward;
pub use calibration::Calibration;
pub use checkpoint::{Checkpoint, FORMAT_VERSION, Progress};
pub use convert::{Convert, Converted};
pub use error::{Error, Result};
pub use init::seeded;
pub use layers::{
    BatchNorm, ConvStack, Deterministic, NoiseLayer, NoiseLayerConfig, Sequential, VmfConfig,
    VmfConv2d, VmfConv2dConfig, VmfLinear, WeightConstraint, noise_layer, vmf_conv2d, vmf_linear,
};
pub use loss::{cross_entropy, cross_entropy_smoothed, gaussian_nll, gaussian_nll_learned};
pub use objective::{Elbo, Loss};
pub use pass::{Forward, LayerNoise, Pass, Statistics};
pub use posterior::{LayerSpec, Posterior};
pub use predict::{
    Folding, Prediction, Samples, Values, predict, predict_stream, predict_values, reestimate,
};
pub use schedule::Schedule;
pub use sigma::{Sigma, SigmaConfig};
pub use stream::stream_of;
pub use summary::{Collapse, LayerSummary, State, Summary, Thresholds};
pub use vmf_core::{Parameterization, metrics};
