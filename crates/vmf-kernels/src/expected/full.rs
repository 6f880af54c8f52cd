//! Mean and variance of every element, from layer to layer.
//!
//! With q the product of the inputs' variances with the squared weights, which is the variance of u
//! for independent inputs,
//! ```text
//! m  = (u - mean_c) * rstd_c            v  = q * rstd_c^2 + s_c^2
//! m' = E relu(m + sqrt(v) z)            v' = Var relu(m + sqrt(v) z)
//! ```
//! where s_c is the layer's own noise. With pooling, (m, v) are first reduced to those of the
//! largest of each window by Clark's formulas.

use super::{Channels, Expected, reduce_window};
use crate::bn_noise::{Config, Statistics};
use crate::error::{Error, check_length};
use crate::normal_cdf::NormalCdf;
use crate::parallel::ByTask;
use crate::pool::PoolShape;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// The mean and the variance of each element of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Moments<'a> {
    /// The means.
    pub mean: &'a [f32],
    /// The variances; `None` if all of them are 0. Rounding may have left some of them slightly
    /// negative; they count as 0.
    pub variance: Option<&'a [f32]>,
}

/// Where the mean and the variance of each element are written to.
#[derive(Debug)]
pub struct MomentsMut<'a> {
    /// The means.
    pub mean: &'a mut [f32],
    /// The variances.
    pub variance: &'a mut [f32],
}

/// Normalizes u with given statistics, adds noise of standard deviation `own`, one value per
/// channel, and writes mean and variance of the activation.
///
/// `u.variance` is the product of the variances with the squared weights. Without ReLU in `config`
/// the activation is the identity.
pub fn propagate(
    config: &Config,
    statistics: &Statistics,
    own: &[f32],
    u: Moments,
    y: MomentsMut,
) -> Result<(), Error> {
    let channels =
        Channels::new(&Expected { config, terms: None.into(), statistics, deviation: own })?;
    check_lengths(&u, config.shape.elements(), &y, config.shape.elements())?;
    let isa = Isa::current();
    let length = channels.task_len();
    let tasks = y.mean.par_chunks_mut(length).zip(y.variance.par_chunks_mut(length));
    tasks.by_task().enumerate().for_each(|(task, (mean, variance))| {
        let (first, count) = (task * length, mean.len());
        let u = u.part(first, count);
        let y = MomentsMut { mean, variance };
        dispatch_to(isa, Elementwise { channels: &channels, relu: config.relu, u, y });
    });
    Ok(())
}

/// The same, with maximum pooling before the activation, over windows side by side.
pub fn propagate_pooled(
    config: &Config,
    statistics: &Statistics,
    own: &[f32],
    pool: &PoolShape,
    u: Moments,
    y: MomentsMut,
) -> Result<(), Error> {
    let channels =
        Channels::new(&Expected { config, terms: None.into(), statistics, deviation: own })?;
    check_lengths(&u, pool.input_len(), &y, pool.output_len())?;
    let isa = Isa::current();
    // All images at one output position.
    let planes = pool.batch * pool.channels;
    let [_, width] = pool.output();
    let positions = y.mean.par_chunks_mut(planes).zip(y.variance.par_chunks_mut(planes));
    positions.by_task().enumerate().for_each(|(position, (mean, variance))| {
        let window = pool.elements_of([position / width, position % width]);
        let y = MomentsMut { mean, variance };
        let channels = &channels;
        dispatch_to(isa, Pooled { channels, relu: config.relu, window: &window, u, y });
    });
    Ok(())
}

fn check_lengths(u: &Moments, inputs: usize, y: &MomentsMut, outputs: usize) -> Result<(), Error> {
    check_length("u.mean", u.mean.len(), inputs)?;
    if let Some(variance) = u.variance {
        check_length("u.variance", variance.len(), inputs)?;
    }
    check_length("y.mean", y.mean.len(), outputs)?;
    check_length("y.variance", y.variance.len(), outputs)
}

impl<'a> Moments<'a> {
    fn part(&self, first: usize, count: usize) -> Self {
        Self {
            mean: &self.mean[first..][..count],
            variance: self.variance.map(|variance| &variance[first..][..count]),
        }
    }
}

impl Channels {
    /// m and v for a row that begins at the first channel.
    #[inline(always)]
    fn normalize_moments<S: Simd>(&self, u: Moments, m: &mut [f32], v: &mut [f32]) {
        self.normalize::<S>(u.mean, m);
        let length = u.mean.len();
        let (rstd, own, v) = (&self.rstd[..length], &self.deviation[..length], &mut v[..length]);
        match u.variance {
            None => {
                for i in 0..length {
                    v[i] = own[i] * own[i];
                }
            }
            Some(q) => {
                let q = &q[..length];
                for i in 0..length {
                    // A NaN is not below 0, so it passes.
                    let q = if q[i] < 0.0 { 0.0 } else { q[i] };
                    v[i] = S::mul_add(q * rstd[i], rstd[i], own[i] * own[i]);
                }
            }
        }
    }
}

/// Replaces (m, v) by mean and variance of `relu(m + sqrt(v) z)`.
#[inline(always)]
fn activate<S: Simd>(m: &mut [f32], v: &mut [f32]) {
    for (m, v) in m.iter_mut().zip(v) {
        let s = v.sqrt();
        let t = *m / s;
        *m = s * t.relu_mean::<S>();
        *v *= t.relu_variance::<S>();
    }
}

struct Elementwise<'a> {
    channels: &'a Channels,
    relu: bool,
    u: Moments<'a>,
    y: MomentsMut<'a>,
}

impl Kernel for Elementwise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let sweep = self.channels.sweep();
        let rows = self.y.mean.chunks_mut(sweep).zip(self.y.variance.chunks_mut(sweep));
        for (row, (m, v)) in rows.enumerate() {
            let u = self.u.part(row * sweep, m.len());
            self.channels.normalize_moments::<S>(u, m, v);
            if self.relu {
                activate::<S>(m, v);
            }
        }
    }
}

struct Pooled<'a> {
    channels: &'a Channels,
    relu: bool,
    /// The input positions of the window.
    window: &'a [usize],
    u: Moments<'a>,
    y: MomentsMut<'a>,
}

impl Kernel for Pooled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (sweep, planes) = (self.channels.sweep(), self.y.mean.len());
        let mut means = vec![0.0; self.window.len() * sweep];
        let mut variances = means.clone();
        let rows = self.y.mean.chunks_mut(sweep).zip(self.y.variance.chunks_mut(sweep));
        for (row, (m, v)) in rows.enumerate() {
            let length = m.len();
            let elements = means.chunks_mut(sweep).zip(variances.chunks_mut(sweep));
            for (position, (means, variances)) in self.window.iter().zip(elements) {
                let u = self.u.part(position * planes + row * sweep, length);
                self.channels.normalize_moments::<S>(u, means, variances);
            }
            let equal = self.u.variance.is_none();
            reduce_window::<S>(&mut means, &mut variances, [sweep, length], equal);
            m.copy_from_slice(&means[..length]);
            v.copy_from_slice(&variances[..length]);
            if self.relu {
                activate::<S>(m, v);
            }
        }
    }
}
