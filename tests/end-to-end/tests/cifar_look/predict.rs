//! What is in pictures.

use std::fs;

use candle_core::Device;
use cifar::trained::Trained;
use serde_json::Value;
use vmf_candle::Samples;

use super::*;

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
    let ways: [(&[&str], Samples); 3] = [
        (&[], Samples::expected(&trained.posterior)),
        (&["--samples=0"], Samples::mean()),
        (&["--samples=8"], Samples::monte_carlo(8, 0)),
    ];
    for (flags, reference) in ways {
        for number in [0, 7] {
            let name = format!("{number}.png");
            let image = training_image(&run, number, &temp.path().join(&name));
            let expected = vmf_candle::predict(&trained.model, &image, reference.clone()).unwrap();
            let expected = expected.probs.flatten_all().unwrap();
            let answers = classified(temp.path(), &[&["run", name.as_str()], flags].concat());
            assert_eq!(answers.len(), 1);
            let classes = &trained.config.interface.classes;
            for (class, expected) in classes.iter().zip(expected.to_vec1::<f32>().unwrap()) {
                let difference = probability(&answers[0], class) - f64::from(expected);
                assert!(difference.abs() < 1e-6, "{class}: {}", answers[0]);
            }
            let entropy = answers[0]["entropy"].as_f64().unwrap();
            let information = answers[0]["mutual_information"].as_f64().unwrap();
            assert!((0.0..=10_f64.ln()).contains(&entropy) && information <= entropy);
            assert_eq!(information > 0.0, flags != ["--samples=0"], "{}", answers[0]);
        }
    }
}

#[test]
fn a_network_without_noise_is_sure_of_what_it_says() {
    let temp = trained("map");
    let run = temp.path().join("run");
    training_image(&run, 3, &temp.path().join("a.png"));
    let answers = classified(temp.path(), &["run", "a.png", "--samples", "16"]);
    assert_eq!(answers[0]["samples"], 0);
    assert_eq!(answers[0]["mutual_information"], 0.0);
    let words = succeeds(temp.path(), &["predict", "run", "a.png"]);
    assert!(words.contains("entropy") && !words.contains('±'), "{words}");
    // Nor has it a posterior to compare a landscape with.
    succeeds(temp.path(), &[&["landscape", "run"][..], &SMALL].concat());
    let findings = json(run.join("landscape/landscape.json"));
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
    fs::write(folder.join("torn.png"), &fs::read(folder.join("a.png")).unwrap()[..200]).unwrap();
    // The name does not count: this is a JPEG.
    fs::write(folder.join("named.png"), bytes).unwrap();
    let pictures = ["a.png", "notes.png", "b.jpg", "missing.png", "torn.png", "c.png", "named.png"];
    let output = command(folder, &[&["predict", "run"][..], &pictures].concat()).output().unwrap();
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
        assert!(line.is_some_and(|line| line.contains(reason)), "{complaints}");
    }
    // Answers do not depend on their neighbours.
    let one_by_one: Vec<Value> =
        ["a.png", "b.jpg"].iter().flat_map(|name| classified(folder, &["run", name])).collect();
    assert_eq!(classified(folder, &["run", "a.png", "b.jpg"]), one_by_one);
    assert_ne!(one_by_one[0]["classes"], one_by_one[1]["classes"]);
}
