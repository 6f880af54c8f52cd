//! Batches that several processes share, each with some of the examples.
//!
//! The statistics of a batch are those of all its examples, wherever these are. What a kernel has
//! gathered for each channel is therefore added up over the processes before it is used:
//! ```text
//! forward    n,  n mean,  M2 + n mean^2         (M2 is the sum of squared deviations)
//! backward   n,  sum of g,  sum of g xhat
//! ```
//! The sums of the forward pass are taken about zero, so that a plain sum merges them in one go. In
//! double precision that costs `(mean / deviation)^2` units in the last place of the variance:
//! nothing that values in single precision could show.

use crate::error::Error;
use std::fmt;

/// Adds numbers up over all processes that share a batch.
pub trait AllReduce: Send + Sync {
    /// Replaces each number by its sum over the processes, which is the same number everywhere.
    ///
    /// All processes call it equally often, with equally many numbers. An error is a message.
    fn sum(&self, values: &mut [f64]) -> Result<(), String>;
}

/// The processes that share a batch; by default this one is alone.
#[derive(Clone, Copy, Default)]
pub struct Across(Option<&'static dyn AllReduce>);

impl Across {
    /// This process has the whole batch.
    pub const ALONE: Self = Self(None);

    /// The batch is shared.
    pub fn all(group: &'static dyn AllReduce) -> Self {
        Self(Some(group))
    }

    /// Whether this process has the whole batch.
    pub fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// Replaces each number by its sum over the processes.
    pub fn sum(&self, values: &mut [f64]) -> Result<(), Error> {
        match self.0 {
            None => Ok(()),
            Some(group) => group.sum(values).map_err(|reason| Error::Across { reason }),
        }
    }

    fn address(&self) -> Option<*const ()> {
        self.0.map(|group| std::ptr::from_ref(group).cast())
    }
}

impl PartialEq for Across {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl fmt::Debug for Across {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_alone() { "Across(alone)" } else { "Across(several)" })
    }
}
