//! What `cifar` does if its output is gone: training goes on, and a command whose output is its
//! result fails.

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;

use end_to_end::cifar::{TINY, both, cifar, failed, metrics, tiny, train};
use vmf_candle::Checkpoint;

/// Where every write fails, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// The writing end of a pipe that nobody reads.
fn broken_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn training_continues_without_its_outputs() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "seen", &[]);
    for (out, stdout) in [("pipe", broken_pipe()), ("full", full())] {
        let mut training = train(temp.path(), &[&TINY[..], &["--out", out]].concat());
        let output = training.stdout(stdout).output().unwrap();
        assert!(output.status.success(), "{}", both(&output));
        let said = both(&output);
        assert_eq!(said.matches("cannot write to standard output").count(), 1, "{said}");
        assert_eq!(metrics(&temp.path().join(out)), metrics(&temp.path().join("seen")));
    }
    let mut training = train(temp.path(), &[&TINY[..], &["--out", "both", "-vv"]].concat());
    let status = training.stdout(broken_pipe()).stderr(broken_pipe()).status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(metrics(&temp.path().join("both")), metrics(&temp.path().join("seen")));
}

#[test]
fn an_epoch_is_saved_before_it_is_printed() {
    let temp = tempfile::tempdir().unwrap();
    let last = temp.path().join("run/last.safetensors");
    // The pipe has room for the two lines at the beginning, of about 290 bytes, but not for that of
    // the first epoch, of about 150. Nobody reads the pipe, so printing that line blocks.
    let (reader, mut writer) = std::io::pipe().unwrap();
    end_to_end::shrink(&reader);
    writer.write_all(&[b' '; 4096 - 350]).unwrap();
    let mut training = train(temp.path(), &[&TINY[..], &["--out", "run"]].concat());
    let mut child = training.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    drop(training);
    let epoch = || Checkpoint::open(&last).map_or(0, |checkpoint| checkpoint.progress().epoch);
    // Long enough for any machine: a program that prints first never gets there.
    for _ in 0..60_000 {
        if epoch() == 1 {
            break;
        }
        assert!(child.try_wait().unwrap().is_none(), "the program ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let saved = epoch();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(reader);
    assert_eq!(saved, 1);
}

#[test]
fn a_command_that_cannot_print_its_result_fails() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    image::RgbImage::new(32, 32).save(folder.join("a.png")).unwrap();
    for arguments in [
        &["eval", "run", "--samples=1"][..],
        &["eval", "run", "--samples=1", "--json"],
        &["report", "run", "--samples=1"],
        &["compare", "run", "--samples=1"],
        &["predict", "run", "a.png"],
        &["predict", "run", "a.png", "--json"],
        &["export", "run", "exported"],
        &["landscape", "run", "--points=5", "--images=32"],
        &["bench", "--batch=2", "--width=0.0625", "--steps=1", "--predictions"],
    ] {
        for (name, stdout) in [("full", full()), ("pipe", broken_pipe())] {
            fs::remove_dir_all(folder.join("exported")).ok();
            let output = cifar(folder, arguments).stdout(stdout).output().unwrap();
            eprintln!("{arguments:?} with {name}");
            failed(&output, &["cannot write to standard output"]);
        }
    }
}
