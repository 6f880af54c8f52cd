//! Training on several processes: the same network, whatever their number.
//!
//! Each process, a *rank*, has the whole network and a [`Share`] of every batch. Three things are
//! added up over the ranks: the statistics of each normalization and the sums of its gradient, so
//! that the network is that of the whole batch; and the gradients of all variables, so that every
//! rank takes the same step. Noise is a function of the example's place in the whole batch. A
//! training on one rank and on seven with the same batches is therefore the same training, up to the
//! rounding of sums.
//!
//! ```
//! # use candle_core::{DType, Device, Tensor};
//! # use candle_nn::{Optimizer, VarMap};
//! # use vmf_candle::prelude::*;
//! use vmf_candle::ranks::Ranks;
//! # fn main() -> candle_core::Result<()> {
//! # let (vars, posterior, n) = (VarMap::new(), Posterior::new(), 32);
//! # let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
//! # let model = Chain::new()
//! #     .add(vmf_linear(4, 8, VmfConfig::default().relu(), &posterior, vb.pp("layer"))?)
//! #     .add_plain(candle_nn::linear(8, 3, vb.pp("head"))?);
//! # let xs = Tensor::randn(0f32, 1.0, (32, 4), &Device::Cpu)?;
//! # let ys = Tensor::zeros(32, DType::U32, &Device::Cpu)?;
//! let ranks = Ranks::alone(); // or those of `Mpi::begin()`, with the feature `mpi`
//! let mut adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?.across(ranks);
//! let share = ranks.share(32)?; // which examples of a batch of 32 this rank has
//! let own = |batch: &Tensor| batch.narrow(0, share.first(), share.count());
//! let (xs, ys) = (own(&xs)?, own(&ys)?);
//! for step in 0..3 {
//!     let logits = model.forward(&xs, &Pass::train(7, step).shared(&share))?;
//!     let nll = cross_entropy(&logits, &ys)?;
//!     let loss = Elbo::new(n).share(&share).loss(&nll, &posterior)?;
//!     adam.backward_step(&loss.total)?; // adds the gradients of all ranks up first
//! }
//! # Ok(()) }
//! ```
//!
//! A process alone does nothing of this: no buffer is copied and no bit changes.
//!
//! What connects the ranks is a [`Group`]. The feature `mpi` has one; nothing else in this crate
//! knows which it is.

#[cfg(feature = "mpi")]
mod mpi;
mod share;

#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use share::Share;

use crate::error::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vmf_kernels::across::{Across, AllReduce};

/// Processes that compute together. All of them make the same calls in the same order, with slices
/// of the same length.
///
/// An error is a message; the ranks cannot go on after one.
pub trait Group: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Replaces each value by its sum over the ranks. All ranks get the same bits, and get them
    /// again when the program is run again.
    fn sum_f32(&self, values: &mut [f32]) -> std::result::Result<(), String>;

    /// [`sum_f32`](Self::sum_f32) in double precision.
    fn sum_f64(&self, values: &mut [f64]) -> std::result::Result<(), String>;

    /// Replaces the bytes by those of rank 0.
    fn broadcast(&self, bytes: &mut [u8]) -> std::result::Result<(), String>;

    /// Waits for all ranks.
    fn barrier(&self) -> std::result::Result<(), String>;
}

