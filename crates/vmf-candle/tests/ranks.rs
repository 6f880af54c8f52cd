//! Ranks as threads of one process: what they compute does not depend on their number.
//!
//! The threads stand for processes. tests/mpi.rs asks the same of processes that MPI connects.

mod common;
#[path = "common/ranks.rs"]
mod ranks;

use candle_core::{DType, Result};
use ranks::{Trained, Training, check_collectives, check_normalization, distance, train};
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};
use vmf_candle::ranks::{Group, Ranks};

/// What threads have in common: a place for the values of each, and a barrier.
struct Common {
    barrier: Barrier,
    values: Mutex<Vec<Vec<f64>>>,
    bytes: Mutex<Vec<u8>>,
}

struct Thread {
    rank: usize,
    size: usize,
    common: Arc<Common>,
}

impl Group for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn sum_f32(&self, values: &mut [f32]) -> std::result::Result<(), String> {
        let mut wide: Vec<f64> = values.iter().map(|&value| value.into()).collect();
        self.sum_f64(&mut wide)?;
        for (value, wide) in values.iter_mut().zip(wide) {
            *value = wide as f32;
        }
        Ok(())
    }

    fn sum_f64(&self, values: &mut [f64]) -> std::result::Result<(), String> {
        self.common.values.lock().unwrap()[self.rank] = values.to_vec();
        self.common.barrier.wait();
        let all = self.common.values.lock().unwrap().clone();
        if all.iter().any(|of_rank| of_rank.len() != values.len()) {
            return Err("the ranks add up different numbers of values".into());
        }
        for (i, value) in values.iter_mut().enumerate() {
            *value = all.iter().map(|of_rank| of_rank[i]).sum();
        }
        self.common.barrier.wait();
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> std::result::Result<(), String> {
        if self.rank == 0 {
            *self.common.bytes.lock().unwrap() = bytes.to_vec();
        }
        self.common.barrier.wait();
        bytes.copy_from_slice(&self.common.bytes.lock().unwrap());
        self.common.barrier.wait();
        Ok(())
    }

    fn barrier(&self) -> std::result::Result<(), String> {
        self.common.barrier.wait();
        Ok(())
    }
}

/// Runs a program on so many ranks, and returns what each of them returns.
///
/// Each has a pool of its own, as a process has: a kernel that waits for other ranks would keep
/// them from a pool that they share.
fn on_ranks<T: Send>(size: usize, program: impl Fn(Ranks) -> Result<T> + Sync) -> Vec<T> {
    let common = Arc::new(Common {
        barrier: Barrier::new(size),
        values: Mutex::new(vec![Vec::new(); size]),
        bytes: Mutex::default(),
    });
    std::thread::scope(|scope| {
        let start = |rank| {
            let (common, program) = (Arc::clone(&common), &program);
            scope.spawn(move || {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                let ranks = Ranks::of(Thread { rank, size, common });
                pool.install(|| program(ranks)).unwrap()
            })
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Trains on so many ranks, which must agree to the last bit.
fn train_on(size: usize, training: Training) -> Trained {
    let mut trained = on_ranks(size, |ranks| train(ranks, training));
    let last = trained.pop().unwrap();
    assert!(trained.iter().all(|other| *other == last));
    last
}

#[test]
fn groups_keep_their_promises() {
    for size in [1, 2, 3] {
        on_ranks(size, check_collectives);
    }
}

#[test]
fn a_shared_batch_is_normalized_as_a_whole_one() {
    for size in [2, 3] {
        on_ranks(size, check_normalization);
    }
}

/// In double precision the trainings differ by the rounding of sums alone: by 1e-15 in losses and
/// 4e-15 in variables when this was written.
#[test]
fn a_training_does_not_depend_on_the_number_of_ranks() {
    for (batch, sizes) in [(12, &[2, 3, 4][..]), (10, &[3])] {
        let training = Training { batch, dtype: DType::F64, ..Training::WHOLE };
        let alone = train_on(1, training);
        assert!(alone.losses[199] < 0.8 * alone.losses[0], "{:?}", alone.losses);
        for &size in sizes {
            let (losses, variables) = distance(&alone, &train_on(size, training));
            println!("{size} ranks, batch {batch}: losses {losses:e}, variables {variables:e}");
            assert!(losses < 1e-13 && variables < 1e-12, "{size}: {losses:e} {variables:e}");
        }
    }
}

/// The fused kernels compute in single precision, whose rounding 200 steps amplify: to 5e-7 in losses
/// and 6e-6 in variables when this was written.
#[test]
fn nor_does_it_in_single_precision_with_batches_that_do_not_divide() {
    for (batch, sizes) in [(12, &[2, 4][..]), (10, &[3])] {
        let training = Training { batch, ..Training::WHOLE };
        let alone = train_on(1, training);
        for &size in sizes {
            let shared = train_on(size, training);
            assert_eq!(shared, train_on(size, training), "two runs on {size} ranks");
            let (losses, variables) = distance(&alone, &shared);
            println!("{size} ranks, batch {batch}: losses {losses:e}, variables {variables:e}");
            assert!(losses < 1e-5 && variables < 1e-4, "{size}: {losses:e} {variables:e}");
        }
    }
}

#[test]
fn a_checkpoint_of_four_ranks_is_continued_on_one_or_three() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("four.safetensors");
    let training = Training { dtype: DType::F64, steps: (0, 100), ..Training::WHOLE };
    let begun = train_on(4, Training { to: Some(&path), steps: (0, 50), ..training });
    let alone = train_on(1, training);
    for size in [1, 3] {
        let rest = Training { from: Some(Path::new(&path)), steps: (50, 100), ..training };
        let rest = train_on(size, rest);
        let losses = [&begun.losses[..], &rest.losses].concat();
        let (losses, variables) = distance(&alone, &Trained { losses, ..rest });
        assert!(losses < 1e-13 && variables < 1e-12, "{size}: {losses:e} {variables:e}");
    }
}

/// With local statistics the network is another one, and says so by its losses.
#[test]
fn local_statistics_are_those_of_smaller_batches() {
    let training = Training { dtype: DType::F64, steps: (0, 20), ..Training::WHOLE };
    let trained =
        on_ranks(2, |ranks| train(ranks, Training { local_statistics: true, ..training }));
    let (losses, _) = distance(&train_on(1, training), &trained[0]);
    assert!(losses > 1e-3, "{losses:e}");
    // Weights are the same everywhere all the same; only running statistics differ.
    for ((name, a), (_, b)) in trained[0].variables.iter().zip(&trained[1].variables) {
        let is_running = name.contains("running") || name.contains("noise_free");
        assert!(is_running || a == b, "{name}");
    }
}
