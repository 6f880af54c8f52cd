//! Which dtype a number must be kept in.

use candle_core::DType;

/// The dtype of what must not be rounded to half precision: noise parameters, statistics, losses
/// and the moments of the optimizer.
pub(crate) fn stable_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
