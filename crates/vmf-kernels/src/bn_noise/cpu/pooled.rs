//! The passes with maximum pooling behind them, where the channels of an image lie together, row by
//! row.
//!
//! Windows lie side by side, so the image falls into bands, each the rows that one row of windows
//! covers. A task is a band of some images. It makes the values of a short sweep of lanes (images
//! by channels) at all positions of the band, and pools them while they are in cache: the
//! activations before pooling never reach memory.
//!
//! Backward, the gradient is zero except at each window's largest value, which is the output y. So
//! its noise can be read off y, `y - xhat = sigma * z`, with ReLU or without.

use super::accumulate::{Part, Sums};
use super::coefficients::{Averages, Coefficients};
use super::hwnc::{RowSums, SWEEP, TASK, add_sums, apply_sweep, forward_sweep};
use crate::noise::{Noise, Planes};
use crate::pool::{PoolShape, chosen, maxima};
use crate::simd::{Kernel, Simd, prefetch};

/// Values of a band that are made together, at most, unless 16 lanes are already more.
const TILE: usize = 1 << 13;

/// A task: the rows of the image that one row of windows covers, of a range of images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pool: PoolShape,
    /// Which row of windows.
    row: usize,
    first_image: usize,
    images: usize,
}

impl Band {
    /// The bands that the tensor is cut into: rows of windows outside, images inside.
    pub(super) fn tasks(pool: PoolShape) -> Vec<Band> {
        let images = Self::most_images(&pool);
        let of_row = |row| {
            let blocks = (0..pool.batch).step_by(images);
            blocks.map(move |first_image| Band {
                pool,
                row,
                first_image,
                images: images.min(pool.batch - first_image),
            })
        };
        (0..pool.output()[0]).flat_map(of_row).collect()
    }

    fn most_images(pool: &PoolShape) -> usize {
        let image = pool.window[0] * pool.input[1] * pool.channels;
        (TASK / image).clamp(1, pool.batch)
    }

    /// Cuts a tensor's memory into the pieces of each task, one for each of its positions, of which
    /// a band has `positions`; what is below the last row of windows goes with the last band.
    fn pieces<'a, T>(
        pool: &PoolShape,
        positions: usize,
        tensor: &'a mut [T],
    ) -> Vec<Vec<&'a mut [T]>> {
        let images = Self::most_images(pool);
        let (down, across) = (pool.output()[0], pool.batch.div_ceil(images));
        let mut pieces = Vec::new();
        pieces.resize_with(down * across, Vec::new);
        let planes = tensor.chunks_mut(pool.batch * pool.channels);
        for (position, plane) in planes.enumerate() {
            let first = (position / positions).min(down - 1) * across;
            for (column, piece) in plane.chunks_mut(images * pool.channels).enumerate() {
                pieces[first + column].push(piece);
            }
        }
        pieces
    }

    /// The pieces of a tensor of the output's shape.
    pub(super) fn pieces_of_output<'a, T>(
        pool: &PoolShape,
        tensor: &'a mut [T],
    ) -> Vec<Vec<&'a mut [T]>> {
        Self::pieces(pool, pool.output()[1], tensor)
    }

    /// The pieces of a tensor of the input's shape.
    pub(super) fn pieces_of_input<'a, T>(
        pool: &PoolShape,
        tensor: &'a mut [T],
    ) -> Vec<Vec<&'a mut [T]>> {
        Self::pieces(pool, pool.window[0] * pool.input[1], tensor)
    }

    /// The first of its positions before pooling.
    #[inline(always)]
    fn first_position(&self) -> usize {
        self.row * self.pool.window[0] * self.pool.input[1]
    }

    /// Elements of one of its positions.
    #[inline(always)]
    fn lanes(&self) -> usize {
        self.images * self.pool.channels
    }

    /// Where the elements of a position, counted from the band's first, begin in the input.
    #[inline(always)]
    fn input(&self, position: usize) -> usize {
        ((self.first_position() + position) * self.pool.batch + self.first_image)
            * self.pool.channels
    }

    /// Where the elements of a window begin in the output.
    #[inline(always)]
    fn output(&self, window: usize) -> usize {
        let position = self.row * self.pool.output()[1] + window;
        (position * self.pool.batch + self.first_image) * self.pool.channels
    }

    /// The taps of the first window, with their positions counted from the band's first. Those of
    /// other windows are whole windows' widths further on.
    #[inline(always)]
    fn taps(&self) -> Vec<(u8, usize)> {
        let ([height, width], across) = (self.pool.window, self.pool.input[1]);
        let tap = |tap: usize| (tap as u8, tap / width * across + tap % width);
        (0..height * width).map(tap).collect()
    }

    /// The window that covers a position, and the position's tap in it.
    #[inline(always)]
    fn window_of(&self, position: usize) -> Option<(usize, u8)> {
        let [height, width] = self.pool.window;
        let (y, x) = (position / self.pool.input[1], position % self.pool.input[1]);
        let covered = y < height && x / width < self.pool.output()[1];
        covered.then(|| (x / width, (y * width + x % width) as u8))
    }
}

