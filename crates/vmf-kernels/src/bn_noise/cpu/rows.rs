//! The inner loops in HWNC, shared by the passes with pooling and without.
//!
//! They run along a row, the C channels of one image at one position, with the constants of each
//! channel in vectors beside it. Where rows are short the constants are repeated, so that one loop
//! covers the rows of several images, which follow each other in memory.

use super::Inputs;
use super::accumulate::{Part, Sums};
use super::channel::{Averages, Channels};
use crate::element::{Element, Real};
use crate::simd::Simd;

/// Elements of a task: enough to pay for starting one, and few enough for the second-level cache.
pub(super) const TASK: usize = 1 << 15;
/// Elements whose noise is made together, at most, unless 16 columns are already more.
const TILE: usize = 1 << 13;
/// The most elements that an inner loop covers, unless one row is longer.
const SWEEP: usize = 256;

/// How often the constants of the channels are repeated.
pub(super) fn repeats(channels: usize) -> usize {
    (SWEEP / channels).max(1)
}

/// The most elements that an inner loop covers if the noise of this many positions is made
/// together.
pub(super) fn longest_sweep(positions: usize) -> usize {
    (TILE / positions).clamp(16, SWEEP)
}

/// Cuts the memory of a tensor in HWNC into the pieces of each task, one for each of its positions.
///
/// A task has `images` images of some positions; `task_row` says which of `task_rows` a position
/// belongs to. The pieces are in the order of the tasks: rows of tasks, and in each row the images.
pub(super) fn pieces<T>(
    tensor: &mut [T],
    [batch, channels]: [usize; 2],
    images: usize,
    task_rows: usize,
    task_row: impl Fn(usize) -> usize,
) -> Vec<Vec<&mut [T]>> {
    let across = batch.div_ceil(images);
    let mut pieces = Vec::new();
    pieces.resize_with(task_rows * across, Vec::new);
    for (position, elements) in tensor.chunks_mut(batch * channels).enumerate() {
        let first = task_row(position) * across;
        for (column, piece) in elements.chunks_mut(images * channels).enumerate() {
            pieces[first + column].push(piece);
        }
    }
    pieces
}

/// Sums over rows for each channel, kept apart for each of its repeats.
pub(super) struct RowSums<R> {
    channels: usize,
    values: Vec<R>,
}

impl<R: Real> RowSums<R> {
    #[inline(always)]
    pub(super) fn new(channels: usize) -> Self {
        Self { channels, values: vec![R::ZERO; channels * repeats(channels)] }
    }

    /// The sum of a channel.
    #[inline(always)]
    pub(super) fn total(&self, channel: usize) -> f64 {
        let mut total = 0.0;
        for value in self.values[channel..].iter().step_by(self.channels) {
            total += value.to_f64();
        }
        total
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The sums beside a row, or several.
    #[inline(always)]
    pub(super) fn values(&mut self) -> &mut [R] {
        &mut self.values
    }
}

/// y of a row whose first element is in `column` of the repeated constants.
#[inline(always)]
pub(super) fn forward_row<E: Element, S: Simd>(
    channels: &Channels<E::Real>,
    column: usize,
    floor: E::Real,
    u: &[E],
    z: &[E::Real],
    y: &mut [E],
) {
    let length = y.len();
    let columns = channels.columns(column, length);
    let (u, z) = (&u[..length], &z[..length]);
    for i in 0..length {
        y[i] = E::from_real(columns.channel(i).forward::<S>(u[i].to_real(), z[i], floor));
    }
}

/// Adds a skip connection to a row of y and applies the activation, of which `floor` tells.
#[inline(always)]
pub(super) fn skip_row<E: Element>(floor: E::Real, skip: &[E], y: &mut [E]) {
    for (y, skip) in y.iter_mut().zip(skip) {
        let value = y.to_real() + skip.to_real();
        *y = E::from_real(if value < floor { floor } else { value });
    }
}

/// The sums of the backward pass over some rows.
pub(super) struct RowGradientSums<R> {
    g: RowSums<R>,
    g_xhat: RowSums<R>,
    g_z: RowSums<R>,
}

impl<R: Real> RowGradientSums<R> {
    #[inline(always)]
    pub(super) fn new(channels: usize) -> Self {
        let zero = || RowSums::new(channels);
        Self { g: zero(), g_xhat: zero(), g_z: zero() }
    }

