//! Parallel loops over tasks, and results that several tasks write.

use rayon::iter::{IndexedParallelIterator, MaxLen};

/// Runs `f` on one of the threads of the current pool.
///
/// A parallel loop that begins outside of the pool has to wake the pool up and wait for it; one
/// that begins on a thread of the pool shares its work with whichever threads are awake. So an
/// operation that consists of many short loops should run inside. `f` must not wait for a lock: its
/// holder may be waiting for a thread of the pool.
pub(crate) fn on_pool<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| f())
}

/// Loops whose items are tasks of tens of microseconds or more.
///
/// Rayon cuts a loop into a few long runs, four if there are two threads. A thread that has the
/// longer half, or that another program disturbs, then keeps the others waiting until its run ends.
/// With runs of one item each, the next item goes to the first thread that is free.
pub(crate) trait ByTask: IndexedParallelIterator {
    /// Lets idle threads take over single items.
    fn by_task(self) -> MaxLen<Self> {
        self.with_max_len(1)
    }
}

impl<I: IndexedParallelIterator> ByTask for I {}

/// A mutable slice that several threads write at once, each its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    data: *mut f32,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a borrow of `[f32]`; that no element is shared between threads is the contract of
// `at`.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Shares a slice for as long as it is borrowed.
    pub(crate) fn new(data: &'a mut [f32]) -> Self {
        Shared { data: data.as_mut_ptr(), len: data.len(), lifetime: std::marker::PhantomData }
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
    #[should_panic(expected = "of a slice of 8")]
    fn sharing_checks_bounds() {
        let mut data = [0.0; 8];
        Shared::new(&mut data).at(4, 5);
    }
}
