//! `cifar landscape`, `predict` and `export`, on networks trained on the synthetic set.

mod export;
mod landscape;
mod predict;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Tensor};
use cifar::data::batches::Batches;
use cifar::trained::Trained;
use end_to_end::cifar::{TINY, both, cifar as command, copy, fails, json, succeeds};
use serde_json::Value;
use tempfile::TempDir;

/// What these networks have besides [`TINY`].
const MORE: [&str; 2] = ["--lr", "3e-3"];

/// Seven points per coordinate: x and a in steps of a half, y in steps of a quarter.
const SMALL: [&str; 4] = ["--points", "7", "--images", "64"];

/// A folder with a copy of a run, named `run`, that was trained once for all tests.
fn trained(method: &str) -> TempDir {
    static ONE_AT_A_TIME: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cifar-look");
    let mut there = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let run = shared.join(method);
    if !there.contains(&method.to_owned()) {
        fs::create_dir_all(&shared).unwrap();
        let _ = fs::remove_dir_all(&run);
        let own = ["--out", method, "--method", method, "--epochs", "4"];
        succeeds(&shared, &[&["train"], &TINY[..], &MORE, &own].concat());
        there.push(method.to_owned());
    }
    let temp = tempfile::tempdir().unwrap();
    copy(&run, &temp.path().join("run"));
    temp
}

#[test]
fn mistakes_are_named() {
    let temp = trained("vmf");
    let folder = temp.path();
    let landscape = |more: &[&'static str]| [&["landscape", "run"][..], more].concat();
    fails(
        folder,
        &landscape(&["--layer", "conv1"]),
        &["\"conv1\"", "features.0, features.4, features.8"],
    );
    fails(folder, &landscape(&["--points", "8"]), &["--points", "odd"]);
    fails(folder, &landscape(&["--images", "1000"]), &["--images is 1000", "323 training images"]);
    fails(folder, &["landscape", "nowhere"], &["nowhere", "no run"]);
    fails(folder, &["predict", "run", "x.png", "--top", "0"], &["--top"]);

    let config = folder.join("run/config.json");
    let text = fs::read_to_string(&config).unwrap();
    for (from, to, words) in [
        ("\"version\": 1", "\"version\": 99", ["version 99", "version 1"]),
        (
            "\"width\": 0.0625",
            "\"width\": 0.125",
            ["last.safetensors is not the network", "classifier.weight"],
        ),
    ] {
        assert!(text.contains(from), "{text}");
        fs::write(&config, text.replace(from, to)).unwrap();
        fails(folder, &["predict", "run", "x.png"], &words);
        fails(folder, &["export", "run", "out"], &words);
        fails(folder, &["landscape", "run"], &words);
    }
}

/// Writes an image of the training set as PNG, and returns its normalized form (1, channels, 32,
/// 32).
fn training_image(run: &Path, number: usize, png: &Path) -> Tensor {
    let trained = Trained::open(run, &Device::Cpu).unwrap();
    let set = trained.dataset(None).unwrap();
    let pixels = &set.train.images[number * set.shape.pixels()..][..set.shape.pixels()];
    let picture = image::RgbImage::from_fn(32, 32, |x, y| {
        let at = |channel: u32| pixels[((channel * 32 + y) * 32 + x) as usize];
        image::Rgb([at(0), at(1), at(2)])
    });
    picture.save(png).unwrap();
    let mut batches = Batches::in_order(&set, &set.train, 1);
    let batch = batches.nth(number).unwrap();
    batch.into_tensors(&Device::Cpu).unwrap().0
}

/// The answers of `cifar predict --json` with all classes.
fn classified(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let all = [&["predict"][..], arguments, &["--top", "10", "--json"]].concat();
    let printed = succeeds(folder, &all);
    let lines = printed.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn looking_leaves_the_run_as_it_is() {
    let temp = trained("vmf");
    let folder = temp.path();
    let files = ["config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"];
    let read = || files.map(|name| fs::read(folder.join("run").join(name)).unwrap());
    let before = read();
    training_image(&folder.join("run"), 0, &folder.join("a.png"));
    succeeds(folder, &[&["landscape", "run"][..], &SMALL].concat());
    succeeds(folder, &["predict", "run", "a.png"]);
    succeeds(folder, &["export", "run", "out"]);
    assert!(read() == before);
    let output = command(folder, &["train", "--resume", "run"]).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
}
