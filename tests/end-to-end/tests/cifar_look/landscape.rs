//! The loss around trained weights.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::Device;
use cifar::data::batches::{Batches, Plan};
use cifar::trained::Trained;
use end_to_end::cifar::Running;
use vmf_candle::{Forward, Pass, cross_entropy};

use super::*;

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
    let plan = Plan { batch: 32, seed: 0, augment: false };
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
    for (layer, folder) in
        [("features.0", "run/landscape"), ("features.8", "run/landscape/features.8")]
    {
        let arguments = [&["landscape", "run", "--layer", layer][..], &SMALL].concat();
        let printed = succeeds(temp.path(), &arguments);
        for words in ["97 points of 64 training images", "about", "correlation", "radius"] {
            assert!(printed.contains(words), "{words}: {printed}");
        }
        let folder = temp.path().join(folder);
        let findings = json(folder.join("landscape.json"));
        assert!(close(findings["loss"].as_f64().unwrap()), "{findings}");
        let one = losses(&folder.join("landscape-1d.csv"));
        let two = losses(&folder.join("landscape-2d.csv"));
        assert_eq!((one.len(), two.len()), (49, 49));
        let (line, plane) = (one[&(0, 100)].unwrap(), two[&(0, 0)].unwrap());
        assert!(close(line) && close(plane), "{expected} {line} {plane}");
        // The corner is far from trained weights, and the one point without a direction is left
        // blank.
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
    assert!((at(150, 0) - at(0, 150)).abs() > 0.05, "the direction counts");
    let findings = json(folder.join("landscape.json"));
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
    // 180,600 points take minutes on any machine.
    let long = ["landscape", "run", "--points", "301", "--images", "64"];
    let journal = temp.path().join("run/landscape/points.jsonl");
    let lines = || fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
    let mut landscape = Running::start(temp.path(), &long);
    landscape.wait_until(|| lines() > 5);
    // Until it ends, no other process may write to its points.
    fails(temp.path(), &long, &["landscape", "in use by another process"]);
    landscape.signal("-INT");
    let (status, printed) = landscape.finish();
    assert_eq!(status.code(), Some(130), "{printed}");
    assert!(printed.contains("the same command continues"), "{printed}");
    assert!(lines() > 5);
    assert!(!temp.path().join("run/landscape/landscape.svg").exists());
}

#[test]
fn a_landscape_of_other_settings_or_weights_is_not_mixed_with() {
    let temp = trained("vmf");
    let with = |more: &[&'static str]| [&["landscape", "run"][..], &SMALL, more].concat();
    succeeds(temp.path(), &with(&[]));
    let arguments = ["landscape", "run", "--points", "7", "--images", "96"];
    fails(temp.path(), &arguments, &["--images 64 instead of 96", "--fresh"]);
    fails(temp.path(), &with(&["--seed", "5"]), &["--seed 0 instead of 5"]);
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
    let other = ["--out", "other", "--seed", "3", "--epochs", "1"];
    succeeds(temp.path(), &[&["train"], &TINY[..], &MORE, &other].concat());
    fs::copy(temp.path().join("other/last.safetensors"), temp.path().join("run/last.safetensors"))
        .unwrap();
    fails(temp.path(), &with(&["--seed", "5"]), &["other weights", "--fresh"]);
}
