//! Maximum pooling on a CUDA device: the launcher of pool.cu (feature `cuda`). Tensors are NCHW.

use super::{PoolShape, launches};
use crate::bn_noise::cuda::{CudaElement, Error, check, launch};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use std::sync::Arc;

/// The maximum of each window; returns which element of its window it is.
pub fn max_forward<T: CudaElement>(
    stream: &Arc<CudaStream>,
    shape: &PoolShape,
    x: &impl DevicePtr<T>,
    y: &mut impl DevicePtrMut<T>,
) -> Result<CudaSlice<u8>, Error> {
    check(stream, "x", x, shape.input_len())?;
    check(stream, "y", y, shape.output_len())?;
    // SAFETY: the kernel writes all of it. The driver refuses to allocate nothing.
    let mut argmax = unsafe { stream.alloc::<u8>(shape.output_len().max(1)) }?;
    {
        let (x, _x) = x.device_ptr(stream);
        let (y, _y) = y.device_ptr_mut(stream);
        let (argmax, _argmax) = argmax.device_ptr_mut(stream);
        launch(stream, T::STORAGE, &[launches::max_forward(shape, T::STORAGE, [x, y, argmax])?])?;
    }
    Ok(argmax)
}

/// The gradient with respect to the input, from the argmax that [`max_forward`] returned.
pub fn max_backward<T: CudaElement>(
    stream: &Arc<CudaStream>,
    shape: &PoolShape,
    argmax: &CudaSlice<u8>,
    dy: &impl DevicePtr<T>,
    dx: &mut impl DevicePtrMut<T>,
) -> Result<(), Error> {
    check(stream, "argmax", argmax, shape.output_len())?;
    check(stream, "dy", dy, shape.output_len())?;
    check(stream, "dx", dx, shape.input_len())?;
    let (argmax, _argmax) = argmax.device_ptr(stream);
    let (dy, _dy) = dy.device_ptr(stream);
    let (dx, _dx) = dx.device_ptr_mut(stream);
    launch(stream, T::STORAGE, &[launches::max_backward(shape, T::STORAGE, [argmax, dy, dx])?])
}
