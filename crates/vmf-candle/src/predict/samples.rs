//! Which passes make a prediction.

use crate::dtype::stable_dtype;
use crate::error::{Error, check_setting, check_shape};
use crate::finite::is_finite;
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

    /// Runs the model and passes the output of each sample to `visit`.
    pub(super) fn run<M: Forward + ?Sized>(
        &self,
        model: &M,
        xs: &Tensor,
        batch: u32,
        mut visit: impl FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let (seed, count) = match self.way {
            Way::Expected(_) => return visit(output(model, xs, &Pass::expected())?),
            Way::Mean => return visit(output(model, xs, &Pass::mean())?),
            Way::MonteCarlo { seed, count } => (seed, count),
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
    let output = model.forward(xs, pass)?.detach();
    if !is_finite(&output)? {
        let place = first_non_finite(|| model.forward(xs, pass));
        Err(Error::NonFiniteOutput { place })?
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
