//! The weight of a unit, of which only the direction matters.

use super::config::WeightConstraint;
use crate::sigma::stable_dtype;
use candle_core::{DType, Device, Result, Tensor, Var};
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
        // Rows that are on the sphere already, as a checkpoint's are, keep their last bit. A tensor
        // that is no variable comes from a file, with running statistics that belong to its
        // scale: it is left alone too.
        if constraint == WeightConstraint::Sphere && raw.is_variable() {
            // On the CPU, whatever the device: a seed then gives the same weights everywhere, to
            // the last bit.
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

    /// The variable, if it is to be kept on the sphere.
    pub(super) fn sphere(&self) -> Option<Tensor> {
        (self.constraint == WeightConstraint::Sphere).then(|| self.raw.clone())
    }

    /// What multiplies the input, differentiable.
    pub(super) fn effective(&self) -> Result<Tensor> {
        match self.constraint {
            WeightConstraint::Sphere => Ok(self.raw.clone()),
            WeightConstraint::WeightNorm { gain } => unit_rows(&self.raw)? * gain,
        }
    }
}

/// Each row (all that lies behind one index of the first dimension) divided by its Euclidean
/// length.
pub(crate) fn unit_rows(weight: &Tensor) -> Result<Tensor> {
    let rows = weight.to_dtype(stable_dtype(weight.dtype()))?.flatten_from(1)?;
    // A row of zeros has no direction and stays as it is.
    let lengths = rows.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(1e-30)?;
    rows.broadcast_div(&lengths)?.reshape(weight.shape())?.to_dtype(weight.dtype())
}

fn on_sphere(weight: &Tensor) -> Result<bool> {
    let rows = weight.to_dtype(DType::F64)?.flatten_from(1)?;
    let furthest = (rows.sqr()?.sum(1)? - 1.0)?.abs()?.max_all()?;
    let rounding = match weight.dtype() {
        DType::F64 | DType::F32 => 1e-5,
        _ => 1e-2,
    };
    Ok(furthest.to_scalar::<f64>()? < rounding)
}
