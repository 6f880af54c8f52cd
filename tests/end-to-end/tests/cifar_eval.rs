//! `cifar eval`, `compare`, `report` and the first look.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use end_to_end::cifar::{Running, TINY, both, cifar, copy, fails, json, succeeds};
use serde_json::Value;
use tempfile::TempDir;

/// What these networks have besides [`TINY`]. Three tenths of the labels are wrong, so that no
/// network is right on every image.
const MORE: [&str; 4] = ["--label-noise=0.3", "--lr=3e-3", "--threads", "2"];

/// Runs that several tests use and none changes.
const SHARED: [(&str, [&str; 2]); 5] = [
    ("vmf0", ["--method=vmf", "--seed=0"]),
    ("vmf1", ["--method=vmf", "--seed=1"]),
    ("none0", ["--method=none", "--seed=0"]),
    ("none1", ["--method=none", "--seed=1"]),
    ("map0", ["--method=map", "--seed=0"]),
];

/// The folder of the shared runs. It is removed when the last test that holds it ends.
fn shared() -> Arc<TempDir> {
    static FOLDER: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(folder) = folder.upgrade() {
        return folder;
    }
    let made = Arc::new(tempfile::tempdir().unwrap());
    for (name, method) in SHARED {
        let arguments = [&["train"][..], &TINY, &MORE, &["--out", name], &method].concat();
        succeeds(made.path(), &arguments);
    }
    *folder = Arc::downgrade(&made);
    made
}

/// Copies of shared runs in a folder of the test's own.
fn copies(names: &[&str]) -> TempDir {
    let shared = shared();
    let own = tempfile::tempdir().unwrap();
    for name in names {
        copy(&shared.path().join(name), &own.path().join(name));
    }
    own
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * a.abs().max(1.0), "{a} is not {b}");
}

/// The scores of a way in an evaluation.
fn way<'a>(evaluation: &'a Value, name: &str) -> &'a Value {
    let ways = evaluation["ways"].as_array().unwrap();
    let found = ways.iter().find(|measured| measured["way"] == name);
    found.unwrap_or_else(|| panic!("there is no {name} in {evaluation}"))
}