/// y and, in each window, which value it is.
pub(super) struct Forward<'a> {
    pub(super) band: Band,
    pub(super) coefficients: &'a Coefficients<f32>,
    pub(super) noise: Option<&'a Noise>,
    pub(super) floor: f32,
    pub(super) u: &'a [f32],
    pub(super) y: Vec<&'a mut [f32]>,
    pub(super) argmax: Vec<&'a mut [u8]>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (band, pool) = (self.band, self.band.pool);
        let positions = pool.window[0] * pool.input[1];
        let longest = (TILE / positions).clamp(16, SWEEP);
        let pitch = Planes::pitch(longest);
        let mut values = vec![0.0; positions * pitch];
        let mut normals = values.clone();
        let mut scratch = values.clone();
        let taps = band.taps();
        let period = self.coefficients.mean.len();
        let mut at = 0;
        while at < band.lanes() {
            let column = at % period;
            let length = (band.lanes() - at).min(period - column).min(longest);
            if let Some(noise) = self.noise {
                // It takes longer to make the normals than to fetch what they are added to.
                for position in 0..positions {
                    prefetch(&self.u[band.input(position) + at..][..length]);
                }
                let first_row = band.first_image * pool.channels + at;
                fill::<S>(&band, noise, first_row, length, &mut scratch, &mut normals);
            }
            for position in 0..positions {
                let place = position * pitch..position * pitch + length;
                let u = &self.u[band.input(position) + at..][..length];
                let (z, value) = (&normals[place.clone()], &mut values[place]);
                forward_sweep::<f32, S>(self.coefficients, column, self.floor, u, z, value);
            }
            for (window, (y, argmax)) in self.y.iter_mut().zip(&mut self.argmax).enumerate() {
                let first = window * pool.window[1];
                let rows = taps
                    .iter()
                    .map(|&(tap, position)| (tap, &values[(first + position) * pitch..][..length]));
                maxima(rows, &mut y[at..at + length], &mut argmax[at..at + length]);
            }
            at += length;
        }
    }
}

/// The normals of `rows` pairs (image, channel) at all positions of a band, `scratch.len() /
/// positions` apart.
#[inline(always)]
fn fill<S: Simd>(
    band: &Band,
    noise: &Noise,
    first_row: usize,
    rows: usize,
    scratch: &mut [f32],
    normals: &mut [f32],
) {
    let positions = band.pool.window[0] * band.pool.input[1];
    let spatial = band.pool.input[0] * band.pool.input[1];
    let pitch = normals.len() / positions;
    let together = Planes::preferred_positions(spatial);
    for (group, normals) in normals.chunks_mut(together * pitch).enumerate() {
        let planes = Planes {
            spatial,
            first_row,
            rows,
            first_position: band.first_position() + group * together,
            positions: normals.len() / pitch,
        };
        planes.fill::<f32, S>(noise, pitch, scratch, normals);
    }
}

/// What both backward passes read.
#[derive(Clone, Copy)]
pub(super) struct Pooled<'a> {
    pub(super) band: Band,
    pub(super) coefficients: &'a Coefficients<f32>,
    pub(super) u: &'a [f32],
    pub(super) y: &'a [f32],
    pub(super) argmax: &'a [u8],
    pub(super) dy: &'a [f32],
}

/// The sums of the backward pass, with sigma * z read off y.
pub(super) struct Reduce<'a, const RELU: bool>(pub(super) Pooled<'a>);

impl<const RELU: bool> Kernel for Reduce<'_, RELU> {
    type Output = Part<Sums>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Part<Sums> {
        let Pooled { band, .. } = self.0;
        let channels = band.pool.channels;
        let mut g = RowSums::<f32>::new(channels);
        let mut g_xhat = RowSums::<f32>::new(channels);
        let mut g_z = RowSums::<f32>::new(channels);
        let sweep = g.values.len();
        let taps = band.taps();
        let mut largest = vec![0.0; sweep];
        for window in 0..band.pool.output()[1] {
            for at in (0..band.lanes()).step_by(sweep) {
                let length = sweep.min(band.lanes() - at);
                let place = band.output(window) + at..band.output(window) + at + length;
                let argmax = &self.0.argmax[place.clone()];
                let first = window * band.pool.window[1];
                let rows = taps.iter().map(|&(number, position)| {
                    (number, &self.0.u[band.input(first + position) + at..][..length])
                });
                chosen(rows, argmax, &mut largest[..length]);
                add_sums::<f32, S, RELU, true>(
                    self.0.coefficients,
                    0,
                    &largest[..length],
                    &self.0.y[place.clone()],
                    &self.0.dy[place],
                    &largest[..length], // not read: the noise is in y
                    &mut g.values[..length],
                    &mut g_xhat.values[..length],
                    &mut g_z.values[..length],
                );
            }
        }
        let sums = |c: usize| Sums { g: g.total(c), g_xhat: g_xhat.total(c), g_z: g_z.total(c) };
        Part { first_channel: 0, channels: (0..channels).map(sums).collect() }
    }
}

/// du, from the averages of the sums, into one piece for each position of the band.
pub(super) struct Apply<'a, const RELU: bool> {
    pub(super) pooled: Pooled<'a>,
    pub(super) averages: &'a Averages<f32>,
    pub(super) du: Vec<&'a mut [f32]>,
}

impl<const RELU: bool> Kernel for Apply<'_, RELU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let Pooled { band, coefficients, u, y, argmax, dy } = self.pooled;
        let sweep = coefficients.mean.len();
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
                apply_sweep::<f32, S, false>(coefficients, self.averages, u, g, g, du);
            }
        }
    }
}

/// The gradient where the window's largest value is this tap and ReLU let it pass, zero elsewhere.
#[inline(always)]
fn gradient_at<const RELU: bool>(number: u8, argmax: &[u8], y: &[f32], dy: &[f32], g: &mut [f32]) {
    for (((g, &argmax), &y), &dy) in g.iter_mut().zip(argmax).zip(y).zip(dy) {
        // `&&` would be a branch.
        let passed = (argmax == number) & !(RELU & (y <= 0.0));
        *g = if passed { dy } else { 0.0 };
    }
}
