//! What a program asked of the device, so that a test can hold it to a number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted, in the order in which [`mock_cuda_counts`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Launches of kernels.
    Launches,
    /// Calls of cuBLAS and cuDNN that compute something, each of which launches kernels of its own.
    LibraryCalls,
    /// Copies to the host, for which the host waits.
    Reads,
    /// Copies from the host.
    Uploads,
    /// Bytes copied to the host.
    BytesRead,
    /// Bytes copied from the host.
    BytesUploaded,
    /// The most bytes of device memory in use at a time.
    PeakBytes,
    /// Fills of memory.
    Fills,
}

const COUNTS: usize = 8;
static COUNTED: [AtomicU64; COUNTS] = [const { AtomicU64::new(0) }; COUNTS];
static IN_USE: AtomicU64 = AtomicU64::new(0);

pub(crate) fn count(what: Count, amount: u64) {
    COUNTED[what as usize].fetch_add(amount, Relaxed);
}

pub(crate) fn allocated(bytes: u64) {
    let now = IN_USE.fetch_add(bytes, Relaxed) + bytes;
    COUNTED[Count::PeakBytes as usize].fetch_max(now, Relaxed);
}

pub(crate) fn freed(bytes: u64) {
    IN_USE.fetch_sub(bytes, Relaxed);
}

/// Writes all counts since the program began, one `u64` for each [`Count`]. Not a function of CUDA:
/// a test looks it up, and does not find it on a real driver.
///
/// # Safety
/// There must be room for eight numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_cuda_counts(to: *mut u64) {
    for (place, counted) in COUNTED.iter().enumerate() {
        // SAFETY: the caller promises it.
        unsafe { to.add(place).write(counted.load(Relaxed)) };
    }
}