/// The ranks of a training: a handle that is copied freely. By default the process is alone.
#[derive(Clone, Copy, Default)]
pub struct Ranks(Option<&'static Timed>);

/// A group, and the time that this rank has spent in it.
struct Timed {
    group: Box<dyn Group>,
    nanoseconds: AtomicU64,
}

impl Timed {
    fn call<T>(&self, work: impl FnOnce(&dyn Group) -> T) -> T {
        let start = Instant::now();
        let result = work(&*self.group);
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(spent, Ordering::Relaxed);
        result
    }
}

impl AllReduce for Timed {
    fn sum(&self, values: &mut [f64]) -> std::result::Result<(), String> {
        self.call(|group| group.sum_f64(values))
    }
}

impl Ranks {
    /// One process that has everything.
    pub fn alone() -> Self {
        Self(None)
    }

    /// The ranks of a group, which lives until the program ends.
    pub fn of(group: impl Group + 'static) -> Self {
        if group.size() < 2 {
            return Self::alone();
        }
        let timed = Timed { group: Box::new(group), nanoseconds: AtomicU64::new(0) };
        Self(Some(Box::leak(Box::new(timed))))
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.map_or(0, |timed| timed.group.rank())
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.map_or(1, |timed| timed.group.size())
    }

    /// Whether this process is the only one.
    pub fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this is rank 0, which speaks and writes for all.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The examples of a batch of this size that this rank has: neighbouring ones, and on all ranks
    /// equally many, up to one.
    pub fn share(&self, batch: usize) -> Result<Share> {
        Share::new(*self, batch)
    }

    /// Replaces each value by its sum over the ranks.
    pub fn sum_f32(&self, values: &mut [f32]) -> Result<()> {
        self.together(|group| group.sum_f32(values))
    }

    /// Replaces each value by its sum over the ranks.
    pub fn sum_f64(&self, values: &mut [f64]) -> Result<()> {
        self.together(|group| group.sum_f64(values))
    }

    /// Replaces the bytes by those of rank 0.
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        self.together(|group| group.broadcast(bytes))
    }

    /// Waits for all ranks.
    pub fn barrier(&self) -> Result<()> {
        self.together(|group| group.barrier())
    }

    /// The message of rank 0, of any length.
    pub fn tell(&self, message: &[u8]) -> Result<Vec<u8>> {
        if self.is_alone() {
            return Ok(message.to_vec());
        }
        let mut length = (message.len() as u64).to_le_bytes();
        self.broadcast(&mut length)?;
        let mut message = message.to_vec();
        message.resize(u64::from_le_bytes(length) as usize, 0);
        self.broadcast(&mut message)?;
        Ok(message)
    }

    /// Fails on all ranks if `value` is not the same on all of them. The error names those where it
    /// differs from rank 0's.
    pub fn ensure_equal(&self, what: &str, value: &[u8]) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        let first = self.tell(value)?;
        let differing = self.which(first != value)?;
        match differing.as_slice() {
            [] => Ok(()),
            ranks => {
                let reason = format!("{what} of {} not those of rank 0", name(ranks));
                Err(Error::Ranks { reason })
            }
        }
    }

    /// The ranks on which this is true.
    pub fn which(&self, here: bool) -> Result<Vec<usize>> {
        let mut flags = vec![0.0; self.size()];
        flags[self.rank()] = f64::from(u8::from(here));
        self.sum_f64(&mut flags)?;
        Ok((0..self.size()).filter(|&rank| flags[rank] != 0.0).collect())
    }

    /// The time that this rank has spent in communication so far, waiting for others included.
    pub fn time_in_communication(&self) -> Duration {
        let nanoseconds = self.0.map_or(0, |timed| timed.nanoseconds.load(Ordering::Relaxed));
        Duration::from_nanos(nanoseconds)
    }

    /// The ranks, as the kernels know them: for a [`BnNoiseConfig`](crate::ops::BnNoiseConfig) of a
    /// model's own.
    pub fn across(&self) -> Across {
        self.0.map_or(Across::ALONE, |timed| Across::all(timed))
    }

    fn together(
        &self,
        work: impl FnOnce(&dyn Group) -> std::result::Result<(), String>,
    ) -> Result<()> {
        match self.0 {
            None => Ok(()),
            Some(timed) => timed.call(work).map_err(|reason| Error::Ranks { reason }),
        }
    }
}

/// A list of ranks in words, with the verb that follows.
fn name(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank} are"),
        [first, .., last] if last - first + 1 == ranks.len() => {
            format!("ranks {first} to {last} are")
        }
        _ => {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            format!("ranks {} are", ranks.join(", "))
        }
    }
}

impl PartialEq for Ranks {
    fn eq(&self, other: &Self) -> bool {
        self.0.map(std::ptr::from_ref) == other.0.map(std::ptr::from_ref)
    }
}

impl Eq for Ranks {}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}
