//! A fault at each system call that changes files, in training, export and fetching: whatever
//! happens, nothing is lost that had been saved, and what is done again ends with the same bits.
//!
//! There are some hundred calls, and each can fail in several ways. By default a few of them are
//! tried; `VMF_FAULTS=all cargo test -p end-to-end --test cifar_faults` tries every one.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use end_to_end::cifar::{TINY, assert_same, both, cifar, copy, names_in};
use end_to_end::fault::{Fault, Outcome, run};

const FAULTS: [Fault; 6] = [
    Fault::Kill,
    Fault::Torn,
    Fault::Error(libc::EIO),
    Fault::Error(libc::ENOSPC),
    Fault::LostData,
    Fault::LostNames,
];

/// Two epochs of two steps, on one thread: more would wait for each other longer than they compute.
const SMALL: [&str; 8] =
    ["--train-images", "64", "--test-images", "20", "--statistics-images", "32", "--epochs", "2"];

fn train(folder: &Path, arguments: &[&str]) -> Command {
    cifar(folder, &[&["train"], arguments, &["--threads", "1"]].concat())
}

fn begin(folder: &Path) -> Command {
    train(folder, &[&TINY[..], &SMALL, &["--out", "run"]].concat())
}

/// Faults with the numbers of their calls: all of them, or `count` of each kind, spread out so that
/// different kinds meet different calls.
fn points(calls: usize, count: usize) -> Vec<(usize, Fault)> {
    let all = std::env::var("VMF_FAULTS").is_ok_and(|value| value == "all");
    let stride = if all { 1 } else { calls.div_ceil(count) };
    let of_kind = |(place, fault): (usize, &Fault)| {
        let first = place * stride / FAULTS.len();
        (first..calls).step_by(stride).map(|number| (number, *fault)).collect::<Vec<_>>()
    };
    FAULTS.iter().enumerate().flat_map(of_kind).collect()
}

