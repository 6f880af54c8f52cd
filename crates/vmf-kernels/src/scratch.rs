//! Buffers that outlive a call, so that kernels pay neither for fresh pages nor for clearing them.
//!
//! A buffer of tens of megabytes that is allocated and freed in every call costs a page fault per
//! 4 KB, more than the arithmetic done on it. A dropped buffer therefore goes to a store, which
//! hands it out again. Small buffers go to the store of the thread that drops them, because they
//! are still in its cache; large ones, and those that may be dropped on another thread than they
//! were taken on, go to a store that all threads share. A store holds a limited number of buffers,
//! and frees those that many requests have passed over. A buffer in use belongs to no store, so
//! calls may nest: a thread that waits for others may meanwhile run a task that takes buffers of
//! its own.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// One cache line, which gives buffers their alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// Lines of the smallest large buffer: a megabyte, more than a core's own cache keeps.
const LARGE: usize = 1 << 14;
/// Requests after which an idle buffer is freed: some dozens of training steps.
const MAX_AGE: u64 = 1 << 14;
/// Idle buffers of a store, at most: several times as many as the largest network here uses.
const MAX_IDLE: usize = 256;

/// Buffers that are not in use.
struct Store {
    requests: u64,
    /// Each with the number of requests that there had been when it was returned.
    idle: Vec<(u64, Vec<Line>)>,
}

impl Store {
    const fn new() -> Self {
        Store { requests: 0, idle: Vec::new() }
    }

    /// The smallest idle buffer of at least `wanted` lines, unless it is more than twice as long.
    fn take(&mut self, wanted: usize) -> Option<Vec<Line>> {
        self.requests += 1;
        let expired = self.requests.saturating_sub(MAX_AGE);
        self.idle.retain(|(returned, _)| *returned >= expired);
        let fits = |lines: usize| wanted <= lines && lines <= 2 * wanted;
        let best = (0..self.idle.len())
            .filter(|&i| fits(self.idle[i].1.len()))
            .min_by_key(|&i| self.idle[i].1.len())?;
        Some(self.idle.swap_remove(best).1)
    }

    fn put(&mut self, lines: Vec<Line>) {
        if self.idle.len() == MAX_IDLE {
            let longest_idle = (0..MAX_IDLE).min_by_key(|&i| self.idle[i].0);
            self.idle.swap_remove(longest_idle.unwrap_or(0));
        }
        self.idle.push((self.requests, lines));
    }
}

thread_local! {
    static OWN: RefCell<Store> = const { RefCell::new(Store::new()) };
}
static COMMON: Mutex<Store> = Mutex::new(Store::new());

/// The store that a buffer comes from and goes back to.
#[derive(Clone, Copy, Default)]
enum Home {
    /// The current thread's own.
    #[default]
    Own,
    /// The one that all threads share.
    Common,
}

impl Home {
    /// Calls `f` with the store, unless that is the thread's own and the thread is exiting.
    fn with_store<T>(self, f: impl FnOnce(&mut Store) -> T) -> Option<T> {
        match self {
            Home::Own => OWN.try_with(|store| f(&mut store.borrow_mut())).ok(),
            Home::Common => {
                let mut store = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
                Some(f(&mut store))
            }
        }
    }
}

/// A buffer of `f32`, aligned to 64 bytes, whose memory is reused after it is dropped.
#[derive(Default)]
pub struct Scratch {
    lines: Vec<Line>,
    len: usize,
    home: Home,
}

impl Scratch {
    /// A buffer of `len` numbers, to be dropped on this thread. Its contents are whatever its last
    /// user left.
    pub fn take(len: usize) -> Scratch {
        match len.div_ceil(LINE) {
            lines if lines < LARGE => Scratch::from(Home::Own, len),
            _ => Scratch::from(Home::Common, len),
        }
    }

    /// The same, but the buffer may be dropped on any thread. In the threads' own stores such
    /// buffers would pile up where they are dropped, while the thread that takes them allocates
    /// ever more.
    pub fn take_to_keep(len: usize) -> Scratch {
        Scratch::from(Home::Common, len)
    }

    fn from(home: Home, len: usize) -> Scratch {
        let wanted = len.div_ceil(LINE);
        let lines = home.with_store(|store| store.take(wanted)).flatten();
        // A fresh zeroed allocation costs nothing until touched.
        let lines = lines.unwrap_or_else(|| vec![Line([0.0; LINE]); wanted]);
        Scratch { lines, len, home }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if !lines.is_empty() {
            self.home.with_store(|store| store.put(lines));
        }
    }
}

impl Clone for Scratch {
    fn clone(&self) -> Self {
        let mut copy = Scratch::from(self.home, self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        (**self).fmt(f)
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
        assert_ne!(Scratch::take(100).as_ptr(), place, "far too long");
        drop(first);
        let mut empty = Scratch::take(0);
        assert!(empty.is_empty() && empty.iter_mut().next().is_none());
    }

    /// How many buffers a thread has in its own store after dropping these.
    fn kept_by_the_thread_that_drops(buffers: Vec<Scratch>) -> usize {
        let dropping = std::thread::spawn(move || {
            drop(buffers);
            OWN.with(|store| store.borrow().idle.len())
        });
        dropping.join().unwrap()
    }

    #[test]
    fn only_small_buffers_stay_with_the_thread_that_drops_them() {
        let five = |take: fn(usize) -> Scratch, lines: usize| {
            let buffers = (0..5).map(|_| take(LINE * lines)).collect();
            kept_by_the_thread_that_drops(buffers)
        };
        assert_eq!(five(Scratch::take, LARGE - 1), 5);
        assert_eq!(five(Scratch::take, LARGE), 0);
        assert_eq!(five(Scratch::take_to_keep, LARGE - 1), 0);
        assert_eq!(five(Scratch::take_to_keep, 1), 0);
    }

    #[test]
    fn a_store_that_is_never_asked_does_not_grow_without_end() {
        let mut store = Store::new();
        for number in 0..3 * MAX_IDLE {
            store.requests = number as u64;
            store.put(vec![Line([0.0; LINE]); 1]);
        }
        assert_eq!(store.idle.len(), MAX_IDLE);
        assert!(store.idle.iter().all(|(since, _)| *since >= 2 * MAX_IDLE as u64));
    }

    #[test]
    fn buffers_that_nobody_asks_for_are_freed() {
        let mut store = Store::new();
        store.put(vec![Line([0.0; LINE]); 8]);
        for _ in 0..MAX_AGE {
            assert!(store.take(1).is_none());
        }
        assert_eq!(store.idle.len(), 1);
        assert!(store.take(1).is_none());
        assert!(store.idle.is_empty());
    }
}
