//! Normalization over rows, with noise, gain and shift: layer, RMS and group normalization.
//!
//! # The operation
//!
//! A row is a stretch of `length` elements: the channels of a token for layer and RMS
//! normalization, or the channels of a group at all positions of an image for group normalization.
//! With its mean m and its root mean square r,
//! ```text
//! Layer, Group    xhat = (u - m) / r,   r^2 = mean (u - m)^2 + eps
//! Rms             xhat = u / r,         r^2 = mean u^2 + eps
//!                 y = gain_c (xhat + sigma_c z) + shift_c
//! None            y = gain_c (u + sigma_c r z) + shift_c
//! ```
//! The last one normalizes nothing: its noise is relative to the root mean square of the row. It is
//! the second, multiplied by r.
//!
//! # Gradients
//!
//! With g = gain dy and means over the row,
//! ```text
//! Layer, Group    du = (g - mean g - xhat mean(g xhat)) / r
//! Rms             du = (g - xhat mean(g xhat)) / r
//! None            du = g + u mean(g sigma z) / r
//! dgain_c = sum dy (xhat + sigma z)      dshift_c = sum dy      dsigma_c = sum g z  (times r for None)
//! ```
//! As in [`bn_noise`](crate::bn_noise) the noise z is a function of the element's index: the
//! backward pass computes it again, and keeps only two numbers per row.
//!
//! Results are the same, bit for bit, for any number of threads.

mod pass;
#[cfg(test)]
mod tests;

use crate::element::{Element, Real};
use crate::error::{Error, check_length};
use crate::noise::Noise;
use crate::parallel::ByTask;
use crate::simd::{Isa, dispatch_to};
use pass::{Backward, Channels, Forward};
use rayon::prelude::*;

/// Elements of a task, at least.
const TASK: usize = 1 << 13;

/// What is done to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Subtracts the mean and divides by the standard deviation: layer and group normalization.
    Layer,
    /// Divides by the root mean square.
    Rms,
    /// Nothing, but the noise is relative to the root mean square.
    None,
}

/// How a tensor is cut into rows, and which elements share a channel.
///
/// `groups` rows, one after the other, make an example, whose channels have `positions` elements
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Examples.
    pub batch: usize,
    /// Channels of an example.
    pub channels: usize,
    /// Elements of a channel.
    pub positions: usize,
    /// Rows that the channels of an example are cut into.
    pub groups: usize,
}

impl Shape {
    /// Tokens of so many channels, each a row.
    pub fn tokens(tokens: usize, channels: usize) -> Self {
        Self { batch: tokens, channels, positions: 1, groups: 1 }
    }

    /// Elements of a row.
    pub fn length(&self) -> usize {
        self.channels / self.groups * self.positions
    }

    /// Elements of an example.
    fn example(&self) -> usize {
        self.channels * self.positions
    }

    /// Elements of the tensor.
    pub fn elements(&self) -> usize {
        self.batch * self.example()
    }

    fn check(&self) -> Result<(), Error> {
        let Self { batch, channels, positions, groups } = *self;
        if batch * channels * positions == 0 {
            return Err(Error::EmptyShape { shape: format!("{self:?}") });
        }
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(Error::Value {
                name: "groups",
                value: format!("{groups} for {channels} channels"),
                requirement: "a positive divisor of the number of channels",
            });
        }
        Ok(())
    }
}

/// The operation, apart from its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The shape.
    pub shape: Shape,
    /// What is done to a row.
    pub norm: Norm,
    /// Added to the mean square under the root.
    pub eps: f64,
}

impl Config {
    fn check<R>(&self, parameters: &Parameters<R>) -> Result<(), Error> {
        self.shape.check()?;
        if !(self.eps > 0.0 && self.eps.is_finite()) {
            return Err(Error::Value {
                name: "eps",
                value: self.eps.to_string(),
                requirement: "positive",
            });
        }
        let Parameters { gain, shift, noise } = parameters;
        let sigma = noise.map(|(_, sigma)| sigma);
        for (name, values) in [("gain", *gain), ("shift", *shift), ("sigma", sigma)] {
            check_length(
                name,
                values.map_or(self.shape.channels, <[R]>::len),
                self.shape.channels,
            )?;
        }
        match noise {
            Some((noise, _)) => noise.check(self.shape.elements()),
            None => Ok(()),
        }
    }

    /// Elements of a task: whole examples.
    fn task(&self) -> usize {
        let example = self.shape.example();
        TASK.div_ceil(example) * example
    }
}

