//! `cifar`: see `--help`.

use std::ffi::{c_int, c_long};
use std::process::ExitCode;

use anyhow::Result;
use cifar::train::{self, Outcome};
use cifar::{bench, fetch, interrupt};
use clap::{ArgAction, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// VGG networks of variational units on CIFAR-10. Without a command: train with the preset that suits the machine.
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
    /// Download CIFAR-10 and verify it.
    Fetch(fetch::Args),
    /// Time training on this machine: steps, images a second, memory, and how long an epoch takes.
    Bench(bench::Args),
}

// Activations of tens of megabytes are allocated and freed in every step. The system's allocator returns such memory to
// the kernel, and each step pays for its pages again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tells mimalloc, which would otherwise return freed memory after a while, to keep it for the next step.
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
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, without those that its own words already hold.
fn with_causes(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .fold(error.to_string(), |text, cause| {
            let cause = cause.to_string();
            if text.contains(&cause) {
                text
            } else {
                format!("{text}: {cause}")
            }
        })
}

fn run(command: Option<Command>) -> Result<ExitCode> {
    let command = command.unwrap_or_else(|| Command::Train(Box::default()));
    match command {
        Command::Train(args) => match train::run(&args)? {
            Outcome::Finished => {}
            Outcome::Interrupted => return Ok(ExitCode::from(interrupt::EXIT_CODE)),
        },
        Command::Fetch(args) => fetch::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Logs to standard error: warnings always, and of our own crates as much as was asked for.
fn log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let ours = ["cifar", "lab", "vmf_candle", "vmf_kernels"].map(|target| (target, level));
    let targets = Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_targets(ours);
    let format = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time();
    tracing_subscriber::registry()
        .with(format)
        .with(targets)
        .init();
}
