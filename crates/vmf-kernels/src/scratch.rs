//! Memory that outlives a call, so that kernels do not pay for fresh pages, nor for clearing them,
//! each time.
//!
//! A buffer of tens of megabytes that is allocated and freed in every call costs a page fault per 4
//! KB, more than the arithmetic done on it. Buffers are therefore kept when they are dropped, and
//! handed out again: small ones by the thread that used them, in whose cache they are, to whoever
//! asks if they are large or may be dropped on another thread than they were taken on. A buffer
//! that nobody has asked for in a long time is freed, and a store holds so many at most. While in
//! use a buffer is in no store, so calls may nest (a worker that waits may run another task
//! meanwhile).

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// One cache line, which gives buffers their alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// Lines of a large buffer: a megabyte, more than a core's own cache keeps.
const LARGE: usize = 1 << 14;
/// Requests that an idle buffer waits for: some dozens of training steps.
const PATIENCE: u64 = 1 << 14;

/// Idle buffers of a store, at most: several times as many as the largest network here uses.
const MOST: usize = 256;

/// Buffers that are not in use.
struct Store {
    requests: u64,
    /// Each with the number of the last request before it was returned.
    idle: Vec<(u64, Vec<Line>)>,
}

impl Store {
    const fn new() -> Self {
        Store { requests: 0, idle: Vec::new() }
    }

    /// The smallest buffer that holds this many lines, unless it is more than twice as long.
    fn take(&mut self, wanted: usize) -> Option<Vec<Line>> {
        self.requests += 1;
        let expired = self.requests.saturating_sub(PATIENCE);
        self.idle.retain(|(returned, _)| *returned >= expired);
        let fits = |lines: usize| wanted <= lines && lines <= 2 * wanted;
        let best = (0..self.idle.len())
            .filter(|&i| fits(self.idle[i].1.len()))
            .min_by_key(|&i| self.idle[i].1.len())?;
        Some(self.idle.swap_remove(best).1)
    }

    fn put(&mut self, lines: Vec<Line>) {
        if self.idle.len() == MOST {
            let longest_idle = (0..MOST).min_by_key(|&i| self.idle[i].0);
            self.idle.swap_remove(longest_idle.unwrap_or(0));
        }
        self.idle.push((self.requests, lines));
    }
}

thread_local! {
    static OWN: RefCell<Store> = const { RefCell::new(Store::new()) };
}
static COMMON: Mutex<Store> = Mutex::new(Store::new());

/// Where a buffer comes from and goes back to.
#[derive(Clone, Copy, Default)]
enum Home {
    /// The store of the thread.
    #[default]
    Own,
    /// The store of all threads.
    Common,
}

impl Home {
    /// Does something with the store; nothing where the thread's own is gone, at its exit.
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

/// A buffer of `f32`, 64-byte aligned, with unspecified contents; its memory is used again when it
/// is dropped.
#[derive(Default)]
pub struct Scratch {
    lines: Vec<Line>,
    len: usize,
    home: Home,
}

impl Scratch {
    /// A buffer of `len` numbers whose values are whatever the last user left, to be dropped on
    /// this thread.
    pub fn take(len: usize) -> Scratch {
        match len.div_ceil(LINE) {
            lines if lines < LARGE => Scratch::from(Home::Own, len),
            _ => Scratch::from(Home::Common, len),
        }
    }

    /// The same, to be kept and dropped on any thread. In a thread's own store, such buffers would
    /// gather on the thread that drops them while the one that takes them allocates ever more.
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
    fn a_store_that_is_only_given_to_does_not_grow_without_end() {
        let mut store = Store::new();
        for number in 0..3 * MOST {
            store.requests = number as u64;
            store.put(vec![Line([0.0; LINE]); 1]);
        }
        assert_eq!(store.idle.len(), MOST);
        assert!(store.idle.iter().all(|(since, _)| *since >= 2 * MOST as u64));
    }

    #[test]
    fn buffers_that_nobody_asks_for_are_freed() {
        let mut store = Store::new();
        store.put(vec![Line([0.0; LINE]); 8]);
        for _ in 0..PATIENCE {
            assert!(store.take(1).is_none());
        }
        assert_eq!(store.idle.len(), 1);
        assert!(store.take(1).is_none());
        assert!(store.idle.is_empty());
    }

    #[test]
    #[should_panic(expected = "of a slice of 8")]
    fn sharing_checks_bounds() {
        let mut data = [0.0; 8];
        Shared::new(&mut data).at(4, 5);
    }
}
