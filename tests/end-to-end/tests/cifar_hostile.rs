//! Files that come from elsewhere and numbers that make no sense: whatever they hold, `cifar` ends
//! with a message, soon and without taking the machine's memory.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use end_to_end::cifar::{TINY, both, cifar, copy, failed, fails, succeeds, tiny};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Bytes of address space that a program may use here: enough for a tiny network, and far from what
/// a hostile file asks for.
const MEMORY: u64 = 3 << 30;

/// Runs `cifar` with little memory.
fn limited(folder: &Path, arguments: &[&str]) -> Output {
    let plain = cifar(folder, arguments);
    let limit = format!("ulimit -v {}; exec \"$@\"", MEMORY >> 10);
    Command::new("sh")
        .args(["-c", &limit, "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Changes a value of a JSON file by its path, such as `/settings/batch`.
fn change(file: &Path, pointer: &str, value: Value) {
    let mut contents: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    *contents.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    fs::write(file, contents.to_string()).unwrap();
}

#[test]
fn a_configuration_is_checked_as_the_command_line_is() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1", "--threads", "1"]);
    let (run, hostile) = (folder.join("run"), folder.join("hostile"));
    image::RgbImage::new(32, 32).save(folder.join("a.png")).unwrap();
    let huge = 1_u64 << 32;
    let long = "x".repeat(10_000);
    for (pointer, value) in [
        ("/settings/batch", json!(0)),
        ("/settings/batch", json!(1)),
        ("/settings/batch", json!(huge)),
        ("/settings/batch", json!(u64::MAX)),
        ("/settings/epochs", json!(0)),
        ("/settings/epochs", json!(u32::MAX)),
        ("/settings/width", json!(0.0)),
        ("/settings/width", json!(-1.0)),
        ("/settings/width", json!(8.0)),
        ("/settings/width", json!(1e300)),
        ("/settings/sigma", json!(0.0)),
        ("/settings/lr", json!(-1.0)),
        ("/settings/train_images", json!(huge)),
        ("/settings/train_images", json!(u64::MAX)),
        ("/settings/test_images", json!(u64::MAX)),
        ("/settings/label_noise", json!(1.0)),
        ("/interface/shape/channels", json!(0)),
        ("/interface/shape/channels", json!(2)),
        ("/interface/shape/channels", json!(huge)),
        ("/interface/shape/size", json!(0)),
        ("/interface/shape/size", json!(31)),
        ("/interface/shape/size", json!(huge)),
        ("/interface/normalization/mean", json!([])),
        ("/interface/normalization/mean", json!([0.5, 0.5, 0.5, 0.5])),
        ("/interface/normalization/deviation", json!([0.5, 0.5])),
        ("/interface/normalization/deviation", json!([0.5, 0.5, 0.0])),
        ("/interface/normalization/deviation", json!([0.5, 0.5, -1.0])),
        ("/interface/classes", json!([])),
        ("/interface/classes", json!(vec!["class"; 1_000])),
        ("/interface/classes/3", json!("")),
        ("/interface/classes/3", json!("\u{1b}[2Jcat")),
        ("/interface/classes/3", json!(long)),
        ("/machine/checkpoint_minutes", json!(-1.0)),
        ("/machine/checkpoint_epochs", json!(0)),
    ] {
        fs::remove_dir_all(&hostile).ok();
        copy(&run, &hostile);
        change(&hostile.join("config.json"), pointer, value);
        for arguments in [
            &["predict", "hostile", "a.png"][..],
            &["train", "--resume", "hostile"],
            &["train", "--config", "hostile/config.json", "--out", "new"],
        ] {
            eprintln!("{pointer}: {arguments:?}");
            failed(&limited(folder, arguments), &["config.json cannot be used"]);
        }
        assert!(!folder.join("new").exists());
    }
}

#[test]
fn a_checkpoint_is_compared_with_its_configuration_before_a_network_is_built() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    // Of the largest width that is allowed, and with more layers: gigabytes, if they were built.
    for (pointer, value) in [
        ("/settings/width", json!(4.0)),
        ("/settings/model", json!("vgg19")),
        ("/interface/classes", json!(["one", "two"])),
    ] {
        let hostile = folder.join("hostile");
        fs::remove_dir_all(&hostile).ok();
        copy(&folder.join("run"), &hostile);
        change(&hostile.join("config.json"), pointer, value);
        for arguments in [
            &["eval", "hostile"][..],
            &["export", "hostile", "out"],
            &["landscape", "hostile"],
            &["train", "--resume", "hostile"],
        ] {
            eprintln!("{pointer}: {arguments:?}");
            let output = limited(folder, arguments);
            failed(&output, &["last.safetensors is not the network that config.json describes"]);
        }
    }
    // A checkpoint that claims more than its file or its network can hold.
    let last = folder.join("run/last.safetensors");
    File::options().write(true).open(&last).unwrap().set_len(1 << 40).unwrap();
    failed(&limited(folder, &["eval", "run"]), &["last.safetensors", "1099511627776 bytes"]);
    let header = 60_u64 << 20;
    fs::write(&last, header.to_le_bytes()).unwrap();
    File::options().write(true).open(&last).unwrap().set_len(header + 8).unwrap();
    failed(&limited(folder, &["eval", "run"]), &["last.safetensors", "its header has"]);
}

/// Overwrites the values of a tensor in a checkpoint, or the first of them, and makes its checksum
/// right again.
fn poke(file: &Path, tensor: &str, value: f32, all: bool) {
    let mut bytes = fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let offsets = &header[tensor]["data_offsets"];
    let [start, end] = [0, 1].map(|i| 8 + length + offsets[i].as_u64().unwrap() as usize);
    let end = if all { end } else { start + 4 };
    for chunk in bytes[start..end].chunks_exact_mut(4) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    let digits = header["__metadata__"]["sha256"].as_str().unwrap().as_bytes();
    let at = bytes.windows(digits.len()).position(|part| part == digits).unwrap();
    bytes[at..at + 64].fill(b'0');
    let sum = Sha256::digest(&bytes);
    let digits: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes[at..at + 64].copy_from_slice(digits.as_bytes());
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_network_that_is_not_finite_is_refused_by_the_name_of_its_first_such_layer() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    image::RgbImage::new(32, 32).save(folder.join("a.png")).unwrap();
    let hostile = folder.join("hostile");
    let last = hostile.join("last.safetensors");
    let reset = || {
        fs::remove_dir_all(&hostile).ok();
        copy(&folder.join("run"), &hostile);
    };
    for (tensor, value) in [
        ("features.8.weight", f32::NAN),
        ("features.8.weight", f32::INFINITY),
        ("features.9.running_var", f32::INFINITY),
        ("features.9.running_var", -1.0),
        ("features.9.noise_free_var", f32::NAN),
        ("features.9.noise_free_mean", f32::NEG_INFINITY),
        ("features.0.rho", f32::NAN),
        ("classifier.bias", f32::NAN),
    ] {
        reset();
        poke(&last, tensor, value, false);
        for arguments in [
            &["predict", "hostile", "a.png"][..],
            &["predict", "hostile", "a.png", "--samples=0", "--json"],
            &["export", "hostile", "out"],
            &["eval", "hostile"],
        ] {
            eprintln!("{tensor} {value}: {arguments:?}");
            let output = cifar(folder, arguments).output().unwrap();
            failed(&output, &[tensor]);
            assert!(output.stdout.is_empty(), "{}", both(&output));
        }
        assert!(!folder.join("out").exists());
    }
    // Of several, the first: in the order of the network, not of the alphabet.
    reset();
    for tensor in ["features.18.weight", "features.8.weight", "classifier.weight"] {
        poke(&last, tensor, f32::NAN, false);
    }
    fails(folder, &["predict", "hostile", "a.png"], &["features.8.weight"]);

    // Finite weights whose sums are not.
    reset();
    poke(&last, "features.11.weight", 3e38, true);
    for samples in ["--samples=0", "--samples=4"] {
        let words = ["not finite", "features.11"];
        fails(folder, &["predict", "hostile", "a.png", samples], &words);
    }
}

#[test]
fn a_stored_evaluation_that_names_images_that_do_not_exist_is_made_again() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    succeeds(folder, &["eval", "run"]);
    let stored = folder.join("run/evaluation.json");
    for (pointer, value) in [
        ("/most_uncertain/0/image", json!(1_000_000)),
        ("/most_uncertain/0/label", json!(10)),
        ("/most_uncertain/0/predicted", json!(10)),
        ("/most_uncertain/0/probabilities", json!([0.5])),
    ] {
        change(&stored, pointer, value);
        succeeds(folder, &["report", "run"]);
        succeeds(folder, &["eval", "run"]);
    }
}

