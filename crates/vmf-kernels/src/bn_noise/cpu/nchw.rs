//! The passes in NCHW, where the elements of a plane lie together.
//!
//! Inner loops run along a plane with the constants of its channel in registers. A task is a
//! [`Stretch`] of planes.

use super::accumulate::{Accumulator, PARTIAL_SUMS, Part, PartialSums, Sums, Welford};
use super::channel::{Averages, Channel};
use super::stretch::{Stretch, Tile};
use super::{Inputs, Normalization};
use crate::element::{Element, Real};
use crate::layout::Shape;
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Mean and squared deviations of each channel, by task.
pub(super) fn measure<E: Element>(isa: Isa, shape: Shape, u: &[E]) -> Vec<Part<Welford>> {
    Stretch::tasks(shape)
        .by_task()
        .map(|stretch| dispatch_to(isa, Measure { stretch, u: &u[stretch.elements()] }))
        .collect()
}

/// Writes y.
pub(super) fn forward<E: Element>(norm: &Normalization<E::Real>, u: &[E], y: &mut [E]) {
    let shape = norm.config.shape;
    let pieces = y.par_chunks_mut(Stretch::most_elements(shape));
    Stretch::tasks(shape).by_task().zip(pieces).for_each(|(stretch, y)| {
        dispatch_to(norm.isa, Forward { norm, stretch, u: &u[stretch.elements()], y });
    });
}

/// The sums of the backward pass, by task.
pub(super) fn gradient_sums<E: Element, const RELU: bool, const RECOVER: bool>(
    norm: &Normalization<E::Real>,
    inputs: Inputs<E>,
) -> Vec<Part<Sums>> {
    let sums = |stretch: Stretch| {
        let inputs = inputs.part(stretch.elements());
        dispatch_to(norm.isa, GradientSums::<E, RELU, RECOVER> { norm, stretch, inputs })
    };
    Stretch::tasks(norm.config.shape).by_task().map(sums).collect()
}

/// Writes du.
pub(super) fn input_gradient<E: Element, const RELU: bool>(
    norm: &Normalization<E::Real>,
    averages: &Averages<E::Real>,
    inputs: Inputs<E>,
    du: &mut [E],
) {
    let shape = norm.config.shape;
    let pieces = du.par_chunks_mut(Stretch::most_elements(shape));
    Stretch::tasks(shape).by_task().zip(pieces).for_each(|(stretch, du)| {
        let inputs = inputs.part(stretch.elements());
        dispatch_to(norm.isa, InputGradient::<E, RELU> { norm, averages, stretch, inputs, du });
    });
}

struct Measure<'a, E> {
    stretch: Stretch,
    u: &'a [E],
}

impl<E: Element> Kernel for Measure<'_, E> {
    type Output = Part<Welford>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Welford> {
        let mut part = self.stretch.part::<Welford>();
        for run in self.stretch.runs() {
            let measured = measure_run::<E, S>(&self.u[run.elements]);
            part.channels[run.channel - part.first_channel].merge(measured);
        }
        part
    }
}

/// Reads a run twice: for its mean, and then, from the cache, for the deviations from that mean.
#[inline(always)]
fn measure_run<E: Element, S: Simd>(u: &[E]) -> Welford {
    let mut sum = PartialSums::<E::Real>::new();
    let (chunks, rest) = u.as_chunks::<PARTIAL_SUMS>();
    for chunk in chunks {
        for (part, value) in chunk.iter().enumerate() {
            sum.add(part, value.to_real());
        }
    }
    for (part, value) in rest.iter().enumerate() {
        sum.add(part, value.to_real());
    }
    let pivot = E::Real::from_f64(sum.total() / u.len() as f64);

    let mut sum = PartialSums::<E::Real>::new();
    let mut squares = PartialSums::<E::Real>::new();
    for chunk in chunks {
        for (part, value) in chunk.iter().enumerate() {
            let offset = value.to_real() - pivot;
            sum.add(part, offset);
            squares.add_product::<S>(part, offset, offset);
        }
    }
    for (part, value) in rest.iter().enumerate() {
        let offset = value.to_real() - pivot;
        sum.add(part, offset);
        squares.add_product::<S>(part, offset, offset);
    }
    Welford::about(pivot.to_f64(), u.len(), sum.total(), squares.total())
}

struct Forward<'a, E: Element> {
    norm: &'a Normalization<'a, E::Real>,
    stretch: Stretch,
    u: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let floor = self.norm.floor();
        let mut tile = Tile::new(self.norm.noise());
        for run in self.stretch.runs() {
            let z = tile.run::<S>(self.stretch, &run);
            let channel = self.norm.channels.channel(run.channel);
            let u = &self.u[run.elements.clone()];
            forward_run::<E, S>(channel, floor, u, z, &mut self.y[run.elements]);
        }
    }
}

