//! Ranks that MPI started: `mpirun -n 8 program`, or `srun` with MPI's support.

use super::{Group, Ranks};
use crate::error::{Error, Result};
use mpi::Threading;
use mpi::collective::{CommunicatorCollectives, Root, SystemOperation};
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::topology::{Communicator, SimpleCommunicator};
use std::fmt;

/// Elements that are summed at a time: the copy that MPI sends from is no larger, and its counts are
/// 32-bit integers.
const PIECE: usize = 1 << 22;

/// MPI, from its start to its end. Drop it when the ranks have done their work.
pub struct Mpi {
    ranks: Ranks,
    /// Dropping it waits for all ranks.
    universe: Option<Universe>,
}

impl Mpi {
    /// Joins the ranks that were started together. A program can do so once.
    ///
    /// A program that MPI's launcher has not started is a single rank.
    pub fn begin() -> Result<Self> {
        let failed = |reason: &str| Error::Ranks { reason: reason.into() };
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized)
        else {
            return Err(failed("MPI has been started already, and cannot be started again"));
        };
        // The kernels call it from their pool of threads, from one thread at a time.
        if !matches!(threading, Threading::Serialized | Threading::Multiple) {
            return Err(failed(
                "this MPI does not let threads other than the first communicate: use one with MPI_THREAD_SERIALIZED",
            ));
        }
        Ok(Self { ranks: Ranks::of(World), universe: Some(universe) })
    }

    /// The ranks.
    pub fn ranks(&self) -> Ranks {
        self.ranks
    }

    /// The name of the machine that this rank runs on.
    pub fn machine(&self) -> String {
        mpi::environment::processor_name().unwrap_or_else(|_| "unnamed".into())
    }

    /// Ends the programs of all ranks at once with this exit code, whatever they are doing.
    pub fn abort(&self, code: i32) -> ! {
        world().abort(code)
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mpi").field(&self.ranks).finish()
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // The end of MPI waits for all ranks, and those wait for this one: in a panic that would be
        // forever.
        if std::thread::panicking() {
            self.abort(101);
        }
        self.universe.take();
    }
}

fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

/// All processes that were started together. MPI's default is to end all of them if a call fails,
/// so that no error is returned here.
struct World;

impl Group for World {
    fn rank(&self) -> usize {
        world().rank() as usize
    }

    fn size(&self) -> usize {
        world().size() as usize
    }

    fn sum_f32(&self, values: &mut [f32]) -> std::result::Result<(), String> {
        sum(values);
        Ok(())
    }

    fn sum_f64(&self, values: &mut [f64]) -> std::result::Result<(), String> {
        sum(values);
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> std::result::Result<(), String> {
        for piece in bytes.chunks_mut(PIECE) {
            world().process_at_rank(0).broadcast_into(piece);
        }
        Ok(())
    }

    fn barrier(&self) -> std::result::Result<(), String> {
        world().barrier();
        Ok(())
    }
}

/// The crate has no sum in place, so a piece is copied at a time.
fn sum<T: Equivalence + Copy>(values: &mut [T]) {
    let mut own = Vec::with_capacity(values.len().min(PIECE));
    for piece in values.chunks_mut(PIECE) {
        own.clear();
        own.extend_from_slice(piece);
        world().all_reduce_into(&own[..], piece, SystemOperation::sum());
    }
}
