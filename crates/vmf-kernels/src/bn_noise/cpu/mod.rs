//! The operation on the CPU: how it is cut into tasks, and how their results come together.
//!
//! Two layouts, each with the same four passes: [`nchw`] runs along planes, [`hwnc`] along rows;
//! [`stretch`] and [`rectangle`] are their ways through the tensor, and [`pooled`] has the passes
//! of [`hwnc`] with pooling behind them. The arithmetic of an element is in [`coefficients`], that
//! of sums in [`accumulate`]; this file holds what the layouts share.

mod accumulate;
mod coefficients;
mod hwnc;
mod nchw;
mod pooled;
mod rectangle;
mod stretch;

#[cfg(test)]
mod tests;

use super::{Config, NoiseTerm, Saved, Shape, Statistics};
use crate::element::{Element, Real};
use crate::layout::Layout;
use crate::noise::Noise;
use crate::parallel::ByTask;
use crate::pool::PoolShape;
use crate::simd::{Isa, dispatch_to};
use accumulate::{Moments, Part, Sums, merge_in_order};
use coefficients::{Averages, Coefficients};
use pooled::{Band, Pooled};
use rayon::prelude::*;
use rectangle::Rectangle;
use stretch::Stretch;

/// Whether a channel's elements lie together. With one position the two layouts are the same, and
/// rows are longer.
fn by_plane(shape: Shape) -> bool {
    shape.layout == Layout::Nchw && shape.positions > 1
}

fn repeats(shape: Shape) -> usize {
    if by_plane(shape) { 1 } else { hwnc::repeats(shape.channels) }
}

/// Mean and variance of each channel; each block of u is read from memory once.
pub(super) fn statistics<E: Element>(isa: Isa, shape: Shape, u: &[E]) -> Statistics {
    let channels = shape.channels;
    let parts: Vec<Part<Moments>> = if by_plane(shape) {
        u.par_chunks(stretch::planes_per_task(shape) * shape.positions)
            .by_task()
            .enumerate()
            .map(|(task, u)| {
                let stretch = Stretch::task(shape, task);
                dispatch_to(isa, nchw::Statistics { stretch, u })
            })
            .collect()
    } else {
        u.par_chunks(hwnc::rows_per_task(channels) * channels)
            .by_task()
            .map(|u| dispatch_to(isa, hwnc::Statistics { channels, u }))
            .collect()
    };
    let moments = merge_in_order(channels, parts);
    Statistics {
        mean: moments.iter().map(|m| m.mean).collect(),
        var: moments.iter().map(|m| m.squares / m.count).collect(),
    }
}

/// Writes y.
pub(super) fn forward<E: Element>(
    isa: Isa,
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    statistics: &Statistics,
    u: &[E],
    y: &mut [E],
) {
    let shape = config.shape;
    let coefficients = &Coefficients::new(config, noise, statistics, repeats(shape));
    let noise = noise.map(|term| term.noise);
    let noise = noise.as_ref();
    let floor = coefficients::floor(config.relu);
    if by_plane(shape) {
        let task_length = stretch::planes_per_task(shape) * shape.positions;
        let tasks = u.par_chunks(task_length).by_task().zip(y.par_chunks_mut(task_length));
        tasks.enumerate().for_each(|(task, (u, y))| {
            let kernel = nchw::Forward {
                stretch: Stretch::task(shape, task),
                coefficients,
                noise,
                floor,
                u,
                y,
            };
            dispatch_to(isa, kernel);
        });
    } else {
        let pieces = Rectangle::pieces(shape, y);
        let tasks = Rectangle::tasks(shape).into_par_iter().by_task().zip(pieces);
        tasks.for_each(|(rectangle, y)| {
            let kernel = hwnc::Forward { rectangle, coefficients, noise, floor, u, y };
            dispatch_to(isa, kernel);
        });
    }
}

/// Writes the pooled y, and in `argmax` which value of each window it is. The layout is HWNC.
#[allow(clippy::too_many_arguments)] // the operation's own operands
pub(super) fn forward_pooled(
    isa: Isa,
    config: &Config,
    noise: Option<NoiseTerm<f32>>,
    statistics: &Statistics,
    pool: &PoolShape,
    u: &[f32],
    y: &mut [f32],
    argmax: &mut [u8],
) {
    let repeats = hwnc::repeats(config.shape.channels);
    let coefficients = &Coefficients::new(config, noise, statistics, repeats);
    let noise = noise.map(|term| term.noise);
    let noise = noise.as_ref();
    let pieces = Band::pieces_of_output(pool, y)
        .into_par_iter()
        .by_task()
        .zip(Band::pieces_of_output(pool, argmax));
    let tasks = Band::tasks(*pool).into_par_iter().by_task().zip(pieces);
    tasks.for_each(|(band, (y, argmax))| {
        let kernel = pooled::Forward {
            band,
            coefficients,
            noise,
            floor: coefficients::floor(config.relu),
            u,
            y,
            argmax,
        };
        dispatch_to(isa, kernel);
    });
}

