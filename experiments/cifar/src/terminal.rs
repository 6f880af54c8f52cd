//! Printing that never panics, for a program that trains for hours.
//!
//! `println!` panics if standard output is gone: the reader of a pipe has ended, the disk is full,
//! or the terminal was closed. A training of hours must not end because of that, and a command
//! whose output is its result must not end successfully without it.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Whether another process speaks for this one.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Says nothing about progress any more: of several processes that train together, one speaks.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Prints a line of a result to standard output. A command that cannot print its result fails.
///
/// The text may hold colours, so names of files in it must be [`printable`] already.
pub fn print(line: impl Display) -> Result<()> {
    write_line(&line).context("cannot write to standard output")
}

/// Prints a line about the progress of training to standard output. If that fails, a warning says
/// so once, and training continues: the run's folder holds the same numbers.
pub fn say(line: impl Display) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    static WARNED: AtomicBool = AtomicBool::new(false);
    if let Err(error) = write_line(&lab::printable(&line.to_string()))
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        note(format!("cannot write to standard output: {error}; continuing without it"));
    }
}

/// Prints a line to standard error. If that fails, there is no place left to report it.
pub fn note(line: impl Display) {
    lab::note!("{line}");
}

/// A path for people. Characters that a terminal would obey are escaped, because the name of a file
/// may come from anywhere.
pub fn printable(path: &Path) -> String {
    // Unlike in a text, a new line in a name is no part of the layout.
    let name = path.display().to_string().replace('\n', "\\n").replace('\t', "\\t");
    lab::printable(&name).into_owned()
}

/// An error with its causes, on one line. A cause is left out if the text before it contains it.
pub fn with_causes(error: &anyhow::Error) -> String {
    let texts = error.chain().map(|cause| without_backtrace(&cause.to_string()));
    texts
        .reduce(|text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
        .unwrap_or_default()
}

/// The text of an error without the backtrace that Candle appends to it if `RUST_BACKTRACE` is set.
fn without_backtrace(text: &str) -> String {
    let is_frame = |line: &&str| line.trim_start().starts_with("0: ");
    let lines: Vec<&str> = text.lines().take_while(|line| !is_frame(line)).collect();
    lines.join("\n")
}

fn write_line(line: &impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn a_terminal_obeys_no_name_of_a_file() {
        let name = Path::new("a\u{1b}[2J\r\nb\u{7}\u{202e}gnp.x");
        assert_eq!(printable(name), "a\\u{1b}[2J\\r\\nb\\u{7}\\u{202e}gnp.x");
        assert_eq!(printable(Path::new("Ärger 1.png")), "Ärger 1.png");
    }

    #[test]
    fn an_error_has_its_causes_once_and_no_backtrace() {
        let backtrace = "the tensor is missing\n   0: candle_core::error::Error::bt\n             at src/error.rs:1";
        let error = anyhow!(backtrace).context("the network cannot be read");
        assert_eq!(with_causes(&error), "the network cannot be read: the tensor is missing");
        let named: anyhow::Result<()> = Err(anyhow!("no space")).context("cannot write: no space");
        assert_eq!(with_causes(&named.unwrap_err()), "cannot write: no space");
        // Several lines that belong to the text stay.
        let list = anyhow!("nothing worked:\n  - one\n  - two");
        assert_eq!(with_causes(&list), "nothing worked:\n  - one\n  - two");
    }
}
