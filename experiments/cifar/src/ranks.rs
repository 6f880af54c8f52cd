//! The processes that train together, as `mpirun` or `srun` starts them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use vmf_candle::ranks::Ranks;

use crate::run::CONFIG;
use crate::terminal;

/// How long a file that rank 0 has written may take to appear on other machines. Network file
/// systems remember for some seconds that a file did not exist.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error that all ranks know of, so that one of them reports it for all.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Agreed(String);

/// How many processes were started together, according to the launcher, and which of those on this
/// machine this one is.
fn launched() -> (usize, usize) {
    let number = |name: &str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
    let first = |names: &[&str]| names.iter().find_map(|name| number(name));
    let size = first(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]);
    let local = first(&["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"]);
    (size.unwrap_or(1), local.unwrap_or(0))
}

/// All processes that were started together.
#[derive(Debug, Default)]
pub struct World {
    #[cfg(feature = "mpi")]
    mpi: Option<vmf_candle::ranks::Mpi>,
}

impl World {
    /// Joins the other processes, if there are any. `is_divided` says whether what the program was
    /// asked to do can be divided among them.
    pub fn begin(is_divided: bool) -> Result<Self> {
        let (size, _) = launched();
        if size < 2 {
            return Ok(Self::default());
        }
        if !is_divided {
            bail!(
                "this was started {size} times at once, but only `cifar train` is divided among processes: start it alone"
            );
        }
        #[cfg(feature = "mpi")]
        {
            let mpi = vmf_candle::ranks::Mpi::begin()?;
            if mpi.ranks().size() != size {
                bail!(
                    "the launcher started {size} processes, but MPI knows of {}: use the launcher of the MPI that this program was built with, or `srun --mpi=pmix`",
                    mpi.ranks().size()
                );
            }
            if !mpi.ranks().is_first() {
                terminal::silence();
            }
            Ok(Self { mpi: Some(mpi) })
        }
        #[cfg(not(feature = "mpi"))]
        bail!(
            "this is one of {size} processes that were started together, but the program was built without MPI: build it with `--features mpi`"
        )
    }

    /// The ranks.
    pub fn ranks(&self) -> Ranks {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            return mpi.ranks();
        }
        Ranks::alone()
    }

    /// Reports an error that the other ranks do not know of, and ends all of them: they would wait
    /// for this one forever. Returns if this process is alone.
    pub fn abort(&self, error: &anyhow::Error) {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            let (rank, size, machine) = (mpi.ranks().rank(), mpi.ranks().size(), mpi.machine());
            terminal::note(format!(
                "error: rank {rank} of {size} on {machine}: {}; all ranks end",
                terminal::with_causes(error)
            ));
            mpi.abort(1);
        }
        let _ = error;
    }
}

/// Marks an error as one that all ranks have.
pub fn agreed<T>(result: Result<T>) -> Result<T> {
    result.map_err(|error| Agreed(terminal::with_causes(&error)).into())
}

/// What this rank has prepared, if all ranks have. Otherwise all of them get the error of the first
/// one that failed.
pub fn together<T>(ranks: Ranks, prepared: Result<T>) -> Result<T> {
    if ranks.is_alone() {
        return prepared;
    }
    let failed = ranks.which(prepared.is_err())?;
    let Some(&first) = failed.first() else { return prepared };
    let own = prepared.as_ref().err().filter(|_| ranks.rank() == first);
    let own = own.map(terminal::with_causes).unwrap_or_default();
    // Only rank 0 can tell all others, so the message is added up of one text and zeros.
    let mut length = [own.len() as f64];
    ranks.sum_f64(&mut length)?;
    let mut text: Vec<f64> = own.bytes().map(f64::from).collect();
    text.resize(length[0] as usize, 0.0);
    ranks.sum_f64(&mut text)?;
    let text: Vec<u8> = text.into_iter().map(|byte| byte as u8).collect();
    let text = String::from_utf8_lossy(&text);
    let message = match failed.len() {
        count if count == ranks.size() => text.into_owned(),
        _ => format!("rank {first} of {}: {text}", ranks.size()),
    };
    Err(Agreed(message).into())
}

/// Fails on all ranks if one of them does not see the run that rank 0 writes to.
pub fn ensure_shared(ranks: Ranks, folder: &Path) -> Result<()> {
    let path = folder.join(CONFIG);
    let read = || std::fs::read(&path).unwrap_or_default();
    let expected = ranks.tell(&if ranks.is_first() { read() } else { Vec::new() })?;
    let start = Instant::now();
    while read() != expected && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
    }
    let seen = (read() == expected).then_some(()).ok_or_else(|| {
        anyhow!(
            "{} is not the file that rank 0 sees: the folder of the run must be on a disk that all machines share",
            path.display()
        )
    });
    together(ranks, seen)
}

/// How many threads this rank should use if nobody says: an equal part of the processors, unless the
/// launcher has bound it to some of them already.
pub fn threads(ranks: Ranks) -> Option<usize> {
    if ranks.is_alone() {
        return None;
    }
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    #[cfg(unix)]
    {
        // SAFETY: it returns a number of the system.
        let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        if usize::try_from(all).is_ok_and(|all| available < all) {
            return Some(available);
        }
    }
    let here = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
    let here = here.iter().find_map(|name| std::env::var(name).ok()?.trim().parse::<usize>().ok());
    Some((available / here.unwrap_or(1).max(1)).max(1))
}

/// The device of this rank if several ranks compute on GPUs: one each, unless the launcher shows
/// each of them its own only.
pub fn device(ranks: Ranks, name: Option<&str>) -> Option<String> {
    let wants_gpu = name == Some("cuda") || (name.is_none() && cfg!(feature = "cuda"));
    if ranks.is_alone() || !wants_gpu {
        return name.map(Into::into);
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let has_own = !visible.is_empty() && !visible.contains(',');
    let (_, local) = launched();
    Some(format!("cuda:{}", if has_own { 0 } else { local }))
}