#[test]
fn numbers_that_cannot_be_meant_are_refused_with_a_limit() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let most = u64::MAX.to_string();
    let train = |flag: &str, value: &str| {
        let arguments = [&["train"][..], &TINY, &["--out", "run", flag, value]].concat();
        let output = limited(folder, &arguments);
        failed(&output, &["at most"]);
        assert!(!folder.join("run").exists(), "{flag} {value}: {}", both(&output));
    };
    for flag in ["--train-images", "--test-images"] {
        for value in ["200001", "4294967296", "1099511627776", &most] {
            train(flag, value);
        }
    }
    for (flag, value) in [
        ("--batch", most.as_str()),
        ("--epochs", "4294967295"),
        ("--width", "1e30"),
        ("--threads", "100000"),
        ("--threads", &most),
    ] {
        train(flag, value);
    }
    for arguments in [
        &["bench", "--batch", most.as_str()][..],
        &["bench", "--steps", &most],
        &["bench", "--warm-up", &most],
        &["bench", "--threads", "100000"],
        &["first-look", "--train-images", &most],
    ] {
        eprintln!("{arguments:?}");
        failed(&limited(folder, arguments), &["at most"]);
    }
}

#[test]
fn a_fifo_in_place_of_a_file_is_refused_instead_of_waited_for() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    image::RgbImage::new(32, 32).save(folder.join("a.png")).unwrap();
    let fifo = |path: &Path| {
        fs::remove_file(path).ok();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    fifo(&folder.join("fifo"));
    for (arguments, words) in [
        (&["predict", "run", "fifo"][..], &["fifo", "not a regular file"][..]),
        (&["predict", "run", "/dev/zero"], &["/dev/zero", "not a regular file"]),
        (&["train", "--config", "fifo"], &["fifo", "not a regular file"]),
    ] {
        fails(folder, arguments, words);
    }
    for (name, _) in cifar::data::cifar10::FILES {
        fifo(&folder.join(name));
    }
    fails(folder, &["train", "--data-dir", "."], &["data_batch_1.bin", "not a regular file"]);
    fifo(&folder.join("train-images-idx3-ubyte"));
    let fashion = ["train", "--data", "fashion-mnist", "--data-dir", "."];
    fails(folder, &fashion, &["train-images-idx3-ubyte", "not a regular file"]);

    // An evaluation that cannot be read is made again.
    fifo(&folder.join("run/evaluation.json"));
    succeeds(folder, &["report", "run"]);
    fs::create_dir(folder.join("run/landscape")).unwrap();
    fifo(&folder.join("run/landscape/points.jsonl"));
    fails(folder, &["landscape", "run"], &["points.jsonl", "not a regular file"]);
    fifo(&folder.join("run/landscape/landscape.svg"));
    fails(folder, &["report", "run"], &["landscape.svg", "not a regular file"]);

    for (file, words) in [
        ("last.safetensors", &["last.safetensors is not a regular file"][..]),
        ("metrics.jsonl", &["metrics.jsonl", "not a regular file"]),
        ("config.json", &["run"]),
        (".lock", &[".lock", "not a regular file"]),
    ] {
        let hostile = folder.join("hostile");
        fs::remove_dir_all(&hostile).ok();
        fs::create_dir(&hostile).unwrap();
        for name in ["config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"] {
            fs::copy(folder.join("run").join(name), hostile.join(name)).unwrap();
        }
        fifo(&hostile.join(file));
        fails(folder, &["train", "--resume", "hostile"], words);
    }
}

