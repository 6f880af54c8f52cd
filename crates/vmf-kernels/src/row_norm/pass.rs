//! The two passes over a task: whole examples, row by row.

use super::{Config, Norm, Parameters, Shape};
use crate::element::{Element, Real};
use crate::elementary::{dot, sum};
use crate::noise::{Noise, fill_run};
use crate::simd::{Kernel, Simd};

/// Elements whose noise is made together: short runs would waste most of a batch of normals.
const TILE: usize = 1 << 10;

/// What each element of an example is given. A channel's value is repeated at all its positions, so
/// that one loop over a row serves every shape.
pub(super) struct Channels<R> {
    gain: Option<Vec<R>>,
    shift: Option<Vec<R>>,
    sigma: Option<Vec<R>>,
    noise: Option<Noise>,
}

impl<R: Real> Channels<R> {
    pub(super) fn new(shape: &Shape, parameters: &Parameters<R>) -> Self {
        let each = |values: &[R]| -> Vec<R> {
            values.iter().flat_map(|&v| std::iter::repeat_n(v, shape.positions)).collect()
        };
        Self {
            gain: parameters.gain.map(each),
            shift: parameters.shift.map(each),
            sigma: parameters.noise.map(|(_, sigma)| each(sigma)),
            noise: parameters.noise.map(|(noise, _)| noise),
        }
    }
}

/// The normals of the rows of a task, some rows at a time.
struct Tiles<'a, R> {
    noise: Option<&'a Noise>,
    /// The element that the task begins with, and its length.
    first: usize,
    elements: usize,
    z: Vec<R>,
}

impl<'a, R: Real> Tiles<'a, R> {
    #[inline(always)]
    fn new(noise: Option<&'a Noise>, first: usize, elements: usize, length: usize) -> Self {
        let rows = (TILE / length).max(1);
        Self { noise, first, elements, z: vec![R::ZERO; rows * length] }
    }

    /// The normals of a row that begins at this element of the task. Rows come in order.
    #[inline(always)]
    fn row<S: Simd>(&mut self, at: usize, length: usize) -> &[R] {
        let place = at % self.z.len();
        if let (Some(noise), 0) = (self.noise, place) {
            let made = self.z.len().min(self.elements - at);
            fill_run::<R, S>(noise, (self.first + at) as u64, &mut self.z[..made]);
        }
        &self.z[place..place + length]
    }
}

pub(super) struct Forward<'a, E: Element> {
    pub(super) config: &'a Config,
    pub(super) channels: &'a Channels<E::Real>,
    pub(super) first: usize,
    pub(super) u: &'a [E],
    pub(super) y: &'a mut [E],
    pub(super) mean: &'a mut [E::Real],
    pub(super) rstd: &'a mut [E::Real],
}

impl<E: Element> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Config { shape, norm, eps } = *self.config;
        let (length, example) = (shape.length(), shape.example());
        let Channels { gain, shift, sigma, noise } = self.channels;
        let mut tiles = Tiles::<E::Real>::new(noise.as_ref(), self.first, self.u.len(), length);
        let mut row = vec![E::Real::ZERO; length];
        let rows = self.u.chunks(length).zip(self.y.chunks_mut(length));
        for (number, (u, y)) in rows.enumerate() {
            let at = number * length;
            let mean = match norm {
                Norm::Layer => sum(u, |u: E| u.to_real()) / length as f64,
                Norm::Rms | Norm::None => 0.0,
            };
            let centre = E::Real::from_f64(mean);
            for (row, u) in row.iter_mut().zip(u) {
                *row = u.to_real() - centre;
            }
            let square = dot::<_, S>(&row, &row) / length as f64 + eps;
            let (root, rstd) = (square.sqrt(), 1.0 / square.sqrt());
            (self.mean[number], self.rstd[number]) = (centre, E::Real::from_f64(rstd));
            let (scale, noise_scale) = match norm {
                Norm::Layer | Norm::Rms => (rstd, 1.0),
                Norm::None => (1.0, root),
            };
            let [scale, noise_scale] = [scale, noise_scale].map(E::Real::from_f64);
            let place = at % example;
            match sigma {
                Some(sigma) => {
                    let z = tiles.row::<S>(at, length);
                    for ((row, z), sigma) in row.iter_mut().zip(z).zip(&sigma[place..]) {
                        *row = (*row * scale) + *z * (*sigma * noise_scale);
                    }
                }
                None => row.iter_mut().for_each(|row| *row = *row * scale),
            }
            if let Some(gain) = gain {
                row.iter_mut().zip(&gain[place..]).for_each(|(row, gain)| *row = *row * *gain);
            }
            if let Some(shift) = shift {
                row.iter_mut().zip(&shift[place..]).for_each(|(row, shift)| *row += *shift);
            }
            for (y, row) in y.iter_mut().zip(&row) {
                *y = E::from_real(*row);
            }
        }
    }
}

