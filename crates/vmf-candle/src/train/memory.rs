//! Freed memory stays with the process, for the next step.
//!
//! A training step allocates its activations and gradients anew, tens of megabytes at a time. The
//! GNU C library, Rust's default allocator on Linux, returns blocks of that size to the kernel when
//! they are freed, and the next step pays for cleared pages again: half as long again in small
//! networks.

/// Makes the system's allocator keep freed memory, as a caching allocator on a GPU does: the process
/// then holds its largest size until it ends.
///
/// [`Adam`](crate::Adam) calls it, so that a program of one's own trains at full speed. It changes
/// nothing where the system's allocator is another one than that of the GNU C library, nor for a
/// program with a `#[global_allocator]`, nor if the environment variable `VMF_KEEP_MEMORY` is `0`.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            if std::env::var_os("VMF_KEEP_MEMORY").is_none_or(|value| value != "0") {
                keep();
            }
        });
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep() {
    /// How much more than is needed the heap grows by, in bytes.
    const MARGIN: libc::c_int = 64 << 20;
    // SAFETY: the function takes two integers and may be called at any time. A value that it does
    // not accept leaves everything as it was.
    unsafe {
        // No block has a mapping of its own, which would end with it.
        libc::mallopt(libc::M_MMAP_MAX, 0);
        // The heap never shrinks.
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_TOP_PAD, MARGIN);
    }
}
