//! What can go wrong with `cifar train`: each case has a clear message and exit code 1, and leaves
//! earlier checkpoints intact.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use end_to_end::cifar::{Running, TINY, both, failed, names_in, tiny, train};
use end_to_end::program;

/// Runs `cifar train`, which must fail with exit code 1 and these words.
fn fails(folder: &Path, arguments: &[&str], words: &[&str]) {
    failed(&train(folder, arguments).output().unwrap(), words);
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    for (more, words) in [
        (&["--batch", "400"][..], &["batch of 400", "323 images", "--batch"][..]),
        (&["--batch", "1"], &["at least 2"]),
        (&["--width", "0"], &["width"]),
        (&["--lr=-1"], &["--lr"]),
        (&["--label-noise", "2"], &["label noise"]),
        (&["--checkpoint-minutes=-1"], &["--checkpoint-minutes is -1"]),
        (&["--checkpoint-epochs", "0"], &["--checkpoint-epochs"]),
        (&["--device", "tpu"], &["tpu", "cpu, cuda"]),
        (&["--device", "cuda:one"], &["one", "number of a device"]),
        (&["--device", "cuda"], &["cuda", "--device cpu"]),
    ] {
        // The last value of a flag counts, so these replace the values of the small training.
        fails(folder, &[&TINY[..], more].concat(), words);
    }
    // None of them has begun a run, so the next one gets the first name.
    let output = train(folder, &TINY).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert_eq!(names_in(&folder.join("runs/cifar")), ["vmf-seed0"]);
}

#[test]
fn files_and_folders_that_are_not_what_they_should_be_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    fails(folder, &["--resume", "nowhere"], &["nowhere", "no run"]);
    fails(folder, &["--config", "missing.json"], &["missing.json"]);
    fs::write(folder.join("broken.json"), "{}").unwrap();
    fails(folder, &["--config", "broken.json"], &["broken.json", "configuration"]);
    // A folder inside a file cannot be created by anyone.
    fs::write(folder.join("file"), "").unwrap();
    fails(
        folder,
        &[&TINY[..], &["--out", "file/run"]].concat(),
        &["cannot create the folder", "file/run"],
    );
}

#[test]
fn data_files_that_are_missing_short_or_changed_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let cifar = ["--data-dir", "."];
    fails(folder, &cifar, &["data_batch_1.bin is missing", "--data synthetic"]);
    let first = File::create(folder.join("data_batch_1.bin")).unwrap();
    first.set_len(30_729_999).unwrap();
    fails(folder, &cifar, &["data_batch_1.bin is not used", "30729999 bytes", "30730000"]);
    first.set_len(30_730_000).unwrap();
    fails(folder, &cifar, &["data_batch_1.bin is not used", "SHA-256", "cifar fetch"]);

    let fashion = ["--data", "fashion-mnist", "--data-dir", "."];
    fails(folder, &fashion, &["train-images-idx3-ubyte is missing", "dataset-fashion-mnist"]);
    fs::write(folder.join("train-images-idx3-ubyte.gz"), "no archive").unwrap();
    fails(folder, &fashion, &["train-images-idx3-ubyte.gz is not used", "unpacked"]);
}

#[test]
fn a_loss_that_is_not_finite_stops_training_and_spares_the_checkpoint() {
    let temp = tempfile::tempdir().unwrap();
    let arguments = [&TINY[..], &["--out", "run", "--lr", "1e38"]].concat();
    fails(temp.path(), &arguments, &["step", "--lr"]);
    // The checkpoint can still be read: resuming fails at the same step, not at the file.
    fails(temp.path(), &["--resume", "run"], &["step", "--lr"]);
}

#[test]
fn a_training_that_diverges_says_so_and_ends_when_it_cannot_recover() {
    let temp = tempfile::tempdir().unwrap();
    let healthy = tiny(temp.path(), "healthy", &[]);
    assert!(!both(&healthy).contains("diverges"), "{}", both(&healthy));
    let output = tiny(temp.path(), "diverging", &["--lr", "1e10"]);
    let said = String::from_utf8_lossy(&output.stderr);
    // Once per epoch.
    assert_eq!(said.matches("training diverges. Try a lower --lr").count(), 3, "{said}");

    // An infinite second moment makes all later steps zero.
    let arguments = [&TINY[..], &["--out", "lost", "--lr", "1e20"]].concat();
    let words = ["moment of", "not finite", "cannot recover", "--lr"];
    fails(temp.path(), &arguments, &words);
    fails(temp.path(), &["--resume", "lost"], &words);
}

