//! `cifar landscape`, `predict` and `export` as a person runs them, on networks trained on the synthetic set.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use candle_core::{Device, Tensor};
use cifar::data::batches::{Batches, Plan};
use cifar::trained::Trained;
use end_to_end::program;
use serde_json::Value;
use tempfile::TempDir;
use vmf_candle::{Forward, Pass, Samples, cross_entropy};

/// A network and a set that train in a second or two.
const TINY: [&str; 18] = [
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
    "--lr",
    "3e-3",
    "--statistics-images",
    "64",
    "--warmup=1",
    "--device=cpu",
];

/// Seven points a coordinate: x and a in steps of a half, y in steps of a quarter.
const SMALL: [&str; 4] = ["--points", "7", "--images", "64"];

fn cifar(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program("cifar");
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn both(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// What a command that must succeed prints to standard output.
fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = cifar(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", both(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with code 1 and these words.
fn fails(folder: &Path, arguments: &[&str], words: &[&str]) {
    let output = cifar(folder, arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{arguments:?}: {}",
        both(&output)
    );
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// A folder with a copy of a run, named `run`, that was trained once for all tests.
fn trained(method: &str) -> TempDir {
    static ONE_AT_A_TIME: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cifar-look");
    let mut there = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let run = shared.join(method);
    if !there.contains(&method.to_owned()) {
        fs::create_dir_all(&shared).unwrap();
        let _ = fs::remove_dir_all(&run);
        let train = [
            "train", "--out", method, "--method", method, "--epochs", "4",
        ];
        succeeds(&shared, &[&train[..], &TINY].concat());
        there.push(method.to_owned());
    }
    let temp = tempfile::tempdir().unwrap();
    copy(&run, &temp.path().join("run"));
    temp
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The losses of a landscape by their coordinates in hundredths.
fn losses(csv: &Path) -> HashMap<(i64, i64), Option<f64>> {
    let text = fs::read_to_string(csv).unwrap();
    let hundredths = |field: &str| (100.0 * field.parse::<f64>().unwrap()).round() as i64;
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let place = (hundredths(fields[0]), hundredths(fields[1]));
        (place, fields[2].parse().ok())
    };
    text.lines().skip(1).map(row).collect()
}

/// The loss of the whole network on the landscape's images: batch statistics, no noise.
fn loss_in_training_mode(run: &Path, images: usize) -> f64 {
    let trained = Trained::open(run, &Device::Cpu).unwrap();
    let set = trained.dataset(None).unwrap();
    let plan = Plan {
        batch: 32,
        seed: 0,
        augment: false,
    };
    let batches = Batches::training(&set, plan, 0, 0).take(images / 32);
    let losses = batches.map(|batch| {
        let (images, labels) = batch.into_tensors(&Device::Cpu).unwrap();
        let logits = trained.model.forward(&images, &Pass::train_noiseless());
        let nll = cross_entropy(&logits.unwrap(), &labels).unwrap();
        f64::from(nll.to_scalar::<f32>().unwrap())
    });
    let losses: Vec<f64> = losses.collect();
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn the_middle_of_a_landscape_is_the_loss_of_the_network() {
    let temp = trained("vmf");
    let run = temp.path().join("run");
    let expected = loss_in_training_mode(&run, 64);
    let close = |loss: f64| (loss - expected).abs() < 1e-5 * expected;
    for (layer, folder) in [
        ("features.0", "run/landscape"),
        ("features.8", "run/landscape/features.8"),
    ] {
        let arguments = [&["landscape", "run", "--layer", layer][..], &SMALL].concat();
        let printed = succeeds(temp.path(), &arguments);
        for words in [
            "97 points of 64 training images",
            "about",
            "correlation",
            "radius",
        ] {
            assert!(printed.contains(words), "{words}: {printed}");
        }
        let folder = temp.path().join(folder);
        let findings = json(&folder.join("landscape.json"));
        assert!(close(findings["loss"].as_f64().unwrap()), "{findings}");
        let one = losses(&folder.join("landscape-1d.csv"));
        let two = losses(&folder.join("landscape-2d.csv"));
        assert_eq!((one.len(), two.len()), (49, 49));
        let (line, plane) = (one[&(0, 100)].unwrap(), two[&(0, 0)].unwrap());
        assert!(close(line) && close(plane), "{expected} {line} {plane}");
        // The corner is far from trained weights, and the one point without a direction is left blank.
        assert!(two[&(150, 150)].unwrap() > 1.05 * expected, "{two:?}");
        let blank: Vec<_> = one.iter().filter(|(_, loss)| loss.is_none()).collect();
        assert_eq!(blank, [(&(0, 0), &None)]);
        // Where only one of the families' directions is in w', they meet.
        let meet = (one[&(150, 150)].unwrap() - two[&(100, 0)].unwrap()).abs();
        assert!(meet < 1e-3, "{meet}");
        let png = fs::read(folder.join("landscape.png")).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        let svg = fs::read_to_string(folder.join("landscape.svg")).unwrap();
        assert!(svg.contains("features.") && svg.contains("Measured"));
    }
}

#[test]
fn behind_a_normalization_the_loss_depends_on_direction_alone() {
    let temp = trained("vmf");
    succeeds(temp.path(), &[&["landscape", "run"][..], &SMALL].concat());
    let folder = temp.path().join("run/landscape");
    let one = losses(&folder.join("landscape-1d.csv"));
    let at = |x: i64, y: i64| one[&(x, y)].unwrap();
    for ray in [
        [(50, 25), (100, 50), (150, 75)],
        [(-50, 50), (-100, 100), (-150, 150)],
        [(0, 25), (0, 50), (0, 150)],
        [(50, 0), (100, 0), (150, 0)],
    ] {
        let [near, middle, far] = ray.map(|(x, y)| at(x, y));
        // eps in the normalization is all that knows the length; it counts most for short weights.
        assert!(
            (near - far).abs() < 2e-3 && (middle - far).abs() < 1e-3,
            "{ray:?}: {near} {middle} {far}"
        );
    }
    assert!(
        (at(150, 0) - at(0, 150)).abs() > 0.05,
        "the direction counts"
    );
    let findings = json(&folder.join("landscape.json"));
    let explained = findings["1d"]["explained"].as_f64().unwrap();
    // A grid this coarse cannot show more.
    assert!(explained > 0.97, "{explained}");
    let kappa = findings["posterior"]["kappa"].as_f64().unwrap();
    assert!(kappa > 1.0, "{kappa}");
}

#[test]
fn a_landscape_that_was_stopped_goes_on_to_the_very_same_numbers() {
    let temp = trained("vmf");
    let unbroken = [&["landscape", "run"][..], &SMALL].concat();
    succeeds(temp.path(), &unbroken);
    let folder = temp.path().join("run/landscape");
    let files = ["landscape-1d.csv", "landscape-2d.csv", "landscape.json"];
    let read = || files.map(|name| fs::read(folder.join(name)).unwrap());
    let before = read();

    // A process that was killed leaves a part of the points, and half a line.
    let journal = folder.join("points.jsonl");
    let points = fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = points.lines().collect();
    assert_eq!(lines.len(), 98);
    for kept in [1, 30, 60] {
        let part = lines[..kept].join("\n") + "\n" + &lines[kept][..10];
        fs::write(&journal, part).unwrap();
        for name in files {
            fs::remove_file(folder.join(name)).unwrap();
        }
        let printed = succeeds(temp.path(), &[&unbroken[..], &["--threads", "1"]].concat());
        let left = format!("{} points of", 98 - kept);
        assert!(printed.contains(&left), "{left}: {printed}");
        assert!(read() == before, "after {kept} lines");
    }
    // Nothing is left to measure.
    let printed = succeeds(temp.path(), &unbroken);
    assert!(!printed.contains("points of"), "{printed}");
    assert!(read() == before);
}

#[test]
fn ctrl_c_stops_a_landscape_and_keeps_its_points() {
    let temp = trained("vmf");
    let long = ["landscape", "run", "--points", "151", "--images", "64"];
    let child = cifar(temp.path(), &long).spawn().unwrap();
    let journal = temp.path().join("run/landscape/points.jsonl");
    let lines = || fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
    for _ in 0..6000 {
        if lines() > 5 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // While it goes on, no other may write to its points.
    fails(
        temp.path(),
        &long,
        &["landscape", "in use by another process"],
    );
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", both(&output));
    assert!(both(&output).contains("goes on"), "{}", both(&output));
    let kept = lines();
    assert!(kept > 5 && kept < 45_000, "{kept}");
    assert!(!temp.path().join("run/landscape/landscape.svg").exists());
}

#[test]
fn a_landscape_of_other_settings_or_weights_is_not_mixed_with() {
    let temp = trained("vmf");
    let with = |more: &[&'static str]| [&["landscape", "run"][..], &SMALL, more].concat();
    succeeds(temp.path(), &with(&[]));
    let arguments = ["landscape", "run", "--points", "7", "--images", "96"];
    fails(
        temp.path(),
        &arguments,
        &["--images 64 instead of 96", "--fresh"],
    );
    fails(
        temp.path(),
        &with(&["--seed", "5"]),
        &["--seed 0 instead of 5"],
    );
    let journal = temp.path().join("run/landscape/points.jsonl");
    let before = fs::read(&journal).unwrap();
    succeeds(temp.path(), &with(&["--seed", "5", "--fresh"]));
    assert_ne!(fs::read(&journal).unwrap(), before);
    let old = journal.with_extension("jsonl.old");
    assert_eq!(fs::read(old).unwrap(), before);

    // The run is trained for longer.
    let config = temp.path().join("run/config.json");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("\"epochs\": 4"), "{text}");
    let other = ["train", "--out", "other", "--seed", "3", "--epochs", "1"];
    succeeds(temp.path(), &[&other[..], &TINY].concat());
    fs::copy(
        temp.path().join("other/last.safetensors"),
        temp.path().join("run/last.safetensors"),
    )
    .unwrap();
    fails(
        temp.path(),
        &with(&["--seed", "5"]),
        &["other weights", "--fresh"],
    );
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
    fails(
        folder,
        &landscape(&["--images", "1000"]),
        &["--images is 1000", "320 training images"],
    );
    fails(folder, &["landscape", "nowhere"], &["nowhere", "no run"]);
    fails(
        folder,
        &["predict", "run", "x.png", "--top", "0"],
        &["--top"],
    );

    let config = folder.join("run/config.json");
    let text = fs::read_to_string(&config).unwrap();
    for (from, to, words) in [
        (
            "\"version\": 1",
            "\"version\": 99",
            ["version 99", "version 1"],
        ),
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

/// Writes an image of the training set as PNG, and returns its normalized form (1, channels, 32, 32).
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
fn predict(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let all = [&["predict"][..], arguments, &["--top", "10", "--json"]].concat();
    let printed = succeeds(folder, &all);
    let lines = printed.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn probability(answer: &Value, class: &str) -> f64 {
    let classes = answer["classes"].as_array().unwrap();
    let found = classes.iter().find(|found| found["class"] == class);
    found.unwrap()["probability"].as_f64().unwrap()
}

#[test]
fn a_picture_of_a_training_image_is_predicted_as_the_image_itself() {
    let temp = trained("vmf");
    let run = temp.path().join("run");
    let trained = Trained::open(&run, &Device::Cpu).unwrap();
    for (samples, reference) in [("0", Samples::mean()), ("8", Samples::monte_carlo(8, 0))] {
        for number in [0, 7] {
            let name = format!("{number}.png");
            let image = training_image(&run, number, &temp.path().join(&name));
            let expected = vmf_candle::predict(&trained.model, &image, reference).unwrap();
            let expected = expected.probs.flatten_all().unwrap();
            let answers = predict(temp.path(), &["run", &name, "--samples", samples]);
            assert_eq!(answers.len(), 1);
            let classes = &trained.config.interface.classes;
            for (class, expected) in classes.iter().zip(expected.to_vec1::<f32>().unwrap()) {
                let difference = probability(&answers[0], class) - f64::from(expected);
                assert!(difference.abs() < 1e-6, "{class}: {}", answers[0]);
            }
            let entropy = answers[0]["entropy"].as_f64().unwrap();
            let information = answers[0]["mutual_information"].as_f64().unwrap();
            assert!((0.0..=10_f64.ln()).contains(&entropy) && information <= entropy);
            assert_eq!(information > 0.0, samples == "8", "{}", answers[0]);
        }
    }
}

#[test]
fn a_network_without_noise_is_sure_of_what_it_says() {
    let temp = trained("map");
    let run = temp.path().join("run");
    training_image(&run, 3, &temp.path().join("a.png"));
    let answers = predict(temp.path(), &["run", "a.png", "--samples", "16"]);
    assert_eq!(answers[0]["samples"], 0);
    assert_eq!(answers[0]["mutual_information"], 0.0);
    let words = succeeds(temp.path(), &["predict", "run", "a.png"]);
    assert!(words.contains("entropy") && !words.contains('±'), "{words}");
    // Nor has it a posterior to compare a landscape with.
    succeeds(temp.path(), &[&["landscape", "run"][..], &SMALL].concat());
    let findings = json(&run.join("landscape/landscape.json"));
    assert!(findings["posterior"].is_null(), "{findings}");
}

#[test]
fn what_is_no_picture_is_named_and_the_others_go_on() {
    let temp = trained("vmf");
    let folder = temp.path();
    training_image(&folder.join("run"), 0, &folder.join("a.png"));
    let large = image::RgbImage::from_fn(500, 300, |x, y| image::Rgb([x as u8, y as u8, 50]));
    large.save(folder.join("b.jpg")).unwrap();
    let glass = image::GrayAlphaImage::from_pixel(20, 60, image::LumaA([200, 100]));
    glass.save(folder.join("c.png")).unwrap();
    fs::write(folder.join("notes.png"), "not a picture").unwrap();
    let bytes = fs::read(folder.join("b.jpg")).unwrap();
    fs::write(
        folder.join("torn.png"),
        &fs::read(folder.join("a.png")).unwrap()[..200],
    )
    .unwrap();
    // The name does not count: this is a JPEG.
    fs::write(folder.join("named.png"), bytes).unwrap();
    let pictures = [
        "a.png",
        "notes.png",
        "b.jpg",
        "missing.png",
        "torn.png",
        "c.png",
        "named.png",
    ];
    let output = cifar(folder, &[&["predict", "run"][..], &pictures].concat())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    for name in ["a.png", "b.jpg", "c.png", "named.png"] {
        assert!(said.contains(&format!("{name}\n")), "{name}: {said}");
    }
    assert_eq!(said.matches("entropy").count(), 4, "{said}");
    assert_eq!(said.matches('±').count(), 12, "three classes each: {said}");
    for (name, reason) in [
        ("notes.png", "neither PNG nor JPEG"),
        ("missing.png", "cannot be read"),
        ("torn.png", "damaged"),
    ] {
        let line = complaints.lines().find(|line| line.starts_with(name));
        assert!(
            line.is_some_and(|line| line.contains(reason)),
            "{complaints}"
        );
    }
    // Answers do not depend on their neighbours.
    let one_by_one: Vec<Value> = ["a.png", "b.jpg"]
        .iter()
        .flat_map(|name| predict(folder, &["run", name]))
        .collect();
    assert_eq!(predict(folder, &["run", "a.png", "b.jpg"]), one_by_one);
    assert_ne!(one_by_one[0]["classes"], one_by_one[1]["classes"]);
}

#[test]
fn an_exported_network_answers_as_its_run_does() {
    let temp = trained("vmf");
    let folder = temp.path();
    let run = folder.join("run");
    let image = training_image(&run, 5, &folder.join("a.png"));
    succeeds(folder, &["export", "run", "deep/exported"]);
    let exported = folder.join("deep/exported");
    let mut names: Vec<String> = fs::read_dir(&exported)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "README.md",
            "config.json",
            "metrics.jsonl",
            "model.safetensors"
        ]
    );
    assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1);

    // The data set is not needed, and neither is anything of the run.
    let answers = predict(folder, &["run", "a.png"]);
    fs::rename(&run, folder.join("gone")).unwrap();
    assert_eq!(predict(folder, &["deep/exported", "a.png"]), answers);

    let weights = fs::read(exported.join("model.safetensors")).unwrap();
    let stored = fs::read(folder.join("gone/last.safetensors")).unwrap();
    assert!(
        weights.len() < stored.len() / 2,
        "the optimizer's state is left out"
    );
    let metrics = |folder: &Path| fs::read(folder.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics(&exported), metrics(&folder.join("gone")));
    let card = fs::read_to_string(exported.join("README.md")).unwrap();
    assert!(card.starts_with("---\nlibrary_name: candle\n"), "{card}");
    let last = fs::read_to_string(folder.join("gone/metrics.jsonl")).unwrap();
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    let accuracy = format!("{:.4}", last["test"]["accuracy"].as_f64().unwrap());
    for words in ["cifar predict", "load_checkpoint", "features.25", &accuracy] {
        assert!(card.contains(words), "{words}: {card}");
    }
    assert!(json(&exported.join("config.json"))["machine"]["device"].is_null());

    // It is as good as a run to look at, and no run to go on with.
    succeeds(
        folder,
        &[&["landscape", "deep/exported"][..], &SMALL].concat(),
    );
    succeeds(folder, &["export", "deep/exported", "again"]);
    assert_eq!(
        fs::read(folder.join("again/model.safetensors")).unwrap(),
        weights
    );
    fails(
        folder,
        &["train", "--resume", "deep/exported"],
        &["exported network", "cannot go on"],
    );
    assert_eq!(metrics(&exported), metrics(&folder.join("gone")));
    python_agrees(&exported, &image);
}

/// Where there is PyTorch (`VMF_PYTHON` names the interpreter), it must compute the same logits from the exported file.
fn python_agrees(exported: &Path, image: &Tensor) {
    let python = std::env::var("VMF_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python)
        .args(["-c", "import torch, safetensors.torch"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: {python} has no torch and safetensors; set VMF_PYTHON to one that has");
        return;
    }
    let inputs = exported.with_extension("inputs");
    let images = HashMap::from([("images", image.clone())]);
    candle_core::safetensors::save(&images, &inputs).unwrap();
    let script = "../../crates/vmf-candle/python/load_checkpoint.py";
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script))
        .args([exported.join("model.safetensors"), inputs])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", both(&output));
    let theirs: Vec<Vec<f64>> = serde_json::from_slice(&output.stdout).unwrap();
    let trained = Trained::open(exported, &Device::Cpu).unwrap();
    let ours = trained.model.forward(image, &Pass::mean()).unwrap();
    let ours = ours.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (ours, theirs) in ours.iter().zip(&theirs[0]) {
        assert!((f64::from(*ours) - theirs).abs() < 1e-4, "{ours} {theirs}");
    }
}

#[test]
fn a_folder_in_use_is_not_exported_to() {
    let temp = trained("vmf");
    let folder = temp.path();
    fs::create_dir(folder.join("full")).unwrap();
    fs::write(folder.join("full/mine"), "keep").unwrap();
    fails(folder, &["export", "run", "full"], &["full is not empty"]);
    fails(folder, &["export", "run", "run"], &["run is not empty"]);
    fs::write(folder.join("file"), "keep").unwrap();
    fails(folder, &["export", "run", "file"], &["file is a file"]);
    fails(folder, &["export", "run", "file/inside"], &["file"]);
    fails(
        folder,
        &["export", "nowhere", "out"],
        &["nowhere", "no run"],
    );
    assert_eq!(
        fs::read_to_string(folder.join("full/mine")).unwrap(),
        "keep"
    );
    fs::create_dir(folder.join("empty")).unwrap();
    succeeds(folder, &["export", "run", "empty"]);
    let mut names: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(
        names,
        ["empty", "file", "full", "run"],
        "nothing is left behind"
    );
}

#[test]
fn looking_leaves_the_run_as_it_is() {
    let temp = trained("vmf");
    let folder = temp.path();
    let files = [
        "config.json",
        "metrics.jsonl",
        "last.safetensors",
        "best.safetensors",
    ];
    let read = || files.map(|name| fs::read(folder.join("run").join(name)).unwrap());
    let before = read();
    training_image(&folder.join("run"), 0, &folder.join("a.png"));
    succeeds(folder, &[&["landscape", "run"][..], &SMALL].concat());
    succeeds(folder, &["predict", "run", "a.png"]);
    succeeds(folder, &["export", "run", "out"]);
    assert!(read() == before);
    let output = cifar(folder, &["train", "--resume", "run"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", both(&output));
}
