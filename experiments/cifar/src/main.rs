//! `cifar`: see `--help`.

use std::ffi::{c_int, c_long};
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use cifar::interrupt::Interrupted;
use cifar::train::{self, Outcome};
use cifar::{bench, compare, eval, export, fetch, interrupt, landscape, newcomer, predict, report};
use clap::{ArgAction, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// VGG networks of variational units on CIFAR-10. Without a command: a first look, which trains and
/// compares two of them.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Say more; twice for even more
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Train a network, or go on training one.
    Train(Box<train::Args>),
    /// Measure how well a trained network predicts: with noise and without, tempered and not.
    Eval(eval::Args),
    /// Compare runs: the paper's figure, a table over seeds, a report.
    Compare(compare::Args),
    /// Describe a run in one HTML file.
    Report(report::Args),
    /// Draw the loss around the trained weights of a layer, beside what the posterior says of it.
    Landscape(landscape::Args),
    /// Say what is in pictures, and how sure the network is.
    Predict(predict::Args),
    /// Write a trained network as a folder for the Hugging Face hub.
    Export(export::Args),
    /// Train the baseline and the paper's network and compare them: what happens without a command.
    FirstLook(Box<newcomer::Args>),
    /// Download CIFAR-10 and verify it.
    Fetch(fetch::Args),
    /// Time training on this machine: steps, images a second, memory, and how long an epoch takes.
    Bench(bench::Args),
}

// Activations of tens of megabytes are allocated and freed in every step. The system's allocator
// returns such memory to the kernel, and each step pays for its pages again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tells mimalloc, which would otherwise return freed memory after a while, to keep it for the next
/// step.
fn keep_freed_memory() {
    /// `mi_option_purge_delay` in `mimalloc.h`. A delay of -1 is forever.
    const PURGE_DELAY: c_int = 15;
    unsafe extern "C" {
        fn mi_option_set(option: c_int, value: c_long);
    }
    // SAFETY: the function is that of the allocator above, and takes two numbers.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

fn main() -> ExitCode {
    keep_freed_memory();
    let cli = Cli::parse();
    log(cli.verbose);
    match run(cli.command) {
        Ok(code) => code,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(interrupt::EXIT_CODE),
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, without those that its own words already hold.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

fn run(command: Option<Command>) -> Result<ExitCode> {
    let command = command.unwrap_or_else(|| Command::FirstLook(Box::default()));
    match command {
        Command::Train(args) => completed(train::run(&args)?)?,
        Command::Eval(args) => eval::run(&args)?,
        Command::Compare(args) => compare::run(&args)?,
        Command::Report(args) => report::run(&args)?,
        Command::Landscape(args) => completed(landscape::run(&args)?)?,
        Command::Predict(args) => {
            if !predict::run(&args)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Export(args) => export::run(&args)?,
        Command::FirstLook(args) => newcomer::run(&args)?,
        Command::Fetch(args) => fetch::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether work was done to its end.
fn completed(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Finished => Ok(()),
        Outcome::Interrupted => Err(Interrupted.into()),
    }
}

/// Logs to standard error: warnings always, and of our own crates as much as was asked for.
fn log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let ours = ["cifar", "lab", "vmf_candle", "vmf_kernels"].map(|target| (target, level));
    let targets = Targets::new().with_default(LevelFilter::ERROR).with_targets(ours);
    let format = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time();
    tracing_subscriber::registry().with(format).with(targets).init();
}
