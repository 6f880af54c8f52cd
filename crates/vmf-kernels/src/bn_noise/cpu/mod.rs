//! The operation on the CPU.
//!
//! Two layouts, each with the same four passes: [`nchw`] runs along planes and [`hwnc`] along rows.
//! [`pooled`] has the passes of [`hwnc`] with maximum pooling behind them. How they cut a tensor
//! into tasks is in [`stretch`], [`rectangle`] and [`band`]; README.md in this folder draws it. The
//! arithmetic of an element is in [`channel`], that of sums in [`accumulate`].

mod accumulate;
mod across;
mod band;
mod channel;
mod hwnc;
mod nchw;
mod pooled;
mod rectangle;
mod rows;
mod stretch;

#[cfg(test)]
mod tests;

use super::{Affine, Config, NoiseTerm, ParameterGradients, Statistics};
use crate::element::{Element, Real};
use crate::error::Error;
use crate::layout::{Layout, Shape};
use crate::noise::Noise;
use crate::pool::PoolShape;
use crate::simd::Isa;
use accumulate::{Part, Sums, merge_in_order};
use channel::{Averages, Channels, floor};
use pooled::PooledInputs;
use std::ops::Range;

/// Whether the elements of a channel lie together. With one position the two layouts are the same,
/// and HWNC has the longer inner loops.
fn by_plane(shape: Shape) -> bool {
    shape.layout == Layout::Nchw && shape.positions > 1
}

/// How often the constants of the channels are repeated.
fn repeats(shape: Shape) -> usize {
    if by_plane(shape) { 1 } else { rows::repeats(shape.channels) }
}

/// Mean and variance of each channel. Each block of u is read from memory once.
pub(super) fn statistics<E: Element>(
    isa: Isa,
    config: &Config,
    u: &[E],
) -> Result<Statistics, Error> {
    let shape = config.shape;
    let measure = if by_plane(shape) { nchw::measure } else { hwnc::measure };
    let mut measured = merge_in_order(shape.channels, measure(isa, shape, u));
    across::merge_moments(config.across, &mut measured)?;
    Ok(Statistics {
        mean: measured.iter().map(|m| m.mean).collect(),
        var: measured.iter().map(|m| m.squares / m.count).collect(),
    })
}

/// What the backward pass reads: the input and the output of the forward pass, and dy.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a, E> {
    pub(super) u: &'a [E],
    pub(super) y: &'a [E],
    pub(super) dy: &'a [E],
}

impl<E: Element> Inputs<'_, E> {
    #[inline(always)]
    fn part(self, elements: Range<usize>) -> Self {
        Self { u: &self.u[elements.clone()], y: &self.y[elements.clone()], dy: &self.dy[elements] }
    }

    /// u, y and dy of one element.
    #[inline(always)]
    fn element(self, i: usize) -> [E::Real; 3] {
        [self.u[i].to_real(), self.y[i].to_real(), self.dy[i].to_real()]
    }
}

/// The operation with its statistics at hand: what every element of the tensor is computed with.
pub(super) struct Normalization<'a, R> {
    isa: Isa,
    config: Config,
    noise: Option<NoiseTerm<'a, R>>,
    affine: Option<Affine<'a, R>>,
    channels: Channels<R>,
}

impl<'a, R: Real> Normalization<'a, R> {
    pub(super) fn new(
        isa: Isa,
        config: &Config,
        noise: Option<NoiseTerm<'a, R>>,
        statistics: &Statistics,
    ) -> Self {
        let channels = Channels::new(config, noise, statistics, repeats(config.shape));
        Self { isa, config: *config, noise, affine: None, channels }
    }

    /// The same with a gain and a shift for each channel.
    pub(super) fn affine(self, affine: Option<Affine<'a, R>>) -> Self {
        match affine {
            Some(affine) => {
                let channels = self.channels.with_affine(affine);
                Self { affine: Some(affine), channels, ..self }
            }
            None => self,
        }
    }

    fn noise(&self) -> Option<&Noise> {
        self.noise.as_ref().map(|term| &term.noise)
    }

    fn floor(&self) -> R {
        floor(self.config.relu)
    }

    /// Writes y.
    pub(super) fn forward<E: Element<Real = R>>(&self, u: &[E], y: &mut [E]) {
        match by_plane(self.config.shape) {
            true => nchw::forward(self, u, y),
            false => hwnc::forward(self, u, None, y),
        }
    }

