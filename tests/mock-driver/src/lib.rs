//! A stand-in for libcuda, on which programs that launch CUDA kernels run without a GPU.
//!
//! It implements the part of the CUDA driver API that cudarc uses to launch kernels, with
//! [`ptx_machine`] to execute them, and the part of cuBLAS and cuRAND that Candle needs to open a
//! device. There are two devices of compute capability 8.0, each with memory of its own that
//! kernels of the other cannot reach. Work on a stream is done before the call returns.
//!
//! It shows whether a program makes the right calls with the right arguments. It shows nothing
//! about speed or about mistakes in synchronization.
//!
//! Two environment variables introduce defects, to check that a test notices them:
//! `MOCK_CUDA_SWAP=kernel,i,j` swaps two arguments of a kernel, and `MOCK_CUDA_FAIL=kernel` makes
//! its launches fail.
#![allow(non_snake_case, reason = "the functions have the names of the driver API")]

pub mod counts;
pub mod cudnn;
mod device;
mod element;
mod launch;
pub mod libraries;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use counts::{Count, count};
use device::{DEVICES, Status, context_of, current, device_of, select, with_memory};
use launch::{Function, LoadedModule};

type Handle = *mut c_void;

/// Functions that do nothing and succeed: streams and events need no work where every call has
/// finished when it returns.
macro_rules! nothing_to_do {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// Does nothing and succeeds.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> Status {
            $(let _ = $argument;)*
            Status::Success
        }
    )*};
}

nothing_to_do! {
    cuInit(flags: c_uint);
    cuCtxSynchronize();
    cuCtxDestroy_v2(context: Handle);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventSynchronize(event: Handle);
    cuEventQuery(event: Handle);
}

/// Writes a result through the pointer that the caller passed for it.
///
/// # Safety
/// The pointer must be valid for a write, as the driver API requires.
unsafe fn give<T>(place: *mut T, value: T) -> Status {
    // SAFETY: as the contract requires.
    unsafe { place.write(value) };
    Status::Success
}

/// The functions of the driver API.
macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Every pointer must be as the reference manual of the driver API requires.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some have no pointer to touch")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Status {
            // SAFETY: the pointers are valid, as the caller promises.
            unsafe { $body }
        }
    )*};
}