#[inline(always)]
fn forward_run<E: Element, S: Simd>(
    channel: Channel<E::Real>,
    floor: E::Real,
    u: &[E],
    z: &[E::Real],
    y: &mut [E],
) {
    for ((y, u), &z) in y.iter_mut().zip(u).zip(z) {
        *y = E::from_real(channel.forward::<S>(u.to_real(), z, floor));
    }
}

struct GradientSums<'a, E: Element, const RELU: bool, const RECOVER: bool> {
    norm: &'a Normalization<'a, E::Real>,
    stretch: Stretch,
    inputs: Inputs<'a, E>,
}

impl<E: Element, const RELU: bool, const RECOVER: bool> Kernel
    for GradientSums<'_, E, RELU, RECOVER>
{
    type Output = Part<Sums>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Sums> {
        let mut tile = Tile::new(self.norm.noise().filter(|_| !RECOVER));
        let mut part = self.stretch.part::<Sums>();
        for run in self.stretch.runs() {
            let z = tile.run::<S>(self.stretch, &run);
            let channel = self.norm.channels.channel(run.channel);
            let inputs = self.inputs.part(run.elements);
            let sums = sums_of_run::<E, S, RELU, RECOVER>(channel, inputs, z);
            part.channels[run.channel - part.first_channel].merge(sums);
        }
        part
    }
}

#[inline(always)]
fn sums_of_run<E: Element, S: Simd, const RELU: bool, const RECOVER: bool>(
    channel: Channel<E::Real>,
    inputs: Inputs<E>,
    z: &[E::Real],
) -> Sums {
    let mut sums = RunSums { channel, sums: [PartialSums::new(); 3] };
    let (u, u_rest) = inputs.u.as_chunks::<PARTIAL_SUMS>();
    let (y, y_rest) = inputs.y.as_chunks::<PARTIAL_SUMS>();
    let (dy, dy_rest) = inputs.dy.as_chunks::<PARTIAL_SUMS>();
    let (z, z_rest) = z.as_chunks::<PARTIAL_SUMS>();
    for (((u, y), dy), z) in u.iter().zip(y).zip(dy).zip(z) {
        for part in 0..PARTIAL_SUMS {
            sums.add::<E, S, RELU, RECOVER>(part, u[part], y[part], dy[part], z[part]);
        }
    }
    for part in 0..u_rest.len() {
        sums.add::<E, S, RELU, RECOVER>(
            part,
            u_rest[part],
            y_rest[part],
            dy_rest[part],
            z_rest[part],
        );
    }
    let [g, g_xhat, g_z] = sums.sums.map(PartialSums::total);
    Sums { g, g_xhat, g_z }
}

/// The sums of g, g xhat and g z over one run.
struct RunSums<R> {
    channel: Channel<R>,
    sums: [PartialSums<R>; 3],
}

impl<R: Real> RunSums<R> {
    #[inline(always)]
    fn add<E: Element<Real = R>, S: Simd, const RELU: bool, const RECOVER: bool>(
        &mut self,
        part: usize,
        u: E,
        y: E,
        dy: E,
        z: R,
    ) {
        let (u, y, dy) = (u.to_real(), y.to_real(), dy.to_real());
        let (g, xhat) = self.channel.gradient::<S, RELU>(u, y, dy);
        let [g_sum, g_xhat_sum, g_z_sum] = &mut self.sums;
        g_sum.add(part, g);
        g_xhat_sum.add_product::<S>(part, g, xhat);
        g_z_sum.add_product::<S>(
            part,
            g,
            if RECOVER { y - self.channel.noise_free::<S>(u) } else { z },
        );
    }
}

struct InputGradient<'a, E: Element, const RELU: bool> {
    norm: &'a Normalization<'a, E::Real>,
    averages: &'a Averages<E::Real>,
    stretch: Stretch,
    inputs: Inputs<'a, E>,
    du: &'a mut [E],
}

impl<E: Element, const RELU: bool> Kernel for InputGradient<'_, E, RELU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for run in self.stretch.runs() {
            let channel = self.norm.channels.channel(run.channel);
            let averages = (self.averages.g[run.channel], self.averages.g_xhat[run.channel]);
            let inputs = self.inputs.part(run.elements.clone());
            input_gradient_run::<E, S, RELU>(channel, averages, inputs, &mut self.du[run.elements]);
        }
    }
}

#[inline(always)]
fn input_gradient_run<E: Element, S: Simd, const RELU: bool>(
    channel: Channel<E::Real>,
    (mean_g, mean_g_xhat): (E::Real, E::Real),
    inputs: Inputs<E>,
    du: &mut [E],
) {
    for (((du, u), y), dy) in du.iter_mut().zip(inputs.u).zip(inputs.y).zip(inputs.dy) {
        let (u, y, dy) = (u.to_real(), y.to_real(), dy.to_real());
        let (g, xhat) = channel.gradient::<S, RELU>(u, y, dy);
        *du = E::from_real(channel.input_gradient::<S>(g, xhat, mean_g, mean_g_xhat));
    }
}
