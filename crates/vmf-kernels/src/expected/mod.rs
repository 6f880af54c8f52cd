//! Normalization and the expected activation as one operation, for prediction without samples.
//!
//! # The operation
//!
//! Over draws of the weights, the value in front of an activation is close to a Gaussian: its mean
//! m is what a pass without noise computes, and its standard deviation s is one number per channel.
//! One deterministic pass comes close to the mean over all draws if it hands on the *expected*
//! activation,
//! ```text
//! m = (u - mean_c) * rstd_c
//! y = E relu(m + s z) = m Phi(m / s) + s phi(m / s)
//! ```
//! With pooling it is the expected ReLU of the largest of a window, by the formulas of Clark (1961)
//! for two independent Gaussians (m1, v1) and (m2, v2), applied pair by pair. With a^2 = v1 + v2,
//! t = (m1 - m2) / a, u = |t| and h(u) = phi(u) - u Phi(-u),
//! ```text
//! mean  = max(m1, m2) + a h
//! var   = v2 + (v1 - v2) Phi(t) - a^2 h (u + h)
//! ```
//! Neither loses digits: the square of the mean has been taken from the second moment by hand, so
//! that no term is larger than the variances, however far apart the means are.
//!
//! With s = 0 it is the noise-free pass: `y = max(m, 0)`.
//!
//! [`propagate`] hands on the variance as well, so that the next layer knows it for each element
//! rather than for each channel.
//!
//! # Layout
//!
//! HWNC in `f32`, which is what the CPU's convolution writes. A row, the C channels of one image at
//! one position, has its constants in vectors beside it, so one loop serves every instruction set.
//! u is read once and y written once, as in a pass without noise; an element costs one polynomial
//! more.

#[cfg(feature = "cuda")]
pub mod cuda;
mod full;

pub use full::{Moments, MomentsMut, propagate, propagate_pooled};

use crate::bn_noise::{Config, Statistics, Terms};
use crate::error::{Error, check_length};
use crate::layout::Layout;
use crate::normal_cdf::NormalCdf;
use crate::parallel::ByTask;
use crate::pool::PoolShape;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Elements of a task: enough to pay for starting one.
const TASK: usize = 1 << 14;
/// The least length of an inner loop, where the rows of several images are taken together.
const SWEEP: usize = 256;
/// Below this s a unit has no noise. It keeps 1 / s finite, and m / s then is far out in a tail.
const SMALLEST: f32 = 1e-12;
/// Beyond this many standard deviations the tail of a normal is 0 in single precision.
const FAR: f32 = 6.0;

/// Normalizes u with given statistics and writes the expected ReLU, with `deviation` the s of each
/// channel.
///
/// `config.relu` must be set: without an activation the expected value is m itself, which
/// [`bn_noise::forward_eval`](crate::bn_noise::forward_eval) computes.
pub fn forward(
    config: &Config,
    statistics: &Statistics,
    deviation: &[f32],
    u: &[f32],
    y: &mut [f32],
) -> Result<(), Error> {
    Expected { config, terms: None.into(), statistics, deviation }.forward(u, y)
}

/// The same, with maximum pooling before the ReLU, over windows side by side.
pub fn forward_pooled(
    config: &Config,
    statistics: &Statistics,
    deviation: &[f32],
    pool: &PoolShape,
    u: &[f32],
    y: &mut [f32],
) -> Result<(), Error> {
    Expected { config, terms: None.into(), statistics, deviation }.forward_pooled(pool, u, y)
}

/// The operation with gain and shift, which change m, and a skip connection, which is added to it.
#[derive(Clone, Copy)]
pub(crate) struct Expected<'a> {
    pub(crate) config: &'a Config,
    /// The noise in it is ignored.
    pub(crate) terms: Terms<'a, f32>,
    pub(crate) statistics: &'a Statistics,
    pub(crate) deviation: &'a [f32],
}

