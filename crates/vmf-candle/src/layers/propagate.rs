//! The variational unit for means and variances: the `full` grade of the expected pass.

use super::config::Activation;
use super::norm::Batch;
use super::unit::Unit;
use crate::error::Error;
use crate::ops::{self, UncertainImages};
use crate::pass::{Pass, StatisticsSource};
use candle_core::Result;
use vmf_kernels::unit as kernel;

impl Unit {
    /// Mean and variance of the output for these images: with a skip connection added before the
    /// activation, and maximum pooling behind it over square windows of this side. The statistics
    /// are those of the noisy passes.
    ///
    /// ```text
    /// m = gain (w~ * x_mean - mean) rstd + shift + skip_mean
    /// v = gain^2 ((w~^2 * x_variance) rstd^2 + sigma_eff^2) + skip_variance
    /// ```
    pub(super) fn propagate(
        &self,
        xs: &UncertainImages,
        skip: Option<&UncertainImages>,
        pool: Option<usize>,
    ) -> Result<UncertainImages> {
        let relu = self.config.activation == Activation::Relu;
        let affine = self.norm.affine();
        let fused = affine.is_none() && skip.is_none() && !xs.is_training();
        let unit = kernel::Unit::new(self.conv(xs.mean())?);
        let mut unit = unit.eps(self.config.eps).relu(relu && fused);
        if let (Some(window), true) = (pool, fused) {
            unit = unit.max_pool(window).map_err(Error::from)?;
        }
        let op = ops::Unit { kernel: unit, noise: None };
        let (own, w) = (self.sigma_per_channel()?, self.weight.effective()?);
        let mut ys = if xs.is_training() {
            self.last_pass.enter(&Pass::train_noiseless(), self.stream);
            let (ys, statistics) = op.propagate_batch(&own, xs, &w)?;
            let count = unit.norm().shape.elements_per_channel();
            let are_finite = match self.check_statistics(&statistics, xs.mean(), &w) {
                Ok(are_finite) => are_finite,
                Err(error) => {
                    self.last_pass.undo()?;
                    return Err(error);
                }
            };
            let batch = Batch { statistics, count, are_finite };
            self.norm.update(StatisticsSource::Batch, &batch, &self.last_pass)?;
            ys
        } else {
            op.propagate(&own, &self.norm.running(), xs, &w)?
        };
        if fused {
            return Ok(ys);
        }
        if let Some((gain, shift)) = affine {
            ys = ys.scale_and_shift(gain, shift)?;
        }
        ys.map(|mut ys| {
            if let Some(skip) = skip {
                ys = ys.add(&skip.moments()?)?;
            }
            if let Some(window) = pool {
                ys = ys.max_pool(window)?;
            }
            if relu { ys.relu() } else { Ok(ys) }
        })
    }
}