    /// Writes du and returns the other gradients, with the statistics those of the batch. y is not
    /// read without ReLU.
    pub(super) fn backward_train<E: Element<Real = R>>(
        &self,
        inputs: Inputs<E>,
        du: &mut [E],
    ) -> Result<ParameterGradients<R>, Error> {
        self.backward_train_reading(inputs, self.noise_is_in_y::<E>(), du)
    }

    /// The same; `recover` says to read the noise off y, even without ReLU.
    fn backward_train_reading<E: Element<Real = R>>(
        &self,
        inputs: Inputs<E>,
        recover: bool,
        du: &mut [E],
    ) -> Result<ParameterGradients<R>, Error> {
        let sums = self.gradient_sums(inputs, recover);
        self.input_gradient(&self.averages(&sums)?, inputs, du);
        Ok(self.parameter_gradients(&sums))
    }

    /// Writes du and returns the other gradients, where the statistics are constants.
    pub(super) fn backward_eval<E: Element<Real = R>>(
        &self,
        inputs: Inputs<E>,
        du: &mut [E],
    ) -> ParameterGradients<R> {
        let shape = self.config.shape;
        let zeros = Averages::new(&vec![Sums::default(); shape.channels], 1.0, repeats(shape));
        self.input_gradient(&zeros, inputs, du);
        match (self.noise, self.affine) {
            (None, None) => ParameterGradients::default(),
            _ => self.parameter_gradients(&self.gradient_sums(inputs, false)),
        }
    }

    /// The sums of each channel; `recover` says to read the noise off y.
    fn gradient_sums<E: Element<Real = R>>(&self, inputs: Inputs<E>, recover: bool) -> Vec<Sums> {
        let by_plane = by_plane(self.config.shape);
        let parts = match (by_plane, self.config.relu, recover) {
            (true, true, true) => nchw::gradient_sums::<E, true, true>(self, inputs),
            (true, true, false) => nchw::gradient_sums::<E, true, false>(self, inputs),
            (true, false, _) => nchw::gradient_sums::<E, false, false>(self, inputs),
            (false, true, true) => hwnc::gradient_sums::<E, true, true>(self, inputs),
            (false, true, false) => hwnc::gradient_sums::<E, true, false>(self, inputs),
            (false, false, true) => hwnc::gradient_sums::<E, false, true>(self, inputs),
            (false, false, false) => hwnc::gradient_sums::<E, false, false>(self, inputs),
        };
        self.merge(parts, recover)
    }

    /// The sums of all channels. Those of g z are divided by the factor of z if z was summed with
    /// it.
    fn merge(&self, parts: Vec<Part<Sums>>, recovered: bool) -> Vec<Sums> {
        let mut sums = merge_in_order(self.config.shape.channels, parts);
        if recovered {
            for (sums, sigma) in sums.iter_mut().zip(self.channels.noise()) {
                sums.g_z /= sigma.to_f64();
            }
        }
        sums
    }

    fn input_gradient<E: Element<Real = R>>(
        &self,
        averages: &Averages<R>,
        inputs: Inputs<E>,
        du: &mut [E],
    ) {
        match (by_plane(self.config.shape), self.config.relu) {
            (true, true) => nchw::input_gradient::<E, true>(self, averages, inputs, du),
            (true, false) => nchw::input_gradient::<E, false>(self, averages, inputs, du),
            (false, true) => hwnc::input_gradient::<E, true>(self, averages, inputs, du),
            (false, false) => hwnc::input_gradient::<E, false>(self, averages, inputs, du),
        }
    }

    /// The averages over the batch, to which all processes that share it contribute.
    fn averages(&self, sums: &[Sums]) -> Result<Averages<R>, Error> {
        let Config { shape, across, .. } = self.config;
        let elements = shape.elements_per_channel();
        if across.is_alone() {
            return Ok(Averages::new(sums, elements as f64, repeats(shape)));
        }
        let (sums, elements) = across::merge_sums(across, elements, sums)?;
        Ok(Averages::new(&sums, elements, repeats(shape)))
    }

