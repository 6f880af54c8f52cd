//! The variables of a model by name.

use crate::error::{Error, Result};
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use std::collections::{BTreeMap, HashMap};
use std::sync::{MutexGuard, PoisonError};

/// The variables of a map by name, even if a thread panicked while it held the lock.
pub(crate) fn lock(vars: &VarMap) -> MutexGuard<'_, HashMap<String, Var>> {
    vars.data().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a variable is a statistic by its name: one that normalizations measure, and that no
/// gradient trains.
pub(crate) fn is_statistic(name: &str) -> bool {
    let own = name.rsplit('.').next().unwrap_or_default();
    ["running_mean", "running_var", "noise_free_mean", "noise_free_var", "inherited_var"]
        .contains(&own)
}

/// Checks that `tensors` has exactly the variables of the model, with their shapes and dtypes.
pub(crate) fn check(vars: &VarMap, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    let vars = lock(vars);
    for (name, tensor) in tensors {
        let Some(var) = vars.get(name) else {
            return Err(Error::Mismatch(format!(
                "there is a value for {name:?}, which the model does not have"
            )));
        };
        if var.shape() != tensor.shape() || var.dtype() != tensor.dtype() {
            return Err(Error::Mismatch(format!(
                "the value for {name:?} is {:?} {:?}, in the model it is {:?} {:?}",
                tensor.dtype(),
                tensor.dims(),
                var.dtype(),
                var.dims()
            )));
        }
    }
    match vars.keys().filter(|name| !tensors.contains_key(*name)).min() {
        Some(name) => Err(Error::Mismatch(format!("there is no value for {name:?}"))),
        None => Ok(()),
    }
}

/// Gives all variables their values, or none: nothing changes if [`check`] fails or a value cannot
/// be moved to its device.
pub(crate) fn assign(vars: &VarMap, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    check(vars, tensors)?;
    let vars = lock(vars);
    let on_device = |(name, tensor): (&String, &Tensor)| -> Result<(Var, Tensor)> {
        let var = vars[name].clone();
        let tensor = tensor.to_device(var.device())?;
        Ok((var, tensor))
    };
    let values = tensors.iter().map(on_device).collect::<Result<Vec<_>>>()?;
    for (var, value) in values {
        var.set(&value)?;
    }
    Ok(())
}
