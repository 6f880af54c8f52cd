//! The operation followed by maximum pooling with windows side by side, in HWNC.
//!
//! y and dy have the pooled shape. The activations before pooling are neither stored nor needed for
//! the gradient, which flows only to the largest element of each window: that element is the
//! output, so its sign is known.

use super::cpu::{Inputs, Normalization};
use super::{Config, Mode, ParameterGradients, Saved, Statistics, Terms};
use crate::bn_noise;
use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::pool::Pool;
use crate::scratch::Scratch;
use crate::simd::Isa;
use rayon::prelude::*;

/// Which pooling, and which element of each window was the largest.
#[derive(Clone, Copy)]
pub(crate) struct Pooling<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) argmax: &'a [u8],
}

/// Normalizes with given statistics, pools, and writes y and the argmax of each window.
pub(crate) fn forward(
    config: &Config,
    terms: Terms<f32>,
    statistics: &Statistics,
    pool: &Pool,
    u: &[f32],
    (y, argmax): (&mut [f32], &mut [u8]),
) -> Result<(), Error> {
    super::check(config, terms.noise, &[("u", u.len())])?;
    super::check_statistics(config, statistics)?;
    super::check_affine(config, terms.affine)?;
    check_length("y", y.len(), pool.shape().output_len())?;
    check_length("argmax", argmax.len(), pool.shape().output_len())?;
    let normalization = Normalization::new(Isa::current(), config, terms.noise, statistics);
    let normalization = normalization.affine(terms.affine);
    normalization.forward_pooled(pool.shape(), u, y, argmax);
    Ok(())
}

/// The gradient of [`forward`] with the statistics of the batch: writes du and returns the
/// other gradients.
pub(crate) fn backward_train(
    config: &Config,
    terms: Terms<f32>,
    saved: Saved<f32>,
    pooling: Pooling,
    dy: &[f32],
    du: &mut [f32],
) -> Result<ParameterGradients<f32>, Error> {
    let Saved { u, y, statistics } = saved;
    super::check(config, terms.noise, &[("u", u.len()), ("du", du.len())])?;
    super::check_statistics(config, statistics)?;
    super::check_affine(config, terms.affine)?;
    pooling.check(y, dy)?;
    let normalization = Normalization::new(Isa::current(), config, terms.noise, statistics);
    let normalization = normalization.affine(terms.affine);
    if normalization.sigma_is_large() {
        let (pool, inputs) = (pooling.pool.shape(), Inputs { u, y, dy });
        return normalization.backward_train_pooled(pool, inputs, pooling.argmax, du);
    }
    let unpooled = pooling.unpool(config.relu, y, dy)?;
    // The gradient is already zero where ReLU did not let the value pass.
    let saved = Saved { y: &[], ..saved };
    bn_noise::backward_terms(&config.relu(false), terms, Mode::Train, saved, &unpooled, du)
}

/// The gradient of [`forward`] where the statistics are constants: writes du and returns the other
/// gradients.
pub(crate) fn backward_eval(
    config: &Config,
    terms: Terms<f32>,
    saved: Saved<f32>,
    pooling: Pooling,
    dy: &[f32],
    du: &mut [f32],
) -> Result<ParameterGradients<f32>, Error> {
    pooling.check(saved.y, dy)?;
    let unpooled = pooling.unpool(config.relu, saved.y, dy)?;
    let saved = Saved { y: &[], ..saved };
    bn_noise::backward_terms(&config.relu(false), terms, Mode::Eval, saved, &unpooled, du)
}

impl Pooling<'_> {
    fn check(&self, y: &[f32], dy: &[f32]) -> Result<(), Error> {
        let lengths = [("y", y.len()), ("argmax", self.argmax.len()), ("dy", dy.len())];
        let expected = self.pool.shape().output_len();
        lengths.into_iter().try_for_each(|(name, length)| check_length(name, length, expected))
    }

    /// The gradient before pooling and, with ReLU, before that: zero where y is not positive.
    fn unpool(&self, relu: bool, y: &[f32], dy: &[f32]) -> Result<Scratch, Error> {
        let mut unpooled = Scratch::take(self.pool.shape().input_len());
        if !relu {
            self.pool.max_backward(self.argmax, dy, &mut unpooled)?;
            return Ok(unpooled);
        }
        const TASK: usize = 1 << 14;
        let mut masked = Scratch::take(dy.len());
        masked
            .par_chunks_mut(TASK)
            .by_task()
            .zip(dy.par_chunks(TASK))
            .zip(y.par_chunks(TASK))
            .for_each(|((masked, dy), y)| {
                for ((masked, dy), y) in masked.iter_mut().zip(dy).zip(y) {
                    *masked = if *y <= 0.0 { 0.0 } else { *dy };
                }
            });
        self.pool.max_backward(self.argmax, &masked, &mut unpooled)?;
        Ok(unpooled)
    }
}
