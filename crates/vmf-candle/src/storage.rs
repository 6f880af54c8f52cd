//! Tensors as the slices that kernels take.

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

/// The elements of a contiguous tensor on the CPU, from
/// [`candle_core::Tensor::storage_and_layout`].
pub(crate) fn cpu_slice<'a, T: WithDType>(
    (storage, layout): &'a (impl std::ops::Deref<Target = Storage>, &Layout),
) -> Result<&'a [T]> {
    match &**storage {
        Storage::Cpu(storage) => contiguous_slice(storage, layout),
        _ => candle_core::bail!("this operation needs a tensor on the CPU"),
    }
}

/// A storage of the same type as `$storage`, of the elements that `$compute` returns for that type.
macro_rules! same_storage {
    ($storage:expr, $what:expr, $compute:expr) => {
        match $storage {
            candle_core::CpuStorage::F32(_) => candle_core::CpuStorage::F32($compute),
            candle_core::CpuStorage::F64(_) => candle_core::CpuStorage::F64($compute),
            candle_core::CpuStorage::BF16(_) => candle_core::CpuStorage::BF16($compute),
            candle_core::CpuStorage::F16(_) => candle_core::CpuStorage::F16($compute),
            _ => candle_core::bail!("{}: this dtype is not supported", $what),
        }
    };
}

/// Calls a method for the type of a dtype.
macro_rules! for_dtype {
    ($dtype:expr, $what:expr, $node:ident.$method:ident($($argument:expr),*)) => {
        match $dtype {
            candle_core::DType::F32 => $node.$method::<f32>($($argument),*),
            candle_core::DType::F64 => $node.$method::<f64>($($argument),*),
            candle_core::DType::BF16 => $node.$method::<half::bf16>($($argument),*),
            candle_core::DType::F16 => $node.$method::<half::f16>($($argument),*),
            _ => candle_core::bail!("{}: this dtype is not supported", $what),
        }
    };
}
pub(crate) use {for_dtype, same_storage};

/// Uninitialized memory for a kernel to write its result to.
///
/// `vec![0.0; len]` would clear the memory first, on one thread. In a training step of VGG16 that
/// adds 150 MB of writes.
///
/// # Safety
/// The kernel that the vector is passed to must write every element before anybody reads one. The
/// kernels' tests pass them memory full of NaN to show that they do.
pub(crate) unsafe fn unwritten(len: usize) -> Vec<f32> {
    let mut memory = Vec::with_capacity(len);
    // SAFETY: the capacity is `len`, and the caller has every element written.
    #[allow(clippy::uninit_vec)]
    unsafe {
        memory.set_len(len);
    }
    memory
}
