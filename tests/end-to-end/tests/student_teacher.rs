//! `student-teacher` as a person runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use end_to_end::program;

/// A sweep that takes seconds: the closed forms hold in it as they do in a large one.
const SMALL: [&str; 11] = [
    "--noise",
    "0.5,2",
    "--dims",
    "10,20",
    "--samples",
    "100,400",
    "--base",
    "1,20,200",
    "--seeds",
    "2",
    "--sweeps-only",
];

/// Two points for two gains and two seeds in each of three sweeps.
const STUDENTS: usize = 3 * 2 * 2 * 2;

fn run(arguments: &[&str], folder: &Path) -> Output {
    program("student-teacher").args(arguments).current_dir(folder).output().unwrap()
}

fn small(extra: &[&str], folder: &Path) -> Output {
    run(&[&SMALL[..], extra].concat(), folder)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_sweep_passes_and_parts_merge_to_the_same_table() {
    let folder = tempfile::tempdir().unwrap();
    let output = small(&["--out", "whole"], folder.path());
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    assert!(printed.contains("checks pass"), "{printed}");

    let whole = folder.path().join("whole");
    let svg = read(whole.join("student-teacher.svg"));
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let png = fs::read(whole.join("student-teacher.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    let table = read(whole.join("students.csv"));
    assert_eq!(table.lines().count(), 1 + STUDENTS);
    assert_eq!(read(whole.join("results.jsonl")).lines().count(), 1 + STUDENTS);
    let report = read(whole.join("report.html"));
    assert!(report.contains("<svg") && report.contains("least squares"));
    assert!(!report.contains("src=\"http") && !report.contains("<script"));

    for part in ["1/2", "2/2"] {
        let output = small(&["--out", "parts", "--shard", part], folder.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        if part == "1/2" {
            let early = run(&["merge", "parts", "--out", "merged"], folder.path());
            assert!(!early.status.success());
            let message = text(&early.stderr);
            assert!(message.contains("12 of 24 results are missing"), "{message}");
        }
    }
    let output = run(&["merge", "parts", "--out", "merged"], folder.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let merged = folder.path().join("merged");
    assert_eq!(read(merged.join("students.csv")), table);
    assert_eq!(read(merged.join("student-teacher.svg")), read(whole.join("student-teacher.svg")));
    assert_eq!(read(merged.join("report.html")), report);
}

#[test]
fn a_killed_sweep_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("out/results.jsonl");
    let mut child = program("student-teacher")
        .args(SMALL)
        .args(["--out", "out", "--threads", "1"])
        .current_dir(folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let lines = || {
        let text = fs::read_to_string(&journal).unwrap_or_default();
        text.matches('\n').count()
    };
    while lines() < 4 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // On a slow machine the kill comes late, or even after the end. The settings and the first
    // three results are what an earlier kill would have left, with a part of a line if it hit a
    // write.
    let before: String = read(&journal).split_inclusive('\n').take(4).collect();
    let finished = before.matches('\n').count() - 1;
    assert_eq!(finished, 3);
    fs::write(&journal, format!("{before}{{\"task\":{{\"lin")).unwrap();

    let other = small(&["--out", "out", "--resume", "--lr", "0.02"], folder.path());
    assert!(text(&other.stderr).contains("other settings"));

    let output = small(&["--out", "out", "--resume"], folder.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let message = format!("{finished} tasks are done already");
    assert!(text(&output.stderr).contains(&message));
    let after = read(&journal);
    assert!(after.starts_with(&before), "finished tasks were done again");
    assert_eq!(after.lines().count(), 1 + STUDENTS);

    let fresh = small(&["--out", "fresh"], folder.path());
    assert!(fresh.status.success());
    assert_eq!(
        read(folder.path().join("out/students.csv")),
        read(folder.path().join("fresh/students.csv"))
    );
}

#[test]
fn show_prints_the_layers_of_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        &[
            "--noise",
            "1",
            "--dims",
            "12",
            "--samples",
            "100",
            "--base",
            "1,12,100",
            "--seeds",
            "1",
            "--gain",
            "fixed",
            "--sweeps-only",
        ],
        folder.path(),
    );
    assert!(output.status.success(), "{}", text(&output.stdout));
    let checkpoint = "runs/student-teacher/checkpoints/linear-fixed-s1-d12-n100-seed1.safetensors";
    let output = run(&["show", checkpoint], folder.path());
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for heading in ["layer", "D", "M", "σ", "κ", "A", "KL"] {
        assert!(printed.contains(heading), "{heading}: {printed}");
    }
    let layer = printed
        .lines()
        .find(|line| line.trim_start().trim_start_matches(['|', '│', ' ']).starts_with("unit"))
        .unwrap();
    let numbers: Vec<f64> = layer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[dim, units, sigma, kappa, a, kl] = numbers.as_slice() else {
        panic!("{layer}");
    };
    assert_eq!((dim, units), (12.0, 1.0));
    // sigma^2 (1 + sigma^2 11/12) = 11/100 by hand: 0.3175
    assert!((sigma - 0.3175).abs() < 0.05 * 0.3175, "{layer}");
    assert!((a - 1.0 / (1.0 + sigma * sigma).sqrt()).abs() < 1e-3);
    let expected = 5.5 * (1.0 + 12.0 / 11.0 / (sigma * sigma)).ln();
    assert!((kl / expected - 1.0).abs() < 1e-2, "{layer}");
    assert!(kappa > 100.0 && kappa < 140.0, "{layer}");

    fs::write(folder.path().join("no.safetensors"), "not a checkpoint").unwrap();
    let output = run(&["show", "no.safetensors"], folder.path());
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("not a usable checkpoint"));
}

#[test]
fn statements_that_fail_fail_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // Ten steps are not training: sigma_eff is still about where it began.
    let output = small(&["--steps", "10"], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("FAIL"));
}

#[test]
fn bad_ranges_are_refused_with_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (&["--samples", "1"][..], "at least 2 examples"),
        (&["--dims", "1,10"], "directions exist from dimension 2"),
        (&["--noise", "-1"], "must be positive"),
        (&["--noise", "1,0"], "must be positive"),
        (&["--noise", ""], "at least one value, such as 0.5,1,2"),
        (&["--dims", ""], "at least one value, such as 10,100"),
        (&["--samples", ""], "at least one value, such as 500,1000"),
        (&["--dims", "ten"], "\"ten\" is not a whole number"),
        (&["--dims", "-3"], "is not a whole number"),
        (&["--noise", "1,x"], "\"x\" is not a number"),
        (&["--base", "1,100"], "write noise, dimension and sample size"),
        (&["--seeds", "0"], "at least one student"),
        (&["--beta", "-1"], "must be positive"),
        (&["--lr", "0"], "(0, 1]"),
        (&["--shard", "3/2"], "i from 1 to n"),
        (&["merge", "missing.jsonl"], "missing.jsonl"),
        (&["merge", "."], "holds no results"),
        (&["show", "missing.safetensors"], "missing.safetensors"),
    ] {
        let output = run(arguments, folder.path());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text(&output.stderr).contains(message), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// The script of the README, with a shell in place of Slurm.
#[cfg(unix)]
#[test]
fn the_slurm_script_runs_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../experiments/student-teacher/slurm/sweep.sh");
    let built = program("student-teacher");
    for task in ["1", "2"] {
        let output = Command::new("bash")
            .arg(&script)
            .args(SMALL)
            .args(["--gain", "fixed"])
            .env("STUDENT_TEACHER", built.get_program())
            .env("SLURM_ARRAY_TASK_ID", task)
            .env("SLURM_CPUS_PER_TASK", "1")
            .env("PARTS", "2")
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let output = run(&["merge", "runs/sweep", "--out", "runs/sweep"], folder.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(folder.path().join("runs/sweep/report.html").exists());
}
