//! Scratch memory that outlives a call, so that kernels do not pay for fresh pages each time.
//!
//! A buffer of tens of megabytes that is allocated and freed in every call costs a page fault per 4 KB, more than
//! the arithmetic done on it. Each thread therefore keeps the buffers it has used. A buffer is taken out of the
//! thread's store while in use, so calls may nest (a worker that waits may run another task meanwhile).

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// One cache line, which gives buffers their alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

thread_local! {
    static STORE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A borrowed buffer of `f32`, 64-byte aligned, with unspecified contents; it returns to its thread when dropped.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

impl Scratch {
    /// A buffer of `len` numbers whose values are whatever the last user left.
    pub(crate) fn take(len: usize) -> Scratch {
        let wanted = len.div_ceil(LINE);
        let mut lines = STORE
            .try_with(|store| {
                let mut store = store.borrow_mut();
                // The smallest that fits; otherwise the largest, which grows.
                let best = (0..store.len()).min_by_key(|&i| {
                    let lines = store[i].len();
                    (
                        lines < wanted,
                        if lines < wanted {
                            usize::MAX - lines
                        } else {
                            lines
                        },
                    )
                });
                best.map(|i| store.swap_remove(i))
            })
            .ok()
            .flatten()
            .unwrap_or_default();
        if lines.len() < wanted {
            // A fresh zeroed allocation costs nothing until touched, unlike a copy of the old contents.
            lines = vec![Line([0.0; LINE]); wanted];
        }
        Scratch { lines, len }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // At thread exit the store may be gone; the buffer is then simply freed.
        let _ = STORE.try_with(|store| store.borrow_mut().push(lines));
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `Line` is exactly sixteen `f32`, and `take` made at least `len` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// A mutable slice that several threads write at once, each its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    data: *mut f32,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a borrow of `[f32]`; that no element is shared between threads is the contract of `at`.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Shares a slice for as long as it is borrowed.
    pub(crate) fn new(data: &'a mut [f32]) -> Self {
        Shared {
            data: data.as_mut_ptr(),
            len: data.len(),
            lifetime: std::marker::PhantomData,
        }
    }

    /// A pointer to element `index`, from which `span` elements may be reached.
    ///
    /// Writing through it is sound if no other thread touches the elements written meanwhile.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize, span: usize) -> *mut f32 {
        assert!(
            index <= self.len && span <= self.len - index,
            "elements {index}..{index}+{span} of a slice of {}",
            self.len
        );
        self.data.wrapping_add(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_distinct_and_reused() {
        let first = Scratch::take(100);
        let second = Scratch::take(1000);
        assert_eq!((first.len(), second.len()), (100, 1000));
        assert_eq!(first.as_ptr() as usize % 64, 0);
        assert_ne!(first.as_ptr(), second.as_ptr());
        let place = second.as_ptr();
        drop(second);
        assert_eq!(Scratch::take(900).as_ptr(), place);
        drop(first);
        let mut empty = Scratch::take(0);
        assert!(empty.is_empty() && empty.iter_mut().next().is_none());
    }

    #[test]
    #[should_panic(expected = "of a slice of 8")]
    fn sharing_checks_bounds() {
        let mut data = [0.0; 8];
        Shared::new(&mut data).at(4, 5);
    }
}
