//! `theory-check`: see `--help`.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use theory_check::curves::Settings;
use theory_check::draws::{self, Draws};
use theory_check::{eval, expected, run};

/// Checks the theory of "Precise Bayesian Neural Networks".
///
/// Without a subcommand: measures activation variance, mean resultant length, sigma_eff and KL by
/// Monte Carlo and quadrature, compares them with the paper's formulas and the exact ones, prints a
/// verdict on every claim, and writes figures (SVG, PNG), data (CSV) and a report (HTML). Exits
/// with 1 when a statement of this project fails.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Dimensions to check, such as `--dim 27,100,576`.
    #[arg(long, value_delimiter = ',', default_value = "100", value_name = "D,..")]
    dim: Vec<usize>,

    /// Range of concentrations, such as `--kappa 0.1..10000` [default: D/100..100 D].
    #[arg(long, value_parser = range, value_name = "LOW..HIGH")]
    kappa: Option<(f64, f64)>,

    /// Number of concentrations in that range, evenly spaced on a logarithmic scale.
    #[arg(long, default_value_t = 17)]
    points: usize,

    /// Pairs of directions drawn at each concentration.
    #[arg(long, default_value_t = 40_000)]
    samples: u32,

    /// Seed of the draws; the same seed gives the same numbers on any machine and any number of
    /// threads.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Folder to write to.
    #[arg(long, default_value = "runs/theory-check")]
    out: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Evaluate the formulas at lines of `dim,kappa` (CSV, the header is optional) and print CSV
    /// with 17 significant digits.
    Eval {
        /// The file to read; standard input if absent or `-`.
        file: Option<PathBuf>,
    },
    /// Compare weights drawn from the posterior with the additive noise that replaces them, on
    /// isotropic inputs and on pictures, where all inputs and positions share one draw.
    Draws {
        /// A folder with CIFAR-10's binary files; without it, pictures are generated.
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,

        /// The noise scale sigma_eff of the layer.
        #[arg(long, default_value_t = 0.5)]
        sigma: f64,

        /// Number of weights to draw.
        #[arg(long, default_value_t = 2000)]
        draws: u32,

        /// Seed of the draws.
        #[arg(long, default_value_t = 1)]
        seed: u64,

        /// Folder to write to.
        #[arg(long, default_value = "runs/theory-check-draws")]
        out: PathBuf,
    },
    /// Compare one deterministic pass through expected activations with many noisy passes, layer by
    /// layer.
    Expected {
        /// The noise scale sigma_eff of all layers.
        #[arg(long, default_value_t = 0.5)]
        sigma: f64,

        /// Number of noisy passes for each input.
        #[arg(long, default_value_t = 100_000)]
        passes: u32,

        /// Seed of the network and of its noise.
        #[arg(long, default_value_t = 1)]
        seed: u64,

        /// Folder to write to.
        #[arg(long, default_value = "runs/theory-check-expected")]
        out: PathBuf,
    },
}

/// A float stores a concentration of the smallest and the largest sigma_eff exactly enough.
const SIGMAS: RangeInclusive<f64> = 1e-6..=1e6;
/// More draws than this would not fit in the memory of a small machine.
const MOST_DRAWS: u32 = 50_000;
/// Some hours.
const MOST_PASSES: u32 = 100_000_000;
const MOST_POINTS: usize = 10_000;
const LARGEST_DIM: usize = 1_000_000;

fn range(text: &str) -> Result<(f64, f64), String> {
    let (low, high) = text.split_once("..").ok_or("write it as LOW..HIGH, such as 0.1..10000")?;
    let number =
        |part: &str| part.trim().parse::<f64>().map_err(|_| format!("{part:?} is not a number"));
    let (low, high) = (number(low)?, number(high)?);
    if low > 0.0 && low < high && high.is_finite() {
        Ok((low, high))
    } else {
        Err(format!("{low} to {high} is not a range of positive numbers, smaller first"))
    }
}

fn main() -> ExitCode {
    lab::exit_code(start(Cli::parse()))
}

fn start(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Some(Command::Eval { file }) => return evaluate(file),
        Some(Command::Draws { data_dir, sigma, draws, seed, out }) => {
            check_sigma(sigma)?;
            ensure!(
                (100..=MOST_DRAWS).contains(&draws),
                "--draws {draws}: error bars need at least 100 draws; at most {MOST_DRAWS} are kept in memory"
            );
            let draws = Draws { sigma, draws, seed };
            return Ok(draws::run(&draws, data_dir.as_deref(), &out)?.exit_code());
        }
        Some(Command::Expected { sigma, passes, seed, out }) => {
            check_sigma(sigma)?;
            ensure!(
                (100..=MOST_PASSES).contains(&passes),
                "--passes {passes}: error bars need at least 100 passes; at most {MOST_PASSES} are made"
            );
            let settings = expected::Settings { sigma, passes, seed };
            return Ok(expected::run(&settings, &out)?.exit_code());
        }
        None => {}
    }
    for dim in &cli.dim {
        ensure!(
            (2..=LARGEST_DIM).contains(dim),
            "--dim {dim}: directions exist from dimension 2 on, and are drawn up to {LARGEST_DIM}"
        );
    }
    ensure!(cli.samples >= 100, "--samples {}: error bars need at least 100 draws", cli.samples);
    ensure!(
        (2..=MOST_POINTS).contains(&cli.points),
        "--points {}: a range needs at least 2 points, and at most {MOST_POINTS} are measured",
        cli.points
    );
    let settings =
        Settings { kappa: cli.kappa, points: cli.points, samples: cli.samples, seed: cli.seed };
    Ok(run::run(&cli.dim, &settings, &cli.out)?.exit_code())
}

fn check_sigma(sigma: f64) -> Result<()> {
    ensure!(
        SIGMAS.contains(&sigma),
        "--sigma {sigma}: the noise scale is a positive number, from {:e} to {:e}",
        SIGMAS.start(),
        SIGMAS.end()
    );
    Ok(())
}

fn evaluate(file: Option<PathBuf>) -> Result<ExitCode> {
    let output = io::BufWriter::new(io::stdout().lock());
    match file.filter(|path| path.as_os_str() != "-") {
        Some(path) => {
            // A pipe is welcome here: `eval <(command)`.
            let file =
                File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
            eval::evaluate(file, output)?;
        }
        None => eval::evaluate(io::stdin().lock(), output)?,
    }
    Ok(ExitCode::SUCCESS)
}
