//! A checkpoint in PyTorch: python/load_checkpoint.py must reproduce the logits.
//!
//! If Python has PyTorch and safetensors (the interpreter is `python3`, or what `VMF_PYTHON`
//! names), the script runs a fresh checkpoint. In any case a stored checkpoint is loaded and
//! compared with its stored PyTorch logits, which also shows that old files stay readable.
//! `VMF_WRITE_GOLDEN=1` writes that pair anew.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use common::{Model, PLAN, images, largest_difference, small_vgg, values};
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use vmf_candle::prelude::*;

const TOLERANCE: f64 = 1e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn python() -> String {
    std::env::var("VMF_PYTHON").unwrap_or_else(|_| "python3".into())
}

fn has_pytorch() -> bool {
    let probe = Command::new(python()).args(["-c", "import torch, safetensors.torch"]).output();
    probe.is_ok_and(|output| output.status.success())
}

/// What PyTorch makes of a checkpoint.
fn logits_of_pytorch(checkpoint: &Path, images: &Tensor) -> Result<Vec<f64>> {
    let inputs = checkpoint.with_extension("inputs");
    candle_core::safetensors::save(&HashMap::from([("images", images.clone())]), &inputs)?;
    let output = Command::new(python())
        .arg(folder("python/load_checkpoint.py"))
        .args([checkpoint, &inputs])
        .output()?;
    std::fs::remove_file(&inputs)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "load_checkpoint.py failed: {complaint}");
    let logits: Vec<Vec<f64>> = serde_json::from_slice(&output.stdout).unwrap();
    Ok(logits.concat())
}

/// A model whose two sets of statistics differ, so that taking the wrong one shows.
fn model() -> Result<Model> {
    let model = Model::new(11)?;
    for step in 0..5 {
        model.forward(&images(16, 16 * step)?.0, &Pass::train(1, step as u32))?;
    }
    reestimate(&model, &model.posterior, (0..5).map(|batch| Ok(images(16, 16 * batch)?.0)))?;
    Ok(model)
}

fn save(model: &Model, path: &Path) -> Result<()> {
    let progress = Progress { config: json!({ "plan": PLAN }), ..Default::default() };
    Checkpoint::capture(&model.vars, &model.posterior, None, progress)?.save(path)?;
    Ok(())
}

#[test]
fn pytorch_reproduces_the_logits() -> Result<()> {
    if !has_pytorch() {
        // Written past the test harness, which would hide it.
        let python = python();
        writeln!(
            std::io::stderr(),
            "SKIPPED pytorch_reproduces_the_logits: {python} has no torch and safetensors; set VMF_PYTHON to one that has"
        )?;
        return Ok(());
    }
    let path = std::env::temp_dir().join(format!("vmf-candle-{}.safetensors", std::process::id()));
    let (model, (xs, _)) = (model()?, images(7, 100)?);
    save(&model, &path)?;
    let theirs = logits_of_pytorch(&path, &xs)?;
    std::fs::remove_file(&path)?;
    let ours = values(&model.forward(&xs, &Pass::mean())?);
    let difference = largest_difference(&ours, &theirs);
    assert!(difference < TOLERANCE, "logits differ by {difference:e}");
    Ok(())
}

#[test]
fn a_stored_checkpoint_gives_the_logits_that_pytorch_gave() -> Result<()> {
    let path = folder("tests/golden/small_vgg.safetensors");
    let stored = folder("tests/golden/small_vgg_logits.json");
    let (xs, _) = images(7, 100)?;
    if std::env::var_os("VMF_WRITE_GOLDEN").is_some() {
        save(&model()?, &path)?;
        let logits = serde_json::to_string(&logits_of_pytorch(&path, &xs)?).unwrap();
        std::fs::write(&stored, logits)?;
    }
    let checkpoint = Checkpoint::open(&path)?;
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let network = small_vgg(&PLAN, &Posterior::new(), vb)?;
    let ours = values(&network.forward(&xs, &Pass::mean())?);
    let theirs: Vec<f64> = serde_json::from_str(&std::fs::read_to_string(stored)?).unwrap();
    let difference = largest_difference(&ours, &theirs);
    assert!(difference < TOLERANCE, "logits differ by {difference:e}");
    Ok(())
}
