//! The passes with maximum pooling behind them, in HWNC.
//!
//! A task is a [`Band`] of some images. It computes the values of a short sweep of planes at all
//! positions of the band, and pools them while they are in the cache: the activations before
//! pooling never reach memory.
//!
//! In the backward pass the gradient is zero except at each window's largest value, which is the
//! output y. The noise of that element can be read off y, `y - xhat = sigma * z`, with ReLU or
//! without.

use super::accumulate::{Part, Sums};
use super::band::Band;
use super::channel::Averages;
use super::rows::{RowGradientSums, forward_row, input_gradient_row, longest_sweep};
use super::{Inputs, Normalization};
use crate::noise::{Noise, Planes};
use crate::parallel::ByTask;
use crate::pool::{PoolShape, gather, maxima};
use crate::simd::{Kernel, Simd, dispatch_to, prefetch};
use rayon::prelude::*;
use std::ops::Range;

/// What the backward passes read, with y and dy of the pooled shape.
#[derive(Clone, Copy)]
pub(super) struct PooledInputs<'a> {
    pub(super) inputs: Inputs<'a, f32>,
    pub(super) argmax: &'a [u8],
}

/// Writes the pooled y, and in `argmax` which element of its window each value is.
pub(super) fn forward(
    norm: &Normalization<f32>,
    pool: &PoolShape,
    u: &[f32],
    y: &mut [f32],
    argmax: &mut [u8],
) {
    let pieces = Band::pieces_of_output(pool, y)
        .into_par_iter()
        .by_task()
        .zip(Band::pieces_of_output(pool, argmax));
    let tasks = Band::tasks(*pool).into_par_iter().by_task().zip(pieces);
    tasks.for_each(|(band, (y, argmax))| {
        dispatch_to(norm.isa, Forward { norm, band, u, y, argmax });
    });
}

/// The sums of the backward pass, by task, with `sigma * z` read off y.
pub(super) fn gradient_sums<const RELU: bool>(
    norm: &Normalization<f32>,
    pool: &PoolShape,
    inputs: PooledInputs,
) -> Vec<Part<Sums>> {
    let sums = |band| dispatch_to(norm.isa, GradientSums::<RELU> { norm, band, inputs });
    Band::tasks(*pool).into_par_iter().by_task().map(sums).collect()
}

/// Writes du.
pub(super) fn input_gradient<const RELU: bool>(
    norm: &Normalization<f32>,
    averages: &Averages<f32>,
    pool: &PoolShape,
    inputs: PooledInputs,
    du: &mut [f32],
) {
    let pieces = Band::pieces_of_input(pool, du);
    Band::tasks(*pool).into_par_iter().by_task().zip(pieces).for_each(|(band, du)| {
        dispatch_to(norm.isa, InputGradient::<RELU> { norm, averages, band, inputs, du });
    });
}

/// Writes y and argmax into one piece for each window of the band.
struct Forward<'a> {
    norm: &'a Normalization<'a, f32>,
    band: Band,
    u: &'a [f32],
    y: Vec<&'a mut [f32]>,
    argmax: Vec<&'a mut [u8]>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let band = self.band;
        let (channels, floor) = (&self.norm.channels, self.norm.floor());
        let positions = band.positions();
        let longest = longest_sweep(positions);
        let pitch = Planes::pitch(longest);
        let mut values = vec![0.0; positions * pitch];
        let mut z = values.clone();
        let mut scratch = values.clone();
        let window_elements = band.first_window();
        let period = channels.len();
        let mut at = 0;
        while at < band.planes() {
            let column = at % period;
            let length = (band.planes() - at).min(period - column).min(longest);
            if let Some(noise) = self.norm.noise() {
                // Making the normals takes longer than to fetch what they are added to.
                for position in 0..positions {
                    prefetch(&self.u[band.input(position) + at..][..length]);
                }
                fill::<S>(&band, noise, at..at + length, &mut scratch, &mut z);
            }
            for position in 0..positions {
                let place = position * pitch..position * pitch + length;
                let u = &self.u[band.input(position) + at..][..length];
                let (z, value) = (&z[place.clone()], &mut values[place]);
                forward_row::<f32, S>(channels, column, floor, u, z, value);
            }
            for (window, (y, argmax)) in self.y.iter_mut().zip(&mut self.argmax).enumerate() {
                let start = band.window_start(window);
                let rows = window_elements.iter().map(|&(number, position)| {
                    (number, &values[(start + position) * pitch..][..length])
                });
                maxima(rows, &mut y[at..at + length], &mut argmax[at..at + length]);
            }
            at += length;
        }
    }
}

