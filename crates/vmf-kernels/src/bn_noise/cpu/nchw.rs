//! The passes where a channel's elements lie together, plane by plane.
//!
//! Inner loops run along a plane, with the constants of its channel in registers. A task is a
//! [`Stretch`] of planes.

use super::accumulate::{Accumulator, LANES, Lanes, Moments, Part, Sums};
use super::coefficients::{Averages, Coefficients, activate, gate, input_gradient, normalize};
use super::stretch::{Stretch, Tile};
use crate::element::{Element, Real};
use crate::noise::Noise;
use crate::simd::{Kernel, Simd};

/// Mean and squared deviations of each channel.
pub(super) struct Statistics<'a, E> {
    pub(super) stretch: Stretch,
    pub(super) u: &'a [E],
}

impl<E: Element> Kernel for Statistics<'_, E> {
    type Output = Part<Moments>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Moments> {
        let mut part = self.stretch.part::<Moments>();
        for run in self.stretch.runs() {
            let moments = moments_of_run::<E, S>(&self.u[run.elements]);
            part.channels[run.channel - part.first_channel].merge(moments);
        }
        part
    }
}

/// Two passes over a run that the first one brought into the cache: the mean, then the moments
/// about it.
#[inline(always)]
fn moments_of_run<E: Element, S: Simd>(u: &[E]) -> Moments {
    let mut sum = Lanes::<E::Real>::new();
    let (chunks, rest) = u.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in chunk.iter().enumerate() {
            sum.0[lane] += value.to_real();
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        sum.0[lane] += value.to_real();
    }
    let pivot = E::Real::from_f64(sum.total() / u.len() as f64);

    let mut sum = Lanes::<E::Real>::new();
    let mut squares = Lanes::<E::Real>::new();
    for chunk in chunks {
        for (lane, value) in chunk.iter().enumerate() {
            let offset = value.to_real() - pivot;
            sum.0[lane] += offset;
            squares.add_product::<S>(lane, offset, offset);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        let offset = value.to_real() - pivot;
        sum.0[lane] += offset;
        squares.add_product::<S>(lane, offset, offset);
    }
    Moments::about(pivot.to_f64(), u.len(), sum.total(), squares.total())
}

/// y = act(xhat + sigma * z).
pub(super) struct Forward<'a, E: Element> {
    pub(super) stretch: Stretch,
    pub(super) coefficients: &'a Coefficients<E::Real>,
    pub(super) noise: Option<&'a Noise>,
    pub(super) floor: E::Real,
    pub(super) u: &'a [E],
    pub(super) y: &'a mut [E],
}

impl<E: Element> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut tile = Tile::new(self.noise);
        for run in self.stretch.runs() {
            let z = tile.run::<S>(self.stretch, &run);
            let coefficients = Constants::of(self.coefficients, run.channel);
            let u = &self.u[run.elements.clone()];
            forward_run::<E, S>(coefficients, self.floor, u, z, &mut self.y[run.elements]);
        }
    }
}

/// The constants of one channel.
#[derive(Clone, Copy)]
struct Constants<R> {
    mean: R,
    rstd: R,
    shift: R,
    sigma: R,
}

impl<R: Real> Constants<R> {
    #[inline(always)]
    fn of(coefficients: &Coefficients<R>, channel: usize) -> Self {
        Self {
            mean: coefficients.mean[channel],
            rstd: coefficients.rstd[channel],
            shift: coefficients.shift[channel],
            sigma: coefficients.sigma[channel],
        }
    }
}

#[inline(always)]
fn forward_run<E: Element, S: Simd>(
    channel: Constants<E::Real>,
    floor: E::Real,
    u: &[E],
    z: &[E::Real],
    y: &mut [E],
) {
    let Constants { mean, rstd, shift, sigma } = channel;
    for ((y, u), &z) in y.iter_mut().zip(u).zip(z) {
        let xhat = normalize::<E::Real, S>(u.to_real(), mean, rstd, shift);
        *y = E::from_real(activate(sigma.mul_add::<S>(z, xhat), floor));
    }
}