/// What each channel is given, if anything: one value per channel.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a, R> {
    /// The factor behind the noise.
    pub gain: Option<&'a [R]>,
    /// The summand behind the noise.
    pub shift: Option<&'a [R]>,
    /// The noise, and its standard deviation.
    pub noise: Option<(Noise, &'a [R])>,
}

/// The mean of each row, and one over its root mean square.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics<R> {
    mean: Vec<R>,
    rstd: Vec<R>,
}

/// The gradients of what the channels were given; empty where they were given nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients<R> {
    /// With respect to the gain.
    pub gain: Vec<R>,
    /// With respect to the shift.
    pub shift: Vec<R>,
    /// With respect to sigma.
    pub sigma: Vec<R>,
}

/// Computes y, and returns what the backward pass needs.
pub fn forward<E: Element>(
    config: &Config,
    parameters: Parameters<E::Real>,
    u: &[E],
    y: &mut [E],
) -> Result<Statistics<E::Real>, Error> {
    forward_on(Isa::current(), config, parameters, u, y)
}

/// [`forward`] on a given instruction set.
pub fn forward_on<E: Element>(
    isa: Isa,
    config: &Config,
    parameters: Parameters<E::Real>,
    u: &[E],
    y: &mut [E],
) -> Result<Statistics<E::Real>, Error> {
    config.check(&parameters)?;
    check_length("u", u.len(), config.shape.elements())?;
    check_length("y", y.len(), config.shape.elements())?;
    let channels = Channels::new(&config.shape, &parameters);
    let (task, length) = (config.task(), config.shape.length());
    let rows = u.len() / length;
    let mut statistics =
        Statistics { mean: vec![E::Real::ZERO; rows], rstd: vec![E::Real::ZERO; rows] };
    y.par_chunks_mut(task)
        .by_task()
        .zip(u.par_chunks(task))
        .zip(statistics.mean.par_chunks_mut(task / length))
        .zip(statistics.rstd.par_chunks_mut(task / length))
        .enumerate()
        .for_each(|(number, (((y, u), mean), rstd))| {
            let first = number * task;
            dispatch_to(isa, Forward { config, channels: &channels, first, u, y, mean, rstd });
        });
    Ok(statistics)
}

/// Computes du, and returns the gradients of the parameters.
pub fn backward<E: Element>(
    config: &Config,
    parameters: Parameters<E::Real>,
    (u, statistics): (&[E], &Statistics<E::Real>),
    dy: &[E],
    du: &mut [E],
) -> Result<Gradients<E::Real>, Error> {
    backward_on(Isa::current(), config, parameters, (u, statistics), dy, du)
}

/// [`backward`] on a given instruction set.
pub fn backward_on<E: Element>(
    isa: Isa,
    config: &Config,
    parameters: Parameters<E::Real>,
    (u, statistics): (&[E], &Statistics<E::Real>),
    dy: &[E],
    du: &mut [E],
) -> Result<Gradients<E::Real>, Error> {
    config.check(&parameters)?;
    let (task, length) = (config.task(), config.shape.length());
    check_length("u", u.len(), config.shape.elements())?;
    check_length("dy", dy.len(), u.len())?;
    check_length("du", du.len(), u.len())?;
    check_length("statistics", statistics.mean.len(), u.len() / length)?;
    let channels = Channels::new(&config.shape, &parameters);
    let parts: Vec<[Vec<f64>; 3]> = du
        .par_chunks_mut(task)
        .by_task()
        .zip(u.par_chunks(task))
        .zip(dy.par_chunks(task))
        .zip(statistics.mean.par_chunks(task / length))
        .zip(statistics.rstd.par_chunks(task / length))
        .enumerate()
        .map(|(number, ((((du, u), dy), mean), rstd))| {
            let (first, channels) = (number * task, &channels);
            dispatch_to(isa, Backward { config, channels, first, u, dy, mean, rstd, du })
        })
        .collect();
    // In the order of the tasks, whichever threads computed them.
    let total = |which: usize, wanted: bool| {
        let mut sums = vec![0.0; if wanted { config.shape.channels } else { 0 }];
        for part in &parts {
            sums.iter_mut().zip(&part[which]).for_each(|(sum, value)| *sum += value);
        }
        sums.into_iter().map(E::Real::from_f64).collect()
    };
    Ok(Gradients {
        gain: total(0, parameters.gain.is_some()),
        shift: total(1, parameters.shift.is_some()),
        sigma: total(2, parameters.noise.is_some()),
    })
}
