//! Selective prediction, conformal sets, energy and soft labels: values of NumPy, SciPy and MAPIE,
//! made by `tests/golden/decisions.py`, and what the documentation promises at the corners.

use std::collections::BTreeMap;

use serde::Deserialize;
use vmf_core::metrics::{
    Conformal, Conformity, MetricsError, PROBABILITY_FLOOR, Predictions, RiskCoverage, Temperature,
};

use crate::assert_close;

const ROUNDING: f64 = 1e-13;

#[derive(Deserialize)]
struct Golden {
    risk_coverage: Vec<Ranked>,
    conformal: Sets,
    energy: Energies,
    soft_labels: SoftLabels,
}

#[derive(Deserialize)]
struct Ranked {
    name: String,
    confidences: Vec<f64>,
    right: Vec<bool>,
    risks: Vec<f64>,
    aurc: f64,
    coverage_at: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
struct Sets {
    classes: usize,
    calibration: Vec<f64>,
    calibration_labels: Vec<usize>,
    test: Vec<f64>,
    test_labels: Vec<usize>,
    cases: Vec<SetCase>,
}

#[derive(Deserialize)]
struct SetCase {
    kind: Kind,
    alpha: f64,
    quantile: Option<f64>,
    sets: Vec<Vec<usize>>,
    coverage: f64,
    mean_size: f64,
    singletons: f64,
}

#[derive(Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
enum Kind {
    Threshold,
    Adaptive,
    Regularized { penalty: f64, free: usize },
}

#[derive(Deserialize)]
struct Energies {
    classes: usize,
    logits: Vec<f64>,
    energy: BTreeMap<String, Vec<f64>>,
}

#[derive(Deserialize)]
struct SoftLabels {
    classes: usize,
    probabilities: Vec<f64>,
    labels: Vec<usize>,
    targets: Vec<f64>,
    cross_entropy: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/decisions.json")).expect("the file is well-formed")
}

#[test]
fn risks_are_the_means_over_all_orders_of_tied_examples() {
    for case in golden().risk_coverage {
        let curve = RiskCoverage::new(&case.confidences, &case.right).expect("valid");
        assert_eq!(curve.risks().len(), case.risks.len());
        for (&actual, &expected) in curve.risks().iter().zip(&case.risks) {
            assert_close(&case.name, actual, expected, ROUNDING);
        }
        assert_close(&case.name, curve.aurc(), case.aurc, ROUNDING);
        for (risk, coverage) in case.coverage_at {
            let found = curve.coverage_at_risk(risk).expect("a risk");
            assert_close(&format!("{} at risk {risk}", case.name), found, coverage, ROUNDING);
        }
    }
}

#[test]
fn conformal_sets_equal_those_of_mapie_and_numpy() {
    let golden = golden().conformal;
    let classes = golden.classes;
    let calibration = Predictions::new(&golden.calibration, &golden.calibration_labels, classes);
    let calibration = calibration.expect("valid rows");
    let test = Predictions::new(&golden.test, &golden.test_labels, classes).expect("valid rows");
    for case in golden.cases {
        let conformity = match case.kind {
            Kind::Threshold => Conformity::Threshold,
            Kind::Adaptive => Conformity::Adaptive,
            Kind::Regularized { penalty, free } => Conformity::Regularized { penalty, free },
        };
        let what = format!("{conformity:?}, alpha {}", case.alpha);
        let conformal = Conformal::calibrate(conformity, &calibration, case.alpha).expect("valid");
        match case.quantile {
            Some(quantile) => assert_close(&what, conformal.quantile(), quantile, ROUNDING),
            None => assert_eq!(conformal.quantile(), f64::INFINITY, "{what}"),
        }
        for (row, set) in test.rows().zip(&case.sets) {
            assert_eq!(conformal.set(row), *set, "{what}");
        }
        let quality = conformal.judge(&test);
        assert_close(&what, quality.coverage, case.coverage, ROUNDING);
        assert_close(&what, quality.mean_size, case.mean_size, ROUNDING);
        assert_close(&what, quality.singletons, case.singletons, ROUNDING);
    }
}

#[test]
fn energies_equal_scipy_and_reach_their_limits() {
    let golden = golden().energy;
    for (temperature, expected) in golden.energy {
        let t = Temperature::new(temperature.parse().expect("a number")).expect("positive");
        let energies = t.energy(&golden.logits, golden.classes).expect("finite logits");
        for (&actual, &expected) in energies.iter().zip(&expected) {
            assert_close(&format!("T = {temperature}"), actual, expected, ROUNDING);
        }
    }
    let limit = |t: f64| Temperature::new(t).unwrap().energy(&[3.0, 3.0, -1.0], 3).unwrap()[0];
    assert_eq!(limit(0.0), -3.0);
    assert_eq!(limit(f64::INFINITY), f64::NEG_INFINITY);
    let one_class = Temperature::new(f64::INFINITY).unwrap().energy(&[2.5], 1).unwrap();
    assert_eq!(one_class, [-2.5]);
    assert!(Temperature::ONE.energy(&[f64::NAN, 0.0], 2).is_err());
}

#[test]
fn soft_labels_have_the_cross_entropy_of_scipy() {
    let golden = golden().soft_labels;
    let p = Predictions::new(&golden.probabilities, &golden.labels, golden.classes).unwrap();
    let found = p.cross_entropy(&golden.targets, 0.0).expect("distributions");
    // SciPy normalizes the rows, which are rounded to ten decimals.
    assert_close("cross-entropy", found, golden.cross_entropy, 1e-9);
    let one_hot: Vec<f64> = golden
        .labels
        .iter()
        .flat_map(|&label| (0..golden.classes).map(move |k| f64::from(u8::from(k == label))))
        .collect();
    let nll = p.cross_entropy(&one_hot, PROBABILITY_FLOOR).unwrap();
    assert_close("one-hot", nll, p.nll_with_floor(PROBABILITY_FLOOR), ROUNDING);

    let certain = Predictions::new(&[1.0, 0.0], &[0], 2).unwrap();
    assert_eq!(certain.cross_entropy(&[1.0, 0.0], 0.0), Ok(0.0));
    assert_eq!(certain.cross_entropy(&[0.5, 0.5], 0.0), Ok(f64::INFINITY));
    assert!(matches!(certain.cross_entropy(&[1.0], 0.0), Err(MetricsError::Shape { .. })));
    assert!(matches!(certain.cross_entropy(&[0.5, 0.4], 0.0), Err(MetricsError::RowSum { .. })));
}

#[test]
fn what_cannot_be_asked_is_refused() {
    assert_eq!(RiskCoverage::new::<f64>(&[], &[]), Err(MetricsError::Empty));
    assert!(matches!(
        RiskCoverage::new(&[0.5], &[true, false]),
        Err(MetricsError::LengthMismatch { left: 1, right: 2 })
    ));
    let nan = RiskCoverage::new(&[0.5, f64::NAN], &[true, false]);
    assert_eq!(nan, Err(MetricsError::NanScore { index: 1 }));
    let curve = RiskCoverage::new(&[0.5, 0.4], &[false, true]).unwrap();
    assert_eq!(curve.coverage_at_risk(0.4), Ok(0.0));
    assert!(curve.coverage_at_risk(-0.1).unwrap_err().to_string().contains("the risk -0.1"));

    let p = Predictions::new(&[0.7, 0.3], &[0], 2).unwrap();
    assert!(Conformal::calibrate(Conformity::Adaptive, &p, f64::NAN).is_err());
    let negative = Conformity::Regularized { penalty: -1.0, free: 0 };
    assert_eq!(Conformal::calibrate(negative, &p, 0.1), Err(MetricsError::Penalty { value: -1.0 }));
    // One example promises nothing, so that all classes are in the set.
    let all = Conformal::calibrate(Conformity::Threshold, &p, 0.1).unwrap();
    assert_eq!(all.set(&[0.7, 0.3]), [0, 1]);
}
