//! What the inner loops need to know about a channel.

use super::super::{Config, NoiseTerm, Statistics};
use super::accumulate::Sums;
use crate::element::Real;
use crate::simd::Simd;

/// One value per channel of each constant in
/// ```text
/// xhat = (u - mean) * rstd + shift,    shift = (mean - true mean) * rstd
/// ```
/// The shift restores what rounding the mean to the working precision took away: where u is close
/// to the mean, the difference u - mean is exact, so xhat is accurate however far the channel is
/// from zero.
pub(super) struct Coefficients<R> {
    pub(super) mean: Vec<R>,
    pub(super) rstd: Vec<R>,
    pub(super) shift: Vec<R>,
    pub(super) sigma: Vec<R>,
}

impl<R: Real> Coefficients<R> {
    /// The constants of all channels, written `repeats` times in a row.
    pub(super) fn new(
        config: &Config,
        noise: Option<NoiseTerm<R>>,
        statistics: &Statistics,
        repeats: usize,
    ) -> Self {
        let channels = config.shape.channels;
        let rstd = statistics.rstd(config.eps);
        let shift = |c: usize| {
            let rounded = R::from_f64(statistics.mean[c]).to_f64();
            R::from_f64((rounded - statistics.mean[c]) * rstd[c])
        };
        let sigma = |c: usize| {
            noise.map_or(R::ZERO, |NoiseTerm { sigma, .. }| sigma[c / (channels / sigma.len())])
        };
        let each = |value: &dyn Fn(usize) -> R| repeat(channels, repeats, value);
        Self {
            mean: each(&|c| R::from_f64(statistics.mean[c])),
            rstd: each(&|c| R::from_f64(rstd[c])),
            shift: each(&shift),
            sigma: each(&sigma),
        }
    }
}

/// The averages in `du = rstd * (g - mean_g - xhat * mean_g_xhat)`.
pub(super) struct Averages<R> {
    pub(super) g: Vec<R>,
    pub(super) g_xhat: Vec<R>,
}

impl<R: Real> Averages<R> {
    /// The sums of all channels divided by their m elements, written `repeats` times in a row.
    pub(super) fn new(sums: &[Sums], elements_per_channel: usize, repeats: usize) -> Self {
        let m = elements_per_channel as f64;
        Self {
            g: repeat(sums.len(), repeats, &|c| R::from_f64(sums[c].g / m)),
            g_xhat: repeat(sums.len(), repeats, &|c| R::from_f64(sums[c].g_xhat / m)),
        }
    }
}

fn repeat<R>(channels: usize, repeats: usize, value: &dyn Fn(usize) -> R) -> Vec<R> {
    (0..channels * repeats).map(|i| value(i % channels)).collect()
}

/// `(u - mean) * rstd + shift`.
#[inline(always)]
pub(super) fn normalize<R: Real, S: Simd>(u: R, mean: R, rstd: R, shift: R) -> R {
    (u - mean).mul_add::<S>(rstd, shift)
}

/// ReLU with `floor` 0, the identity with negative infinity; NaN passes through either.
#[inline(always)]
pub(super) fn activate<R: Real>(value: R, floor: R) -> R {
    if value < floor { floor } else { value }
}

/// The floor of [`activate`].
pub(super) fn floor<R: Real>(relu: bool) -> R {
    if relu { R::ZERO } else { R::NEG_INFINITY }
}

/// `g`: the gradient where ReLU let the value pass, and everywhere without ReLU.
#[inline(always)]
pub(super) fn gate<R: Real, const RELU: bool>(dy: R, y: R) -> R {
    if RELU && y <= R::ZERO { R::ZERO } else { dy }
}

/// `rstd * (g - mean_g - xhat * mean_g_xhat)`.
#[inline(always)]
pub(super) fn input_gradient<R: Real, S: Simd>(
    g: R,
    xhat: R,
    rstd: R,
    mean_g: R,
    mean_g_xhat: R,
) -> R {
    (-xhat).mul_add::<S>(mean_g_xhat, g - mean_g) * rstd
}
