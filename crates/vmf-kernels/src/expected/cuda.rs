//! The expected activation on a CUDA device: the launcher of expected.cu (feature `cuda`).
//!
//! It mirrors [`forward`](super::forward) and [`forward_pooled`](super::forward_pooled) on buffers
//! in device memory, as [`bn_noise::cuda`](crate::bn_noise::cuda) does for its own operation: NCHW,
//! stored in `f32`, `f16` or `bf16`, compiled at the first use. It has not run on a GPU yet either;
//! the project's tests execute its kernels on the CPU.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use crate::bn_noise::Config;
use crate::bn_noise::cuda::{CudaElement, Error, Launcher};
use crate::bn_noise::launches::{Pointers, STATISTICS_PER_CHANNEL};

/// The constants of each channel, in device memory, `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Channels<'a, P> {
    /// The means to normalize with.
    pub mean: &'a P,
    /// The variances to normalize with.
    pub variance: &'a P,
    /// The standard deviations in front of the activation.
    pub deviation: &'a P,
}

/// Normalizes u and writes the expected ReLU. With `image`, the height and width of the images,
/// maximum pooling over 2x2 windows side by side comes before the ReLU, and y is a quarter as long.
pub fn forward<T: CudaElement, P: DevicePtr<f32>>(
    stream: &Arc<CudaStream>,
    config: &Config,
    channels: Channels<P>,
    image: Option<[usize; 2]>,
    u: &impl DevicePtr<T>,
    y: &mut impl DevicePtrMut<T>,
) -> Result<(), Error> {
    super::check_activation(config)?;
    let (shape, Channels { mean, variance, deviation }) = (config.shape, channels);
    let outputs = match image {
        None => shape.elements(),
        Some([height, width]) => shape.batch * shape.channels * (height / 2) * (width / 2),
    };
    let launcher = Launcher::new::<T>(stream, config, None)?;
    launcher.check("u", u, shape.elements())?;
    launcher.check("y", y, outputs)?;
    launcher.check("mean", mean, shape.channels)?;
    launcher.check("variance", variance, shape.channels)?;
    launcher.check("deviation", deviation, shape.channels)?;
    let mut statistics = launcher.scratch(STATISTICS_PER_CHANNEL * shape.channels)?;
    let (u, _u) = u.device_ptr(stream);
    let (y, _y) = y.device_ptr_mut(stream);
    let (mean, _mean) = mean.device_ptr(stream);
    let (variance, _variance) = variance.device_ptr(stream);
    let (deviation, _deviation) = deviation.device_ptr(stream);
    let (statistics, _statistics) = launcher.pointer_mut(&mut statistics);
    let at = Pointers { u, y, mean, variance, deviation, statistics, ..Pointers::default() };
    let plan = launcher.plan(&[u, y])?;
    let launches = match image {
        None => plan.expected(&at),
        Some(image) => plan.expected_pooled(&at, image)?,
    };
    launcher.launch(&launches)
}
