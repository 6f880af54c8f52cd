//! A residual network through every command: trained, stopped, resumed, evaluated, reported,
//! looked at, exported, and used for predictions.

use std::fs;

use end_to_end::cifar::{Running, TINY, assert_same, json, metrics, number, succeeds, tiny};

/// What makes the small network a residual one.
const RESNET: [&str; 4] = ["--model", "resnet20", "--width", "0.25"];

#[test]
fn a_residual_network_learns_and_every_command_takes_it() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let more = ["--beta", "0.1", "--lr", "3e-3"];
    tiny(folder, "run", &[&RESNET[..], &more].concat());
    let run = folder.join("run");
    let lines = metrics(&run);
    assert_eq!(lines.len(), 3);
    let (begin, end) = (&lines[0], &lines[2]);
    assert!(number(end, &["running_nll"]) < 0.9 * number(begin, &["running_nll"]), "{lines:?}");
    // One sigma_eff for each convolution: 19, and the projections of two stages.
    assert_eq!(end.matches("\"layer\":").count(), 21, "{end}");
    let config = json(run.join("config.json"));
    assert_eq!(config["settings"]["model"], "resnet20");

    let printed = succeeds(folder, &["eval", "run"]);
    assert!(printed.contains("resnet20 of width 0.25"), "{printed}");
    assert!(printed.contains("expected"), "{printed}");
    succeeds(folder, &["report", "run"]);
    succeeds(folder, &["export", "run", "exported"]);
    let printed = succeeds(folder, &["eval", "exported"]);
    assert!(printed.contains("resnet20"), "{printed}");
    let landscape = ["landscape", "run", "--layer", "layer2.0.conv1", "--points", "5"];
    succeeds(folder, &[&landscape[..], &["--images", "32"]].concat());
}

#[test]
fn a_residual_network_that_was_stopped_continues_exactly() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let arguments = [&TINY[..], &RESNET, &["--beta", "0.1", "--epochs", "8"]].concat();
    let train = |out: &'static str| [&["train"], &arguments[..], &["--out", out]].concat();
    succeeds(folder, &train("whole"));
    let mut running = Running::start(folder, &train("stopped"));
    assert!(running.steps(4));
    running.signal("-INT");
    let (status, printed) = running.finish();
    assert_eq!(status.code(), Some(130), "{printed}");
    succeeds(folder, &["train", "--resume", "stopped"]);
    assert_same(&folder.join("whole"), &folder.join("stopped"));
}

#[test]
fn a_configuration_from_before_there_were_models_is_one_of_vgg() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1", "--beta", "0.1"]);
    let config = folder.join("run/config.json");
    let before = fs::read_to_string(&config).unwrap();
    let old = before.replacen("\"model\": \"vgg11\"", "\"depth\": \"vgg11\"", 1);
    assert_ne!(old, before);
    fs::write(&config, old).unwrap();
    assert!(succeeds(folder, &["eval", "run"]).contains("vgg11"));
}
