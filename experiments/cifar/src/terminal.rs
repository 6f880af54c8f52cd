//! Printing that never panics.
//!
//! `println!` panics if standard output is gone: the reader of a pipe has ended, the disk is full,
//! or the terminal was closed. A training of hours must not end because of that, and a command whose
//! output is its result must not end successfully without it.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Prints a line of a result to standard output. A command that cannot print its result fails.
pub fn print(line: impl Display) -> Result<()> {
    write_line(&line).context("cannot write to standard output")
}

/// Prints a line about the progress of training to standard output. If that fails, a warning says so
/// once, and training continues: the run's folder holds the same numbers.
pub fn say(line: impl Display) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if let Err(error) = write_line(&line)
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        note(format!("cannot write to standard output: {error}; continuing without it"));
    }
}

/// Prints a line to standard error. If that fails, there is no place left to report it.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn write_line(line: &impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
