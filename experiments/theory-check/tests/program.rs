//! The program explains itself, and refuses what it cannot do without a panic. What it measures is
//! tested end to end, in `tests/end-to-end`.

use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str], folder: &Path) -> Output {
    program(arguments, folder).output().unwrap()
}

fn program(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_theory-check"));
    command.args(arguments).current_dir(folder);
    command
}

fn errors(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A run of a few seconds.
const QUICK: [&str; 8] =
    ["--samples", "100", "--points", "2", "--kappa", "10..100", "--out", "out"];

#[test]
fn help_names_the_options() {
    let output = run(&["--help"], Path::new("."));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for option in ["--dim", "--kappa", "--samples", "--seed", "--out", "eval", "draws"] {
        assert!(help.contains(option), "{option} is not in\n{help}");
    }
}

#[test]
fn numbers_beyond_memory_are_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let largest = usize::MAX.to_string();
    for (arguments, message) in [
        (&["--points", largest.as_str()][..], "at most 10000"),
        (&["--points", "10001"], "at most 10000"),
        (&["--dim", largest.as_str()], "up to 1000000"),
        (&["--dim", "100,1000001"], "up to 1000000"),
        (&["draws", "--draws", "4294967295"], "at most 50000"),
        (&["draws", "--sigma", "1e300"], "from 1e-6 to 1e6"),
        (&["draws", "--sigma", "NaN"], "from 1e-6 to 1e6"),
    ] {
        let output = run(arguments, folder.path());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(errors(&output).contains(message), "{arguments:?}: {}", errors(&output));
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_does_not_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = program(&QUICK, folder.path()).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert!(folder.path().join("out/report.html").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("points.csv"), "3,1\n").unwrap();
    for arguments in [&QUICK[..], &["eval", "points.csv"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program(arguments, folder.path()).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(errors(&output).contains("No space left"), "{}", errors(&output));
    }
    // Even the error message may find no place.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program(&["--dim", "1"], folder.path()).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_the_data_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("data_batch_1.bin");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = run(&["draws", "--data-dir", "."], folder.path());
    assert!(errors(&output).contains("not a regular file"), "{}", errors(&output));
}

#[test]
fn control_characters_of_names_are_escaped() {
    let output = run(&["eval", "missing\u{1b}[2J.csv"], Path::new("."));
    assert!(errors(&output).contains("missing\\u{1b}[2J.csv"), "{}", errors(&output));
    assert!(!output.stderr.contains(&0x1b));
}
