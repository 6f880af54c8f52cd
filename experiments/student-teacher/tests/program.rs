//! The program explains itself, and refuses what it cannot do without a panic. What it measures is
//! tested end to end, in `tests/end-to-end`.

use std::path::Path;
use std::process::{Command, Output};

fn program(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_student-teacher"));
    command.args(arguments).current_dir(folder);
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    program(arguments, folder).output().unwrap()
}

fn errors(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// One student, taught for one step: the statements fail, but everything is printed and written.
const QUICK: [&str; 14] = [
    "--noise",
    "1",
    "--dims",
    "4",
    "--samples",
    "20",
    "--base",
    "1,4,20",
    "--seeds",
    "1",
    "--steps",
    "1",
    "--gain",
    "fixed",
];

#[test]
fn help_names_the_options() {
    let output = run(&["--help"], Path::new("."));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for option in
        ["--noise", "--dims", "--samples", "--seeds", "--shard", "--resume", "merge", "show"]
    {
        assert!(help.contains(option), "{option} is not in\n{help}");
    }
}

#[test]
fn more_threads_than_a_machine_has_are_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let largest = usize::MAX.to_string();
    let output =
        run(&[&QUICK[..], &["--sweeps-only", "--threads", &largest]].concat(), folder.path());
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("checks FAIL"), "{printed}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_an_error_and_a_closed_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&QUICK[..], &["--sweeps-only", "--shard", "1/1", "--out", "."]].concat();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = program(&arguments, folder.path()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("No space left"), "{}", errors(&output));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = program(&arguments, folder.path()).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}

#[cfg(unix)]
#[test]
fn pipes_and_links_in_place_of_results_are_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("results.jsonl");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let resume = [&QUICK[..], &["--resume", "--out", "."]].concat();
    for arguments in
        [&["merge", "results.jsonl"][..], &["merge", "."], &["show", "results.jsonl"], &resume]
    {
        let output = run(arguments, folder.path());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(errors(&output).contains("not a regular file"), "{}", errors(&output));
    }
}
