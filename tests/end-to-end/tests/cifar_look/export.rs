//! Networks to give away.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::{Device, Tensor};
use cifar::trained::Trained;
use serde_json::Value;
use vmf_candle::{Checkpoint, Forward, Pass};

use super::*;

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
    assert_eq!(names, ["README.md", "config.json", "metrics.jsonl", "model.safetensors"]);
    assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1);

    // The data set is not needed, and neither is anything of the run.
    let answers = classified(folder, &["run", "a.png"]);
    fs::rename(&run, folder.join("gone")).unwrap();
    assert_eq!(classified(folder, &["deep/exported", "a.png"]), answers);

    let weights = fs::read(exported.join("model.safetensors")).unwrap();
    let stored = fs::read(folder.join("gone/last.safetensors")).unwrap();
    assert!(weights.len() < stored.len() / 2, "the optimizer's state is left out");
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
    assert!(json(exported.join("config.json"))["machine"]["device"].is_null());

    // It is as good as a run to look at, and no run to go on with.
    succeeds(folder, &[&["landscape", "deep/exported"][..], &SMALL].concat());
    succeeds(folder, &["export", "deep/exported", "again"]);
    assert_eq!(fs::read(folder.join("again/model.safetensors")).unwrap(), weights);
    fails(
        folder,
        &["train", "--resume", "deep/exported"],
        &["exported network", "cannot be continued"],
    );
    assert_eq!(metrics(&exported), metrics(&folder.join("gone")));
    python_agrees(&exported, &image);

    // A temperature for the network without noise, which stays with it.
    succeeds(folder, &["export", "gone", "tempered", "--temperature"]);
    succeeds(folder, &["export", "tempered", "tempered-again"]);
    let config = |name: &str| {
        let checkpoint = Checkpoint::open(folder.join(name).join("model.safetensors")).unwrap();
        checkpoint.progress().config.clone()
    };
    let temperature = config("tempered")["temperature"].as_f64().unwrap();
    assert!((0.1..10.0).contains(&temperature), "{temperature}");
    assert_eq!(config("tempered-again"), config("tempered"));
    assert!(config("again").get("temperature").is_none());
    let card = fs::read_to_string(folder.join("tempered/README.md")).unwrap();
    assert!(card.contains(&format!("model.temperature).softmax(1)  # {temperature:.4}")), "{card}");
}

#[test]
fn residual_networks_and_transformers_open_in_python() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let image = Tensor::randn(0f32, 1.0, (1, 3, 32, 32), &Device::Cpu).unwrap();
    for (model, width) in [("resnet20", "0.25"), ("vit", "0.3")] {
        let arguments =
            ["train", "--data", "synthetic", "--train-images", "96", "--test-images", "40"];
        let network = ["--model", model, "--width", width, "--batch", "32", "--epochs", "1"];
        let rest = ["--statistics-images", "64", "--device", "cpu", "--out", model];
        succeeds(folder, &[&arguments[..], &network, &rest].concat());
        let exported = format!("{model}-exported");
        succeeds(folder, &["export", model, &exported]);
        python_agrees(&folder.join(exported), &image);
    }
}

/// Where there is PyTorch (`VMF_PYTHON` names the interpreter), it must compute the same logits
/// from the exported file.
fn python_agrees(exported: &Path, image: &Tensor) {
    let python = std::env::var("VMF_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python).args(["-c", "import torch, safetensors.torch"]).output();
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
    fails(folder, &["export", "nowhere", "out"], &["nowhere", "no run"]);
    assert_eq!(fs::read_to_string(folder.join("full/mine")).unwrap(), "keep");
    fs::create_dir(folder.join("empty")).unwrap();
    succeeds(folder, &["export", "run", "empty"]);
    let mut names: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["empty", "file", "full", "run"], "nothing is left behind");
}
