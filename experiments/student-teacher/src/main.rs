//! `student-teacher`: see `--help`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Parser, Subcommand, ValueEnum};
use student_teacher::settings::{Gain, Point, Settings, Shard};
use student_teacher::tasks::Execution;
use student_teacher::{run, show};

/// Does sigma_eff reflect how hard a task is?
///
/// Without a subcommand: teaches students of a linear teacher over sweeps of observation noise,
/// input dimension and sample size, compares what they learn with closed forms, with the exact
/// posterior and with mean-field Gaussians, prints a verdict on every claim of the paper, and
/// writes figures (SVG, PNG), data (CSV), checkpoints and a report (HTML). Exits with 1 when a
/// statement of this project fails.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: Run,
}

#[derive(Subcommand)]
enum Command {
    /// Join the results of all parts (--shard) and report on them as on one run.
    Merge {
        /// Result files, or folders that hold them.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// Folder to write to.
        #[arg(long, default_value = OUT)]
        out: PathBuf,
    },
    /// Print the contents of a checkpoint of any experiment: layers, D, M, sigma_eff, kappa, A, KL.
    Show {
        /// The checkpoint.
        checkpoint: PathBuf,
    },
}

const OUT: &str = "runs/student-teacher";

#[derive(Args)]
struct Run {
    /// The sweep of the observation noise, such as `--noise 0.5,1,2` [default: 0.1 to 5].
    #[arg(long, value_name = "S,..", allow_hyphen_values = true)]
    noise: Option<String>,

    /// The sweep of the input dimension [default: 10 to 300].
    #[arg(long, value_name = "D,..", allow_hyphen_values = true)]
    dims: Option<String>,

    /// The sweep of the sample size [default: 300 to 8000].
    #[arg(long, value_name = "N,..", allow_hyphen_values = true)]
    samples: Option<String>,

    /// Noise, dimension and sample size that stay fixed while another is swept.
    #[arg(long, value_name = "S,D,N", default_value = "1,100,1000")]
    base: String,

    /// Number of students at each point.
    #[arg(long, default_value_t = 5)]
    seeds: u64,

    /// Whether the output gain is learned or fixed to 1, or both kinds of student are taught.
    #[arg(long, value_enum, default_value = "both")]
    gain: Gains,

    /// Weight of the KL; 1 is the evidence lower bound.
    #[arg(long, default_value_t = 1.0, allow_hyphen_values = true)]
    beta: f64,

    /// Number of Adam steps for each student.
    #[arg(long, default_value_t = Settings::default().steps)]
    steps: u32,

    /// Adam's first learning rate, which falls to zero. That of the noise parameter is twice as
    /// large.
    #[arg(long, default_value_t = Settings::default().lr, allow_hyphen_values = true)]
    lr: f64,

    /// Folder to write to.
    #[arg(long, default_value = OUT)]
    out: PathBuf,

    /// Continue a run that was stopped. Students that are in the folder already are not taught
    /// again.
    #[arg(long)]
    resume: bool,

    /// Do only a part of the run, the i-th of n. `merge` joins the parts.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,

    /// Number of students that are taught at a time [default: one for each core].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Only the sweeps: no exact posterior, no nonlinear teacher.
    #[arg(long)]
    sweeps_only: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Gains {
    Learned,
    Fixed,
    Both,
}

impl Run {
    fn settings(&self) -> Result<Settings> {
        let defaults = Settings::default();
        let base = self.base.split(',').collect::<Vec<_>>();
        let &[noise, dim, samples] = base.as_slice() else {
            return Err(anyhow!(
                "--base {}: write noise, dimension and sample size, such as 1,100,1000",
                self.base
            ));
        };
        Ok(Settings {
            noise: list("--noise", self.noise.as_deref(), defaults.noise)?,
            dims: list("--dims", self.dims.as_deref(), defaults.dims)?,
            samples: list("--samples", self.samples.as_deref(), defaults.samples)?,
            base: Point {
                noise: number("--base", noise)?,
                dim: number("--base", dim)?,
                samples: number("--base", samples)?,
            },
            seeds: self.seeds,
            gains: match self.gain {
                Gains::Learned => vec![Gain::Learned],
                Gains::Fixed => vec![Gain::Fixed],
                Gains::Both => vec![Gain::Learned, Gain::Fixed],
            },
            beta: self.beta,
            steps: self.steps,
            lr: self.lr,
            beyond: !self.sweeps_only,
        })
    }
}

/// A comma-separated list. An empty one is refused later, by the check of the settings.
fn list<T: Parse>(option: &str, text: Option<&str>, default: Vec<T>) -> Result<Vec<T>> {
    match text {
        None => Ok(default),
        Some(text) if text.trim().is_empty() => Ok(Vec::new()),
        Some(text) => text.split(',').map(|part| number(option, part)).collect(),
    }
}

fn number<T: Parse>(option: &str, text: &str) -> Result<T> {
    let text = text.trim();
    text.parse().map_err(|_| anyhow!("{option}: {text:?} is not {}", T::WHAT))
}

/// A number of an option, and its description in error messages.
trait Parse: FromStr {
    const WHAT: &'static str;
}

impl Parse for f64 {
    const WHAT: &'static str = "a number, such as 0.5";
}

impl Parse for usize {
    const WHAT: &'static str = "a whole number from 2 on";
}

/// Makes each Candle operation run on the thread that calls it.
///
/// Students are taught in parallel. Candle's own threads wait for each other in busy loops and
/// would only slow them down. Candle reads the number of its threads from the environment.
fn one_thread_per_operation() {
    for variable in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
        // SAFETY: the program does this first, when no other thread exists that could read the
        // environment.
        unsafe { std::env::set_var(variable, "1") };
    }
}

fn main() -> ExitCode {
    one_thread_per_operation();
    lab::exit_code(start(Cli::parse()))
}

fn start(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Some(Command::Merge { results, out }) => Ok(run::merge(&results, &out)?.exit_code()),
        Some(Command::Show { checkpoint }) => {
            show::show(&checkpoint).context("cannot show the checkpoint")?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let settings = cli.run.settings()?;
            let execution = Execution {
                shard: cli.run.shard,
                resume: cli.run.resume,
                threads: cli.run.threads,
            };
            Ok(run::run(&settings, &cli.run.out, &execution)?.exit_code())
        }
    }
}