impl Expected<'_> {
    /// See [`forward`].
    pub(crate) fn forward(&self, u: &[f32], y: &mut [f32]) -> Result<(), Error> {
        check_activation(self.config)?;
        let (channels, elements) = (Channels::new(self)?, self.config.shape.elements());
        check_length("u", u.len(), elements)?;
        check_length("y", y.len(), elements)?;
        if let Some(skip) = self.terms.skip {
            check_length("skip", skip.len(), elements)?;
        }
        let isa = Isa::current();
        let length = channels.task_len();
        let tasks = y.par_chunks_mut(length).by_task().zip(u.par_chunks(length)).enumerate();
        tasks.for_each(|(task, (y, u))| {
            let skip = self.terms.skip.map(|skip| &skip[task * length..][..y.len()]);
            dispatch_to(isa, Relu { channels: &channels, u, skip, y });
        });
        Ok(())
    }

    /// See [`forward_pooled`]. There must be no skip connection.
    pub(crate) fn forward_pooled(
        &self,
        pool: &PoolShape,
        u: &[f32],
        y: &mut [f32],
    ) -> Result<(), Error> {
        check_activation(self.config)?;
        let channels = Channels::new(self)?;
        check_length("u", u.len(), pool.input_len())?;
        check_length("y", y.len(), pool.output_len())?;
        let isa = Isa::current();
        // All images at one output position.
        let planes = pool.batch * pool.channels;
        let [_, width] = pool.output();
        y.par_chunks_mut(planes).by_task().enumerate().for_each(|(position, y)| {
            let window = pool.elements_of([position / width, position % width]);
            dispatch_to(isa, Pooled { channels: &channels, window: &window, u, y });
        });
        Ok(())
    }
}

fn check_activation(config: &Config) -> Result<(), Error> {
    let requirement = "with ReLU: without an activation the expected value is the mean";
    if config.relu { Ok(()) } else { Err(unsupported(requirement)) }
}

fn unsupported(requirement: &'static str) -> Error {
    Error::Value { name: "an expected activation", value: "this one".into(), requirement }
}

/// The constants of all channels, each repeated so that an inner loop is long enough.
struct Channels {
    channels: usize,
    mean: Vec<f32>,
    /// Times the gain.
    rstd: Vec<f32>,
    /// What rounding the mean took away from m, and the shift.
    correction: Vec<f32>,
    deviation: Vec<f32>,
}

impl Channels {
    fn new(expected: &Expected) -> Result<Self, Error> {
        let Expected { config, terms, statistics, deviation } = *expected;
        let channels = config.shape.channels;
        config.shape.check()?;
        if let Some(affine) = terms.affine {
            check_length("gain", affine.gain.len(), channels)?;
            check_length("shift", affine.shift.len(), channels)?;
        }
        check_length("deviation", deviation.len(), channels)?;
        check_length("statistics.mean", statistics.mean.len(), channels)?;
        check_length("statistics.var", statistics.var.len(), channels)?;
        if config.shape.layout == Layout::Nchw {
            return Err(unsupported("in HWNC"));
        }
        let rstd = statistics.rstd(config.eps);
        let repeats = (SWEEP / channels).max(1);
        let each = |value: &dyn Fn(usize) -> f32| -> Vec<f32> {
            (0..channels * repeats).map(|i| value(i % channels)).collect()
        };
        let rounded = |c: usize| f64::from(statistics.mean[c] as f32);
        let gain = |c: usize| terms.affine.map_or(1.0, |affine| f64::from(affine.gain[c]));
        let shift = |c: usize| terms.affine.map_or(0.0, |affine| f64::from(affine.shift[c]));
        let correction =
            |c: usize| (rounded(c) - statistics.mean[c]) * rstd[c] * gain(c) + shift(c);
        Ok(Self {
            channels,
            mean: each(&|c| statistics.mean[c] as f32),
            rstd: each(&|c| (rstd[c] * gain(c)) as f32),
            correction: each(&|c| correction(c) as f32),
            deviation: each(&|c| deviation[c].max(SMALLEST)),
        })
    }

    /// Elements of a task, which begins at the first channel.
    fn task_len(&self) -> usize {
        TASK.next_multiple_of(self.channels)
    }

    /// Elements of an inner loop.
    fn sweep(&self) -> usize {
        self.mean.len()
    }

    /// m for a row that begins at the first channel.
    #[inline(always)]
    fn normalize<S: Simd>(&self, u: &[f32], m: &mut [f32]) {
        let length = u.len();
        let (mean, rstd) = (&self.mean[..length], &self.rstd[..length]);
        let (correction, m) = (&self.correction[..length], &mut m[..length]);
        for i in 0..length {
            m[i] = S::mul_add(u[i] - mean[i], rstd[i], correction[i]);
        }
    }
}

/// `E relu(m + s z) = s g(m / s)`.
#[inline(always)]
fn expected_relu<S: Simd>(m: f32, s: f32) -> f32 {
    s * (m / s).relu_mean::<S>()
}

