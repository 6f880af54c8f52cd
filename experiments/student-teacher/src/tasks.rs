//! A run as a list of tasks, which can be done anywhere and in any order.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use lab::{Journal, OutDir, ProgressBar, note};
use serde::{Deserialize, Serialize};

use crate::exact::{self, Sampled};
use crate::mean_field::{self, MeanField};
use crate::nonlinear;
use crate::problem::Problem;
use crate::settings::{Gain, Point, Settings, Shard, Variable};
use crate::student::{Learned, Student};

/// The problems at which the exact posterior is sampled.
pub const EXACT: [Point; 5] = {
    const fn at(noise: f64) -> Point {
        Point { noise, dim: 50, samples: 250 }
    }
    [at(0.25), at(0.5), at(1.0), at(2.0), at(4.0)]
};

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Task {
    /// Teach a linear student.
    Linear {
        /// The point of the sweeps.
        point: Point,
        /// The kind of student.
        gain: Gain,
        /// The seed of teacher, data and student.
        seed: u64,
    },
    /// Sample the exact posterior, and compare.
    Exact {
        /// The point of the sweeps.
        point: Point,
        /// The seed of teacher, data, chains and students.
        seed: u64,
    },
    /// Teach a student of the nonlinear teacher.
    Nonlinear {
        /// The point of the sweeps.
        point: Point,
        /// The seed of teacher, data and student.
        seed: u64,
    },
}

/// The exact posterior and its approximations on the same data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// The exact posterior.
    pub exact: Sampled,
    /// Independent Gaussians.
    pub mean_field: MeanField,
    /// The student with a learned gain.
    pub learned: Learned,
    /// The student with gain 1.
    pub fixed: Learned,
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A linear student.
    Linear(Learned),
    /// A comparison with the exact posterior.
    Exact(Compared),
    /// A student of the nonlinear teacher.
    Nonlinear(nonlinear::Learned),
}

/// A finished task: a line of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// The task.
    pub task: Task,
    /// Its outcome.
    pub outcome: Outcome,
}

impl Task {
    /// All tasks of a run in a fixed order, without duplicates.
    pub fn list(settings: &Settings) -> Vec<Self> {
        let mut tasks = Vec::new();
        let mut seen = HashSet::new();
        let mut add = |task: Self| {
            if seen.insert(task.name()) {
                tasks.push(task);
            }
        };
        for variable in Variable::ALL {
            for point in settings.sweep(variable) {
                for &gain in &settings.gains {
                    for seed in 1..=settings.seeds {
                        add(Self::Linear { point, gain, seed });
                    }
                }
            }
        }
        if settings.beyond {
            for point in EXACT {
                for seed in 1..=settings.seeds {
                    add(Self::Exact { point, seed });
                }
            }
            for variable in Variable::ALL {
                for point in nonlinear::sweep(variable) {
                    for seed in 1..=settings.seeds {
                        add(Self::Nonlinear { point, seed });
                    }
                }
            }
        }
        tasks
    }

    /// A name that is unique in the run and can be part of a file name.
    pub fn name(&self) -> String {
        let (kind, point, seed) = match *self {
            Self::Linear { point, gain, seed } => match gain {
                Gain::Learned => ("linear-learned", point, seed),
                Gain::Fixed => ("linear-fixed", point, seed),
            },
            Self::Exact { point, seed } => ("exact", point, seed),
            Self::Nonlinear { point, seed } => ("nonlinear", point, seed),
        };
        let Point { noise, dim, samples } = point;
        format!("{kind}-s{noise}-d{dim}-n{samples}-seed{seed}")
    }

    fn execute(&self, settings: &Settings, checkpoints: &Path) -> Result<Outcome> {
        let checkpoint = |suffix: &str| -> PathBuf {
            checkpoints.join(format!("{}{suffix}.safetensors", self.name()))
        };
        Ok(match *self {
            Self::Linear { point, gain, seed } => {
                let problem = Problem::draw(point, seed);
                let path = checkpoint("");
                Outcome::Linear(Student::teach(&problem, gain, settings, seed, Some(&path))?)
            }
            Self::Exact { point, seed } => {
                let problem = Problem::draw(point, seed);
                // The exact posterior corresponds to the evidence lower bound, so beta is 1 here.
                let settings = &Settings { beta: 1.0, ..settings.clone() };
                let teach = |gain, suffix: &str| {
                    let path = checkpoint(suffix);
                    Student::teach(&problem, gain, settings, seed, Some(&path))
                };
                Outcome::Exact(Compared {
                    exact: exact::sample(&problem, seed),
                    mean_field: mean_field::infer(&problem, seed),
                    learned: teach(Gain::Learned, "-learned")?,
                    fixed: teach(Gain::Fixed, "-fixed")?,
                })
            }
            Self::Nonlinear { point, seed } => {
                let path = checkpoint("");
                Outcome::Nonlinear(nonlinear::teach(point, settings, seed, Some(&path))?)
            }
        })
    }
}

