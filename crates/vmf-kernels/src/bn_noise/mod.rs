//! Batch normalization, noise and ReLU in one operation.
//!
//! # The operation
//!
//! For activations u of shape (N, C, P), with P = H W positions, and with the mean and the variance
//! of channel c taken over its m = N P elements,
//! ```text
//! xhat = (u - mean_c) * rstd_c          rstd_c = 1 / sqrt(var_c + eps)
//! y    = act(xhat + sigma_c * z)        act = identity or ReLU
//! ```
//! where z is the [noise](crate::noise) of the element. A network trained with `y = BN(w . x) +
//! sigma_eff * z` has a von Mises-Fisher posterior over the directions of its weights. Sigma is the
//! one parameter of that posterior, per layer or per group of channels. There is no affine part:
//! with one, more than the direction of a weight would matter.
//!
//! # Its gradient
//!
//! With g = dy where y > 0 (everywhere, without ReLU) and averages over the m elements of the
//! channel,
//! ```text
//! du_i    = rstd_c * (g_i - mean(g) - xhat_i * mean(g * xhat))
//! dsigma  = sum over the group of g_i * z_i
//! ```
//! and in evaluation, where the statistics are constants, du_i = rstd_c * g_i. z is not saved. The
//! backward pass computes it again from the key. With ReLU it can also read it off y, since y -
//! xhat = sigma * z wherever g is not zero; the CPU kernel does so where the precision of y allows
//! it.
//!
//! # Memory traffic
//!
//! The noise never exists in memory. The forward pass of training reads u twice and writes y once.
//! The backward pass reads u, y and dy twice and writes du once. Evaluation reads u once and writes
//! y once. In `f32` that is 12, 28 and 8 bytes per element.

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod launches;
pub(crate) mod pooled;
pub(crate) mod skip;

use crate::across::Across;
use crate::element::{Element, Real};
use crate::error::{Error, check_length};
use crate::noise::Noise;
use crate::simd::Isa;
use cpu::{Inputs, Normalization};

pub use crate::layout::Shape;

/// What is computed, apart from the noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The shape of u, y and their gradients.
    pub shape: Shape,
    /// Added to the variance under the root. The default of PyTorch and Candle is 1e-5.
    pub eps: f64,
    /// Whether ReLU follows.
    pub relu: bool,
    /// The processes whose examples are the batch, if this one has only some of them. The shape is
    /// that of its own. It matters for the statistics of the batch alone.
    pub across: Across,
}

impl Config {
    /// Normalization of `shape` with eps = 1e-5, not followed by ReLU.
    pub fn new(shape: Shape) -> Self {
        Self { shape, eps: 1e-5, relu: false, across: Across::ALONE }
    }

    /// The same, with or without ReLU after it.
    pub fn relu(self, relu: bool) -> Self {
        Self { relu, ..self }
    }

    /// The same, with another eps.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The same, for a batch that processes share.
    pub fn across(self, across: Across) -> Self {
        Self { across, ..self }
    }
}

/// The term sigma * z: the noise, and its scale for each group of channels.
#[derive(Clone, Copy, Debug)]
pub struct NoiseTerm<'a, R> {
    /// Where z comes from.
    pub noise: Noise,
    /// G scales, usually one. G divides C, and channel c uses the scale `c / (C / G)`.
    pub sigma: &'a [R],
}

/// A gain and a shift for each channel, which the normalizations of most networks have.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a, R> {
    /// The factor of the normalized and noisy value.
    pub gain: &'a [R],
    /// What is added to the product.
    pub shift: &'a [R],
}

/// What follows the normalization besides the activation, each part if it is there:
/// ```text
/// y = act(gain_c * (xhat + sigma_c * z) + shift_c + skip)
/// ```
/// The noise comes before gain and shift, so that sigma keeps its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a, R> {
    /// The noise.
    pub noise: Option<NoiseTerm<'a, R>>,
    /// Gain and shift.
    pub affine: Option<Affine<'a, R>>,
    /// A skip connection: a tensor of the shape of y.
    pub skip: Option<&'a [R]>,
}

