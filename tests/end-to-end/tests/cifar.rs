//! `cifar` as a person runs it, on the synthetic set.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use end_to_end::program;

/// A network and a set that train in a second or two.
const TINY: [&str; 19] = [
    "--data",
    "synthetic",
    "--train-images",
    "320",
    "--test-images",
    "100",
    "--depth",
    "vgg11",
    "--width",
    "0.0625",
    "--batch",
    "32",
    "--epochs",
    "3",
    "--statistics-images",
    "64",
    "--warmup=1",
    "--device",
    "cpu",
];

fn train(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program("cifar");
    command
        .arg("train")
        .args(arguments)
        .args(["--threads", "2"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn tiny(folder: &Path, out: &str, more: &[&str]) -> Output {
    let output = train(folder, &[&TINY[..], &["--out", out], more].concat())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", both(&output));
    output
}

fn resume(folder: &Path, run: &str) -> Command {
    train(folder, &["--resume", run])
}

fn both(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The lines of metrics.jsonl without the time they took, which no two runs share.
fn metrics(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let without_time = |line: &str| {
        let (numbers, seconds) = line.rsplit_once(",\"seconds\":").unwrap();
        assert!(seconds.trim_end_matches('}').parse::<f64>().unwrap() > 0.0);
        numbers.to_owned()
    };
    text.lines().map(without_time).collect()
}

/// A number in a line of metrics.jsonl, by the keys that lead to it.
fn number(line: &str, keys: &[&str]) -> f64 {
    let mut rest = line;
    for key in keys {
        rest = rest.split_once(&format!("\"{key}\":")).unwrap().1;
    }
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap()
}

/// Two runs that must have computed the same, bit for bit.
fn assert_same(a: &Path, b: &Path) {
    assert_eq!(metrics(a), metrics(b));
    for name in ["last.safetensors", "best.safetensors"] {
        let read = |run: &Path| fs::read(run.join(name)).unwrap();
        assert!(read(a) == read(b), "{name} differs");
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Waits until a file is there: training has begun.
fn wait_for(path: &Path) {
    for _ in 0..6000 {
        if path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} never appeared", path.display());
}

#[test]
fn training_leaves_a_complete_folder_and_learns() {
    let temp = tempfile::tempdir().unwrap();
    let output = tiny(temp.path(), "run", &["--epochs", "6", "--lr", "3e-3"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    let first = printed.lines().next().unwrap();
    for words in [
        "vgg11",
        "--method vmf",
        "320 images",
        "the CPU with 2 threads",
        "about",
    ] {
        assert!(first.contains(words), "{words} is not in: {first}");
    }
    assert!(
        printed.contains("--preset quick") && printed.contains("paper"),
        "{printed}"
    );

    let run = temp.path().join("run");
    assert_eq!(
        names_in(&run),
        [
            ".lock",
            "best.safetensors",
            "config.json",
            "last.safetensors",
            "metrics.jsonl"
        ]
    );
    let lines = metrics(&run);
    assert_eq!(lines.len(), 6);
    let (begin, end) = (&lines[0], &lines[5]);
    assert!(
        number(end, &["running_nll"]) < 0.8 * number(begin, &["running_nll"]),
        "{lines:?}"
    );
    assert!(number(end, &["test", "accuracy"]) > 0.3, "{end}");
    assert_eq!(number(end, &["step"]), 60.0);
    assert_eq!(number(end, &["beta"]), 0.1);
    assert!((0.0..=1.0).contains(&number(end, &["train", "ece"])));
    // sigma_eff of the eight layers, none of which is where it began.
    assert_eq!(
        end.matches("\"sigma_eff\":0").count() + end.matches("\"sigma_eff\":1").count(),
        8
    );
    assert!(number(end, &["kl"]) > 0.0);
}

#[test]
fn the_three_methods_share_one_loop_and_differ_in_their_noise() {
    let temp = tempfile::tempdir().unwrap();
    for method in ["vmf", "none", "map"] {
        tiny(temp.path(), method, &["--method", method]);
    }
    let line = |method: &str| metrics(&temp.path().join(method))[2].clone();
    let (vmf, none, map) = (line("vmf"), line("none"), line("map"));
    assert!(number(&vmf, &["beta"]) > 0.0);
    assert_eq!(
        (number(&none, &["beta"]), number(&map, &["beta"])),
        (0.0, 0.0)
    );
    // The KL holds the noise up: without it, training drives noise down.
    assert!(number(&vmf, &["kl"]) < number(&none, &["kl"]));
    assert!(
        map.contains("\"kl\":null") && map.contains("\"sigma_eff\":[]"),
        "{map}"
    );
}

#[test]
fn a_run_repeats_from_its_configuration_and_differs_with_its_seed() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "a", &[]);
    let again = ["--config", "a/config.json", "--out", "b"];
    let output = train(temp.path(), &again).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert_same(&temp.path().join("a"), &temp.path().join("b"));
    tiny(temp.path(), "c", &["--seed", "1"]);
    assert_ne!(
        metrics(&temp.path().join("a")),
        metrics(&temp.path().join("c"))
    );
}

#[test]
fn a_run_stopped_with_ctrl_c_continues_bit_for_bit() {
    let temp = tempfile::tempdir().unwrap();
    let long = ["--epochs", "8", "--augment"];
    tiny(temp.path(), "unbroken", &long);

    let mut arguments = [&TINY[..], &["--out", "broken"], &long].concat();
    let mut stops = 0;
    for pause in [300, 900, 500, 1200, 700] {
        let child = train(temp.path(), &arguments).spawn().unwrap();
        wait_for(&temp.path().join("broken/last.safetensors"));
        std::thread::sleep(Duration::from_millis(pause));
        signal(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        arguments = vec!["--resume", "broken"];
        if output.status.success() {
            break;
        }
        // Before the handler is in place, the signal ends the program, and nothing is lost.
        if output.status.code() == Some(130) {
            let printed = both(&output);
            assert!(printed.contains("cifar train --resume broken"), "{printed}");
            stops += 1;
        }
    }
    assert!(stops > 0, "training was over before it could be stopped");
    let output = resume(temp.path(), "broken").output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert!(both(&output).contains("continuing broken"));
    assert_same(&temp.path().join("unbroken"), &temp.path().join("broken"));

    // Nothing is left to train, and nothing changes.
    let output = resume(temp.path(), "broken").output().unwrap();
    assert!(output.status.success());
    assert_same(&temp.path().join("unbroken"), &temp.path().join("broken"));
}

#[test]
fn a_process_killed_at_any_moment_leaves_no_broken_file() {
    let temp = tempfile::tempdir().unwrap();
    // A checkpoint after every step: most kills fall into a write.
    let often = ["--epochs", "8", "--checkpoint-minutes", "0", "--augment"];
    tiny(temp.path(), "unbroken", &often);

    let run = temp.path().join("killed");
    let mut arguments = [&TINY[..], &["--out", "killed"], &often].concat();
    // Moments that look random and are the same in every test.
    let mut moment: u64 = 12_345;
    let mut kills = 0;
    for _ in 0..12 {
        let mut child = train(temp.path(), &arguments).spawn().unwrap();
        if arguments[0] == "--data" {
            wait_for(&run.join("config.json"));
        }
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis((moment >> 33) % 1500));
        if child.try_wait().unwrap().is_none() {
            signal(&child, "-KILL");
            kills += 1;
        }
        let output = child.wait_with_output().unwrap();
        assert_ne!(output.status.code(), Some(1), "{}", both(&output));
        arguments = vec!["--resume", "killed", "--checkpoint-minutes", "0"];
    }
    assert!(kills > 2, "training was over too soon: {kills} kills");
    let output = resume(temp.path(), "killed").output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert_same(&temp.path().join("unbroken"), &run);
    assert!(
        names_in(&run).iter().all(|name| !name.ends_with(".tmp")),
        "{:?}",
        names_in(&run)
    );
}

/// Runs `cifar train`, which must fail with code 1 and these words.
fn fails(folder: &Path, arguments: &[&str], words: &[&str]) {
    let output = train(folder, arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{arguments:?}: {}",
        both(&output)
    );
    for word in words {
        assert!(
            said.contains(word),
            "{word:?} is not in what {arguments:?} said: {said}"
        );
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn mistakes_are_named_and_exit_with_one() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let with = |more: &[&'static str]| [&TINY[..], more].concat();
    fails(
        folder,
        &with(&["--batch", "400"]),
        &["batch of 400", "320 images", "--batch"],
    );
    fails(folder, &with(&["--batch", "1"]), &["at least 2"]);
    fails(folder, &with(&["--width", "0"]), &["width"]);
    fails(folder, &with(&["--lr=-1"]), &["--lr"]);
    fails(folder, &with(&["--label-noise", "2"]), &["label noise"]);
    fails(
        folder,
        &["--data", "synthetic", "--device", "tpu"],
        &["tpu", "cpu, cuda"],
    );
    fails(
        folder,
        &["--data", "synthetic", "--device", "cuda"],
        &["--device cpu"],
    );
    fails(folder, &["--resume", "nowhere"], &["nowhere", "no run"]);
    fails(folder, &["--config", "missing.json"], &["missing.json"]);
    fails(
        folder,
        &["--data-dir", "."],
        &["data_batch_1.bin is missing", "--data synthetic"],
    );
    fails(
        folder,
        &["--data", "fashion-mnist", "--data-dir", "."],
        &[
            "train-images-idx3-ubyte is missing",
            "dataset-fashion-mnist",
        ],
    );
    fs::write(folder.join("broken.json"), "{}").unwrap();
    fails(
        folder,
        &["--config", "broken.json"],
        &["broken.json", "configuration"],
    );
    // A folder that cannot be written to, by anyone: it would be inside a file.
    fs::write(folder.join("file"), "").unwrap();
    fails(
        folder,
        &with(&["--out", "file/run"]),
        &["cannot create the folder", "file/run"],
    );
}

#[test]
fn a_loss_that_is_not_finite_stops_training_and_spares_the_checkpoint() {
    let temp = tempfile::tempdir().unwrap();
    let arguments = [&TINY[..], &["--out", "run", "--lr", "1e38"]].concat();
    fails(temp.path(), &arguments, &["step", "--lr"]);
    // What was saved before can still be read: resuming fails at the same step, not at the file.
    fails(temp.path(), &["--resume", "run"], &["step", "--lr"]);
}

#[test]
fn a_run_is_not_overwritten_nor_trained_twice_at_once() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "run", &[]);
    let again = [&TINY[..], &["--out", "run"]].concat();
    fails(
        temp.path(),
        &again,
        &["holds a run already", "--resume run"],
    );

    let long = [&TINY[..], &["--out", "busy", "--epochs", "10000"]].concat();
    let mut child = train(temp.path(), &long).spawn().unwrap();
    wait_for(&temp.path().join("busy/last.safetensors"));
    fails(
        temp.path(),
        &["--resume", "busy"],
        &["in use by another process"],
    );
    fails(
        temp.path(),
        &[&TINY[..], &["--out", "busy"]].concat(),
        &["in use"],
    );
    signal(&child, "-KILL");
    child.wait().unwrap();
}

#[test]
fn a_damaged_or_foreign_checkpoint_is_named() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "run", &["--epochs", "1"]);
    let last = temp.path().join("run/last.safetensors");
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
    fails(
        temp.path(),
        &["--resume", "run"],
        &["last.safetensors", "not a usable checkpoint"],
    );
    tiny(temp.path(), "other", &["--epochs", "1", "--seed", "5"]);
    fs::copy(temp.path().join("other/last.safetensors"), &last).unwrap();
    fails(
        temp.path(),
        &["--resume", "run"],
        &["last.safetensors", "other settings"],
    );
}

#[test]
fn a_full_disk_is_reported_and_the_earlier_checkpoint_stays() {
    let temp = tempfile::tempdir().unwrap();
    let last = temp.path().join("run/last.safetensors");
    let long = [&TINY[..], &["--out", "run", "--epochs", "10000"]].concat();
    let child = train(temp.path(), &long).spawn().unwrap();
    wait_for(&temp.path().join("run/metrics.jsonl"));
    signal(&child, "-INT");
    child.wait_with_output().unwrap();
    let stored = fs::read(&last).unwrap();

    // A process whose files cannot grow beyond a few kilobytes: a write fails in the middle, as on a full disk.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 16; exec '{}' train --resume run --checkpoint-minutes 0",
        program("cifar").get_program().to_string_lossy()
    );
    let output = Command::new("sh")
        .args(["-c", &limited])
        .current_dir(temp.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("last.safetensors") && said.contains("File too large"),
        "{said}"
    );
    assert!(
        fs::read(&last).unwrap() == stored,
        "the checkpoint has changed"
    );
    let names = names_in(&temp.path().join("run"));
    assert!(
        names.iter().all(|name| !name.ends_with(".tmp")),
        "{names:?}"
    );
}