#[test]
fn a_run_is_not_overwritten_nor_trained_twice_at_once() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "run", &["--epochs", "1"]);
    let again = [&TINY[..], &["--out", "run"]].concat();
    fails(temp.path(), &again, &["holds a run already", "--resume run"]);

    let endless = [&TINY[..], &["--out", "busy", "--epochs", "10000"]].concat();
    let mut training = Running::start_command(train(temp.path(), &endless));
    assert!(training.steps(1));
    fails(temp.path(), &["--resume", "busy"], &["in use by another process"]);
    fails(temp.path(), &[&TINY[..], &["--out", "busy"]].concat(), &["in use"]);
}

#[test]
fn a_damaged_or_foreign_file_of_a_run_is_named_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "run", &["--epochs", "2"]);
    let last = temp.path().join("run/last.safetensors");
    let whole = fs::read(&last).unwrap();
    let half = &whole[..whole.len() / 2];
    fs::write(&last, half).unwrap();
    fails(
        temp.path(),
        &["--resume", "run"],
        &["last.safetensors", "not a usable checkpoint", "best.safetensors"],
    );
    assert!(fs::read(&last).unwrap() == half);

    tiny(temp.path(), "other", &["--epochs", "1", "--seed", "5"]);
    fs::copy(temp.path().join("other/last.safetensors"), &last).unwrap();
    fails(temp.path(), &["--resume", "run"], &["last.safetensors", "other settings"]);

    fs::write(&last, &whole).unwrap();
    let metrics = temp.path().join("run/metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    let damaged = &text[..text.len() - 20];
    fs::write(&metrics, damaged).unwrap();
    fails(temp.path(), &["--resume", "run"], &["line 2 of run/metrics.jsonl is damaged"]);
    assert_eq!(fs::read_to_string(&metrics).unwrap(), damaged);
    assert!(fs::read(&last).unwrap() == whole);

    // The advice of the messages works.
    let first_line = text.split_inclusive('\n').next().unwrap();
    fs::write(&metrics, first_line).unwrap();
    fs::copy(temp.path().join("run/best.safetensors"), &last).unwrap();
    let output = train(temp.path(), &["--resume", "run"]).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
}

#[test]
fn a_full_disk_is_reported_and_the_earlier_checkpoint_stays() {
    let temp = tempfile::tempdir().unwrap();
    let last = temp.path().join("run/last.safetensors");
    let endless = [&TINY[..], &["--out", "run", "--epochs", "10000"]].concat();
    let mut training = Running::start_command(train(temp.path(), &endless));
    assert!(training.steps(12));
    training.signal("-INT");
    let (status, printed) = training.finish();
    assert_eq!(status.code(), Some(130), "{printed}");
    let stored = fs::read(&last).unwrap();

    // Files of this process cannot grow beyond a few kilobytes, so that a write fails in the
    // middle, as on a full disk.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 16; exec '{}' train --resume run --checkpoint-minutes 0",
        program("cifar").get_program().to_string_lossy()
    );
    let output =
        Command::new("sh").args(["-c", &limited]).current_dir(temp.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("last.safetensors") && said.contains("File too large"), "{said}");
    assert!(fs::read(&last).unwrap() == stored, "the checkpoint has changed");
    let names = names_in(&temp.path().join("run"));
    assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
}

#[test]
fn a_run_that_lost_its_last_checkpoint_keeps_its_results() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "2"]);
    let last = folder.join("run/last.safetensors");
    let kept = ["best.safetensors", "previous.safetensors", "metrics.jsonl", "config.json"];
    let read = || kept.map(|name| fs::read(folder.join("run").join(name)).unwrap());
    let before = read();
    fs::remove_file(&last).unwrap();
    let ways = ["records of 2 epochs", "copy previous.safetensors", "best.safetensors"];
    let resume = ["--resume", "run"];
    fails(folder, &resume, &[&["run/last.safetensors is missing"][..], &ways].concat());
    std::os::unix::fs::symlink("nowhere", &last).unwrap();
    fails(folder, &resume, &[&["is a link to a file that does not exist"][..], &ways].concat());
    fs::remove_file(&last).unwrap();
    // Nor does a new run overwrite what is left of one.
    fs::rename(folder.join("run/config.json"), folder.join("config.json")).unwrap();
    fails(folder, &[&TINY[..], &["--out", "run"]].concat(), &["config.json is missing", "--out"]);
    fs::rename(folder.join("config.json"), folder.join("run/config.json")).unwrap();
    assert!(read() == before);

    // The advice works, and the epoch that is trained again has the same result.
    let records = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    fs::copy(folder.join("run/previous.safetensors"), &last).unwrap();
    let output = train(folder, &resume).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert!(both(&output).contains("after 1 of 2 epochs"), "{}", both(&output));
    let scores = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split(",\"seconds\"").next().unwrap().into());
        lines.collect()
    };
    let again = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    assert_eq!(scores(&again), scores(&records));
}