/// The normals of some of the band's planes at all of its positions, `z.len() / positions` apart.
#[inline(always)]
fn fill<S: Simd>(
    band: &Band,
    noise: &Noise,
    planes: Range<usize>,
    scratch: &mut [f32],
    z: &mut [f32],
) {
    let plane_len = band.image_positions();
    let pitch = z.len() / band.positions();
    let abreast = Planes::preferred_positions(plane_len);
    for (group, z) in z.chunks_mut(abreast * pitch).enumerate() {
        let planes = Planes {
            plane_len,
            first_plane: band.first_plane() + planes.start,
            planes: planes.len(),
            first_position: band.first_position() + group * abreast,
            positions: z.len() / pitch,
        };
        planes.fill::<f32, S>(noise, pitch, scratch, z);
    }
}

struct GradientSums<'a, const RELU: bool> {
    norm: &'a Normalization<'a, f32>,
    band: Band,
    inputs: PooledInputs<'a>,
}

impl<const RELU: bool> Kernel for GradientSums<'_, RELU> {
    type Output = Part<Sums>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Sums> {
        let PooledInputs { inputs: Inputs { u, y, dy }, argmax } = self.inputs;
        let band = self.band;
        let mut sums = RowGradientSums::<f32>::new(self.norm.config.shape.channels);
        let window_elements = band.first_window();
        let mut largest = vec![0.0; sums.len()];
        for window in 0..band.windows() {
            for at in (0..band.planes()).step_by(largest.len()) {
                let length = largest.len().min(band.planes() - at);
                let first = band.output(window) + at;
                let place = first..first + length;
                let start = band.window_start(window);
                let rows = window_elements.iter().map(|&(number, position)| {
                    (number, &u[band.input(start + position) + at..][..length])
                });
                let largest = &mut largest[..length];
                gather(rows, &argmax[place.clone()], largest);
                let inputs = Inputs { u: largest, y: &y[place.clone()], dy: &dy[place] };
                // The noise is read off y. No z is needed: any slice of the right length will do.
                sums.add::<f32, S, RELU, true>(&self.norm.channels, 0, inputs, largest);
            }
        }
        sums.into_part()
    }
}

/// Writes du into one piece for each position of the band.
struct InputGradient<'a, const RELU: bool> {
    norm: &'a Normalization<'a, f32>,
    averages: &'a Averages<f32>,
    band: Band,
    inputs: PooledInputs<'a>,
    du: Vec<&'a mut [f32]>,
}

impl<const RELU: bool> Kernel for InputGradient<'_, RELU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let PooledInputs { inputs: Inputs { u, y, dy }, argmax } = self.inputs;
        let (band, channels) = (self.band, &self.norm.channels);
        let sweep = channels.len();
        let mut g = vec![0.0; sweep];
        for (position, du) in self.du.iter_mut().enumerate() {
            let covered = band.window_of(position);
            for (row, du) in du.chunks_mut(sweep).enumerate() {
                let at = row * sweep;
                let g = &mut g[..du.len()];
                match covered {
                    Some((window, number)) => {
                        let first = band.output(window) + at;
                        let place = first..first + du.len();
                        let (y, dy) = (&y[place.clone()], &dy[place.clone()]);
                        gradient_at::<RELU>(number, &argmax[place], y, dy, g);
                    }
                    None => g.fill(0.0),
                }
                let u = &u[band.input(position) + at..][..du.len()];
                // `gradient_at` has applied the mask of ReLU.
                let inputs = Inputs { u, y: g, dy: g };
                input_gradient_row::<f32, S, false>(channels, self.averages, inputs, du);
            }
        }
    }
}

/// The gradient where this element is the largest of its window and ReLU let it pass, zero
/// elsewhere.
#[inline(always)]
fn gradient_at<const RELU: bool>(number: u8, argmax: &[u8], y: &[f32], dy: &[f32], g: &mut [f32]) {
    for (((g, &argmax), &y), &dy) in g.iter_mut().zip(argmax).zip(y).zip(dy) {
        // `&&` would be a branch.
        let passed = (argmax == number) & !(RELU & (y <= 0.0));
        *g = if passed { dy } else { 0.0 };
    }
}
