//! Which examples of a batch a rank has.

use super::Ranks;
use crate::error::{Result, check_setting};
use std::ops::Range;
use vmf_kernels::across::Across;

/// One rank's examples of each batch.
///
/// A batch that does not divide is shared as equally as it goes: the first ranks have one example
/// more. The loss and the statistics weight examples, not ranks, so this changes nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    ranks: Ranks,
    first: usize,
    count: usize,
    batch: usize,
    local_statistics: bool,
}

impl Share {
    pub(super) fn new(ranks: Ranks, batch: usize) -> Result<Self> {
        let (rank, size) = (ranks.rank(), ranks.size());
        let requirement = "each rank needs an example of it: use fewer ranks or a larger batch";
        check_setting(batch >= size, "the batch that ranks share", batch, requirement)?;
        let (each, more) = (batch / size, batch % size);
        let count = each + usize::from(rank < more);
        let first = rank * each + rank.min(more);
        Ok(Self { ranks, first, count, batch, local_statistics: false })
    }

    /// The same, with each rank's normalizations using the statistics of its own examples, as most
    /// libraries do by default.
    ///
    /// That saves two exchanges for each normalization and step, which are short but cannot overlap
    /// with anything. The price is that the network depends on the number of ranks: its batches, as
    /// far as statistics go, are those of a rank, and the noise of small batches comes back. The
    /// running statistics are then each rank's own until
    /// [`reestimate`](crate::predict::reestimate) measures them again.
    pub fn local_statistics(self) -> Self {
        Self { local_statistics: true, ..self }
    }

    /// The ranks that share the batch.
    pub fn ranks(&self) -> Ranks {
        self.ranks
    }

    /// The place of this rank's first example in the batch.
    pub fn first(&self) -> usize {
        self.first
    }

    /// How many examples this rank has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The places of this rank's examples in the batch.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// How many examples all ranks have together.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// What a mean over this rank's examples counts in the mean over the batch.
    pub fn weight(&self) -> f64 {
        self.count as f64 / self.batch as f64
    }

    /// Over whom statistics are merged.
    pub(crate) fn across(&self) -> Across {
        if self.local_statistics { Across::ALONE } else { self.ranks.across() }
    }

    /// How many elements a statistic is taken over, if this rank has so many of them.
    pub(crate) fn elements(&self, here: usize) -> usize {
        if self.local_statistics { here } else { here / self.count * self.batch }
    }
}