/// How the tasks of a run are executed. The outcomes do not depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Execution {
    /// The part to do; all tasks if not given.
    pub shard: Option<Shard>,
    /// Whether to skip the tasks that the journal holds already.
    pub resume: bool,
    /// The number of tasks done at a time; one for each core if not given.
    pub threads: Option<NonZeroUsize>,
}

/// Does the tasks of a run or of a part of it in parallel, and appends each outcome to the journal
/// in the folder.
///
/// Returns all outcomes and the path of the journal.
pub fn execute(
    settings: &Settings,
    out: &OutDir,
    execution: &Execution,
) -> Result<(Vec<Done>, PathBuf)> {
    let Execution { shard, resume, .. } = *execution;
    let name = shard.map_or("results.jsonl".into(), |shard| shard.file_name());
    let path = out.file(name);
    let (journal, done) = if resume {
        Journal::resume::<Settings, Done>(&path, settings)?
    } else {
        (Journal::create(&path, settings)?, Vec::new())
    };
    let finished: HashSet<String> = done.iter().map(|done| done.task.name()).collect();
    let to_do: Vec<Task> = Task::list(settings)
        .into_iter()
        .enumerate()
        .filter(|(place, _)| shard.is_none_or(|shard| shard.holds(*place)))
        .map(|(_, task)| task)
        .filter(|task| !finished.contains(&task.name()))
        .collect();
    if !finished.is_empty() {
        note!("{} tasks are done already, {} are left", finished.len(), to_do.len());
    }
    let checkpoints = out.subfolder("checkpoints")?;
    let progress = ProgressBar::new("students", to_do.len() as u64);
    let threads = match execution.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?,
    };
    in_parallel(threads, &to_do, |&task| {
        let outcome = task.execute(settings, checkpoints.path()).with_context(|| task.name())?;
        journal.append(&Done { task, outcome })?;
        progress.advance(1);
        Ok(())
    })?;
    progress.finish();
    // The report uses what the file says, so that merged and resumed results are the same to the
    // last digit.
    let entries = Journal::read::<Settings, Done>(&path)?;
    Ok((entries.results, path))
}

/// Does `work` on each item, with one thread per item.
///
/// A student's operations are too small to be shared between threads. Each worker therefore has a
/// pool of one thread, in which the parallel loops of an operation run sequentially. That halves
/// the time of a sweep.
fn in_parallel<T: Sync>(
    threads: NonZeroUsize,
    items: &[T],
    work: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<()> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
        pool.install(|| {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
            }
            Ok(())
        })
    };
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, worker);
        let workers = (0..threads.get().min(items.len())).map(start).collect::<Vec<_>>();
        workers.into_iter().try_for_each(|worker| {
            let worker = worker.context("cannot start a thread; ask for fewer with --threads")?;
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_of_several_sweeps_is_one_task() {
        let tasks = Task::list(&Settings {
            noise: vec![0.5, 1.0],
            dims: vec![100, 10],
            samples: vec![1000],
            seeds: 3,
            gains: vec![Gain::Fixed],
            beyond: false,
            ..Settings::default()
        });
        assert_eq!(tasks.len(), 3 * 3);
        let names: HashSet<String> = tasks.iter().map(Task::name).collect();
        assert_eq!(names.len(), tasks.len());
    }

    #[test]
    fn every_item_is_worked_on_once_and_an_error_ends_the_work() {
        let threads = NonZeroUsize::new(2).unwrap();
        let items: Vec<usize> = (0..100).collect();
        let counts: Vec<AtomicUsize> = items.iter().map(|_| AtomicUsize::new(0)).collect();
        let count = |&i: &usize| {
            counts[i].fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        in_parallel(threads, &items, count).unwrap();
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));

        let done = AtomicUsize::new(0);
        let error = in_parallel(threads, &items, |&i| {
            anyhow::ensure!(i != 3, "three");
            done.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(1));
            Ok(())
        });
        assert_eq!(error.unwrap_err().to_string(), "three");
        assert!(done.load(Ordering::Relaxed) < 99);
    }

    #[test]
    fn a_line_of_the_journal_reads_back() {
        let done = Done {
            task: Task::Nonlinear { point: nonlinear::BASE, seed: 4 },
            outcome: Outcome::Nonlinear(nonlinear::Learned {
                sigmas: [0.1 + 0.2, 1.0 / 3.0],
                explained: 0.9,
            }),
        };
        let line = serde_json::to_string(&done).unwrap();
        assert_eq!(serde_json::from_str::<Done>(&line).unwrap(), done);
    }
}
