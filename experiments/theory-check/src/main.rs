//! `theory-check`: see `--help`.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use theory_check::curves::Settings;
use theory_check::draws::{self, Draws};
use theory_check::{eval, run};

/// Checks the theory of "Precise Bayesian Neural Networks".
///
/// Without a subcommand: measures activation variance, mean resultant length, effective noise and
/// divergence by Monte Carlo and quadrature, compares them with the paper's formulas and the exact
/// ones, prints a verdict on every claim, and writes figures (SVG, PNG), data (CSV) and a report
/// (HTML). Exits with 1 when a statement of this project fails.
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

    /// How many concentrations in that range, evenly spaced on a logarithmic scale.
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
    /// Evaluate the formulas at `dim,kappa` lines (CSV, header optional) and write a table at 17
    /// significant digits.
    Eval {
        /// The file to read; standard input if absent or `-`.
        file: Option<PathBuf>,
    },
    /// Compare weights drawn from the posterior with the additive noise that stands for them, on
    /// isotropic inputs and on pictures, where one draw is shared by all inputs and positions.
    Draws {
        /// A folder with CIFAR-10's binary files; without it, pictures are generated.
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,

        /// The effective noise of the layer.
        #[arg(long, default_value_t = 0.5)]
        sigma: f64,

        /// Weights to draw.
        #[arg(long, default_value_t = 2000)]
        draws: u32,

        /// Seed of the draws.
        #[arg(long, default_value_t = 1)]
        seed: u64,

        /// Folder to write to.
        #[arg(long, default_value = "runs/theory-check-draws")]
        out: PathBuf,
    },
}

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
    match start(Cli::parse()) {
        Ok(code) => code,
        // Whoever reads our output may stop reading: that is not an error of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Some(Command::Eval { file }) => return evaluate(file),
        Some(Command::Draws { data_dir, sigma, draws, seed, out }) => {
            if !(sigma > 0.0 && sigma.is_finite()) {
                bail!("--sigma {sigma}: the effective noise is a positive number");
            }
            if draws < 100 {
                bail!("--draws {draws}: error bars need at least 100 draws");
            }
            let draws = Draws { sigma, draws, seed };
            return Ok(draws::run(&draws, data_dir.as_deref(), &out)?.exit_code());
        }
        None => {}
    }
    if let Some(dim) = cli.dim.iter().find(|&&dim| dim < 2) {
        bail!("--dim {dim}: directions exist from dimension 2 on");
    }
    if cli.samples < 100 {
        bail!("--samples {}: error bars need at least 100 draws", cli.samples);
    }
    if cli.points < 2 {
        bail!("--points {}: a range needs at least 2", cli.points);
    }
    let settings =
        Settings { kappa: cli.kappa, points: cli.points, samples: cli.samples, seed: cli.seed };
    Ok(run::run(&cli.dim, &settings, &cli.out)?.exit_code())
}

fn evaluate(file: Option<PathBuf>) -> Result<ExitCode> {
    let output = io::BufWriter::new(io::stdout().lock());
    match file.filter(|path| path.as_os_str() != "-") {
        Some(path) => {
            let file =
                File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
            eval::evaluate(BufReader::new(file), output)?;
        }
        None => eval::evaluate(io::stdin().lock(), output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