/// The gradient of the pass with pooling: writes du and returns dsigma. The noise must be
/// [readable](is_readable) off y.
#[allow(clippy::too_many_arguments)] // the operation's own operands
pub(super) fn backward_pooled(
    isa: Isa,
    config: &Config,
    noise: Option<NoiseTerm<f32>>,
    saved: Saved<f32>,
    pool: &PoolShape,
    argmax: &[u8],
    dy: &[f32],
    du: &mut [f32],
) -> Vec<f32> {
    let repeats = hwnc::repeats(config.shape.channels);
    let coefficients = &Coefficients::new(config, noise, saved.statistics, repeats);
    let of_band = |band| Pooled { band, coefficients, u: saved.u, y: saved.y, argmax, dy };
    let reduce = |band| match config.relu {
        true => dispatch_to(isa, pooled::Reduce::<true>(of_band(band))),
        false => dispatch_to(isa, pooled::Reduce::<false>(of_band(band))),
    };
    let parts = Band::tasks(*pool).into_par_iter().by_task().map(reduce).collect();
    let mut sums = merge_in_order(config.shape.channels, parts);
    let averages = &Averages::new(&sums, config.shape.elements_per_channel(), repeats);
    let pieces = Band::pieces_of_input(pool, du);
    let tasks = Band::tasks(*pool).into_par_iter().by_task().zip(pieces);
    tasks.for_each(|(band, du)| {
        let pooled = of_band(band);
        match config.relu {
            true => dispatch_to(isa, pooled::Apply::<true> { pooled, averages, du }),
            false => dispatch_to(isa, pooled::Apply::<false> { pooled, averages, du }),
        }
    });
    divide_by_sigma(&mut sums, coefficients);
    dsigma(&sums, noise)
}

/// Whether z can be read off y, where `y - xhat = sigma * z`.
///
/// The rounding of y becomes an error of z when it is divided by sigma, so sigma must not be small.
/// In `f32`, with y of unit size and sigma = 2^-8, z is off by 2^-16, and in the sum over a channel
/// such errors average out. Only batch statistics keep y of unit size.
pub(super) fn is_readable<R: Real>(noise: NoiseTerm<R>) -> bool {
    const SMALLEST: f64 = 1.0 / 256.0;
    let large = |sigma: &R| sigma.to_f64().abs() >= SMALLEST;
    noise.sigma.iter().all(large)
}

/// The sums of g z, from those of g sigma z.
fn divide_by_sigma<R: Real>(sums: &mut [Sums], coefficients: &Coefficients<R>) {
    for (sums, sigma) in sums.iter_mut().zip(&coefficients.sigma) {
        sums.g_z /= sigma.to_f64();
    }
}

/// The sums of g z, over the channels of each group.
fn dsigma<R: Real>(sums: &[Sums], noise: Option<NoiseTerm<R>>) -> Vec<R> {
    let groups = noise.map_or(0, |term| term.sigma.len());
    if groups == 0 {
        return Vec::new();
    }
    sums.chunks(sums.len() / groups)
        .map(|group| group.iter().map(|channel| channel.g_z).sum())
        .map(R::from_f64)
        .collect()
}

/// Writes du and returns dsigma.
pub(super) fn backward_train<E: Element>(
    isa: Isa,
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    saved: Saved<E>,
    dy: &[E],
    du: &mut [E],
) -> Vec<E::Real> {
    Backward::new(isa, config, noise, saved, dy).through_statistics(du)
}

/// Writes du and returns dsigma, where the statistics are constants.
pub(super) fn backward_eval<E: Element>(
    isa: Isa,
    config: &Config,
    noise: Option<NoiseTerm<E::Real>>,
    saved: Saved<E>,
    dy: &[E],
    du: &mut [E],
) -> Vec<E::Real> {
    Backward::new(isa, config, noise, saved, dy).past_statistics(du)
}

/// The backward pass: sums over each channel, then du element by element.
struct Backward<'a, E: Element> {
    isa: Isa,
    config: Config,
    noise: Option<NoiseTerm<'a, E::Real>>,
    coefficients: Coefficients<E::Real>,
    u: &'a [E],
    y: &'a [E],
    dy: &'a [E],
}

impl<'a, E: Element> Backward<'a, E> {
    fn new(
        isa: Isa,
        config: &Config,
        noise: Option<NoiseTerm<'a, E::Real>>,
        saved: Saved<'a, E>,
        dy: &'a [E],
    ) -> Self {
        let repeats = repeats(config.shape);
        Self {
            isa,
            config: *config,
            noise,
            coefficients: Coefficients::new(config, noise, saved.statistics, repeats),
            u: saved.u,
            // Without ReLU y is not read; any slice of the right length stands in for it.
            y: if config.relu { saved.y } else { dy },
            dy,
        }
    }