fn last_record(run: &Path) -> Value {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn scores_are_those_of_training_and_follow_from_their_bins() {
    let own = copies(&["vmf0"]);
    let printed = succeeds(own.path(), &["eval", "vmf0", "--json", "--samples=4"]);
    let evaluation: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(json(own.path().join("vmf0/evaluation.json")), evaluation);

    // Training scored the same network on the same images after its last epoch.
    let record = last_record(&own.path().join("vmf0"));
    let expected = &way(&evaluation, "expected")["all"];
    for score in ["accuracy", "nll", "ece"] {
        close(number(&expected[score]), number(&record["test"][score]));
    }
    let protocol = &evaluation["protocol"];
    assert_eq!(protocol["test_images"], 100);
    assert_eq!((&protocol["fit_on"], &protocol["fit_images"]), (&"held_out".into(), &17.into()));
    for measured in evaluation["ways"].as_array().unwrap() {
        let tempered = &measured["tempered"];
        assert!(number(&tempered["fit_nll_after"]) <= number(&tempered["fit_nll_before"]) + 1e-12);
        for (quality, images) in
            [(&measured["all"], 100.0), (&tempered["before"], 100.0), (&tempered["after"], 100.0)]
        {
            let bins = quality["bins"].as_array().unwrap();
            let sum = |of: &dyn Fn(&Value) -> f64| bins.iter().map(of).sum::<f64>();
            assert_eq!(sum(&|bin| number(&bin["count"])), images);
            let right = sum(&|bin| number(&bin["count"]) * number(&bin["accuracy"]));
            close(right / images, number(&quality["accuracy"]));
            let gaps = sum(&|bin| {
                let gap = number(&bin["confidence"]) - number(&bin["accuracy"]);
                number(&bin["count"]) * gap.abs()
            });
            close(gaps / images, number(&quality["ece"]));
            assert!((0.0..=10_f64.ln()).contains(&number(&quality["entropy"])));
            assert!((0.0..=2.0).contains(&number(&quality["brier"])));
        }
        // A temperature changes how sure the network is, not what it says.
        assert_eq!(tempered["before"]["accuracy"], tempered["after"]["accuracy"]);
    }
    // Only samples can disagree with each other, and noise-free statistics differ from those under
    // noise.
    let mean = &way(&evaluation, "mean")["all"];
    assert!(mean["mutual_information"].is_null());
    for name in ["expected", "monte_carlo"] {
        assert!(number(&way(&evaluation, name)["all"]["mutual_information"]) > 0.0);
    }
    assert_ne!(mean["nll"], way(&evaluation, "mean_as_trained")["all"]["nll"]);

    // The images that are worth looking at are what their names say.
    let uncertain = evaluation["most_uncertain"].as_array().unwrap();
    let entropy = |example: &Value| -> f64 {
        let probabilities = example["probabilities"].as_array().unwrap();
        let terms = probabilities.iter().map(|p| number(p).max(1e-300));
        terms.map(|p| -p * p.ln()).sum()
    };
    assert!(uncertain.windows(2).all(|pair| entropy(&pair[0]) >= entropy(&pair[1])));
    close(entropy(&uncertain[0]), number(&uncertain[0]["entropy"]));
    let wrong = evaluation["confidently_wrong"].as_array().unwrap();
    assert!(
        !wrong.is_empty() && wrong.iter().all(|example| example["label"] != example["predicted"])
    );
}

#[test]
fn evaluation_repeats_and_its_seed_changes_the_samples_alone() {
    let own = copies(&["none0"]);
    let evaluate = |more: &[&str]| -> Value {
        let arguments = [&["eval", "none0", "--json", "--threads=1"], more].concat();
        serde_json::from_str(&succeeds(own.path(), &arguments)).unwrap()
    };
    let first = evaluate(&[]);
    assert_eq!(first, evaluate(&["--samples=8", "--seed=0"]));
    let other = evaluate(&["--seed=7"]);
    assert_eq!(way(&first, "mean"), way(&other, "mean"));
    assert_ne!(way(&first, "monte_carlo")["all"], way(&other, "monte_carlo")["all"]);
    let fewer = evaluate(&["--test-images=40"]);
    assert_eq!(fewer["protocol"]["test_images"], 40);
    assert_eq!(fewer["protocol"]["fit_images"], 17);
}

#[test]
fn a_network_without_noise_has_no_samples_and_is_told_so() {
    let own = copies(&["map0"]);
    let printed = succeeds(own.path(), &["eval", "map0"]);
    for words in [
        "noise off, as trained",
        "without noise: there is nothing to sample",
        "fitted to 17 training images that were held out",
        "on the 100 test images",
    ] {
        assert!(printed.contains(words), "{words:?} is not in: {printed}");
    }
    assert!(!printed.contains("8 samples"), "{printed}");
    let evaluation = json(own.path().join("map0/evaluation.json"));
    let ways: Vec<&str> =
        evaluation["ways"].as_array().unwrap().iter().map(|m| m["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["mean", "mean_as_trained"]);
}

#[test]
fn a_comparison_averages_over_seeds_and_measures_against_the_baseline() {
    let own = copies(&["vmf0", "vmf1", "none0", "none1", "map0"]);
    let runs = ["vmf0", "none0", "vmf1", "map0", "none1"];
    let printed = succeeds(own.path(), &[&["compare"][..], &runs, &["--out=out"]].concat());
    assert!(printed.contains("none (no KL)") && printed.contains("±"), "{printed}");
    assert!(printed.contains("out/report.html"), "{printed}");

    let out = own.path().join("out");
    let comparison = json(out.join("comparison.json"));
    let groups = comparison["groups"].as_array().unwrap();
    let labels: Vec<&str> = groups.iter().map(|group| group["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["vmf", "none (no KL)", "map (no noise)"]);
    assert_eq!(comparison["baseline"], "none (no KL)");

    // The same means and deviations from the evaluations that the runs keep.
    let evaluation = |run: &str| json(own.path().join(run).join("evaluation.json"));
    let of =
        |run: &str, name: &str, score: &str| number(&way(&evaluation(run), name)["all"][score]);
    let baseline = (of("none0", "mean", "ece") + of("none1", "mean", "ece")) / 2.0;
    for (group, [a, b]) in [(&groups[0], ["vmf0", "vmf1"]), (&groups[1], ["none0", "none1"])] {
        for (entry, name) in
            group["ways"].as_array().unwrap().iter().zip(["mean", "expected", "monte_carlo"])
        {
            assert_eq!(entry["way"], name);
            for score in ["accuracy", "nll", "brier", "ece"] {
                let (a, b) = (of(a, name, score), of(b, name, score));
                close(number(&entry["scores"][score]["mean"]), (a + b) / 2.0);
                // Two values deviate by their distance over the root of two.
                close(number(&entry["scores"][score]["deviation"]), (a - b).abs() / 2_f64.sqrt());
            }
            let ece = number(&entry["scores"]["ece"]["mean"]);
            close(number(&entry["ece_ratio"]), baseline / ece);
        }
    }
    assert_eq!(groups[2]["ways"].as_array().unwrap().len(), 1);
    assert!(groups[2]["ways"][0]["scores"]["ece"]["deviation"].is_null());
    assert_eq!(groups[0]["sigma_eff"].as_array().unwrap().len(), 8);

    // The numbers of the CSV are those of the JSON.
    let csv = fs::read_to_string(out.join("comparison.csv")).unwrap();
    let (header, rows) = csv.split_once('\n').unwrap();
    let column = header.split(',').position(|name| name == "ece").unwrap();
    assert_eq!(rows.lines().count(), 7);
    let first: f64 = rows.split(',').nth(column).unwrap().parse().unwrap();
    close(first, number(&groups[0]["ways"][0]["scores"]["ece"]["mean"]));

    let svg = fs::read_to_string(out.join("comparison.svg")).unwrap();
    for title in [
        "(A) Accuracy",
        "(B) Likelihood",
        "(C) Calibration",
        "(D) Calibration error",
        "(E) Noise in training",
        "(F) Noise of each layer",
    ] {
        assert!(svg.contains(title), "{title}");
    }
    assert!(!svg.contains("NaN"));
    assert!(fs::read(out.join("comparison.png")).unwrap().starts_with(b"\x89PNG"));
    asks_nobody(&fs::read_to_string(out.join("report.html")).unwrap());
}

/// A page that needs no network.
fn asks_nobody(html: &str) {
    for reference in ["src=\"http", "href=\"http", "url(http", "@import", "<script"] {
        assert!(!html.contains(reference), "{reference}");
    }
}

#[test]
fn one_run_without_noise_can_be_compared_and_the_baseline_chosen() {
    let own = copies(&["map0", "vmf0"]);
    succeeds(own.path(), &["compare", "map0", "--out=one"]);
    let svg = fs::read_to_string(own.path().join("one/comparison.svg")).unwrap();
    assert!(svg.contains("(D) Calibration error") && !svg.contains("(E)"));
    // Without a run of `none` the first is the baseline, unless another is named.
    for (more, baseline) in [(None, "map (no noise)"), (Some("--baseline=vmf0"), "vmf")] {
        let mut arguments = vec!["compare", "map0", "vmf0", "--out=two"];
        arguments.extend(more);
        succeeds(own.path(), &arguments);
        assert_eq!(json(own.path().join("two/comparison.json"))["baseline"], baseline);
    }
}

#[test]
fn an_evaluation_is_used_again_until_network_or_protocol_change() {
    let own = copies(&["vmf0"]);
    succeeds(own.path(), &["eval", "vmf0"]);
    // A number that no evaluation finds shows which one was used.
    let file = own.path().join("vmf0/evaluation.json");
    let mark = |change: &dyn Fn(&mut Value)| {
        let mut evaluation = json(&file);
        evaluation["ways"][0]["all"]["accuracy"] = 0.123456.into();
        change(&mut evaluation);
        fs::write(&file, evaluation.to_string()).unwrap();
    };
    let accuracy = |more: &[&str]| {
        succeeds(own.path(), &[&["compare", "vmf0", "--out=out"], more].concat());
        let comparison = json(own.path().join("out/comparison.json"));
        number(&comparison["groups"][0]["ways"][0]["scores"]["accuracy"]["mean"])
    };
    mark(&|_| {});
    assert_eq!(accuracy(&[]), 0.123456);
    assert_ne!(accuracy(&["--samples=2"]), 0.123456);
    mark(&|evaluation| evaluation["protocol"]["samples"] = 8.into());
    assert_eq!(accuracy(&[]), 0.123456);
    for change in [
        (&|evaluation: &mut Value| evaluation["network"]["step"] = 29.into())
            as &dyn Fn(&mut Value),
        &|evaluation| evaluation["network"]["epoch"] = 2.into(),
        &|evaluation| evaluation["network"]["settings"]["beta"] = 0.5.into(),
        &|evaluation| evaluation["version"] = 0.into(),
    ] {
        mark(change);
        assert_ne!(accuracy(&[]), 0.123456);
    }
    fs::write(&file, "half a fi").unwrap();
    assert_ne!(accuracy(&[]), 0.123456);
}

#[test]
fn a_report_is_one_file_with_everything_in_it() {
    let own = copies(&["vmf0", "map0"]);
    let landscape = own.path().join("vmf0/landscape");
    fs::create_dir(&landscape).unwrap();
    fs::write(landscape.join("landscape.svg"), "<svg xmlns=\"http://www.w3.org/2000/svg\"/>")
        .unwrap();
    let printed = succeeds(own.path(), &["report", "vmf0"]);
    assert!(printed.contains("vmf0/report.html"), "{printed}");
    let html = fs::read_to_string(own.path().join("vmf0/report.html")).unwrap();
    asks_nobody(&html);
    for words in [
        "Scores",
        "Training",
        "Calibration",
        "Noise",
        "Images",
        "Loss landscape",
        "Configuration",
        "T = 1, ECE",
        "features.0",
        "Least certain",
        "true: ",
        "label noise",
    ] {
        assert!(html.contains(words), "{words:?} is not in the report");
    }
    // Uncertain images, and wrong ones as far as there are any.
    let evaluation = json(own.path().join("vmf0/evaluation.json"));
    let pictures = ["most_uncertain", "confidently_wrong"]
        .map(|list| evaluation[list].as_array().unwrap().len());
    assert_eq!(html.matches("src=\"data:image/png;base64,").count(), pictures[0] + pictures[1]);
    assert_eq!(html.matches("data:image/svg+xml;base64,").count(), 1);

    // Without noise there is no noise to describe, nor a mutual information.
    succeeds(own.path(), &["report", "map0", "--out=elsewhere.html"]);
    let html = fs::read_to_string(own.path().join("elsewhere.html")).unwrap();
    assert!(!html.contains("features.0") && !html.contains("not knowing the weights"));
    assert!(!html.contains("Loss landscape"));
}

#[test]
fn a_first_look_trains_compares_and_goes_on_where_it_stopped() {
    let temp = tempfile::tempdir().unwrap();
    let first =
        |more: &[&str]| cifar(temp.path(), &[&["first-look"][..], &TINY, &MORE, more].concat());
    // The first training has more steps than the program can be ahead of the test.
    let long = ["--epochs=12", "--checkpoint-minutes=0"];
    let records = temp.path().join("runs/first/none/metrics.jsonl");
    let mut look = Running::start_command(first(&long));
    // The program must listen before the first file of the run appears.
    look.wait_until(|| records.exists());
    look.signal("-INT");
    let (status, printed) = look.finish();
    assert_eq!(status.code(), Some(130), "{printed}");
    assert!(printed.contains("same command"), "{printed}");
    assert!(!temp.path().join("runs/first/report.html").exists());

    let output = first(&long).output().unwrap();
    let printed = both(&output);
    assert!(output.status.success(), "{printed}");
    for words in [
        "two networks",
        "takes about",
        "continuing runs/first/none",
        "baseline ECE / ECE",
        "in one deterministic pass vmf",
        "runs/first/report.html",
        "runs/first/vmf/report.html",
    ] {
        assert!(printed.contains(words), "{words:?} is not in: {printed}");
    }
    for file in
        ["report.html", "comparison.svg", "comparison.json", "none/report.html", "vmf/report.html"]
    {
        assert!(temp.path().join("runs/first").join(file).is_file(), "{file}");
    }
    // The estimate comes before any training.
    assert!(printed.find("takes about") < printed.find("epoch "), "{printed}");

    // Nothing is trained twice.
    let metrics = fs::read(&records).unwrap();
    let output = first(&long).output().unwrap();
    let printed = both(&output);
    assert!(output.status.success(), "{printed}");
    assert_eq!(printed.matches("is trained already").count(), 2, "{printed}");
    assert_eq!(fs::read(&records).unwrap(), metrics);

    let other = [&["first-look"][..], &TINY, &MORE, &["--epochs=5"]].concat();
    fails(temp.path(), &other, &["runs/first/none", "other settings", "--out"]);
    fails(temp.path(), &["first-look", "--method=vmf"], &["cifar train"]);
}

#[test]
fn mistakes_are_named() {
    let own = copies(&["vmf0", "none0"]);
    let folder = own.path();
    let commands = ["eval", "report", "compare"];
    for command in commands {
        fails(folder, &[command, "nowhere"], &["nowhere", "holds no run"]);
    }
    fails(folder, &["eval", "vmf0", "--samples=0"], &["--samples"]);
    fails(folder, &["eval", "vmf0", "--test-images=1"], &["--test-images 2"]);
    fails(folder, &["compare", "vmf0", "./vmf0"], &["named twice"]);
    fails(folder, &["compare", "vmf0", "--baseline=none0"], &["none0", "not among"]);

    // Another version of the folder, other images, another shape, half a file, no network.
    let config = fs::read_to_string(folder.join("none0/config.json")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(config.contains(from), "{from} is not in {config}");
        fs::write(folder.join("none0/config.json"), config.replacen(from, to, 1)).unwrap();
    };
    with("\"version\": 1", "\"version\": 2");
    fails(folder, &["eval", "none0"], &["version 2", "version 1"]);
    with("\"label_noise\": 0.3", "\"label_noise\": 0.2");
    fails(folder, &["compare", "vmf0", "none0"], &["vmf0", "none0", "same images", "0.2"]);
    with("\"width\": 0.0625", "\"width\": 0.125");
    fails(folder, &["report", "none0"], &["last.safetensors", "config.json", "do not fit"]);
    with("\"seed\": 0", "\"seed\": 0");
    let last = folder.join("none0/last.safetensors");
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
    for command in commands {
        fails(folder, &[command, "none0"], &["last.safetensors", "not a usable checkpoint"]);
    }
    fs::remove_file(&last).unwrap();
    fails(folder, &["eval", "none0"], &["no trained network"]);
}

#[test]
fn a_run_that_has_not_finished_an_epoch_has_nothing_to_evaluate() {
    let temp = tempfile::tempdir().unwrap();
    let long = ["train", "--out=young", "--train-images=20000"];
    let mut training =
        Running::start(temp.path(), &[&long[..1], &TINY, &MORE, &long[1..]].concat());
    assert!(training.steps(1));
    training.signal("-INT");
    let (status, printed) = training.finish();
    assert_eq!(status.code(), Some(130), "{printed}");
    for command in ["eval", "report", "compare"] {
        fails(
            temp.path(),
            &[command, "young"],
            &["young", "not finished an epoch", "--resume young"],
        );
    }
}