pub(super) struct Backward<'a, E: Element> {
    pub(super) config: &'a Config,
    pub(super) channels: &'a Channels<E::Real>,
    pub(super) first: usize,
    pub(super) u: &'a [E],
    pub(super) dy: &'a [E],
    pub(super) mean: &'a [E::Real],
    pub(super) rstd: &'a [E::Real],
    pub(super) du: &'a mut [E],
}

impl<E: Element> Kernel for Backward<'_, E> {
    /// The sums for gain, shift and sigma of each channel.
    type Output = [Vec<f64>; 3];

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let Config { shape, norm, .. } = *self.config;
        let (length, example) = (shape.length(), shape.example());
        let Channels { gain, shift, sigma, noise } = self.channels;
        let mut tiles = Tiles::<E::Real>::new(noise.as_ref(), self.first, self.u.len(), length);
        let zeros = |length: usize| vec![E::Real::ZERO; length];
        let wanted = |wanted: bool| zeros(if wanted { example } else { 0 });
        let (mut dgain, mut dshift) = (wanted(gain.is_some()), wanted(shift.is_some()));
        let mut dsigma = wanted(sigma.is_some());
        // xhat (or u), g, and the noise that was added.
        let (mut xhat, mut g, mut added) = (zeros(length), zeros(length), zeros(length));
        let rows = self.u.chunks(length).zip(self.dy.chunks(length));
        for (number, ((u, dy), du)) in rows.zip(self.du.chunks_mut(length)).enumerate() {
            let at = number * length;
            let place = at % example;
            let (mean, rstd) = (self.mean[number], self.rstd[number]);
            let scale = if norm == Norm::None { E::Real::from_f64(1.0) } else { rstd };
            for ((xhat, g), (u, dy)) in xhat.iter_mut().zip(&mut g).zip(u.iter().zip(dy)) {
                (*xhat, *g) = ((u.to_real() - mean) * scale, dy.to_real());
            }
            if shift.is_some() {
                dshift[place..].iter_mut().zip(&g).for_each(|(sum, dy)| *sum += *dy);
            }
            if let Some(gain) = gain {
                for ((g, gain), (sum, xhat)) in
                    g.iter_mut().zip(&gain[place..]).zip(dgain[place..].iter_mut().zip(&xhat))
                {
                    *sum = g.mul_add::<S>(*xhat, *sum);
                    *g = *g * *gain;
                }
            }
            let mut noise_slope = E::Real::ZERO;
            if let Some(sigma) = sigma {
                let root = E::Real::from_f64(match norm {
                    Norm::Layer | Norm::Rms => 1.0,
                    Norm::None => 1.0 / rstd.to_f64(),
                });
                let z = tiles.row::<S>(at, length);
                let sums = dsigma[place..].iter_mut();
                for ((added, z), (sum, (g, sigma))) in
                    added.iter_mut().zip(z).zip(sums.zip(g.iter().zip(&sigma[place..])))
                {
                    let z = *z * root;
                    *sum = g.mul_add::<S>(z, *sum);
                    *added = *sigma * z;
                }
                if gain.is_some() {
                    for (sum, (added, dy)) in dgain[place..].iter_mut().zip(added.iter().zip(dy)) {
                        *sum = added.mul_add::<S>(dy.to_real(), *sum);
                    }
                }
                if norm == Norm::None {
                    // d r / d u = u / (length r), and `added` has the factor r.
                    let square = rstd.to_f64() * rstd.to_f64();
                    let slope = dot::<_, S>(&g, &added) * square / length as f64;
                    noise_slope = E::Real::from_f64(slope);
                }
            }
            let slope = match norm {
                Norm::None => noise_slope,
                _ => E::Real::from_f64(-dot::<_, S>(&g, &xhat) / length as f64),
            };
            let centre = match norm {
                Norm::Layer => E::Real::from_f64(sum(&g, |g: E::Real| g) / length as f64),
                Norm::Rms | Norm::None => E::Real::ZERO,
            };
            for (du, (g, xhat)) in du.iter_mut().zip(g.iter().zip(&xhat)) {
                *du = E::from_real(scale * slope.mul_add::<S>(*xhat, *g - centre));
            }
        }
        let per_channel = |sums: Vec<E::Real>| -> Vec<f64> {
            sums.chunks(shape.positions).map(|sums| sum(sums, |x: E::Real| x)).collect()
        };
        [dgain, dshift, dsigma].map(per_channel)
    }
}
