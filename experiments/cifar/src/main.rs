//! The program `cifar`: see `cifar --help`.

use std::ffi::{c_int, c_long};
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use cifar::checkpoint;
use cifar::commands::{self, AlreadyReported};
use cifar::data::fetch::hub;
use cifar::interrupt::{self, Interrupted};
use cifar::ranks::{Agreed, World};
use cifar::terminal;
use clap::{ArgAction, Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use vmf_candle::ranks::Ranks;

/// VGG networks of variational units on CIFAR-10. Without a command: a first look, which trains two
/// of them and compares them.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Log more; twice for even more
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    /// Open checkpoints without comparing their checksums
    #[arg(long, global = true)]
    unverified: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Train a network, or continue a training
    Train(Box<commands::train::Args>),
    /// Score a trained network: with noise and without, with temperature scaling and without
    Eval(commands::eval::Args),
    /// Score a network, or several as one ensemble, on corrupted and foreign images too
    Evidence(commands::evidence::Args),
    /// Compare runs: the paper's figure, a table over seeds, a report
    Compare(commands::compare::Args),
    /// Train and evaluate a list of networks from a file, and write tables and figures
    Study(commands::study::Args),
    /// Describe a run in one HTML file
    Report(commands::report::Args),
    /// Draw the loss around the trained weights of a layer, and compare it with the posterior
    Landscape(commands::landscape::Args),
    /// Classify pictures, and say how certain the network is
    Predict(commands::predict::Args),
    /// Write a trained network as a folder for the Hugging Face hub
    Export(commands::export::Args),
    /// Train the paper's baseline and its method and compare them; the default
    FirstLook(Box<commands::first_look::Args>),
    /// Download CIFAR-10 and verify it
    Fetch(commands::fetch::Args),
    /// Time training on this machine: time per step and per epoch, images per second, memory
    Bench(commands::bench::Args),
}

// Each step allocates and frees activations of tens of megabytes. The system's allocator returns
// such memory to the kernel, and the next step pays for its pages again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes mimalloc keep freed memory for the next step. By default it returns it to the system after
/// a while.
fn keep_freed_memory() {
    /// `mi_option_purge_delay` in `mimalloc.h`; a delay of -1 means never.
    const PURGE_DELAY: c_int = 15;
    unsafe extern "C" {
        fn mi_option_set(option: c_int, value: c_long);
    }
    // SAFETY: the function belongs to the allocator above and takes two integers.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Silences the panics of the thread that decodes Parquet, which become errors of `fetch`.
fn silence_decoder() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(hub::rows::THREAD) {
            report(panic);
        }
    }));
}

fn main() -> ExitCode {
    keep_freed_memory();
    silence_decoder();
    let cli = Cli::parse();
    if cli.unverified {
        checkpoint::skip_verification();
    }
    let world = match begin(cli.command.as_ref()) {
        Ok(world) => world,
        Err(error) => {
            terminal::note(format!("error: {}", terminal::with_causes(&error)));
            return ExitCode::FAILURE;
        }
    };
    let ranks = world.ranks();
    // One rank speaks for all, unless it is about errors.
    log(cli.verbose, ranks.is_first());
    match run(cli.command, ranks) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(interrupt::EXIT_CODE),
        Err(error) if error.is::<AlreadyReported>() => ExitCode::FAILURE,
        Err(error) if error.is::<Agreed>() && !ranks.is_first() => ExitCode::FAILURE,
        Err(error) => {
            if !error.is::<Agreed>() {
                world.abort(&error);
            }
            terminal::note(format!("error: {}", terminal::with_causes(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Joins the processes that were started together with this one.
fn begin(command: Option<&Command>) -> Result<World> {
    World::begin(matches!(command, Some(Command::Train(_))))
}

fn run(command: Option<Command>, ranks: Ranks) -> Result<()> {
    match command.unwrap_or_else(|| Command::FirstLook(Box::default())) {
        Command::Train(args) => commands::train::run(&commands::train::Args { ranks, ..*args }),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Evidence(args) => commands::evidence::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Study(args) => commands::study::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Landscape(args) => commands::landscape::run(&args),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::FirstLook(args) => commands::first_look::run(&args),
        Command::Fetch(args) => commands::fetch::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
    }
}

/// Logs to standard error: warnings of our own crates, more of them with `--verbose`, and errors of
/// all others.
fn log(verbose: u8, is_first: bool) {
    let level = match verbose {
        _ if !is_first => LevelFilter::ERROR,
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
        .without_time()
        // It would report a failing standard error on standard error, and panic.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(format).with(targets).init();
}