#[test]
fn names_and_classes_are_shown_and_not_obeyed() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    // A name that clears the screen, in every place where names are printed.
    let name = "a\u{1b}[2J\nb";
    image::RgbImage::new(32, 32).save(folder.join(format!("{name}.png"))).unwrap();
    fs::rename(folder.join("run"), folder.join(name)).unwrap();
    fs::write(folder.join(format!("{name}.txt")), "not a picture").unwrap();
    let (picture, text) = (format!("{name}.png"), format!("{name}.txt"));
    let missing = format!("{name}/missing");
    for arguments in [
        &["predict", name, &picture, &text][..],
        &["predict", name, &picture, &text, "--json"],
        &["predict", &missing, &picture],
        &["eval", name],
        &["report", name],
        &["compare", name],
        &["export", name, "a\u{1b}[2Jout"],
        &["landscape", name, "--points=5", "--images=32"],
        &["train", "--resume", name],
        &["train", "--resume", &missing],
    ] {
        let output = cifar(folder, arguments).output().unwrap();
        assert!(!both(&output).contains('\u{1b}'), "{arguments:?}: {}", both(&output));
        assert!(!both(&output).trim().is_empty(), "{arguments:?}");
    }

    // Class names of a foreign configuration are names in the model card, and nothing else.
    let config = folder.join(name).join("config.json");
    change(&config, "/interface/classes/0", json!("<script>alert(1)</script>"));
    change(&config, "/interface/classes/1", json!("![x](http://example.com/x.png)"));
    succeeds(folder, &["export", name, "out"]);
    let card = fs::read_to_string(folder.join("out/README.md")).unwrap();
    assert!(card.contains("\\<script\\>") && !card.contains("<script>"), "{card}");
    assert!(!card.contains("![x](http:"), "{card}");
}

#[test]
fn a_picture_that_is_cut_off_is_answered_with_a_warning() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    tiny(folder, "run", &["--epochs", "1"]);
    image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([(4 * x) as u8, (4 * y) as u8, 9]))
        .save(folder.join("whole.jpg"))
        .unwrap();
    let bytes = fs::read(folder.join("whole.jpg")).unwrap();
    fs::write(folder.join("cut.jpg"), &bytes[..bytes.len() - 40]).unwrap();
    let words = succeeds(folder, &["predict", "run", "whole.jpg", "cut.jpg"]);
    assert!(words.contains("cut.jpg\n  warning: the file is cut off"), "{words}");
    assert_eq!(words.matches("warning").count(), 1, "{words}");
    let lines = succeeds(folder, &["predict", "run", "whole.jpg", "cut.jpg", "--json"]);
    let answers: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(answers[0].get("warning").is_none(), "{lines}");
    assert!(answers[1]["warning"].as_str().unwrap().contains("cut off"), "{lines}");
}
