//! The weight of a unit, of which only the direction matters.

use super::config::WeightConstraint;
use crate::sphere::{on_sphere, unit_rows};
use candle_core::{Device, Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};

/// A weight of shape (M, ...): M directions in D dimensions, under a constraint.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    raw: Tensor,
    constraint: WeightConstraint,
}

impl Weight {
    /// The variable `weight` at the builder's path. A new one points in uniformly random
    /// directions.
    pub(super) fn new(
        shape: &[usize],
        constraint: WeightConstraint,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let dim: usize = shape[1..].iter().product();
        let init = Init::Randn { mean: 0.0, stdev: 1.0 / (dim as f64).sqrt() };
        let raw = vb.get_with_hints(shape, "weight", init)?;
        // Rows that are already on the sphere, such as those of a checkpoint, are not normalized
        // again, which could change their last bit. Neither is a tensor that is not a variable: it
        // comes from a file, with running statistics that belong to its scale.
        if constraint == WeightConstraint::Sphere && raw.is_variable() {
            // Computed on the CPU for every device, so that a seed gives the same bits everywhere.
            let rows = raw.detach().to_device(&Device::Cpu)?;
            if !on_sphere(&rows)? {
                Var::from_tensor(&raw)?.set(&unit_rows(&rows)?.to_device(raw.device())?)?;
            }
        }
        Ok(Self { raw, constraint })
    }

    /// The variable.
    pub(super) fn raw(&self) -> &Tensor {
        &self.raw
    }

    /// The variable, if the sphere constraint applies to it.
    pub(super) fn sphere(&self) -> Option<Tensor> {
        (self.constraint == WeightConstraint::Sphere).then(|| self.raw.clone())
    }

    /// The weight that multiplies the input, differentiable.
    pub(super) fn effective(&self) -> Result<Tensor> {
        match self.constraint {
            WeightConstraint::Sphere => Ok(self.raw.clone()),
            WeightConstraint::WeightNorm { gain } => unit_rows(&self.raw)? * gain,
        }
    }
}
