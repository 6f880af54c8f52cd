//! The passes where the channels of an image lie together, row by row.
//!
//! Inner loops run along a row, with the constants of each channel in vectors beside it. Where a
//! row is short, the constants are written several times in a row, so that one loop sweeps over
//! several images.
//!
//! Passes without noise take the tensor as one long matrix of S N rows. Passes with noise go by
//! [`Rectangle`]s.

use super::accumulate::{Moments, Part, Sums};
use super::coefficients::{Averages, Coefficients, activate, gate, input_gradient, normalize};
use super::rectangle::{Rectangle, Sweep};
use crate::element::{Element, Real};
use crate::noise::Noise;
use crate::simd::{Kernel, Simd, prefetch};

/// Elements of a task: enough to pay for starting one, and small enough for the second-level cache.
pub(super) const TASK: usize = 1 << 15;
/// The longest sweep of an inner loop.
pub(super) const SWEEP: usize = 256;

/// How often the channels' constants are repeated.
pub(super) fn repeats(channels: usize) -> usize {
    (SWEEP / channels).max(1)
}

/// Rows of C elements that make a task of the passes without noise.
pub(super) fn rows_per_task(channels: usize) -> usize {
    (TASK / channels).max(32)
}

/// Sums over rows for each channel, kept for each of its repeats.
pub(super) struct RowSums<R> {
    channels: usize,
    pub(super) values: Vec<R>,
}

impl<R: Real> RowSums<R> {
    #[inline(always)]
    pub(super) fn new(channels: usize) -> Self {
        Self { channels, values: vec![R::ZERO; channels * repeats(channels)] }
    }

    /// The sum of channel c.
    #[inline(always)]
    pub(super) fn total(&self, channel: usize) -> f64 {
        let mut total = 0.0;
        for value in self.values[channel..].iter().step_by(self.channels) {
            total += value.to_f64();
        }
        total
    }
}

/// Mean and squared deviations of each channel.
pub(super) struct Statistics<'a, E> {
    pub(super) channels: usize,
    pub(super) u: &'a [E],
}

impl<E: Element> Kernel for Statistics<'_, E> {
    type Output = Part<Moments>;

    /// Two passes over rows that the first one brought into the cache: the means, then the moments
    /// about them.
    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Moments> {
        let channels = self.channels;
        let rows = self.u.len() / channels;
        let mut sum = RowSums::<E::Real>::new(channels);
        let sweep = sum.values.len();
        for row in self.u.chunks(sweep) {
            add_row(row, &mut sum.values);
        }
        let mean = |c: usize| E::Real::from_f64(sum.total(c % channels) / rows as f64);
        let pivots: Vec<E::Real> = (0..sweep).map(mean).collect();

        let mut offsets = RowSums::<E::Real>::new(channels);
        let mut squares = RowSums::<E::Real>::new(channels);
        for row in self.u.chunks(sweep) {
            add_moments::<E, S>(row, &pivots, &mut offsets.values, &mut squares.values);
        }
        let moments = |c: usize| {
            let pivot = pivots[c].to_f64();
            Moments::about(pivot, rows, offsets.total(c), squares.total(c))
        };
        Part { first_channel: 0, channels: (0..channels).map(moments).collect() }
    }
}

#[inline(always)]
fn add_row<E: Element>(row: &[E], sums: &mut [E::Real]) {
    for (sum, u) in sums.iter_mut().zip(row) {
        *sum += u.to_real();
    }
}

#[inline(always)]
fn add_moments<E: Element, S: Simd>(
    row: &[E],
    pivots: &[E::Real],
    offsets: &mut [E::Real],
    squares: &mut [E::Real],
) {
    for (((u, &pivot), sum), square) in row.iter().zip(pivots).zip(offsets).zip(squares) {
        let offset = u.to_real() - pivot;
        *sum += offset;
        *square = offset.mul_add::<S>(offset, *square);
    }
}

/// y = act(xhat + sigma * z), into one piece for each position of the rectangle.
pub(super) struct Forward<'a, E: Element> {
    pub(super) rectangle: Rectangle,
    pub(super) coefficients: &'a Coefficients<E::Real>,
    pub(super) noise: Option<&'a Noise>,
    pub(super) floor: E::Real,
    pub(super) u: &'a [E],
    pub(super) y: Vec<&'a mut [E]>,
}

impl<E: Element> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (rectangle, u) = (self.rectangle, self.u);
        let operand = |sweep: &Sweep, position| {
            let start = rectangle.start(sweep.position + position) + sweep.at;
            &u[start..start + sweep.length]
        };
        let fetch = |sweep: &Sweep| {
            for position in 0..sweep.positions {
                prefetch(operand(sweep, position));
            }
        };
        let mut sweeps = rectangle.sweeps::<E::Real>(self.noise);
        while let Some(sweep) = sweeps.next::<S>(fetch) {
            for position in 0..sweep.positions {
                let u = operand(&sweep, position);
                let y = &mut self.y[sweep.position + position][sweep.at..][..sweep.length];
                let z = &sweeps.normals[position * sweeps.pitch..][..sweep.length];
                forward_sweep::<E, S>(self.coefficients, sweep.column, self.floor, u, z, y);
            }
        }
    }
}

#[inline(always)]
pub(super) fn forward_sweep<E: Element, S: Simd>(
    coefficients: &Coefficients<E::Real>,
    column: usize,
    floor: E::Real,
    u: &[E],
    z: &[E::Real],
    y: &mut [E],
) {
    let length = y.len();
    let mean = &coefficients.mean[column..][..length];
    let rstd = &coefficients.rstd[column..][..length];
    let shift = &coefficients.shift[column..][..length];
    let sigma = &coefficients.sigma[column..][..length];
    let (u, z) = (&u[..length], &z[..length]);
    for i in 0..length {
        let xhat = normalize::<_, S>(u[i].to_real(), mean[i], rstd[i], shift[i]);
        y[i] = E::from_real(activate(sigma[i].mul_add::<S>(z[i], xhat), floor));
    }
}

