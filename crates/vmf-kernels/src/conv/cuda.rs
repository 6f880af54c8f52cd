//! Convolution on a CUDA device (feature `cuda`): by cuDNN where it is installed ([`cudnn`](super::cudnn)), and
//! otherwise as matrix products, for which this module has the rearrangement of images.

use super::{ConvShape, launches};
use crate::bn_noise::cuda::{CudaElement, Error, check, launch};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use std::sync::Arc;

pub use super::launches::columns_len;

/// Writes the columns of x, (N, C * kh * kw, positions): for each output position, the inputs of a
/// unit.
pub fn im2col<T: CudaElement>(
    stream: &Arc<CudaStream>,
    shape: &ConvShape,
    x: &impl DevicePtr<T>,
    columns: &mut impl DevicePtrMut<T>,
) -> Result<(), Error> {
    check(stream, "x", x, shape.input_len())?;
    check(stream, "columns", columns, columns_len(shape))?;
    let (x, _x) = x.device_ptr(stream);
    let (columns, _columns) = columns.device_ptr_mut(stream);
    launch(stream, T::STORAGE, &[launches::im2col(shape, T::STORAGE, x, columns)?])
}

/// The gradient of [`im2col`]: adds up, for each element of an image, what its columns received.
pub fn col2im<T: CudaElement>(
    stream: &Arc<CudaStream>,
    shape: &ConvShape,
    columns: &impl DevicePtr<T>,
    dx: &mut impl DevicePtrMut<T>,
) -> Result<(), Error> {
    check(stream, "columns", columns, columns_len(shape))?;
    check(stream, "dx", dx, shape.input_len())?;
    let (columns, _columns) = columns.device_ptr(stream);
    let (dx, _dx) = dx.device_ptr_mut(stream);
    launch(stream, T::STORAGE, &[launches::col2im(shape, T::STORAGE, columns, dx)?])
}
