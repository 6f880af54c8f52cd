//! The gradients of all ranks, added up in one buffer.
//!
//! Many small exchanges would each pay for the way to the other ranks and back. Gradients are
//! therefore laid out one after the other, and exchanged once in a step.

use crate::ranks::Ranks;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};

/// Replaces the gradients of these variables by their sums over the ranks, and returns the sum of
/// the ranks' losses.
///
/// The variables come in the same order on all ranks, and a variable has a gradient on all of them or
/// on none.
pub(super) fn sum_over<'a>(
    ranks: Ranks,
    variables: impl Iterator<Item = &'a Var>,
    gradients: &mut GradStore,
    loss: &Tensor,
) -> Result<f64> {
    let (mut single, mut double) = (Vec::new(), Vec::new());
    let mut places = Vec::new();
    for variable in variables {
        let Some(gradient) = gradients.remove(variable) else { continue };
        let values = gradient.flatten_all()?.to_device(&Device::Cpu)?;
        if gradient.dtype() == DType::F64 {
            double.extend(values.to_vec1::<f64>()?);
        } else {
            single.extend(values.to_dtype(DType::F32)?.to_vec1::<f32>()?);
        }
        places.push((variable, gradient));
    }
    let loss = loss.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    // Every rank learns whether a loss is finite before any of them goes on without the others.
    let mut header = [loss, single.len() as f64, double.len() as f64];
    ranks.sum_f64(&mut header)?;
    let size = ranks.size() as f64;
    if header[1..] != [single.len() as f64 * size, double.len() as f64 * size] {
        candle_core::bail!(
            "the ranks have gradients of different variables: are their models equal?"
        )
    }
    ranks.sum_f32(&mut single)?;
    if !double.is_empty() {
        ranks.sum_f64(&mut double)?;
    }
    let (mut single, mut double) = (&single[..], &double[..]);
    for (variable, gradient) in places {
        let (count, shape, device) = (gradient.elem_count(), gradient.shape(), gradient.device());
        let sum = if gradient.dtype() == DType::F64 {
            let (values, rest) = double.split_at(count);
            double = rest;
            Tensor::from_slice(values, shape, device)?
        } else {
            let (values, rest) = single.split_at(count);
            single = rest;
            Tensor::from_slice(values, shape, device)?.to_dtype(gradient.dtype())?
        };
        gradients.insert(variable, sum);
    }
    Ok(header[0])
}