    /// Elements that one call of [`add`](RowGradientSums::add) may cover.
    pub(super) fn len(&self) -> usize {
        self.g.len()
    }

    /// Adds the elements of a row whose first is in `column` of the repeated constants. `RECOVER`
    /// sums `g` times what the noise added to y instead of `g * z`, and does not read z.
    #[inline(always)]
    pub(super) fn add<E: Element<Real = R>, S: Simd, const RELU: bool, const RECOVER: bool>(
        &mut self,
        channels: &Channels<R>,
        column: usize,
        inputs: Inputs<E>,
        z: &[R],
    ) {
        let length = inputs.u.len();
        add_row::<E, S, RELU, RECOVER>(
            channels,
            column,
            inputs,
            z,
            &mut self.g.values[column..][..length],
            &mut self.g_xhat.values[column..][..length],
            &mut self.g_z.values[column..][..length],
        );
    }

    /// The totals of all channels.
    #[inline(always)]
    pub(super) fn into_part(self) -> Part<Sums> {
        let Self { g, g_xhat, g_z } = self;
        let sums = |c: usize| Sums { g: g.total(c), g_xhat: g_xhat.total(c), g_z: g_z.total(c) };
        Part { first_channel: 0, channels: (0..g.channels).map(sums).collect() }
    }
}

/// The slices that are written are arguments of their own: only then does LLVM know that they do
/// not overlap, and vectorizes the loop without run-time checks.
#[inline(always)]
fn add_row<E: Element, S: Simd, const RELU: bool, const RECOVER: bool>(
    channels: &Channels<E::Real>,
    column: usize,
    inputs: Inputs<E>,
    z: &[E::Real],
    g_sum: &mut [E::Real],
    g_xhat_sum: &mut [E::Real],
    g_z_sum: &mut [E::Real],
) {
    let length = g_sum.len();
    let columns = channels.columns(column, length);
    let (inputs, z) = (inputs.part(0..length), &z[..length]);
    let (g_xhat_sum, g_z_sum) = (&mut g_xhat_sum[..length], &mut g_z_sum[..length]);
    for i in 0..length {
        let [u, y, dy] = inputs.element(i);
        let channel = columns.channel(i);
        let (g, xhat) = channel.gradient::<S, RELU>(u, y, dy);
        let z = if RECOVER { y - channel.noise_free::<S>(u) } else { z[i] };
        g_sum[i] += g;
        g_xhat_sum[i] = g.mul_add::<S>(xhat, g_xhat_sum[i]);
        g_z_sum[i] = g.mul_add::<S>(z, g_z_sum[i]);
    }
}

/// du of a row whose first element is in the first column of the repeated constants.
#[inline(always)]
pub(super) fn input_gradient_row<E: Element, S: Simd, const RELU: bool>(
    channels: &Channels<E::Real>,
    averages: &Averages<E::Real>,
    inputs: Inputs<E>,
    du: &mut [E],
) {
    let length = du.len();
    let columns = channels.columns(0, length);
    let (mean_g, mean_g_xhat) = (&averages.g[..length], &averages.g_xhat[..length]);
    let inputs = inputs.part(0..length);
    for i in 0..length {
        let [u, y, dy] = inputs.element(i);
        let channel = columns.channel(i);
        let (g, xhat) = channel.gradient::<S, RELU>(u, y, dy);
        let gradient = channel.input_gradient::<S>(g, xhat, mean_g[i], mean_g_xhat[i]);
        du[i] = E::from_real(gradient);
    }
}