/// Tries all points, two at a time: each of them is a process, and the program has one thread.
fn try_each(points: &[(usize, Fault)], attempt: impl Fn((usize, Fault)) + Sync) {
    let next = Mutex::new(points.iter());
    let work = || {
        while let Some(&point) = { next.lock().unwrap().next() } {
            attempt(point);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}

/// The contents of a folder as a number. What differs between two runs that are otherwise equal is
/// left out: seconds, and the unique part of temporary names.
fn fingerprint(folder: &Path) -> u64 {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let mut name = entry.file_name().into_string().unwrap();
        if let Some((rest, _)) = name.strip_suffix(".tmp").and_then(|rest| rest.rsplit_once('.')) {
            name = format!("{rest}.tmp");
        }
        let mut contents = match entry.path().is_dir() {
            true => fingerprint(&entry.path()).to_le_bytes().to_vec(),
            false => fs::read(entry.path()).unwrap(),
        };
        if let (true, Ok(text)) = (name.contains("metrics.jsonl"), str::from_utf8(&contents)) {
            let is_time = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | '-');
            let parts = text.split("\"seconds\":").enumerate();
            let parts = parts.map(|(i, part)| match i {
                0 => part,
                _ => part.trim_start_matches(is_time),
            });
            contents = parts.collect::<Vec<_>>().join("seconds").into_bytes();
        }
        files.insert((name, contents));
    }
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

/// A folder for the program and one for the tracer, on one file system.
struct Place {
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        for name in ["work", "scratch"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        Self { temp }
    }

    fn work(&self) -> PathBuf {
        self.temp.path().join("work")
    }

    fn run(&self, command: Command, fault: Option<(usize, Fault)>) -> Outcome {
        run(command, &self.work(), &self.temp.path().join("scratch"), fault)
    }
}

/// A program that met a failing call ends with an error, or did not need the call. It never panics.
fn check_end(outcome: &Outcome, fault: (usize, Fault)) {
    let place = format!("{fault:?} at {:?}", outcome.at);
    assert!(outcome.at.is_some(), "{place}: there is no such call");
    assert!(!outcome.said.contains("panicked"), "{place}: {}", outcome.said);
    match fault.1 {
        Fault::Error(_) => {
            let code = outcome.status.code();
            assert!(matches!(code, Some(0 | 1)), "{place}: {code:?}, {}", outcome.said);
            if code == Some(1) {
                assert!(outcome.said.contains("error: "), "{place}: {}", outcome.said);
            }
        }
        _ => assert_eq!(outcome.status.code(), None, "{place}: {}", outcome.said),
    }
}

fn has_no_leftovers(folder: &Path) -> bool {
    names_in(folder).iter().all(|name| !name.ends_with(".tmp"))
}

#[test]
fn training_survives_a_fault_at_any_call() {
    let unbroken = Place::new();
    let outcome = unbroken.run(begin(&unbroken.work()), None);
    assert!(outcome.status.success(), "{}", outcome.said);
    assert!(outcome.calls > 50, "{} calls", outcome.calls);

    // What a resumed run does is a function of what it finds, and many faults leave the same.
    let seen = Mutex::new(HashSet::new());
    let points = points(outcome.calls, 4);
    try_each(&points, |fault| {
        let place = Place::new();
        let broken = place.run(begin(&place.work()), Some(fault));
        check_end(&broken, fault);
        let what = format!("{fault:?} at {:?}", broken.at);
        println!("{what}");
        if !seen.lock().unwrap().insert(fingerprint(&place.work())) {
            return;
        }
        let resumed = train(&place.work(), &["--resume", "run"]).output().unwrap();
        if !resumed.status.success() {
            // There was no run yet: it begins again.
            assert!(both(&resumed).contains("holds no run"), "{what}: {}", both(&resumed));
            let begun = begin(&place.work()).output().unwrap();
            assert!(begun.status.success(), "{what}: {}", both(&begun));
        }
        let run = place.work().join("run");
        assert_same(&unbroken.work().join("run"), &run);
        assert!(has_no_leftovers(&run), "{what}: {:?}", names_in(&run));
    });
    let (calls, states) = (outcome.calls, seen.lock().unwrap().len());
    println!("{} faults at {calls} calls of a training left {states} states", points.len());
}

#[test]
fn an_export_is_complete_or_not_there() {
    let unbroken = Place::new();
    let outcome = unbroken.run(begin(&unbroken.work()), None);
    assert!(outcome.status.success(), "{}", outcome.said);
    let export = |folder: &Path| cifar(folder, &["export", "run", "out"]);
    let prepared = tempfile::tempdir().unwrap();
    copy(&unbroken.work().join("run"), &prepared.path().join("run"));
    let outcome = unbroken.run(export(&unbroken.work()), None);
    assert!(outcome.status.success(), "{}", outcome.said);
    let complete = |folder: &Path| {
        let expected = unbroken.work().join("out");
        names_in(&expected) == names_in(folder)
            && names_in(folder).iter().all(|name| {
                fs::read(folder.join(name)).unwrap() == fs::read(expected.join(name)).unwrap()
            })
    };

    let points = points(outcome.calls, 3);
    try_each(&points, |fault| {
        let place = Place::new();
        copy(&prepared.path().join("run"), &place.work().join("run"));
        let broken = place.run(export(&place.work()), Some(fault));
        check_end(&broken, fault);
        let (what, out) = (format!("{fault:?} at {:?}", broken.at), place.work().join("out"));
        if !out.exists() {
            assert!(!broken.status.success(), "{what}");
            let again = export(&place.work()).output().unwrap();
            assert!(again.status.success(), "{what}: {}", both(&again));
            assert_eq!(names_in(&place.work()), ["out", "run"], "{what}");
        }
        assert!(complete(&out), "{what}: {:?}", names_in(&out));
    });
    println!("{} faults at {} calls of an export", points.len(), outcome.calls);
}

/// The data set cannot be had in a test, so that the fetch fails in the end. A fault on the way
/// leaves nothing that the next fetch stumbles over.
#[test]
fn a_fetch_that_met_a_fault_can_be_repeated() {
    let fetch = |folder: &Path| {
        let mut command = cifar(folder, &["fetch"]);
        // Nobody listens on this port.
        command.env("HF_ENDPOINT", "http://127.0.0.1:9");
        for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(name);
        }
        // Without npm, which would be asked next.
        command.env("HF_HOME", folder.join("hub")).env("HOME", folder).env("PATH", "");
        command
    };
    let unbroken = Place::new();
    let outcome = unbroken.run(fetch(&unbroken.work()), None);
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.said);
    assert!(outcome.calls > 3, "{} calls: {}", outcome.calls, outcome.said);
    let left = |place: &Place| names_in(&place.work().join("data"));

    let points = points(outcome.calls, 2);
    try_each(&points, |fault| {
        let place = Place::new();
        let broken = place.run(fetch(&place.work()), Some(fault));
        let what = format!("{fault:?} at {:?}", broken.at);
        assert!(!broken.said.contains("panicked"), "{what}: {}", broken.said);
        let again = fetch(&place.work()).output().unwrap();
        assert_eq!(again.status.code(), Some(1), "{what}: {}", both(&again));
        assert_eq!(left(&place), left(&unbroken), "{what}");
    });
    println!("{} faults at {} calls of a fetch", points.len(), outcome.calls);
}