/// The sums of the backward pass; `RECOVER` reads sigma * z off y instead of making z.
pub(super) struct Reduce<'a, E: Element, const RELU: bool, const RECOVER: bool> {
    pub(super) rectangle: Rectangle,
    pub(super) coefficients: &'a Coefficients<E::Real>,
    pub(super) noise: Option<&'a Noise>,
    pub(super) u: &'a [E],
    pub(super) y: &'a [E],
    pub(super) dy: &'a [E],
}

impl<E: Element, const RELU: bool, const RECOVER: bool> Kernel for Reduce<'_, E, RELU, RECOVER> {
    type Output = Part<Sums>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Sums> {
        let channels = self.rectangle.shape.channels;
        let mut g = RowSums::<E::Real>::new(channels);
        let mut g_xhat = RowSums::<E::Real>::new(channels);
        let mut g_z = RowSums::<E::Real>::new(channels);
        let mut sweeps = self.rectangle.sweeps::<E::Real>(self.noise);
        while let Some(sweep) = sweeps.next::<S>(|_| ()) {
            let columns = sweep.column..sweep.column + sweep.length;
            for position in 0..sweep.positions {
                let start = self.rectangle.start(sweep.position + position) + sweep.at;
                let elements = start..start + sweep.length;
                add_sums::<E, S, RELU, RECOVER>(
                    self.coefficients,
                    sweep.column,
                    &self.u[elements.clone()],
                    &self.y[elements.clone()],
                    &self.dy[elements],
                    &sweeps.normals[position * sweeps.pitch..][..sweep.length],
                    &mut g.values[columns.clone()],
                    &mut g_xhat.values[columns.clone()],
                    &mut g_z.values[columns.clone()],
                );
            }
        }
        let sums = |c: usize| Sums { g: g.total(c), g_xhat: g_xhat.total(c), g_z: g_z.total(c) };
        Part { first_channel: 0, channels: (0..channels).map(sums).collect() }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)] // separate slices are what lets the loop vectorize without alias checks
pub(super) fn add_sums<E: Element, S: Simd, const RELU: bool, const RECOVER: bool>(
    coefficients: &Coefficients<E::Real>,
    column: usize,
    u: &[E],
    y: &[E],
    dy: &[E],
    z: &[E::Real],
    sum_g: &mut [E::Real],
    sum_g_xhat: &mut [E::Real],
    sum_g_z: &mut [E::Real],
) {
    let length = sum_g.len();
    let mean = &coefficients.mean[column..][..length];
    let rstd = &coefficients.rstd[column..][..length];
    let shift = &coefficients.shift[column..][..length];
    let (u, y, dy, z) = (&u[..length], &y[..length], &dy[..length], &z[..length]);
    let (sum_g_xhat, sum_g_z) = (&mut sum_g_xhat[..length], &mut sum_g_z[..length]);
    for i in 0..length {
        let xhat = normalize::<_, S>(u[i].to_real(), mean[i], rstd[i], shift[i]);
        let g = gate::<_, RELU>(dy[i].to_real(), y[i].to_real());
        sum_g[i] += g;
        sum_g_xhat[i] = g.mul_add::<S>(xhat, sum_g_xhat[i]);
        let noise = if RECOVER { y[i].to_real() - xhat } else { z[i] };
        sum_g_z[i] = g.mul_add::<S>(noise, sum_g_z[i]);
    }
}

/// du, from the averages of the sums.
pub(super) struct Apply<'a, E: Element, const RELU: bool> {
    pub(super) coefficients: &'a Coefficients<E::Real>,
    pub(super) averages: &'a Averages<E::Real>,
    pub(super) u: &'a [E],
    pub(super) y: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) du: &'a mut [E],
}

impl<E: Element, const RELU: bool> Kernel for Apply<'_, E, RELU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let sweep = self.coefficients.mean.len();
        let rows = self.du.chunks_mut(sweep).enumerate();
        for (row, du) in rows {
            let elements = row * sweep..row * sweep + du.len();
            apply_sweep::<E, S, RELU>(
                self.coefficients,
                self.averages,
                &self.u[elements.clone()],
                &self.y[elements.clone()],
                &self.dy[elements],
                du,
            );
        }
    }
}

#[inline(always)]
pub(super) fn apply_sweep<E: Element, S: Simd, const RELU: bool>(
    coefficients: &Coefficients<E::Real>,
    averages: &Averages<E::Real>,
    u: &[E],
    y: &[E],
    dy: &[E],
    du: &mut [E],
) {
    let length = du.len();
    let mean = &coefficients.mean[..length];
    let rstd = &coefficients.rstd[..length];
    let shift = &coefficients.shift[..length];
    let (mean_g, mean_g_xhat) = (&averages.g[..length], &averages.g_xhat[..length]);
    let (u, y, dy) = (&u[..length], &y[..length], &dy[..length]);
    for i in 0..length {
        let xhat = normalize::<_, S>(u[i].to_real(), mean[i], rstd[i], shift[i]);
        let g = gate::<_, RELU>(dy[i].to_real(), y[i].to_real());
        let gradient = input_gradient::<_, S>(g, xhat, rstd[i], mean_g[i], mean_g_xhat[i]);
        du[i] = E::from_real(gradient);
    }
}