/// The mean and the variance of the larger of two independent Gaussians, which have one variance if
/// `EQUAL`.
#[inline(always)]
fn maximum<S: Simd, const EQUAL: bool>([m1, v1]: [f32; 2], [m2, v2]: [f32; 2]) -> [f32; 2] {
    let (d, a) = (m1 - m2, (v1 + v2).sqrt());
    let t = d / a;
    let u = if t < 0.0 { -t } else { t };
    let u = if u > FAR { FAR } else { u };
    let h = (-u).relu_mean::<S>();
    let inside = if EQUAL { v2 } else { S::mul_add(v1 - v2, t.cdf::<S>(), v2) };
    let var = S::mul_add(-(v1 + v2) * h, u + h, inside);
    let larger = if d > 0.0 { m1 } else { m2 };
    // Rounding can leave a negative number where one of the two is certain.
    let least = SMALLEST * SMALLEST;
    [S::mul_add(a, h, larger), if var < least { least } else { var }]
}

struct Relu<'a> {
    channels: &'a Channels,
    u: &'a [f32],
    skip: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl Kernel for Relu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let sweep = self.channels.sweep();
        for (row, (u, y)) in self.u.chunks(sweep).zip(self.y.chunks_mut(sweep)).enumerate() {
            self.channels.normalize::<S>(u, y);
            if let Some(skip) = self.skip {
                y.iter_mut().zip(&skip[row * sweep..]).for_each(|(m, skip)| *m += skip);
            }
            for (y, s) in y.iter_mut().zip(&self.channels.deviation) {
                *y = expected_relu::<S>(*y, *s);
            }
        }
    }
}

struct Pooled<'a> {
    channels: &'a Channels,
    /// The input positions of the window.
    window: &'a [usize],
    u: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Pooled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (sweep, planes) = (self.channels.sweep(), self.y.len());
        // A mean and a variance for each element of the window, reduced in place.
        let mut means = vec![0.0; self.window.len() * sweep];
        let mut variances = means.clone();
        for (sweep_number, y) in self.y.chunks_mut(sweep).enumerate() {
            let length = y.len();
            let deviation = &self.channels.deviation[..length];
            for (position, m) in self.window.iter().zip(means.chunks_mut(sweep)) {
                let first = position * planes + sweep_number * sweep;
                self.channels.normalize::<S>(&self.u[first..][..length], m);
            }
            for variances in variances.chunks_mut(sweep) {
                for (v, s) in variances[..length].iter_mut().zip(deviation) {
                    *v = s * s;
                }
            }
            // Before the first maximum all elements of a window have one variance.
            reduce_window::<S>(&mut means, &mut variances, [sweep, length], true);
            for ((y, m), v) in y.iter_mut().zip(&means).zip(&variances) {
                *y = expected_relu::<S>(*m, v.sqrt());
            }
        }
    }
}

/// Reduces rows of means and variances, one row every `sweep` elements and `length` elements long,
/// to those of the largest of each column, which it leaves in the first row. `equal` says whether
/// all variances of a column are the same.
#[inline(always)]
fn reduce_window<S: Simd>(
    means: &mut [f32],
    variances: &mut [f32],
    [sweep, length]: [usize; 2],
    equal: bool,
) {
    let count = means.len() / sweep;
    // Neighbours first, then the maxima of neighbours, and so on.
    let mut step = 1;
    while step < count {
        for row in (0..count - step).step_by(2 * step) {
            let (left, right) = (row * sweep, (row + step) * sweep);
            let (m, others) = means.split_at_mut(right);
            let (v, other_variances) = variances.split_at_mut(right);
            let first = [&mut m[left..][..length], &mut v[left..][..length]];
            let second = [&others[..length], &other_variances[..length]];
            if equal && step == 1 {
                reduce::<S, true>(first, second);
            } else {
                reduce::<S, false>(first, second);
            }
        }
        step *= 2;
    }
}

/// Replaces means and variances by those of the larger of each and its counterpart.
#[inline(always)]
fn reduce<S: Simd, const EQUAL: bool>(
    [m, v]: [&mut [f32]; 2],
    [others, other_variances]: [&[f32]; 2],
) {
    for i in 0..m.len().min(v.len()).min(others.len()).min(other_variances.len()) {
        [m[i], v[i]] = maximum::<S, EQUAL>([m[i], v[i]], [others[i], other_variances[i]]);
    }
}

#[cfg(test)]
mod tests;
