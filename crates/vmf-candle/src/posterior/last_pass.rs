//! What the last pass changed in the statistics of normalizations, so that it can be undone.
//!
//! A layer measures its batch before anyone knows whether the pass ends well: a later layer may
//! overflow, or the loss. Statistics move at once all the same, so that whoever reads or saves the
//! variables of a model always sees them complete. The values they had before are kept until the
//! next pass begins or the optimizer has taken its step, and a pass that fails puts them back.

use crate::pass::Pass;
use candle_core::{Device, Result, Tensor, Var};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The changes of the last pass. Cloning gives another handle to the same; the posterior and all of
/// its layers have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastPass(Arc<Mutex<Changes>>);

#[derive(Debug, Default)]
struct Changes {
    /// The pass, and the stream of the first layer in it.
    begun: Option<(Pass, u32)>,
    /// Variables with the values they had, in the order in which they changed.
    before: Vec<(Var, Tensor)>,
    /// Layers on a device where to look at a value means to wait for it, each with a scalar that is
    /// 1 if the statistics of its batch are finite.
    unseen: Vec<(String, Tensor)>,
}

impl LastPass {
    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A layer takes part in a pass that changes statistics. If the pass begins with this layer, what
    /// the one before changed is final.
    pub(crate) fn enter(&self, pass: &Pass, stream: u32) {
        let mut changes = self.lock();
        // Passes without noise are all equal, but each of them begins with the same layer.
        if changes.begun.is_none_or(|(last, first)| last != *pass || first == stream) {
            *changes = Changes { begun: Some((*pass, stream)), ..Changes::default() };
        }
    }

    /// Gives a statistic a new value.
    pub(crate) fn set(&self, statistic: &Var, value: &Tensor) -> Result<()> {
        self.remember(statistic)?;
        statistic.set(value)
    }

    /// Keeps the value of a statistic that is about to change.
    pub(crate) fn remember(&self, statistic: &Var) -> Result<()> {
        let before = statistic.as_detached_tensor().copy()?;
        self.lock().before.push((statistic.clone(), before));
        Ok(())
    }

    /// Leaves the question whether a layer's statistics are finite for later.
    pub(crate) fn look_later(&self, layer: &str, is_finite: Tensor) {
        self.lock().unseen.push((layer.into(), is_finite));
    }

    /// The first layer whose statistics turned out not to be finite, of those that were left for
    /// later.
    pub(crate) fn first_not_finite(&self) -> Result<Option<String>> {
        let changes = self.lock();
        if changes.unseen.is_empty() {
            return Ok(None);
        }
        let (layers, are_finite): (Vec<_>, Vec<_>) = changes.unseen.iter().cloned().unzip();
        let are_finite = Tensor::stack(&are_finite, 0)?.to_device(&Device::Cpu)?.to_vec1::<u8>()?;
        let first = are_finite.iter().position(|&is_finite| is_finite == 0);
        Ok(first.map(|place| layers[place].clone()))
    }

    /// What the pass changed is final.
    pub(crate) fn keep(&self) {
        *self.lock() = Changes::default();
    }

    /// Puts back what the pass changed.
    pub(crate) fn undo(&self) -> Result<()> {
        let changes = std::mem::take(&mut *self.lock());
        // A layer that was used twice has changed twice.
        changes.before.iter().rev().try_for_each(|(statistic, before)| statistic.set(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Statistics;
    use candle_core::DType;

    /// A statistic that has moved from 0 to 1 and on to 2 in a pass.
    fn moved(pass: &Pass) -> Result<(LastPass, Var)> {
        let (last, statistic) = (LastPass::default(), Var::zeros(2, DType::F32, &Device::Cpu)?);
        last.enter(pass, 1);
        for value in [1.0, 2.0] {
            last.set(&statistic, &(statistic.ones_like()? * value)?)?;
        }
        Ok((last, statistic))
    }

    #[test]
    fn a_pass_is_undone_unless_it_is_final() -> Result<()> {
        let value = |statistic: &Var| statistic.to_vec1::<f32>().map(|values| values[0]);
        for (next, stream, undone) in [
            // Another layer of the same pass.
            (Pass::train(1, 0), 2, 0.0),
            // The first layer again, and another pass.
            (Pass::train(1, 0), 1, 2.0),
            (Pass::train(1, 1), 2, 2.0),
        ] {
            let (last, statistic) = moved(&Pass::train(1, 0))?;
            last.enter(&next, stream);
            last.undo()?;
            assert_eq!(value(&statistic)?, undone, "{next:?} {stream}");
        }
        let (last, statistic) = moved(&Pass::train_noiseless())?;
        last.keep();
        last.undo()?;
        assert_eq!(value(&statistic)?, 2.0);
        Ok(())
    }

    #[test]
    fn the_first_layer_that_is_not_finite_is_found_later() -> Result<()> {
        let statistics = |var: f32| -> Result<Statistics> {
            let mean = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
            Ok(Statistics { mean, var: Tensor::new(&[1f32, var, 1.0], &Device::Cpu)? })
        };
        let last = LastPass::default();
        assert_eq!(last.first_not_finite()?, None);
        last.look_later("a", statistics(1.0)?.are_finite()?);
        assert_eq!(last.first_not_finite()?, None);
        for (layer, var) in [("b", f32::INFINITY), ("c", f32::NAN)] {
            last.look_later(layer, statistics(var)?.are_finite()?);
            assert_eq!(last.first_not_finite()?.as_deref(), Some("b"));
        }
        last.undo()?;
        assert_eq!(last.first_not_finite()?, None);
        Ok(())
    }
}