    /// The gradients with respect to sigma, gain and shift: with sums over the channel, or for
    /// sigma over all channels of its group,
    /// ```text
    /// dsigma = sum gain g z,    dgain = sum g (xhat + sigma z),    dshift = sum g
    /// ```
    fn parameter_gradients(&self, sums: &[Sums]) -> ParameterGradients<R> {
        let sigma = self.noise.map_or(&[][..], |term| term.sigma);
        let gain = |channel: usize| self.affine.map_or(1.0, |affine| affine.gain[channel].to_f64());
        let per_group = sums.len() / sigma.len().max(1);
        let of_group = |group: usize| {
            let channels = group * per_group..(group + 1) * per_group;
            channels.map(|channel| gain(channel) * sums[channel].g_z).sum()
        };
        let of_gain = |(channel, sums): (usize, &Sums)| {
            let noise = sigma.get(channel / per_group).map(|sigma| sigma.to_f64() * sums.g_z);
            R::from_f64(sums.g_xhat + noise.unwrap_or(0.0))
        };
        let affine = self.affine.map_or(&[][..], |_| sums);
        ParameterGradients {
            sigma: (0..sigma.len()).map(of_group).map(R::from_f64).collect(),
            gain: affine.iter().enumerate().map(of_gain).collect(),
            shift: affine.iter().map(|sums| R::from_f64(sums.g)).collect(),
        }
    }

    /// Whether the backward pass of the training mode can read z off y instead of making it again,
    /// which costs as much as the rest of the pass.
    ///
    /// Where ReLU let a value pass, `y - xhat = sigma * z`. Where it did not, g is zero and z is
    /// not needed. y must be stored in the precision of the arithmetic.
    fn noise_is_in_y<E: Element<Real = R>>(&self) -> bool {
        let exact = size_of::<E>() == size_of::<R>();
        exact && self.config.relu && self.noise.is_some() && self.sigma_is_large()
    }

    /// Whether sigma is large enough for z to be read off y (true without noise).
    ///
    /// The rounding of y becomes an error of z when it is divided by sigma. In `f32`, with y of
    /// unit size and sigma = 2^-8, z is off by 2^-16, and in the sum over a channel such errors
    /// average out. Only the statistics of the batch keep y of unit size.
    ///
    /// With gain and shift y is of their size, and the noise is larger by the gain.
    pub(super) fn sigma_is_large(&self) -> bool {
        const SMALLEST: f64 = 1.0 / 256.0;
        let size = |channel: usize| {
            self.affine.map_or(1.0, |Affine { gain, shift }| {
                gain[channel].to_f64().abs() + shift[channel].to_f64().abs()
            })
        };
        let noise = self.channels.noise().iter().take(self.config.shape.channels).enumerate();
        let is_large = |(channel, noise): (usize, &R)| {
            let noise = noise.to_f64().abs();
            noise > 0.0 && noise >= SMALLEST * size(channel)
        };
        self.noise.is_none() || noise.into_iter().all(is_large)
    }
}

/// With a skip connection or maximum pooling, in HWNC.
impl Normalization<'_, f32> {
    /// Writes y, with `skip` added before the activation.
    pub(super) fn forward_skip(&self, u: &[f32], skip: &[f32], y: &mut [f32]) {
        hwnc::forward(self, u, Some(skip), y);
    }

    /// Writes du and returns the other gradients, with the statistics those of the batch. The
    /// activation has been taken care of: y is without the skip connection wherever dy is not zero.
    pub(super) fn backward_train_skip(
        &self,
        inputs: Inputs<f32>,
        du: &mut [f32],
    ) -> Result<ParameterGradients<f32>, Error> {
        let recover = self.noise.is_some() && self.sigma_is_large();
        self.backward_train_reading(inputs, recover, du)
    }

    /// Writes the pooled y, and in `argmax` which element of its window each value is.
    pub(super) fn forward_pooled(
        &self,
        pool: &PoolShape,
        u: &[f32],
        y: &mut [f32],
        argmax: &mut [u8],
    ) {
        pooled::forward(self, pool, u, y, argmax);
    }

    /// Writes du and returns the other gradients, with the statistics those of the batch. Sigma
    /// must be [large](Normalization::sigma_is_large).
    pub(super) fn backward_train_pooled(
        &self,
        pool: &PoolShape,
        inputs: Inputs<f32>,
        argmax: &[u8],
        du: &mut [f32],
    ) -> Result<ParameterGradients<f32>, Error> {
        let inputs = PooledInputs { inputs, argmax };
        let parts = match self.config.relu {
            true => pooled::gradient_sums::<true>(self, pool, inputs),
            false => pooled::gradient_sums::<false>(self, pool, inputs),
        };
        let sums = self.merge(parts, true);
        let averages = &self.averages(&sums)?;
        match self.config.relu {
            true => pooled::input_gradient::<true>(self, averages, pool, inputs, du),
            false => pooled::input_gradient::<false>(self, averages, pool, inputs, du),
        }
        Ok(self.parameter_gradients(&sums))
    }
}
