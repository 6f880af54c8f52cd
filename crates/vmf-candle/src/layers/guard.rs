//! What a unit checks beside what it computes, so that nothing goes wrong in silence.

use super::unit::Unit;
use crate::error::Error;
use crate::finite::is_finite;
use crate::ops::{Images, Statistics};
use crate::pass::{Pass, StatisticsSource};
use crate::warning::warn;
use crate::watch;
use candle_core::{Result, Tensor};
use std::sync::atomic::Ordering;

impl Unit {
    /// The units' output for these images: with a skip connection added before the activation, and
    /// maximum pooling behind it over square windows of this side. Errors name the layer, and undo
    /// what the pass has changed in the statistics of this layer and of those before it.
    pub(super) fn forward(
        &self,
        xs: &Images,
        skip: Option<&Images>,
        pool: Option<usize>,
        pass: &Pass,
    ) -> Result<Images> {
        self.follow_statistics(pass);
        if pass.changes_statistics() {
            self.last_pass.enter(pass, self.stream);
        }
        let ys = match self.compute(xs, skip, pool, pass) {
            Ok(ys) => ys,
            Err(error) => {
                if pass.changes_statistics() {
                    self.last_pass.undo()?;
                }
                return Err(Error::in_layer(&self.name, error));
            }
        };
        watch::observe(&self.name, ys.tensor())?;
        Ok(ys)
    }

    /// Refuses statistics of a batch that are not finite: a single NaN would stay in the running
    /// statistics for good.
    ///
    /// To look at a value on a GPU means to wait for it. There this returns a scalar that is 1 if
    /// they are finite, and the optimizer, which has to wait for gradients anyway, looks at it.
    pub(super) fn check_statistics(
        &self,
        batch: &Statistics,
        xs: &Images,
        weight: &Tensor,
    ) -> Result<Option<Tensor>> {
        if !batch.mean.device().is_cpu() {
            let are_finite = batch.are_finite()?;
            self.last_pass.look_later(&self.name, are_finite.clone());
            return Ok(Some(are_finite));
        }
        match is_finite(&batch.mean)? && is_finite(&batch.var)? {
            true => Ok(None),
            false => Err(self.not_finite(xs, weight)?),
        }
    }

    /// Averages a measurement of the inherited variance in, if it is finite.
    pub(super) fn record_inherited(&self, var: &Tensor, weight: f64, xs: &Images) -> Result<()> {
        if var.device().is_cpu() && !is_finite(var)? {
            return Err(self.not_finite(xs, self.weight.raw())?);
        }
        self.norm.record_inherited(var, weight, &self.last_pass)
    }

    /// Warns, once for the whole model, if a mean pass uses statistics that training has collected
    /// under noise.
    fn follow_statistics(&self, pass: &Pass) {
        match pass.statistics() {
            StatisticsSource::Batch if pass.is_noisy() => self.lag.store(true, Ordering::Relaxed),
            StatisticsSource::Recorded { noisy: false, .. } => {
                self.lag.store(false, Ordering::Relaxed);
            }
            StatisticsSource::RunningNoiseFree if self.lag.swap(false, Ordering::Relaxed) => {
                warn(
                    "a mean pass uses the statistics that training has collected under noise, which \
                     do not fit a pass without it: call `reestimate` with training inputs after \
                     training, before predicting",
                );
            }
            _ => {}
        }
    }

    /// Why the statistics of a batch are not finite. Only a pass that has failed looks for it.
    fn not_finite(&self, xs: &Images, weight: &Tensor) -> Result<candle_core::Error> {
        let reason = if !is_finite(xs.tensor())? {
            "its input holds NaN or infinity: look for it in the data and in what prepares it, a \
             lower learning rate does not help"
        } else if !is_finite(weight)? {
            "its weight holds NaN or infinity: restore an earlier checkpoint, and train with a \
             lower learning rate or with gradient clipping"
        } else {
            "its activations are too large to have a mean and a variance: lower the learning rate, \
             clip gradients, or bring the inputs to unit variance"
        };
        Ok(Error::NonFiniteLayer { layer: self.name.clone(), reason }.into())
    }
}
