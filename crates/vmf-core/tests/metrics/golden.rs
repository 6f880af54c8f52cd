//! Values of torchmetrics, scikit-learn, netcal and SciPy, made by `tests/golden/metrics.py`.

use serde::Deserialize;
use vmf_core::metrics::{Binning, Detection, MonteCarlo, Predictions, Reliability, Temperature};

use crate::assert_close;

/// Both sides compute in `f64`; only the order of summation differs.
const ROUNDING: f64 = 1e-13;
/// torchmetrics rounds multiclass probabilities to `f32`.
const SINGLE: f64 = 1e-6;

#[derive(Deserialize)]
struct Golden {
    classification: Vec<Classification>,
    monte_carlo: Samples,
    detection: Vec<Scores>,
    temperature: Vec<Logits>,
}

#[derive(Deserialize)]
struct Classification {
    name: String,
    on_edges: bool,
    classes: usize,
    probabilities: Vec<f64>,
    labels: Vec<usize>,
    accuracy: f64,
    nll_clipped_at_epsilon: f64,
    brier: f64,
    overconfidence: f64,
    entropy: Vec<f64>,
    bins_equal_width: NonEmptyBins,
    bins_equal_mass: NonEmptyBins,
    guo_ece: f64,
    guo_classwise_ece: f64,
    torchmetrics_ece: f64,
    torchmetrics_mce: f64,
    torchmetrics_classwise_ece: f64,
    netcal_ece: f64,
    netcal_mce: f64,
    netcal_classwise_ece: f64,
    netcal_equal_mass_ece: Option<f64>,
}

#[derive(Deserialize)]
struct NonEmptyBins {
    confidence: Vec<f64>,
    accuracy: Vec<f64>,
}

#[derive(Deserialize)]
struct Samples {
    samples: usize,
    classes: usize,
    probabilities: Vec<f64>,
    mean: Vec<f64>,
    predictive_entropy: Vec<f64>,
    expected_entropy: Vec<f64>,
    mutual_information: Vec<f64>,
}

#[derive(Deserialize)]
struct Scores {
    name: String,
    scores: Vec<f64>,
    positive: Vec<bool>,
    auroc: f64,
    aupr: f64,
    fpr_at_95_tpr: f64,
    fpr_at_80_tpr: f64,
}

#[derive(Deserialize)]
struct Logits {
    name: String,
    classes: usize,
    logits: Vec<f64>,
    labels: Vec<usize>,
    temperature: f64,
    nll_before: f64,
    nll_after: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/metrics.json")).expect("the file is well-formed")
}

impl Classification {
    fn predictions(&self) -> Predictions<'_> {
        Predictions::new(&self.probabilities, &self.labels, self.classes).expect("valid rows")
    }
}

fn assert_all_close(what: &str, actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        assert_close(&format!("{what} {index}"), actual, expected, ROUNDING);
    }
}

#[test]
fn scores_equal_scikit_learn() {
    for case in golden().classification {
        let p = case.predictions();
        let name = &case.name;
        assert_eq!(p.accuracy(), case.accuracy, "{name}");
        let clipped = p.nll_with_floor(f64::EPSILON);
        assert_close(name, clipped, case.nll_clipped_at_epsilon, ROUNDING);
        assert_close(name, p.brier(), case.brier, ROUNDING);
        assert_close(name, p.overconfidence(), case.overconfidence, ROUNDING);
        assert_all_close(name, &p.entropy(), &case.entropy);
    }
}

#[test]
fn reliability_bins_equal_scikit_learn_on_edges_too() {
    for case in golden().classification {
        let p = case.predictions();
        let compare = |diagram: Reliability, expected: &NonEmptyBins| {
            let bins = diagram.bins();
            let confidence: Vec<f64> = bins.iter().filter_map(|bin| bin.confidence()).collect();
            let accuracy: Vec<f64> = bins.iter().filter_map(|bin| bin.accuracy()).collect();
            assert_all_close(&case.name, &confidence, &expected.confidence);
            assert_all_close(&case.name, &accuracy, &expected.accuracy);
        };
        compare(p.reliability(Binning::default()), &case.bins_equal_width);
        let equal_mass = Binning::equal_mass(15).expect("not zero");
        compare(p.reliability(equal_mass), &case.bins_equal_mass);
    }
}

