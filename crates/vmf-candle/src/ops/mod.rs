//! Operations with gradients of their own, each usable in any Candle model.

mod bn_noise;
#[cfg(feature = "cuda")]
mod bn_noise_cuda;
mod bn_noise_reference;
mod conv2d;
mod layout;
mod pool;
mod unit;

pub use bn_noise::{Activation, BatchStatistics, BnNoise, bn_noise, bn_noise_eval};
pub use bn_noise_reference::{bn_noise_eval_reference, bn_noise_reference, noise_tensor};
pub use conv2d::{FastConv2d, conv2d};
pub use pool::{avg_pool2d, max_pool2d};

pub(crate) use conv2d::candle_conv2d;
pub(crate) use layout::{from_fast, to_fast};
pub(crate) use unit::UnitArguments;

use candle_core::{CpuStorage, Layout, Result, Storage, WithDType};

/// The elements of a contiguous tensor.
pub(crate) fn contiguous_slice<'a, T: WithDType>(
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<T>()?[start..end]),
        None => candle_core::bail!("this operation needs a contiguous tensor"),
    }
}

/// The elements of a contiguous tensor whose storage is held.
pub(crate) fn cpu_slice<'a, T: WithDType>(
    (storage, layout): &'a (impl std::ops::Deref<Target = Storage>, &Layout),
) -> Result<&'a [T]> {
    match &**storage {
        Storage::Cpu(storage) => contiguous_slice(storage, layout),
        _ => candle_core::bail!("this operation needs a tensor on the CPU"),
    }
}

/// Memory for a kernel to write its result to, with whatever it held before.
///
/// `vec![0.0; len]` would clear it first, on one thread: in a training step of VGG16 that is 150 MB
/// more to write.
///
/// # Safety
/// Every element is written before it is read. That a kernel does so is what its tests see to when
/// they hand it NaN. Until then the vector is less than its type promises, so it goes to the kernel
/// and nowhere else.
pub(crate) unsafe fn unwritten(len: usize) -> Vec<f32> {
    let mut memory = Vec::with_capacity(len);
    // SAFETY: there is room for `len`, and the caller has them written.
    #[allow(clippy::uninit_vec)]
    unsafe {
        memory.set_len(len);
    }
    memory
}
