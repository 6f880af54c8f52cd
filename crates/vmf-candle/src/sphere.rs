//! Rows on the unit sphere. A row is everything behind one index of a weight's first dimension: the
//! weight of one unit.

use crate::dtype::stable_dtype;
use candle_core::{DType, Result, Tensor};

/// Each row divided by its Euclidean length.
pub(crate) fn unit_rows(weight: &Tensor) -> Result<Tensor> {
    let rows = weight.to_dtype(stable_dtype(weight.dtype()))?.flatten_from(1)?;
    // A row of zeros has no direction and stays as it is.
    let lengths = rows.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(1e-30)?;
    rows.broadcast_div(&lengths)?.reshape(weight.shape())?.to_dtype(weight.dtype())
}

/// Whether all rows have unit length, up to rounding.
pub(crate) fn on_sphere(weight: &Tensor) -> Result<bool> {
    let rows = weight.to_dtype(DType::F64)?.flatten_from(1)?;
    let furthest = (rows.sqr()?.sum(1)? - 1.0)?.abs()?.max_all()?;
    let rounding = match weight.dtype() {
        DType::F64 | DType::F32 => 1e-5,
        _ => 1e-2,
    };
    Ok(furthest.to_scalar::<f64>()? < rounding)
}

/// The part of a gradient along the sphere: `g - (g . w) w / (w . w)`, row by row.
pub(crate) fn tangent(gradient: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (g, w) = (gradient.flatten_from(1)?, weight.flatten_from(1)?);
    let radial = (&g * &w)?.sum_keepdim(1)?;
    let length = w.sqr()?.sum_keepdim(1)?.maximum(1e-30)?;
    let tangent = (&g - w.broadcast_mul(&(radial / length)?)?)?;
    tangent.reshape(gradient.shape())
}