impl<'a, R> From<Option<NoiseTerm<'a, R>>> for Terms<'a, R> {
    fn from(noise: Option<NoiseTerm<'a, R>>) -> Self {
        Self { noise, affine: None, skip: None }
    }
}

/// The gradients with respect to the parameters of the operation.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGradients<R> {
    /// One value for each scale of the noise; none without noise.
    pub sigma: Vec<R>,
    /// One value per channel; none without gain and shift.
    pub gain: Vec<R>,
    /// See `gain`.
    pub shift: Vec<R>,
}

impl<R> Default for ParameterGradients<R> {
    fn default() -> Self {
        Self { sigma: Vec::new(), gain: Vec::new(), shift: Vec::new() }
    }
}

/// Mean and biased variance of each channel, in double precision.
///
/// Single precision is not enough: where a channel has mean 10^4 and deviation 10^-2, rounding the
/// mean alone shifts the normalized values by several per cent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The mean of each channel.
    pub mean: Vec<f64>,
    /// The variance of each channel, divided by the number of its elements.
    pub var: Vec<f64>,
}

impl Statistics {
    /// 1 / sqrt(var + eps) of each channel.
    pub fn rstd(&self, eps: f64) -> Vec<f64> {
        self.var.iter().map(|var| 1.0 / (var + eps).sqrt()).collect()
    }

    /// The unbiased variance of each channel, var * m / (m - 1), which running estimates average.
    ///
    /// `elements_per_channel` is m, see [`Shape::elements_per_channel`]. With a single element
    /// there is no unbiased estimate, and the biased one, zero, is returned.
    pub fn unbiased_var(&self, elements_per_channel: usize) -> Vec<f64> {
        let m = elements_per_channel as f64;
        let correction = m / (m - 1.0).max(1.0);
        self.var.iter().map(|var| var * correction).collect()
    }
}

/// What the forward pass leaves for the backward pass.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a, E> {
    /// The input of the forward pass.
    pub u: &'a [E],
    /// Its output, unchanged. It is read only with ReLU; without, it may be empty.
    pub y: &'a [E],
    /// The statistics it normalized with.
    pub statistics: &'a Statistics,
}

/// Normalizes with the statistics of this batch, writes y and returns the statistics.
///
/// With one element per channel the variance is zero, and so is xhat.
pub fn forward_train<E: Element>(
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    u: &[E],
    y: &mut [E],
) -> Result<Statistics, Error> {
    check(config, noise, &[("u", u.len()), ("y", y.len())])?;
    let isa = Isa::current();
    let statistics = cpu::statistics(isa, config, u)?;
    Normalization::new(isa, config, noise, &statistics).forward(u, y);
    Ok(statistics)
}

/// Normalizes with given statistics, usually running estimates, and writes y.
pub fn forward_eval<E: Element>(
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    statistics: &Statistics,
    u: &[E],
    y: &mut [E],
) -> Result<(), Error> {
    check(config, noise, &[("u", u.len()), ("y", y.len())])?;
    check_statistics(config, statistics)?;
    Normalization::new(Isa::current(), config, noise, statistics).forward(u, y);
    Ok(())
}

/// The gradient of [`forward_train`]: writes du and returns dsigma, one value for each scale of
/// `noise` (none without).
///
/// `config`, `noise` and `saved` must be those of the forward pass.
pub fn backward_train<E: Element>(
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    saved: Saved<E>,
    dy: &[E],
    du: &mut [E],
) -> Result<Vec<E::Real>, Error> {
    let (normalization, inputs) = start_backward(config, noise.into(), saved, dy, du)?;
    Ok(normalization.backward_train(inputs, du)?.sigma)
}

/// The gradient of [`forward_eval`], whose statistics are constants: writes du and returns dsigma.
pub fn backward_eval<E: Element>(
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    saved: Saved<E>,
    dy: &[E],
    du: &mut [E],
) -> Result<Vec<E::Real>, Error> {
    let (normalization, inputs) = start_backward(config, noise.into(), saved, dy, du)?;
    Ok(normalization.backward_eval(inputs, du).sigma)
}

