//! The devices, their memory, and which device a thread uses.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

use ptx_machine::Memory;

/// The number of devices: two, so that a program that confuses them is caught.
pub(crate) const DEVICES: usize = 2;

/// The size of the address range of a device, so that an address tells its device.
const ADDRESSES: u64 = 1 << 44;

/// The result codes of the driver API that the mock returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `CUDA_SUCCESS`.
    Success = 0,
    /// `CUDA_ERROR_INVALID_VALUE`.
    InvalidValue = 1,
    /// `CUDA_ERROR_INVALID_DEVICE`.
    InvalidDevice = 101,
    /// `CUDA_ERROR_INVALID_IMAGE`.
    InvalidImage = 200,
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    InvalidContext = 201,
    /// `CUDA_ERROR_NOT_FOUND`.
    NotFound = 500,
    /// `CUDA_ERROR_LAUNCH_FAILED`.
    LaunchFailed = 719,
}

impl Status {
    /// This status. The reason goes to standard error, since the driver API cannot return it.
    pub(crate) fn because(self, reason: &str) -> Self {
        eprintln!("mock driver: {reason}");
        self
    }

    pub(crate) fn of(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Status::Success,
            Err(reason) => Status::LaunchFailed.because(&reason),
        }
    }
}

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

pub(crate) fn current() -> Option<usize> {
    CURRENT.get()
}

pub(crate) fn select(device: Option<usize>) {
    CURRENT.set(device);
}

/// The handle of a device, a number that only the mock interprets. Null stands for no device.
pub(crate) fn context_of(device: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(0x1000 + device)
}

pub(crate) fn device_of(context: *mut c_void) -> Option<usize> {
    context.addr().checked_sub(0x1000).filter(|&device| device < DEVICES)
}

pub(crate) fn with_memory<T>(device: usize, action: impl FnOnce(&mut Memory) -> T) -> T {
    static MEMORIES: LazyLock<[Mutex<Memory>; DEVICES]> = LazyLock::new(|| {
        std::array::from_fn(|device| {
            Mutex::new(Memory::starting_at((device as u64 + 1) * ADDRESSES))
        })
    });
    let memory = MEMORIES[device].lock();
    action(&mut memory.unwrap_or_else(PoisonError::into_inner))
}

fn owner(address: u64) -> Result<usize, String> {
    let device = (address / ADDRESSES).checked_sub(1).map(|device| device as usize);
    device.filter(|&device| device < DEVICES).ok_or_else(|| format!("{address:#x} is no device's"))
}

pub(crate) fn free(address: u64) -> Result<(), String> {
    let bytes = with_memory(owner(address)?, |memory| memory.free(address))?;
    crate::counts::freed(bytes as u64);
    Ok(())
}

pub(crate) fn read(address: u64, bytes: usize) -> Result<Vec<u8>, String> {
    with_memory(owner(address)?, |memory| memory.read(address, bytes).map(<[u8]>::to_vec))
}

pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), String> {
    with_memory(owner(address)?, |memory| {
        memory.write(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    })
}
