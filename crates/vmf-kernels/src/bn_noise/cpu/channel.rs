//! The arithmetic of one element, written once for every layout, and the constants of its channel.

use super::super::{Affine, Config, NoiseTerm, Statistics};
use super::accumulate::Sums;
use crate::element::Real;
use crate::simd::Simd;

/// The constants of one channel, and what is computed with them:
/// ```text
/// xhat = (u - mean) * rstd + correction        correction = (mean - exact mean) * rstd
/// y    = act((u - mean) * scale + offset + noise * z)
/// du   = scale * (g - mean_g - xhat * mean_g_xhat)
/// ```
/// with `scale = gain * rstd`, `offset = gain * correction + shift` and `noise = gain * sigma`, so
/// that gain and shift cost nothing. Without them `y = act(xhat + sigma * z)`.
///
/// The correction restores what rounding the mean to the working precision took away. Where u is
/// close to the mean, the difference u - mean is exact, so xhat is accurate however far the channel
/// is from zero.
#[derive(Clone, Copy)]
pub(super) struct Channel<R> {
    mean: R,
    rstd: R,
    correction: R,
    scale: R,
    offset: R,
    noise: R,
}

impl<R: Real> Channel<R> {
    #[inline(always)]
    fn xhat<S: Simd>(self, u: R) -> R {
        (u - self.mean).mul_add::<S>(self.rstd, self.correction)
    }

    /// What y is before noise and activation.
    #[inline(always)]
    pub(super) fn noise_free<S: Simd>(self, u: R) -> R {
        (u - self.mean).mul_add::<S>(self.scale, self.offset)
    }

    /// y, where `floor` says which activation follows (see [`floor`]).
    #[inline(always)]
    pub(super) fn forward<S: Simd>(self, u: R, z: R, floor: R) -> R {
        let value = self.noise.mul_add::<S>(z, self.noise_free::<S>(u));
        // A comparison and not `max`, which would turn a NaN into the floor and hide it.
        if value < floor { floor } else { value }
    }

    /// `(g, xhat)`, with g the gradient that passed the activation.
    #[inline(always)]
    pub(super) fn gradient<S: Simd, const RELU: bool>(self, u: R, y: R, dy: R) -> (R, R) {
        let g = if RELU && y <= R::ZERO { R::ZERO } else { dy };
        (g, self.xhat::<S>(u))
    }

    /// du, from what [`gradient`](Channel::gradient) returned and the averages of the channel.
    #[inline(always)]
    pub(super) fn input_gradient<S: Simd>(self, g: R, xhat: R, mean_g: R, mean_g_xhat: R) -> R {
        (-xhat).mul_add::<S>(mean_g_xhat, g - mean_g) * self.scale
    }
}

/// What a value before the activation is cut off at: zero with ReLU, nothing without.
pub(super) fn floor<R: Real>(relu: bool) -> R {
    if relu { R::ZERO } else { R::NEG_INFINITY }
}

/// The constants of all channels, one vector for each constant.
///
/// They are repeated as often as a row of an inner loop holds all channels.
pub(super) struct Channels<R> {
    mean: Vec<R>,
    rstd: Vec<R>,
    correction: Vec<R>,
    scale: Vec<R>,
    offset: Vec<R>,
    noise: Vec<R>,
}

impl<R: Real> Channels<R> {
    /// The constants of all channels, written `repeats` times in a row.
    pub(super) fn new(
        config: &Config,
        noise: Option<NoiseTerm<R>>,
        statistics: &Statistics,
        repeats: usize,
    ) -> Self {
        let channels = config.shape.channels;
        let rstd = statistics.rstd(config.eps);
        let correction = |c: usize| {
            let rounded = R::from_f64(statistics.mean[c]).to_f64();
            R::from_f64((rounded - statistics.mean[c]) * rstd[c])
        };
        let sigma = |c: usize| {
            noise.map_or(R::ZERO, |NoiseTerm { sigma, .. }| sigma[c / (channels / sigma.len())])
        };
        let each = |value: &dyn Fn(usize) -> R| repeat(channels, repeats, value);
        let (rstd, correction) = (each(&|c| R::from_f64(rstd[c])), each(&correction));
        Self {
            mean: each(&|c| R::from_f64(statistics.mean[c])),
            scale: rstd.clone(),
            offset: correction.clone(),
            rstd,
            correction,
            noise: each(&sigma),
        }
    }

    /// The same with a gain and a shift for each channel.
    pub(super) fn with_affine(mut self, affine: Affine<R>) -> Self {
        let channels = affine.gain.len();
        for i in 0..self.len() {
            let (gain, shift) = (affine.gain[i % channels], affine.shift[i % channels]);
            self.scale[i] = self.scale[i] * gain;
            self.offset[i] = self.offset[i] * gain + shift;
            self.noise[i] = self.noise[i] * gain;
        }
        self
    }

    /// The number of channels times the repeats.
    pub(super) fn len(&self) -> usize {
        self.mean.len()
    }

    /// The factor of z for each channel, repeated like the others.
    pub(super) fn noise(&self) -> &[R] {
        &self.noise
    }

    #[inline(always)]
    pub(super) fn channel(&self, channel: usize) -> Channel<R> {
        self.columns(channel, 1).channel(0)
    }

    /// The constants beside `length` elements of a row, from `first` on.
    #[inline(always)]
    pub(super) fn columns(&self, first: usize, length: usize) -> Columns<'_, R> {
        Columns {
            mean: &self.mean[first..][..length],
            rstd: &self.rstd[first..][..length],
            correction: &self.correction[first..][..length],
            scale: &self.scale[first..][..length],
            offset: &self.offset[first..][..length],
            noise: &self.noise[first..][..length],
        }
    }
}

/// The constants beside the elements of a row.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a, R> {
    mean: &'a [R],
    rstd: &'a [R],
    correction: &'a [R],
    scale: &'a [R],
    offset: &'a [R],
    noise: &'a [R],
}

impl<R: Real> Columns<'_, R> {
    #[inline(always)]
    pub(super) fn channel(&self, i: usize) -> Channel<R> {
        Channel {
            mean: self.mean[i],
            rstd: self.rstd[i],
            correction: self.correction[i],
            scale: self.scale[i],
            offset: self.offset[i],
            noise: self.noise[i],
        }
    }
}

/// The averages of all channels, repeated like [`Channels`].
pub(super) struct Averages<R> {
    pub(super) g: Vec<R>,
    pub(super) g_xhat: Vec<R>,
}

impl<R: Real> Averages<R> {
    /// The sums of all channels divided by their m elements, written `repeats` times in a row.
    pub(super) fn new(sums: &[Sums], m: f64, repeats: usize) -> Self {
        Self {
            g: repeat(sums.len(), repeats, &|c| R::from_f64(sums[c].g / m)),
            g_xhat: repeat(sums.len(), repeats, &|c| R::from_f64(sums[c].g_xhat / m)),
        }
    }
}

fn repeat<R>(channels: usize, repeats: usize, value: &dyn Fn(usize) -> R) -> Vec<R> {
    (0..channels * repeats).map(|i| value(i % channels)).collect()
}
