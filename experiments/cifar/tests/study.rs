//! A study from its file to its tables, in one process and in parts.

use std::fs;
use std::path::Path;

use anyhow::Result;
use cifar::commands::{evidence, study};
use cifar::evaluation::Options;
use cifar::evaluation::evidence::{Evidence, Extent};
use cifar::evaluation::results::Way;
use serde_json::json;

fn write_study(folder: &Path) -> Result<std::path::PathBuf> {
    let file = folder.join("study.json");
    let text = json!({
        "out": folder.join("out"),
        "preset": "quick",
        "common": {
            "data": "synthetic", "train_images": 480, "test_images": 120, "model": "vgg11",
            "width": 0.0625, "epochs": 2, "batch": 48, "held_out": 0.1, "statistics_images": 96,
            "beta": 0.01, "warmup": 1.0
        },
        "runs": [
            { "name": "map", "seeds": [0, 1], "settings": { "method": "map" } },
            { "name": "vmf", "seeds": [0], "settings": { "method": "vmf" } }
        ],
        "ensembles": [{ "name": "2 x map", "of": "map" }],
        "baseline": "map",
        "samples": 2,
        "foreign_images": 20
    });
    fs::write(&file, text.to_string())?;
    Ok(file)
}

fn args(file: &Path) -> study::Args {
    study::Args {
        file: file.into(),
        shard: None,
        jobs: 1,
        no_training: false,
        others: "nowhere".into(),
        machine: Default::default(),
    }
}

#[test]
fn a_study_trains_in_parts_evaluates_once_and_writes_its_tables() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = write_study(folder.path())?;
    let out = folder.path().join("out");
    // Nothing is finished, so that there is nothing to show.
    let error = study::run(&study::Args { no_training: true, ..args(&file) }).unwrap_err();
    assert!(error.to_string().contains("finished"), "{error}");

    study::run(&study::Args { shard: Some("2/3".parse().unwrap()), ..args(&file) })?;
    assert!(out.join("map-seed1/last.safetensors").is_file());
    assert!(!out.join("map-seed0").exists());
    let before = fs::read(out.join("map-seed1/metrics.jsonl"))?;
    study::run(&args(&file))?;
    assert_eq!(before, fs::read(out.join("map-seed1/metrics.jsonl"))?);

    let main = fs::read_to_string(out.join("main.csv"))?;
    let rows: Vec<&str> = main.lines().collect();
    let [_, map, noise_off, expected, samples, ensemble] = rows[..] else { panic!("{main}") };
    assert!(map.contains("map, noise off") && map.contains('±'), "{map}");
    assert!(noise_off.contains("vmf, noise off") && expected.contains("vmf, expected"), "{main}");
    assert!(samples.contains("vmf, Monte Carlo"), "{main}");
    assert!(ensemble.contains("2 x map") && ensemble.contains("**"), "{main}");
    for name in ["tables.md", "decisions.csv", "shift.csv", "foreign.csv", "shift.svg", "cost.svg"]
    {
        assert!(out.join(name).metadata()?.len() > 200, "{name}");
    }
    let tables = fs::read_to_string(out.join("tables.md"))?;
    assert!(tables.contains("Left out: CIFAR-100") && tables.contains("Left out: CIFAR-10H"));

    // The evidence is kept, and made again only if it is of something else.
    let kept = |path: &Path| path.metadata().and_then(|file| file.modified());
    let stored = out.join("vmf-seed0/evidence.json");
    let time = kept(&stored)?;
    study::run(&args(&file))?;
    assert_eq!(kept(&stored)?, time);
    ensembles_average_their_members(&out)
}

/// An ensemble of one network twice is that network, and disagrees on nothing.
fn ensembles_average_their_members(out: &Path) -> Result<()> {
    let gather = |runs: &[&str], name: &str| -> Result<Evidence> {
        evidence::evidence(&evidence::Args {
            runs: runs.iter().map(|run| out.join(run)).collect(),
            out: Some(out.join(name)),
            others: "nowhere".into(),
            extent: Extent { foreign_images: 5 },
            options: Options { samples: 2, ..Options::default() },
        })
    };
    let nll = |evidence: &Evidence| evidence.way(Way::Mean).unwrap().measured.all.nll;
    let single = nll(&gather(&["map-seed0"], "single")?);
    let other = nll(&gather(&["map-seed1"], "other")?);
    let twice = gather(&["map-seed0", "map-seed0"], "twice")?;
    assert!((nll(&twice) - single).abs() < 1e-6);
    // The logarithm is concave: the mean prediction is at least as good as members on average.
    let pair = nll(&gather(&["map-seed0", "map-seed1"], "pair")?);
    assert!(pair <= 0.5 * (single + other) + 1e-6, "{pair} {single} {other}");
    Ok(())
}