driver! {
    /// How many devices there are.
    fn cuDeviceGetCount(count: *mut c_int) {
        give(count, DEVICES as c_int)
    }

    /// The device of an ordinal.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        if !(0..DEVICES as c_int).contains(&ordinal) {
            return Status::InvalidDevice;
        }
        give(device, ordinal)
    }

    /// The name by which tests recognize the mock.
    fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) {
        let text = c"mock";
        if (length as usize) < text.count_bytes() + 1 {
            return Status::InvalidValue;
        }
        name.copy_from_nonoverlapping(text.as_ptr(), text.count_bytes() + 1);
        Status::Success
    }

    /// The attributes that cudarc and the launcher read; all others are 0.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        let answer = match attribute {
            1 => 1024,   // threads per block
            10 => 32,    // lanes of a warp
            16 => 4,     // multiprocessors
            75 => 8,     // compute capability, major
            76 => 0,     // compute capability, minor
            115 => 1,    // memory pools
            _ => 0,
        };
        give(value, answer)
    }

    /// The context of a device.
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        give(context, context_of(device as usize))
    }

    /// The context of this thread.
    fn cuCtxGetCurrent(context: *mut Handle) {
        give(context, current().map_or(std::ptr::null_mut(), context_of))
    }

    /// Selects the context of this thread.
    fn cuCtxSetCurrent(context: Handle) {
        select(device_of(context));
        Status::Success
    }

    /// A stream; any handle will do.
    fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) {
        give(stream, context_of(DEVICES))
    }

    /// Nothing is ever captured.
    fn cuStreamIsCapturing(_stream: Handle, status: *mut c_int) {
        give(status, 0)
    }

    /// An event; any handle will do.
    fn cuEventCreate(event: *mut Handle, _flags: c_uint) {
        give(event, context_of(DEVICES))
    }

    /// The name of an error.
    fn cuGetErrorName(_error: c_int, text: *mut *const c_char) {
        give(text, c"MOCK_CUDA_ERROR".as_ptr())
    }

    /// What an error means.
    fn cuGetErrorString(_error: c_int, text: *mut *const c_char) {
        give(text, c"the mock driver wrote the reason to standard error".as_ptr())
    }

    /// Memory on the current device, filled with NaN.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let Some(device) = current() else {
            return Status::InvalidContext;
        };
        match bytes {
            0 => Status::InvalidValue,
            _ => {
                counts::allocated(bytes as u64);
                give(address, with_memory(device, |memory| memory.allocate(&vec![0xff; bytes])))
            }
        }
    }

    /// The same, in the order of a stream.
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, _stream: Handle) {
        cuMemAlloc_v2(address, bytes)
    }

    /// Frees memory.
    fn cuMemFree_v2(address: u64) {
        Status::of(device::free(address))
    }

    /// The same, in the order of a stream.
    fn cuMemFreeAsync(address: u64, _stream: Handle) {
        Status::of(device::free(address))
    }

    /// Fills memory with a byte.
    fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, _stream: Handle) {
        count(Count::Fills, 1);
        Status::of(device::write(address, &vec![value; bytes]))
    }

    /// Copies from the host.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, _stream: Handle) {
        count(Count::Uploads, 1);
        count(Count::BytesUploaded, bytes as u64);
        Status::of(device::write(to, std::slice::from_raw_parts(from, bytes)))
    }

    /// Copies to the host.
    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, _stream: Handle) {
        count(Count::Reads, 1);
        count(Count::BytesRead, bytes as u64);
        let copied = device::read(from, bytes);
        Status::of(copied.map(|copy| to.copy_from_nonoverlapping(copy.as_ptr(), bytes)))
    }

    /// Copies on the device.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: Handle) {
        Status::of(device::read(from, bytes).and_then(|copy| device::write(to, &copy)))
    }

    /// Copies between devices.
    fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize, stream: Handle) {
        cuMemcpyDtoDAsync_v2(to, from, bytes, stream)
    }

    /// There are no modules in files.
    fn cuModuleLoad(_module: *mut Handle, _path: *const c_char) {
        Status::NotFound.because("a module in a file")
    }

    /// Loads PTX into the current context.
    fn cuModuleLoadData(module: *mut Handle, image: *const c_char) {
        let Some(device) = current() else {
            return Status::InvalidContext;
        };
        let text = CStr::from_ptr(image).to_string_lossy();
        match LoadedModule::new(device, &text) {
            Ok(loaded) => give(module, Box::into_raw(Box::new(loaded)).cast()),
            Err(error) => Status::InvalidImage.because(&error),
        }
    }

    /// Unloads a module.
    fn cuModuleUnload(module: Handle) {
        drop(Box::from_raw(module.cast::<LoadedModule>()));
        Status::Success
    }

    /// A kernel of a module. It is never freed: a test has only a few.
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        let module = &*module.cast::<LoadedModule>();
        match module.function(&CStr::from_ptr(name).to_string_lossy()) {
            Some(found) => give(function, Box::into_raw(Box::new(found)).cast()),
            None => Status::NotFound,
        }
    }

    /// Launches a kernel, and returns when it has run.
    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        _stream: Handle,
        parameters: *mut Handle,
        _extra: *mut Handle,
    ) {
        if [grid_y, grid_z, block_y, block_z] != [1; 4] || shared_bytes != 0 {
            return Status::InvalidValue.because("more than one dimension, or dynamic shared memory");
        }
        count(Count::Launches, 1);
        let function = &*function.cast::<Function>();
        Status::of(function.launch(grid_x, block_x, parameters))
    }

    /// NVRTC 13 looks for an internal table, and works without it.
    fn cuGetExportTable(table: *mut Handle, _id: *const c_void) {
        let _ = give(table, std::ptr::null_mut());
        Status::NotFound
    }
}
