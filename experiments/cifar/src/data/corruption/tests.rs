use super::*;
use serde::Deserialize;

const SHAPE: Shape = Shape { channels: 3, size: 32 };

#[derive(Deserialize)]
struct Golden {
    image: Vec<u8>,
    corrupted: std::collections::BTreeMap<String, Vec<Vec<u8>>>,
}

fn golden() -> (Split, Golden) {
    let text = include_str!("../../../tests/golden/corruptions.json");
    let golden: Golden = serde_json::from_str(text).unwrap();
    (Split { images: golden.image.clone(), labels: vec![0] }, golden)
}

/// Values of `imagecorruptions`, made by `tests/golden/corruptions.py`.
#[test]
fn deterministic_corruptions_are_those_of_imagecorruptions() {
    let (split, golden) = golden();
    let mut compared = 0;
    for &corruption in Corruption::all() {
        let Some(severities) = golden.corrupted.get(&corruption.name()) else { continue };
        compared += 1;
        for (severity, expected) in severities.iter().enumerate() {
            let found = corruption.apply(&split, SHAPE, severity + 1).unwrap().images;
            let what = format!("{} {}", corruption.name(), severity + 1);
            if corruption == Corruption::Jpeg {
                // Another encoder and decoder, which round differently: they must differ far less
                // than compression changes the image.
                let mean = |a: &[u8], b: &[u8]| {
                    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum();
                    sum / a.len() as f64
                };
                let (error, change) = (mean(&found, expected), mean(expected, &golden.image));
                assert!(error < 0.25 * change, "{what}: {error} of {change}");
            } else {
                let distances = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
                let largest = distances.max().unwrap();
                assert!(largest <= 1, "{what}: {largest} grey levels");
            }
        }
    }
    assert_eq!(compared, 6);
}

#[test]
fn every_corruption_repeats_and_grows_with_its_severity() {
    let (split, _) = golden();
    let split = Split { images: split.images.repeat(8), labels: vec![3; 8] };
    for &corruption in Corruption::all() {
        let damage = |severity: usize| {
            let corrupted = corruption.apply(&split, SHAPE, severity).unwrap();
            assert_eq!(corrupted, corruption.apply(&split, SHAPE, severity).unwrap());
            assert_eq!(corrupted.labels, split.labels);
            let pairs = corrupted.images.iter().zip(&split.images);
            pairs.map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / split.images.len() as f64
        };
        let (least, most) = (damage(1), damage(5));
        assert!(least > 0.0, "{}", corruption.name());
        // Saturation falls in the first two severities and rises in the others, and the elastic
        // transform trades an affine map for a rougher one.
        let grows = !matches!(corruption, Corruption::Saturate | Corruption::Elastic);
        assert!(!grows || most > least, "{}: {least} to {most}", corruption.name());
    }
    assert!(Corruption::Fog.apply(&split, SHAPE, 6).is_err());
}
