//! Which passes make a prediction.

use crate::dtype::stable_dtype;
use crate::error::{Error, check_setting, check_shape};
use crate::finite::is_finite;
use crate::moments::Moments;
use crate::pass::{Forward, Pass};
use crate::posterior::Posterior;
use crate::watch::first_non_finite;
use candle_core::{Result, Tensor};

/// Which passes make a prediction.
///
/// ```
/// use vmf_candle::prelude::*;
/// # let posterior = Posterior::new();
/// let one_pass = Samples::expected(&posterior); // the mean over the noise, in one pass
/// let full = Samples::full(&posterior); // the same with the variance of each element, in about 2.5
/// let monte_carlo = Samples::monte_carlo(16, 42); // what it approximates, at the price of sixteen
/// let noise_off = Samples::mean(); // the network at the mean of its weights: overconfident
/// ```
#[derive(Clone, Debug)]
pub struct Samples {
    pub(super) way: Way,
    folding: Folding,
}

#[derive(Clone, Debug)]
pub(super) enum Way {
    Expected(Posterior),
    Full(Posterior),
    Mean,
    MonteCarlo { seed: u64, count: u32 },
}

/// How Monte Carlo samples are run. The noise is the same in each way, and so is the result up to
/// rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    /// Folds as many samples into a pass as keep it at a few hundred rows: small batches fold,
    /// large ones loop.
    #[default]
    Automatic,
    /// One pass per sample, which takes the least memory.
    Loop,
    /// All samples in one pass.
    Fold,
}

/// The number of rows in a pass up to which [`Folding::Automatic`] folds. A matrix product of a few
/// hundred rows runs at full speed, so that more rows only cost memory.
const FOLDED_ROWS: usize = 256;

impl Samples {
    /// One deterministic pass through expected activations, which stands for many noisy ones.
    ///
    /// [`reestimate`](super::reestimate) must have measured with this posterior, or a checkpoint of
    /// it been restored, how much the activations and the outputs of the model vary.
    pub fn expected(posterior: &Posterior) -> Self {
        Self { way: Way::Expected(posterior.clone()), folding: Folding::Automatic }
    }

    /// The expected pass in its `full` grade: each layer computes the variance of every element
    /// beside its mean, in place of the variance per channel that was measured. It costs about two
    /// and a half passes, and the model must implement [`Forward::propagate`].
    ///
    /// It is not always the better grade: where many layers pool, the approximate variance of each
    /// maximum adds up, and a measured variance is closer to the truth.
    ///
    /// The covariance of the outputs is the measured one, as in [`expected`](Self::expected): the
    /// propagated variance leaves out that units share the noise of the layers before them, and
    /// sums over many units make that count.
    pub fn full(posterior: &Posterior) -> Self {
        Self { way: Way::Full(posterior.clone()), folding: Folding::Automatic }
    }

    /// One pass at the mean directions, without noise.
    pub fn mean() -> Self {
        Self { way: Way::Mean, folding: Folding::Automatic }
    }

    /// `count` noisy passes.
    pub fn monte_carlo(count: u32, seed: u64) -> Self {
        Self { way: Way::MonteCarlo { seed, count }, folding: Folding::Automatic }
    }

    /// Sets how the samples are run.
    pub fn folding(self, folding: Folding) -> Self {
        Self { folding, ..self }
    }

    /// Whether it is a single pass, so that nothing varies.
    pub(super) fn is_single(&self) -> bool {
        matches!(self.way, Way::Mean | Way::MonteCarlo { count: 1, .. })
    }

    /// For the expected pass: the mean of the outputs, and the posterior that knows how much they
    /// vary.
    pub(super) fn expected_output<M: Forward + ?Sized>(
        &self,
        model: &M,
        xs: &Tensor,
    ) -> Result<Option<(&Posterior, Tensor)>> {
        Ok(match &self.way {
            Way::Expected(posterior) => Some((posterior, output(model, xs, &Pass::expected())?)),
            Way::Full(posterior) => {
                let mean = || Ok(model.propagate(&Moments::certain(xs))?.mean().clone());
                Some((posterior, checked(mean, xs)?))
            }
            Way::Mean | Way::MonteCarlo { .. } => None,
        })
    }

    /// Runs the model and passes the output of each sample to `visit`.
    pub(super) fn run<M: Forward + ?Sized>(
        &self,
        model: &M,
        xs: &Tensor,
        batch: u32,
        mut visit: impl FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        if let Some((_, mean)) = self.expected_output(model, xs)? {
            return visit(mean);
        }
        let Way::MonteCarlo { seed, count } = self.way else {
            return visit(output(model, xs, &Pass::mean())?);
        };
        let requirement = "it must be at least 1";
        check_setting(count > 0, "the number of Monte Carlo samples", count, requirement)?;
        let rows = xs.dim(0)?;
        let together = match self.folding {
            Folding::Loop => 1,
            Folding::Fold => count,
            Folding::Automatic => (FOLDED_ROWS / rows.max(1)).clamp(1, count as usize) as u32,
        };
        for first in (0..count).step_by(together as usize) {
            let together = together.min(count - first);
            let pass = Pass::folded(seed, first, together).at_batch(batch);
            let outputs = output(model, &pass.repeat(xs)?, &pass)?;
            for sample in 0..together as usize {
                visit(outputs.narrow(0, sample * rows, rows)?)?;
            }
        }
        Ok(())
    }
}

/// The output of a pass, without the graph behind it. It must be finite.
pub(super) fn output<M: Forward + ?Sized>(model: &M, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
    checked(|| model.forward(xs, pass), xs)
}

/// The output of a run of the model for these inputs, without the graph behind it. It must be
/// finite.
fn checked(run: impl Fn() -> Result<Tensor>, xs: &Tensor) -> Result<Tensor> {
    let output = run()?.detach();
    if !is_finite(&output)? {
        Err(Error::NonFiniteOutput { place: first_non_finite(run) })?
    }
    let rows = xs.dim(0)?;
    check_shape(output.dims().first() == Some(&rows), "prediction", || {
        let dims = output.dims();
        format!(
            "the model made {dims:?} of {rows} examples, which must stay along the first dimension"
        )
    })?;
    output.to_dtype(stable_dtype(output.dtype()))
}
