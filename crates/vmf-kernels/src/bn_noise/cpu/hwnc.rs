//! The passes in HWNC, where the channels of an image lie together, row by row.
//!
//! Passes without noise take the tensor as one long matrix of H W N rows, and a task is a number of
//! rows. Passes with noise go by [`Rectangle`]s.

use super::accumulate::{Part, Sums, Welford};
use super::channel::{Averages, floor};
use super::rectangle::{Rectangle, Sweep};
use super::rows::{RowGradientSums, RowSums, TASK, forward_row, input_gradient_row, skip_row};
use super::{Inputs, Normalization};
use crate::element::{Element, Real};
use crate::layout::Shape;
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to, prefetch};
use rayon::prelude::*;

/// Elements of a task of the passes without noise: whole rows.
fn elements_per_task(channels: usize) -> usize {
    (TASK / channels).max(32) * channels
}

/// Mean and squared deviations of each channel, by task.
pub(super) fn measure<E: Element>(isa: Isa, shape: Shape, u: &[E]) -> Vec<Part<Welford>> {
    let channels = shape.channels;
    u.par_chunks(elements_per_task(channels))
        .by_task()
        .map(|u| dispatch_to(isa, Measure { channels, u }))
        .collect()
}

/// Writes y, with a skip connection added before the activation if there is one.
pub(super) fn forward<E: Element>(
    norm: &Normalization<E::Real>,
    u: &[E],
    skip: Option<&[E]>,
    y: &mut [E],
) {
    let shape = norm.config.shape;
    let tasks = Rectangle::tasks(shape).into_par_iter().by_task();
    tasks.zip(Rectangle::pieces(shape, y)).for_each(|(rectangle, y)| {
        dispatch_to(norm.isa, Forward { norm, rectangle, u, skip, y });
    });
}

/// The sums of the backward pass, by task.
pub(super) fn gradient_sums<E: Element, const RELU: bool, const RECOVER: bool>(
    norm: &Normalization<E::Real>,
    inputs: Inputs<E>,
) -> Vec<Part<Sums>> {
    let sums = |rectangle| {
        dispatch_to(norm.isa, GradientSums::<E, RELU, RECOVER> { norm, rectangle, inputs })
    };
    Rectangle::tasks(norm.config.shape).into_par_iter().by_task().map(sums).collect()
}

/// Writes du.
pub(super) fn input_gradient<E: Element, const RELU: bool>(
    norm: &Normalization<E::Real>,
    averages: &Averages<E::Real>,
    inputs: Inputs<E>,
    du: &mut [E],
) {
    let task = elements_per_task(norm.config.shape.channels);
    du.par_chunks_mut(task).by_task().enumerate().for_each(|(number, du)| {
        let inputs = inputs.part(number * task..number * task + du.len());
        dispatch_to(norm.isa, InputGradient::<E, RELU> { norm, averages, inputs, du });
    });
}

struct Measure<'a, E> {
    channels: usize,
    u: &'a [E],
}

impl<E: Element> Kernel for Measure<'_, E> {
    type Output = Part<Welford>;

    /// Reads the rows twice: for the means, and then, from the cache, for the deviations from them.
    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Welford> {
        let channels = self.channels;
        let rows = self.u.len() / channels;
        let mut sum = RowSums::<E::Real>::new(channels);
        let sweep = sum.len();
        for row in self.u.chunks(sweep) {
            add_row(row, sum.values());
        }
        let mean = |c: usize| E::Real::from_f64(sum.total(c % channels) / rows as f64);
        let pivots: Vec<E::Real> = (0..sweep).map(mean).collect();

        let mut offsets = RowSums::<E::Real>::new(channels);
        let mut squares = RowSums::<E::Real>::new(channels);
        for row in self.u.chunks(sweep) {
            add_deviations::<E, S>(row, &pivots, offsets.values(), squares.values());
        }
        let measured = |c: usize| {
            let pivot = pivots[c].to_f64();
            Welford::about(pivot, rows, offsets.total(c), squares.total(c))
        };
        Part { first_channel: 0, channels: (0..channels).map(measured).collect() }
    }
}

#[inline(always)]
fn add_row<E: Element>(row: &[E], sums: &mut [E::Real]) {
    for (sum, u) in sums.iter_mut().zip(row) {
        *sum += u.to_real();
    }
}

#[inline(always)]
fn add_deviations<E: Element, S: Simd>(
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

/// Writes y into one piece for each position of the rectangle.
struct Forward<'a, E: Element> {
    norm: &'a Normalization<'a, E::Real>,
    rectangle: Rectangle,
    u: &'a [E],
    skip: Option<&'a [E]>,
    y: Vec<&'a mut [E]>,
}

impl<E: Element> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (rectangle, u) = (self.rectangle, self.u);
        let (channels, activation) = (&self.norm.channels, self.norm.floor());
        // The activation comes after the skip connection.
        let before_skip = if self.skip.is_some() { floor(false) } else { activation };
        let place = |sweep: &Sweep, position| {
            let start = rectangle.start(sweep.position + position) + sweep.at;
            start..start + sweep.length
        };
        let fetch = |sweep: &Sweep| {
            for position in 0..sweep.positions {
                prefetch(&u[place(sweep, position)]);
            }
        };
        let mut sweeps = rectangle.sweeps::<E::Real>(self.norm.noise());
        while let Some(sweep) = sweeps.next::<S>(fetch) {
            for position in 0..sweep.positions {
                let place = place(&sweep, position);
                let (u, z) = (&u[place.clone()], sweeps.z(&sweep, position));
                let y = &mut self.y[sweep.position + position][sweep.at..][..sweep.length];
                forward_row::<E, S>(channels, sweep.column, before_skip, u, z, y);
                if let Some(skip) = self.skip {
                    skip_row(activation, &skip[place], y);
                }
            }
        }
    }
}

struct GradientSums<'a, E: Element, const RELU: bool, const RECOVER: bool> {
    norm: &'a Normalization<'a, E::Real>,
    rectangle: Rectangle,
    inputs: Inputs<'a, E>,
}

impl<E: Element, const RELU: bool, const RECOVER: bool> Kernel
    for GradientSums<'_, E, RELU, RECOVER>
{
    type Output = Part<Sums>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Sums> {
        let channels = &self.norm.channels;
        let noise = self.norm.noise().filter(|_| !RECOVER);
        let mut sums = RowGradientSums::<E::Real>::new(self.norm.config.shape.channels);
        let mut sweeps = self.rectangle.sweeps::<E::Real>(noise);
        while let Some(sweep) = sweeps.next::<S>(|_| ()) {
            for position in 0..sweep.positions {
                let start = self.rectangle.start(sweep.position + position) + sweep.at;
                let inputs = self.inputs.part(start..start + sweep.length);
                let z = sweeps.z(&sweep, position);
                sums.add::<E, S, RELU, RECOVER>(channels, sweep.column, inputs, z);
            }
        }
        sums.into_part()
    }
}

struct InputGradient<'a, E: Element, const RELU: bool> {
    norm: &'a Normalization<'a, E::Real>,
    averages: &'a Averages<E::Real>,
    inputs: Inputs<'a, E>,
    du: &'a mut [E],
}

impl<E: Element, const RELU: bool> Kernel for InputGradient<'_, E, RELU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let channels = &self.norm.channels;
        let sweep = channels.len();
        for (row, du) in self.du.chunks_mut(sweep).enumerate() {
            let inputs = self.inputs.part(row * sweep..row * sweep + du.len());
            input_gradient_row::<E, S, RELU>(channels, self.averages, inputs, du);
        }
    }
}