/// [`forward_eval`] with all terms, in HWNC.
pub(crate) fn forward_terms(
    config: &Config,
    terms: Terms<f32>,
    statistics: &Statistics,
    u: &[f32],
    y: &mut [f32],
) -> Result<(), Error> {
    check(config, terms.noise, &[("u", u.len()), ("y", y.len())])?;
    check_statistics(config, statistics)?;
    check_affine(config, terms.affine)?;
    let normalization = Normalization::new(Isa::current(), config, terms.noise, statistics);
    let normalization = normalization.affine(terms.affine);
    match terms.skip {
        None => normalization.forward(u, y),
        Some(skip) => {
            check_length("skip", skip.len(), config.shape.elements())?;
            normalization.forward_skip(u, skip, y);
        }
    }
    Ok(())
}

/// Which statistics a backward pass belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Those of the batch.
    Train,
    /// Constants.
    Eval,
}

/// The gradient of [`forward_terms`] for terms without a skip connection.
pub(crate) fn backward_terms(
    config: &Config,
    terms: Terms<f32>,
    mode: Mode,
    saved: Saved<f32>,
    dy: &[f32],
    du: &mut [f32],
) -> Result<ParameterGradients<f32>, Error> {
    let (normalization, inputs) = start_backward(config, terms, saved, dy, du)?;
    match mode {
        Mode::Train => normalization.backward_train(inputs, du),
        Mode::Eval => Ok(normalization.backward_eval(inputs, du)),
    }
}

/// The statistics of a batch.
pub(crate) fn statistics(config: &Config, u: &[f32]) -> Result<Statistics, Error> {
    check::<f32>(config, None, &[("u", u.len())])?;
    cpu::statistics(Isa::current(), config, u)
}

fn check<R: Real>(
    config: &Config,
    noise: Option<NoiseTerm<R>>,
    tensors: &[(&'static str, usize)],
) -> Result<(), Error> {
    let shape = config.shape;
    shape.check()?;
    for &(name, length) in tensors {
        check_length(name, length, shape.elements())?;
    }
    if !(config.eps >= 0.0 && config.eps.is_finite()) {
        return Err(Error::Value {
            name: "eps",
            value: config.eps.to_string(),
            requirement: "finite and not negative",
        });
    }
    if let Some(NoiseTerm { noise, sigma }) = noise {
        noise.check(shape.elements())?;
        if sigma.is_empty() || !shape.channels.is_multiple_of(sigma.len()) {
            return Err(Error::SigmaGroups { groups: sigma.len(), channels: shape.channels });
        }
    }
    Ok(())
}

fn check_affine(config: &Config, affine: Option<Affine<impl Real>>) -> Result<(), Error> {
    let channels = config.shape.channels;
    match affine {
        None => Ok(()),
        Some(Affine { gain, shift }) => {
            check_length("gain", gain.len(), channels)?;
            check_length("shift", shift.len(), channels)
        }
    }
}

fn check_statistics(config: &Config, statistics: &Statistics) -> Result<(), Error> {
    let channels = config.shape.channels;
    check_length("statistics.mean", statistics.mean.len(), channels)?;
    check_length("statistics.var", statistics.var.len(), channels)
}

/// Checks the arguments of a backward pass.
fn start_backward<'a, E: Element>(
    config: &Config,
    terms: Terms<'a, E::Real>,
    saved: Saved<'a, E>,
    dy: &'a [E],
    du: &[E],
) -> Result<(Normalization<'a, E::Real>, Inputs<'a, E>), Error> {
    let (Saved { u, y, statistics }, Terms { noise, affine, .. }) = (saved, terms);
    let tensors = [("u", u.len()), ("dy", dy.len()), ("du", du.len()), ("y", y.len())];
    check(config, noise, if config.relu { &tensors } else { &tensors[..3] })?;
    check_statistics(config, statistics)?;
    check_affine(config, affine)?;
    // Without ReLU y is not read; any slice of the right length stands in for it.
    let inputs = Inputs { u, y: if config.relu { y } else { dy }, dy };
    let normalization = Normalization::new(Isa::current(), config, noise, statistics);
    Ok((normalization.affine(affine), inputs))
}
