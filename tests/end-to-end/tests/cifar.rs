//! `cifar train` on the synthetic set: the files it writes, and that it can be repeated.

use end_to_end::cifar::{assert_same, both, metrics, names_in, number, tiny, train};

#[test]
fn training_leaves_a_complete_folder_and_learns() {
    let temp = tempfile::tempdir().unwrap();
    let output = tiny(temp.path(), "run", &["--epochs", "6", "--lr", "3e-3"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    let first = printed.lines().next().unwrap();
    for words in [
        "--preset quick with changes",
        "vgg11",
        "--method vmf",
        "323 images",
        "the CPU with 2 threads",
        "about",
        "--preset paper",
        "--preset cpu",
    ] {
        assert!(first.contains(words), "{words} is not in: {first}");
    }

    let run = temp.path().join("run");
    assert_eq!(
        names_in(&run),
        [
            ".lock",
            "best.safetensors",
            "config.json",
            "last.safetensors",
            "metrics.jsonl",
            "previous.safetensors"
        ]
    );
    let lines = metrics(&run);
    assert_eq!(lines.len(), 6);
    let (begin, end) = (&lines[0], &lines[5]);
    assert!(number(end, &["running_nll"]) < 0.8 * number(begin, &["running_nll"]), "{lines:?}");
    assert!(number(end, &["test", "accuracy"]) > 0.3, "{end}");
    assert_eq!(number(end, &["step"]), 60.0);
    assert!((0.0..=1.0).contains(&number(end, &["beta"])));
    assert!((0.0..=1.0).contains(&number(end, &["held_out", "accuracy"])));
    assert!((0.0..=1.0).contains(&number(end, &["train", "ece"])));
    // sigma_eff of the eight layers.
    assert_eq!(end.matches("\"sigma_eff\":0").count() + end.matches("\"sigma_eff\":1").count(), 8);
    assert!(number(end, &["kl"]) > 0.0);
}

#[test]
fn the_three_methods_share_one_loop_and_differ_in_their_noise() {
    let temp = tempfile::tempdir().unwrap();
    for method in ["vmf", "none", "map"] {
        tiny(temp.path(), method, &["--method", method, "--beta=0.1"]);
    }
    let line = |method: &str| metrics(&temp.path().join(method))[2].clone();
    let (vmf, none, map) = (line("vmf"), line("none"), line("map"));
    assert_eq!(number(&vmf, &["beta"]), 0.1);
    assert_eq!((number(&none, &["beta"]), number(&map, &["beta"])), (0.0, 0.0));
    // The KL favours noise; without it, training reduces the noise, which increases the KL.
    assert!(number(&vmf, &["kl"]) < number(&none, &["kl"]));
    assert!(map.contains("\"kl\":null") && map.contains("\"sigma_eff\":[]"), "{map}");
}

#[test]
fn a_run_repeats_from_its_configuration_and_differs_with_its_seed() {
    let temp = tempfile::tempdir().unwrap();
    tiny(temp.path(), "a", &[]);
    let again = ["--config", "a/config.json", "--out", "b"];
    let output = train(temp.path(), &again).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert_same(&temp.path().join("a"), &temp.path().join("b"));
    tiny(temp.path(), "c", &["--seed", "1"]);
    assert_ne!(metrics(&temp.path().join("a")), metrics(&temp.path().join("c")));
}
