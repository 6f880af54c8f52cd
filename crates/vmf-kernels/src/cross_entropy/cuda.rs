//! The cross-entropy on a CUDA device: the launcher of cross_entropy.cu (feature `cuda`).

use super::launches::{self, Pointers};
use crate::bn_noise::cuda::{CudaElement, Error, check, launch};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use std::sync::Arc;

/// Writes the gradient of the mean loss. Returns two numbers in device memory: the mean loss, and
/// how many predictions are right.
pub fn cross_entropy<T: CudaElement>(
    stream: &Arc<CudaStream>,
    smoothing: f64,
    logits: &impl DevicePtr<T>,
    labels: &impl DevicePtr<u32>,
    gradient: &mut impl DevicePtrMut<T>,
) -> Result<CudaSlice<f32>, Error> {
    let rows = labels.len();
    if rows == 0 || logits.is_empty() || !logits.len().is_multiple_of(rows) {
        let shape = format!("({rows} labels, {} logits)", logits.len());
        return Err(crate::Error::EmptyShape { shape }.into());
    }
    check(stream, "logits", logits, logits.len())?;
    check(stream, "labels", labels, rows)?;
    check(stream, "gradient", gradient, logits.len())?;
    // SAFETY: the kernels write all of both before anybody reads them.
    let (mut scratch, mut results) =
        unsafe { (stream.alloc::<f32>(2 * rows)?, stream.alloc::<f32>(2)?) };
    let shape = [rows, logits.len() / rows].map(|size| size as u32);
    {
        let (logits, _logits) = logits.device_ptr(stream);
        let (labels, _labels) = labels.device_ptr(stream);
        let (gradient, _gradient) = gradient.device_ptr_mut(stream);
        let (rows, _rows) = scratch.device_ptr_mut(stream);
        let (results, _results) = results.device_ptr_mut(stream);
        let at = Pointers { logits, labels, gradient, rows, results };
        launch(
            stream,
            T::STORAGE,
            &launches::cross_entropy(shape, smoothing as f32, T::STORAGE, &at),
        )?;
    }
    Ok(results)
}