#[test]
fn calibration_errors_equal_guo_everywhere_and_torchmetrics_and_netcal_off_the_edges() {
    for case in golden().classification {
        let p = case.predictions();
        let name = &case.name;
        assert_close(name, p.ece(), case.guo_ece, ROUNDING);
        assert_close(name, p.classwise_ece(), case.guo_classwise_ece, ROUNDING);

        if case.on_edges {
            // The documented difference: left-closed bins group the edges otherwise.
            assert!((p.ece() - case.netcal_ece).abs() > 1e-3);
            assert!((p.ece() - case.torchmetrics_ece).abs() > 1e-3);
            assert!((p.classwise_ece() - case.netcal_classwise_ece).abs() > 1e-3);
            continue;
        }
        assert_close(name, p.ece(), case.torchmetrics_ece, SINGLE);
        assert_close(name, p.mce(), case.torchmetrics_mce, SINGLE);
        let classwise = p.classwise_ece();
        assert_close(name, classwise, case.torchmetrics_classwise_ece, ROUNDING);
        assert_close(name, p.ece(), case.netcal_ece, ROUNDING);
        assert_close(name, p.mce(), case.netcal_mce, ROUNDING);
        assert_close(name, classwise, case.netcal_classwise_ece, ROUNDING);
        let equal_mass = case.netcal_equal_mass_ece.expect("given off the edges");
        assert_close(name, p.adaptive_ece(), equal_mass, ROUNDING);
    }
}

#[test]
fn uncertainty_equals_scipy() {
    let case = golden().monte_carlo;
    let samples = MonteCarlo::new(&case.probabilities, case.samples, case.classes).expect("valid");
    assert_eq!(samples.samples(), case.samples);
    assert_eq!(samples.examples(), case.predictive_entropy.len());
    assert_all_close("mean", &samples.mean(), &case.mean);
    let u = samples.uncertainty();
    assert_all_close("total", &u.predictive_entropy, &case.predictive_entropy);
    assert_all_close("aleatoric", &u.expected_entropy, &case.expected_entropy);
    assert_all_close("epistemic", &u.mutual_information, &case.mutual_information);
}

#[test]
fn detection_equals_scikit_learn() {
    for case in golden().detection {
        let name = &case.name;
        let detection = Detection::new(&case.scores, &case.positive).expect("both groups");
        assert_close(name, detection.auroc(), case.auroc, ROUNDING);
        assert_close(name, detection.aupr(), case.aupr, ROUNDING);
        let fpr = |target| detection.fpr_at_tpr(target).expect("a rate");
        assert_close(name, fpr(0.95), case.fpr_at_95_tpr, ROUNDING);
        assert_close(name, fpr(0.8), case.fpr_at_80_tpr, ROUNDING);
    }
}

#[test]
fn temperature_is_the_root_found_by_scipy() {
    for case in golden().temperature {
        let name = &case.name;
        let fit = Temperature::fit_logits(&case.logits, &case.labels, case.classes).expect("valid");
        let relative = fit.temperature.value() / case.temperature;
        assert_close(name, relative, 1.0, 1e-12);
        assert_close(name, fit.nll_before, case.nll_before, ROUNDING);
        assert_close(name, fit.nll_after, case.nll_after, ROUNDING);

        let scaled = fit.temperature.softmax(&case.logits, case.classes);
        let scaled = scaled.expect("valid logits");
        let scaled = Predictions::new(&scaled, &case.labels, case.classes).expect("a softmax");
        assert_close(name, scaled.nll(), case.nll_after, ROUNDING);
    }
}

#[test]
fn temperature_from_probabilities_is_that_from_logits() {
    for case in golden().temperature {
        let name = &case.name;
        let probabilities = Temperature::ONE.softmax(&case.logits, case.classes);
        let probabilities = probabilities.expect("valid logits");
        let p = Predictions::new(&probabilities, &case.labels, case.classes).expect("a softmax");
        let fit = Temperature::fit_probabilities(&p);
        let relative = fit.temperature.value() / case.temperature;
        assert_close(name, relative, 1.0, 1e-11);
        assert_close(name, fit.nll_before, p.nll(), ROUNDING);

        let rescaled = fit.temperature.rescale(&p);
        let direct = fit.temperature.softmax(&case.logits, case.classes);
        assert_all_close(name, &rescaled, &direct.expect("valid logits"));
    }
}

#[test]
fn single_precision_input_is_read_in_place() {
    for case in golden().classification.iter().filter(|c| !c.on_edges) {
        let single: Vec<f32> = case.probabilities.iter().map(|&p| p as f32).collect();
        let labels: Vec<u32> = case.labels.iter().map(|&y| y as u32).collect();
        let p = Predictions::new(&single, &labels, case.classes).expect("valid rows");
        assert_eq!(p.accuracy(), case.accuracy);
        assert_close(&case.name, p.ece(), case.guo_ece, SINGLE);
        assert_close(&case.name, p.brier(), case.brier, SINGLE);
    }
}