/// The sums of the backward pass; `RECOVER` reads sigma * z off y instead of making z.
pub(super) struct Reduce<'a, E: Element, const RELU: bool, const RECOVER: bool> {
    pub(super) stretch: Stretch,
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
        let mut tile = Tile::new(self.noise);
        let mut part = self.stretch.part::<Sums>();
        for run in self.stretch.runs() {
            let z = tile.run::<S>(self.stretch, &run);
            let coefficients = Constants::of(self.coefficients, run.channel);
            let u = &self.u[run.elements.clone()];
            let y = &self.y[run.elements.clone()];
            let dy = &self.dy[run.elements];
            let sums = sums_of_run::<E, S, RELU, RECOVER>(coefficients, u, y, dy, z);
            part.channels[run.channel - part.first_channel].merge(sums);
        }
        part
    }
}

#[inline(always)]
fn sums_of_run<E: Element, S: Simd, const RELU: bool, const RECOVER: bool>(
    channel: Constants<E::Real>,
    u: &[E],
    y: &[E],
    dy: &[E],
    z: &[E::Real],
) -> Sums {
    let mut sums = LaneSums::new(channel);
    let (u, u_rest) = u.as_chunks::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    let (dy, dy_rest) = dy.as_chunks::<LANES>();
    let (z, z_rest) = z.as_chunks::<LANES>();
    for (((u, y), dy), z) in u.iter().zip(y).zip(dy).zip(z) {
        for lane in 0..LANES {
            sums.add::<E, S, RELU, RECOVER>(lane, u[lane], y[lane], dy[lane], z[lane]);
        }
    }
    for lane in 0..u_rest.len() {
        sums.add::<E, S, RELU, RECOVER>(
            lane,
            u_rest[lane],
            y_rest[lane],
            dy_rest[lane],
            z_rest[lane],
        );
    }
    Sums { g: sums.g.total(), g_xhat: sums.g_xhat.total(), g_z: sums.g_z.total() }
}

/// The sums of one run, lane by lane.
struct LaneSums<R> {
    channel: Constants<R>,
    g: Lanes<R>,
    g_xhat: Lanes<R>,
    g_z: Lanes<R>,
}

impl<R: Real> LaneSums<R> {
    #[inline(always)]
    fn new(channel: Constants<R>) -> Self {
        Self { channel, g: Lanes::new(), g_xhat: Lanes::new(), g_z: Lanes::new() }
    }

    #[inline(always)]
    fn add<E: Element<Real = R>, S: Simd, const RELU: bool, const RECOVER: bool>(
        &mut self,
        lane: usize,
        u: E,
        y: E,
        dy: E,
        z: R,
    ) {
        let Constants { mean, rstd, shift, .. } = self.channel;
        let xhat = normalize::<_, S>(u.to_real(), mean, rstd, shift);
        let g = gate::<_, RELU>(dy.to_real(), y.to_real());
        self.g.0[lane] += g;
        self.g_xhat.add_product::<S>(lane, g, xhat);
        let noise = if RECOVER { y.to_real() - xhat } else { z };
        self.g_z.add_product::<S>(lane, g, noise);
    }
}

/// du, from the averages of the sums.
pub(super) struct Apply<'a, E: Element, const RELU: bool> {
    pub(super) stretch: Stretch,
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
        for run in self.stretch.runs() {
            let channel = Constants::of(self.coefficients, run.channel);
            let averages = (self.averages.g[run.channel], self.averages.g_xhat[run.channel]);
            let u = &self.u[run.elements.clone()];
            let y = &self.y[run.elements.clone()];
            let dy = &self.dy[run.elements.clone()];
            apply_run::<E, S, RELU>(channel, averages, u, y, dy, &mut self.du[run.elements]);
        }
    }
}

#[inline(always)]
fn apply_run<E: Element, S: Simd, const RELU: bool>(
    channel: Constants<E::Real>,
    (mean_g, mean_g_xhat): (E::Real, E::Real),
    u: &[E],
    y: &[E],
    dy: &[E],
    du: &mut [E],
) {
    for (((du, u), y), dy) in du.iter_mut().zip(u).zip(y).zip(dy) {
        let xhat = normalize::<_, S>(u.to_real(), channel.mean, channel.rstd, channel.shift);
        let g = gate::<_, RELU>(dy.to_real(), y.to_real());
        let gradient = input_gradient::<_, S>(g, xhat, channel.rstd, mean_g, mean_g_xhat);
        *du = E::from_real(gradient);
    }
}
