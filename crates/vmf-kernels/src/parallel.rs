//! Parallel loops over tasks.

use rayon::iter::{IndexedParallelIterator, MaxLen};

/// Loops whose items are tasks of tens of microseconds or more.
///
/// Rayon cuts a loop into a few long runs, four where there are two threads. A thread that has the
/// longer half, or that another program disturbs, then keeps the others waiting for the rest of its
/// run. Where every item is a piece of work of its own, whoever is free can take the next.
pub(crate) trait ByTask: IndexedParallelIterator {
    /// Lets idle threads take over single items.
    fn by_task(self) -> MaxLen<Self> {
        self.with_max_len(1)
    }
}

impl<I: IndexedParallelIterator> ByTask for I {}
