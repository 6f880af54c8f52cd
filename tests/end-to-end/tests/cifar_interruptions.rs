//! Trainings that are stopped, killed and continued: they end where one that was never stopped
//! does, bit for bit.

use end_to_end::training::{TINY, Training, assert_same, both, names_in, tiny, train};

/// Eight epochs of ten steps.
const LONG: [&str; 3] = ["--epochs", "8", "--augment"];

#[test]
fn a_run_stopped_with_ctrl_c_continues_bit_for_bit() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "unbroken", &LONG);

    let mut arguments = [&TINY[..], &["--out", "broken"], &LONG].concat();
    let mut stops = 0;
    for steps in [1, 4, 12, 7] {
        let mut training = Training::start(temp.path(), &arguments);
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
    tiny(temp.path(), "unbroken", &LONG);

    // A checkpoint after every step: most kills fall into a write. The first falls into the
    // beginning.
    let often = ["--checkpoint-minutes", "0"];
    let first = [&TINY[..], &["--out", "killed"], &LONG, &often].concat();
    let mut training = Training::start(temp.path(), &first);
    training.wait_for(&run.join("config.json"));
    training.signal("-KILL");
    training.finish();

    let again = [&["--resume", "killed"][..], &often].concat();
    // Moments that look random and are the same in every test.
    let mut moment: u64 = 12_345;
    let mut kills = 0;
    for _ in 0..10 {
        moment =
            moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut training = Training::start(temp.path(), &again);
        if training.steps(1 + (moment >> 33) as usize % 6) {
            // Some way into the write, or behind it.
            std::thread::sleep(std::time::Duration::from_micros((moment >> 40) % 10_000));
            training.signal("-KILL");
            kills += 1;
        }
        let (status, printed) = training.finish();
        assert_ne!(status.code(), Some(1), "{printed}");
    }
    assert!(kills > 2, "training was over too soon: {kills} kills");
    let output = train(temp.path(), &again).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert_same(&temp.path().join("unbroken"), &run);
    let names = names_in(&run);
    assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
}
