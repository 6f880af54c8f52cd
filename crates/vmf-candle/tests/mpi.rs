//! Ranks that MPI connects. `mpirun -n 3` starts this program; `.ci/mpi` does.

mod common;
#[path = "common/ranks.rs"]
mod ranks;

use candle_core::{DType, Result};
use ranks::{Training, check_collectives, check_normalization, distance, train};
use vmf_candle::ranks::{Mpi, Ranks};

fn main() -> Result<()> {
    let mpi = Mpi::begin()?;
    let ranks = mpi.ranks();
    check_collectives(ranks)?;
    check_normalization(ranks)?;
    check_training(ranks)?;
    if ranks.is_first() {
        println!("ok: {} ranks on {}", ranks.size(), mpi.machine());
    }
    Ok(())
}

/// A training on these ranks is that of one rank, which each of them takes as well. The tolerances
/// are those of tests/ranks.rs.
fn check_training(ranks: Ranks) -> Result<()> {
    let single = Training { batch: 10, ..Training::WHOLE };
    let double = Training { dtype: DType::F64, steps: (0, 100), ..Training::WHOLE };
    for (training, tolerances) in [(single, (1e-5, 1e-4)), (double, (1e-13, 1e-12))] {
        let shared = train(ranks, training)?;
        assert_eq!(shared, train(ranks, training)?, "two runs on the same ranks");
        let bits = shared.variables.iter().flat_map(|(_, values)| values);
        let bits: Vec<u8> = bits.flat_map(|value| value.to_bits().to_le_bytes()).collect();
        ranks.ensure_equal("the variables", &bits)?;
        let (losses, variables) = distance(&train(Ranks::alone(), training)?, &shared);
        assert!(losses < tolerances.0 && variables < tolerances.1, "{losses:e} {variables:e}");
        if ranks.is_first() {
            println!("{:?}: losses {losses:e}, variables {variables:e}", training.dtype);
        }
    }
    Ok(())
}