    fn through_statistics(&self, du: &mut [E]) -> Vec<E::Real> {
        let sums = self.reduce(self.noise_is_in_y());
        self.apply(&sums, du);
        dsigma(&sums, self.noise)
    }

    fn past_statistics(&self, du: &mut [E]) -> Vec<E::Real> {
        let channels = self.config.shape.channels;
        self.apply(&vec![Sums::default(); channels], du);
        match self.noise {
            None => Vec::new(),
            Some(_) => dsigma(&self.reduce(false), self.noise),
        }
    }

    /// The sums of each channel; `recover` says to read the noise off y.
    fn reduce(&self, recover: bool) -> Vec<Sums> {
        let noise = self.noise.map(|term| term.noise);
        let parts = match (self.config.relu, recover) {
            (true, true) => self.reduce_parts::<true, true>(None),
            (true, false) => self.reduce_parts::<true, false>(noise.as_ref()),
            (false, _) => self.reduce_parts::<false, false>(noise.as_ref()),
        };
        let mut sums = merge_in_order(self.config.shape.channels, parts);
        if recover {
            divide_by_sigma(&mut sums, &self.coefficients);
        }
        sums
    }

    /// Whether z can be read off y instead of being made again, which costs as much as the rest of
    /// the pass.
    ///
    /// Where ReLU let a value pass, `y - xhat = sigma * z`; where it did not, g is zero and z is
    /// not needed. y must be stored in the precision of the arithmetic.
    fn noise_is_in_y(&self) -> bool {
        let exact = size_of::<E>() == size_of::<E::Real>();
        exact && self.config.relu && self.noise.is_some_and(is_readable)
    }

    fn reduce_parts<const RELU: bool, const RECOVER: bool>(
        &self,
        noise: Option<&Noise>,
    ) -> Vec<Part<Sums>> {
        let shape = self.config.shape;
        let coefficients = &self.coefficients;
        if by_plane(shape) {
            let tasks = (shape.batch * shape.channels).div_ceil(stretch::planes_per_task(shape));
            let part = |task| {
                let stretch = Stretch::task(shape, task);
                let kernel = nchw::Reduce::<E, RELU, RECOVER> {
                    stretch,
                    coefficients,
                    noise,
                    u: &self.u[stretch.elements()],
                    y: &self.y[stretch.elements()],
                    dy: &self.dy[stretch.elements()],
                };
                dispatch_to(self.isa, kernel)
            };
            (0..tasks).into_par_iter().by_task().map(part).collect()
        } else {
            let part = |rectangle| {
                let kernel = hwnc::Reduce::<E, RELU, RECOVER> {
                    rectangle,
                    coefficients,
                    noise,
                    u: self.u,
                    y: self.y,
                    dy: self.dy,
                };
                dispatch_to(self.isa, kernel)
            };
            let tasks = Rectangle::tasks(shape).into_par_iter().by_task();
            tasks.map(part).collect()
        }
    }

    fn apply(&self, sums: &[Sums], du: &mut [E]) {
        if self.config.relu {
            self.apply_averages::<true>(sums, du);
        } else {
            self.apply_averages::<false>(sums, du);
        }
    }

    fn apply_averages<const RELU: bool>(&self, sums: &[Sums], du: &mut [E]) {
        let shape = self.config.shape;
        let coefficients = &self.coefficients;
        let averages = &Averages::new(sums, shape.elements_per_channel(), repeats(shape));
        if by_plane(shape) {
            let task_length = stretch::planes_per_task(shape) * shape.positions;
            let tasks = du.par_chunks_mut(task_length).by_task().enumerate();
            tasks.for_each(|(task, du)| {
                let stretch = Stretch::task(shape, task);
                let kernel = nchw::Apply::<E, RELU> {
                    stretch,
                    coefficients,
                    averages,
                    u: &self.u[stretch.elements()],
                    y: &self.y[stretch.elements()],
                    dy: &self.dy[stretch.elements()],
                    du,
                };
                dispatch_to(self.isa, kernel);
            });
        } else {
            let task_length = hwnc::rows_per_task(shape.channels) * shape.channels;
            let tasks = du.par_chunks_mut(task_length).by_task().enumerate();
            tasks.for_each(|(task, du)| {
                let elements = task * task_length..task * task_length + du.len();
                let kernel = hwnc::Apply::<E, RELU> {
                    coefficients,
                    averages,
                    u: &self.u[elements.clone()],
                    y: &self.y[elements.clone()],
                    dy: &self.dy[elements],
                    du,
                };
                dispatch_to(self.isa, kernel);
            });
        }
    }
}
