//! `theory-check` as a person runs it.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use end_to_end::program;

fn run(arguments: &[&str], input: &str, folder: &Path) -> Output {
    let mut child = program("theory-check")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_check_passes_and_writes_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["--samples", "2000", "--points", "5", "--dim", "27,100"], "", folder.path());
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    assert!(printed.contains("all 20 checks pass"), "{printed}");
    assert!(printed.contains("197.41 as printed, 24.135 by"), "{printed}");

    let out = folder.path().join("runs/theory-check");
    for name in ["theory-d27", "theory-d100", "errors"] {
        let svg = std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        let png = std::fs::read(out.join(format!("{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    }
    let csv = std::fs::read_to_string(out.join("theory.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 5);
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("holds with a correction"));
    for address in ["src=\"http", "href=\"http", "url(http", "<script"] {
        assert!(!report.contains(address), "the report reaches for the network: {address}");
    }
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let data = |seed: &str, out: &str| {
        let output = run(
            &["--samples", "500", "--points", "3", "--seed", seed, "--out", out],
            "",
            folder.path(),
        );
        assert!(output.status.success());
        std::fs::read_to_string(folder.path().join(out).join("theory.csv")).unwrap()
    };
    assert_eq!(data("7", "one"), data("7", "two"));
    assert_ne!(data("7", "one"), data("8", "three"));
}

/// Runs a comparison, which must pass, say these words and leave a figure, a report and this many
/// rows of numbers.
fn compares(arguments: &[&str], words: &[&str], rows: usize) {
    let folder = tempfile::tempdir().unwrap();
    let output = run(arguments, "", folder.path());
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    for word in words {
        assert!(printed.contains(word), "{word}: {printed}");
    }
    let name = arguments[0];
    let out = folder.path().join(format!("runs/theory-check-{name}"));
    for file in [&format!("{name}.svg"), &format!("{name}.png"), "report.html"] {
        assert!(out.join(file).exists(), "{file}");
    }
    let csv = std::fs::read_to_string(out.join(format!("{name}.csv"))).unwrap();
    assert_eq!(csv.lines().count(), 1 + rows);
}

#[test]
fn draws_are_compared_with_noise_on_generated_pictures() {
    let words = ["all 14 checks pass", "generated pictures"];
    compares(&["draws", "--draws", "200"], &words, 150 + 150 + 40);
}

#[test]
fn one_deterministic_pass_is_compared_with_many_noisy_ones() {
    compares(&["expected", "--passes", "2000"], &["all 10 checks pass"], 2 * 8);
}

#[test]
fn eval_is_a_filter() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("points.csv"), "dim,kappa\n100,100\n1000000,3e8\n").unwrap();
    let from_file = run(&["eval", "points.csv"], "", folder.path());
    let from_input = run(&["eval"], "100,100\n1000000,3e8\n", folder.path());
    assert!(from_file.status.success());
    assert_eq!(from_file.stdout, from_input.stdout);
    let lines: Vec<&str> = text(&from_file.stdout).lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("dim,kappa,a,one_minus_a2,kl,log_c,"));
    // mpmath: KL(vMF | uniform) at D = 100, kappa = 100
    let kl: f64 = lines[1].split(',').nth(4).unwrap().parse().unwrap();
    assert!((kl - KL_100).abs() < 1e-12, "{kl}");
}

const KL_100: f64 = 24.13496463421923;

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, input, message) in [
        (&["eval"][..], "100,1\n100;2\n", "line 2"),
        (&["eval", "missing.csv"], "", "missing.csv"),
        (&["--dim", "1"], "", "directions exist from dimension 2"),
        (&["--samples", "5"], "", "at least 100"),
        (&["--kappa", "5..1"], "", "smaller first"),
        (&["--points", "1"], "", "at least 2"),
        (&["draws", "--sigma", "0"], "", "a positive number"),
        (&["draws", "--draws", "5"], "", "at least 100"),
        (&["expected", "--passes", "5"], "", "at least 100"),
        (&["expected", "--sigma=-1"], "", "a positive number"),
        (&["draws", "--data-dir", "."], "", "has no data_batch_1.bin"),
    ] {
        let output = run(arguments, input, folder.path());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text(&output.stderr).contains(message), "{arguments:?}: {}", text(&output.stderr));
    }
}
