//! Trainings that are stopped, killed and continued end with the same bits as one that never was.

use std::path::Path;

use end_to_end::cifar::{Running, TINY, assert_same, both, cifar, failed, names_in, tiny, train};
use vmf_candle::Checkpoint;

/// Eight epochs of ten steps.
const LONG: [&str; 3] = ["--epochs", "8", "--augment"];

/// Starts `cifar train`.
fn start(folder: &Path, arguments: &[&str]) -> Running {
    Running::start_command(train(folder, arguments))
}

#[test]
fn a_run_stopped_with_ctrl_c_continues_bit_for_bit() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "unbroken", &LONG);

    let mut arguments = [&TINY[..], &["--out", "broken"], &LONG].concat();
    let mut stops = 0;
    for steps in [1, 4, 12, 7] {
        let mut training = start(temp.path(), &arguments);
        arguments = vec!["--resume", "broken"];
        if !training.steps(steps) {
            break;
        }
        training.signal("-INT");
        let (status, printed) = training.finish();
        // The signal may come with the last step of all.
        if status.success() {
            break;
        }
        assert_eq!(status.code(), Some(130), "{printed}");
        assert!(printed.contains("cifar train --resume broken"), "{printed}");
        stops += 1;
    }
    assert!(stops > 0, "training was over before it could be stopped");
    let output = train(temp.path(), &arguments).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert!(both(&output).contains("continuing broken"));
    assert_same(&temp.path().join("unbroken"), &temp.path().join("broken"));

    // Nothing is left to train, and nothing changes.
    let output = train(temp.path(), &arguments).output().unwrap();
    assert!(output.status.success());
    assert_same(&temp.path().join("unbroken"), &temp.path().join("broken"));
}

#[test]
fn a_process_killed_at_any_moment_leaves_no_broken_file() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("killed");
    // Long enough for two kills at least, however far the program is ahead of the test.
    let long = ["--epochs", "14", "--augment"];
    tiny(temp.path(), "unbroken", &long);

    // With a checkpoint after every step, most kills hit a write. The first kill hits the
    // beginning.
    let often = ["--checkpoint-minutes", "0"];
    let first = [&TINY[..], &["--out", "killed"], &long, &often].concat();
    let mut training = start(temp.path(), &first);
    training.wait_until(|| run.join("config.json").exists());
    training.signal("-KILL");
    training.finish();

    let again = [&["--resume", "killed"][..], &often].concat();
    // Moments that look random but are the same in every test.
    let mut moment: u64 = 12_345;
    let mut kills = 0;
    for _ in 0..10 {
        moment =
            moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut training = start(temp.path(), &again);
        if training.steps(1 + (moment >> 33) as usize % 6) {
            // During the write or after it.
            std::thread::sleep(std::time::Duration::from_micros((moment >> 40) % 10_000));
            training.signal("-KILL");
            kills += 1;
        }
        let (status, printed) = training.finish();
        assert_ne!(status.code(), Some(1), "{printed}");
    }
    assert!(kills >= 2, "training was over too soon: {kills} kills");
    let output = train(temp.path(), &again).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert_same(&temp.path().join("unbroken"), &run);
    let names = names_in(&run);
    assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
}

/// A training that ends only if it is stopped.
fn endless(folder: &Path) -> Vec<&'static str> {
    assert!(folder.is_dir());
    [&TINY[..], &["--out", "run", "--epochs", "10000"]].concat()
}

/// The step at which a run was saved last.
fn saved_step(folder: &Path) -> u64 {
    Checkpoint::open(folder.join("run/last.safetensors")).unwrap().progress().step
}

#[test]
fn signals_that_end_a_program_save_first_however_often_they_come() {
    for signal in ["-TERM", "-HUP"] {
        let temp = tempfile::tempdir().unwrap();
        let mut training = start(temp.path(), &endless(temp.path()));
        assert!(training.steps(3));
        for _ in 0..3 {
            training.signal(signal);
        }
        let (status, printed) = training.finish();
        assert_eq!(status.code(), Some(130), "{signal}: {printed}");
        assert!(saved_step(temp.path()) >= 3, "{signal}: {printed}");
    }
}

#[test]
fn a_training_whose_terminal_is_closed_saves() {
    let temp = tempfile::tempdir().unwrap();
    let mut training = start(temp.path(), &endless(temp.path()));
    assert!(training.steps(3));
    let status = training.close_outputs_and(|training| training.signal("-HUP"));
    assert_eq!(status.code(), Some(130));
    assert!(saved_step(temp.path()) >= 3);
}

#[test]
fn a_hang_up_is_ignored_under_nohup() {
    let temp = tempfile::tempdir().unwrap();
    let plain = train(temp.path(), &[&TINY[..], &["--out", "run", "--epochs", "8"]].concat());
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(temp.path())
        .stdout(std::process::Stdio::piped());
    let mut training = Running::start_command(command);
    assert!(training.steps(1));
    training.signal("-HUP");
    let (status, printed) = training.finish();
    assert!(status.success(), "{printed}");
}

#[test]
fn a_training_whose_lock_was_removed_gives_way_to_the_process_that_took_it() {
    let temp = tempfile::tempdir().unwrap();
    let often = ["--checkpoint-minutes", "0"];
    let mut first = start(temp.path(), &[&endless(temp.path())[..], &often].concat());
    assert!(first.steps(2));
    // Stopped, so that it does not take the lock again before the other process does.
    first.signal("-STOP");
    std::fs::remove_file(temp.path().join("run/.lock")).unwrap();
    let mut second = start(temp.path(), &["--resume", "run"]);
    assert!(second.steps(1));
    first.signal("-CONT");
    let (status, printed) = first.finish();
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("another process writes to run now"), "{printed}");
    second.signal("-INT");
    let (status, printed) = second.finish();
    assert_eq!(status.code(), Some(130), "{printed}");
}

#[test]
fn a_lock_that_is_a_link_spares_the_file_it_names() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "run", &["--epochs", "1"]);
    let precious = temp.path().join("precious");
    std::fs::write(&precious, "keep").unwrap();
    let lock = temp.path().join("run/.lock");
    std::fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink(&precious, &lock).unwrap();
    let output = train(temp.path(), &["--resume", "run"]).output().unwrap();
    failed(&output, &["cannot lock run/.lock"]);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "keep");

    let data = temp.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&precious, data.join(".fetch.lock")).unwrap();
    let output = cifar(temp.path(), &["fetch"]).output().unwrap();
    failed(&output, &[".fetch.lock"]);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "keep");
}
