//! What the documentation promises where a formula alone does not say.

use vmf_core::metrics::{
    Binning, Detection, MetricsError, MonteCarlo, PROBABILITY_FLOOR, Predictions, Reliability,
    Temperature,
};

use crate::assert_close;

const NO_LABELS: [usize; 0] = [];

fn refused(probabilities: &[f64], labels: &[i64], classes: usize) -> MetricsError {
    Predictions::new(probabilities, labels, classes).expect_err("invalid predictions")
}

#[test]
fn predictions_that_are_none_are_refused_with_the_place_of_the_fault() {
    assert_eq!(refused(&[], &[], 3), MetricsError::Empty);
    assert_eq!(refused(&[], &[], 0), MetricsError::NoClasses);
    let shape = refused(&[0.5, 0.5, 1.0], &[0, 1], 2);
    assert_eq!(shape.to_string(), "3 values do not fill 2 rows of 2 classes (2 x 2)");
    let label = refused(&[0.5, 0.5, 0.5, 0.5], &[1, 2], 2);
    assert_eq!(label.to_string(), "row 1: label 2 is outside 0..2");
    let negative = refused(&[0.5, 0.5], &[-1], 2);
    assert_eq!(negative.to_string(), "row 0: label -1 is outside 0..2");

    for bad in [f64::NAN, f64::INFINITY, -1e-9, 1.01] {
        match refused(&[0.5, 0.5, 0.0, bad], &[0, 0], 2) {
            MetricsError::NotAProbability { row: 1, class: 1, value } => {
                assert_eq!(value.to_bits(), bad.to_bits());
            }
            other => panic!("{bad}: {other}"),
        }
    }
}

#[test]
fn rows_sum_to_one_within_the_tolerance() {
    assert!(Predictions::new(&[0.5, 0.50009], &[0], 2).is_ok());
    assert!(Predictions::new(&[0.5, 0.49991], &[0], 2).is_ok());
    let heavy = refused(&[0.5, 0.5, 0.5, 0.5002], &[0, 0], 2);
    assert!(matches!(heavy, MetricsError::RowSum { row: 1, .. }));
    assert!(heavy.to_string().starts_with("row 1 sums to 1.0002"));
    let light = refused(&[0.5, 0.4998], &[0], 2);
    assert!(matches!(light, MetricsError::RowSum { row: 0, .. }));
}

#[test]
fn a_confidence_rounded_above_one_is_in_the_last_bin_and_has_no_negative_entropy() {
    let p = Predictions::new(&[1.000001_f32, 0.0], &[0], 2).expect("within tolerance");
    let diagram = p.reliability(Binning::default());
    assert_eq!(diagram.bins()[14].count, 1);
    assert_eq!(p.entropy(), [0.0]);
}

#[test]
fn one_class_is_always_right() {
    let p = Predictions::new(&[1.0, 1.0], &[0, 0], 1).expect("one class");
    for zero in [
        p.nll(),
        p.brier(),
        p.ece(),
        p.mce(),
        p.adaptive_ece(),
        p.classwise_ece(),
        p.overconfidence(),
    ] {
        assert_eq!(zero.to_bits(), 0.0_f64.to_bits());
    }
    assert_eq!(p.accuracy(), 1.0);
    assert_eq!(Temperature::fit_probabilities(&p).temperature, Temperature::ONE);
}

#[test]
fn one_example_is_a_mean_of_one() {
    let p = Predictions::new(&[0.25, 0.75], &[0], 2).expect("one row");
    assert_eq!(p.accuracy(), 0.0);
    assert_eq!(p.nll(), 4.0_f64.ln());
    assert_eq!(p.brier(), 2.0 * 0.75 * 0.75);
    for error in [p.ece(), p.mce(), p.adaptive_ece(), p.classwise_ece()] {
        assert_eq!(error, 0.75);
    }
    assert_eq!(p.overconfidence(), 0.75);
}

#[test]
fn the_first_of_tied_classes_is_the_prediction() {
    let p = Predictions::new(&[0.2, 0.4, 0.4, 0.2, 0.4, 0.4], &[1, 2], 3).expect("valid");
    assert_eq!(p.accuracy(), 0.5);
    assert!(p.top().all(|top| top == (1, 0.4)));
}

#[test]
fn bins_are_closed_on_the_right_and_the_first_holds_zero() {
    let confidences = [0.0, 0.25, 0.2500001, 0.5, 1.0];
    let happened = [false, true, true, false, true];
    let four = Binning::equal_width(4).expect("not zero");
    let diagram = Reliability::new(&confidences, &happened, four).expect("valid");
    let counts: Vec<usize> = diagram.bins().iter().map(|bin| bin.count).collect();
    assert_eq!(counts, [2, 2, 0, 1]);
    let empty = diagram.bins()[2];
    assert_eq!((empty.lower, empty.upper), (0.5, 0.75));
    assert_eq!((empty.confidence(), empty.accuracy(), empty.gap()), (None, None, None));
}

#[test]
fn decimal_fractions_that_are_edges_lie_on_them() {
    // 3/15, 6/15, ... round to the same f64 as 0.2, 0.4, ..., so these belong to the bin below.
    for (fraction, bin) in [(0.2, 2), (0.4, 5), (0.6, 8), (0.8, 11), (1.0, 14)] {
        let diagram = Reliability::new(&[fraction], &[true], Binning::default()).expect("valid");
        assert_eq!(diagram.bins()[bin].count, 1, "{fraction}");
    }
}

#[test]
fn bins_of_equal_mass_split_evenly_and_keep_ties_together() {
    let binning = Binning::equal_mass(4).expect("not zero");
    let counts = |confidences: &[f64]| -> Vec<usize> {
        let happened = vec![true; confidences.len()];
        let diagram = Reliability::new(confidences, &happened, binning).expect("valid");
        diagram.bins().iter().map(|bin| bin.count).collect()
    };
    assert_eq!(counts(&[0.8, 0.1, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5]), [2, 2, 2, 2]);
    assert_eq!(counts(&[0.9; 5]), [5, 0, 0, 0]);
    // Sorted, the quartiles are 0.1, 0.9 and 0.9: the bin between the last two is empty.
    assert_eq!(counts(&[0.1, 0.9, 0.1, 0.9, 0.9]), [2, 3, 0, 0]);
    assert_eq!(counts(&[0.5]), [1, 0, 0, 0]);
}

#[test]
fn a_reliability_diagram_of_nothing_or_nonsense_is_refused() {
    let binning = Binning::default();
    assert_eq!(Reliability::new(&[], &[], binning), Err(MetricsError::Empty));
    let unpaired = Reliability::new(&[0.5], &[], binning).unwrap_err();
    assert!(matches!(unpaired, MetricsError::LengthMismatch { left: 1, right: 0 }));
    for bad in [f64::NAN, -0.1, 1.1] {
        let error = Reliability::new(&[0.5, bad], &[true, true], binning).unwrap_err();
        assert!(matches!(error, MetricsError::Confidence { index: 1, .. }));
    }
    assert_eq!(Binning::equal_width(0), Err(MetricsError::NoBins));
    assert_eq!(Binning::equal_mass(0), Err(MetricsError::NoBins));
    let p = Predictions::new(&[0.5, 0.5], &[0], 2).expect("valid");
    let error = p.class_reliability(2, binning).unwrap_err();
    assert_eq!(error.to_string(), "class 2 is outside 0..2");
}

#[test]
fn samples_that_do_not_divide_are_refused() {
    let row = [0.5, 0.5];
    for (samples, classes) in [(0, 2), (1, 0), (2, 2), (1, 3), (usize::MAX, 2)] {
        let error = MonteCarlo::new(&row, samples, classes).unwrap_err();
        assert!(matches!(error, MetricsError::Samples { values: 2, .. }));
    }
    let none: [f64; 0] = [];
    assert_eq!(MonteCarlo::new(&none, 1, 2).unwrap_err(), MetricsError::Empty);
    let nan = MonteCarlo::new(&[0.5, 0.5, 0.5, f64::NAN], 2, 2).unwrap_err();
    assert!(matches!(nan, MetricsError::NotAProbability { row: 1, class: 1, .. }));
}

#[test]
fn mutual_information_keeps_its_digits_when_samples_nearly_agree() {
    // p = q +- d: I = d^2 / (2 q (1 - q)) + O(d^4), below the last digit of either entropy.
    let (high, low) = (0.3 + 1e-9, 0.3 - 1e-9);
    let samples = [high, 1.0 - high, low, 1.0 - low];
    let u = MonteCarlo::new(&samples, 2, 2).expect("valid").uncertainty();
    let d = (high - low) / 2.0;
    let expected = d * d / (2.0 * 0.3 * 0.7);
    assert_close("I", u.mutual_information[0] / expected, 1.0, 1e-6);
}

#[test]
fn mutual_information_survives_extreme_probabilities() {
    let tiny = 5e-324; // half of it, a mean of two samples, is zero
    let samples = [[[tiny, 1.0], [0.0, 1.0], [tiny, 1.0]], [[1e-200, 1.0], [1.0, 0.0], [0.0, 1.0]]];
    let u =
        MonteCarlo::new(samples.as_flattened().as_flattened(), 2, 2).expect("valid").uncertainty();
    let ln2 = std::f64::consts::LN_2;
    // The first pair differs in a mass of 1e-200 only, which one has and the other has not.
    let faint = u.mutual_information[0] / (1e-200 * ln2 / 2.0);
    assert_close("faint", faint, 1.0, 1e-14);
    assert_close("complete", u.mutual_information[1], ln2, 1e-15);
    assert_eq!(u.mutual_information[2], 0.0);
}

#[test]
fn detection_needs_two_groups_and_ordered_scores() {
    let one_sided = Detection::new(&[0.1, 0.2], &[true, true]).unwrap_err();
    assert_eq!(one_sided, MetricsError::OneSided { positives: 2, negatives: 0 });
    let none: [f64; 0] = [];
    assert!(Detection::new(&none, &[]).is_err());
    assert!(Detection::new(&[1.0], &[true, false]).is_err());
    let nan = Detection::new(&[0.1, f64::NAN], &[true, false]).unwrap_err();
    assert_eq!(nan, MetricsError::NanScore { index: 1 });

    let d = Detection::new(&[0.1, 0.2], &[true, false]).expect("valid");
    for rate in [0.0, -0.5, 1.5, f64::NAN] {
        assert!(matches!(d.fpr_at_tpr(rate), Err(MetricsError::Rate { .. })));
    }
}

#[test]
fn scores_all_tied_are_chance() {
    let d = Detection::new(&[0.0, -0.0, 0.0, -0.0], &[true, false, false, false]).expect("valid");
    assert_eq!(d.curve().len(), 1);
    assert_eq!(d.auroc(), 0.5);
    assert_eq!(d.aupr(), 0.25);
    assert_eq!(d.fpr_at_tpr(0.95), Ok(1.0));
}

#[test]
fn infinite_scores_are_ordered() {
    let scores = [f64::INFINITY, 3.0, f64::NEG_INFINITY];
    let d = Detection::new(&scores, &[true, true, false]).expect("valid");
    assert_eq!((d.auroc(), d.aupr()), (1.0, 1.0));
    assert_eq!(d.fpr_at_tpr(1.0), Ok(0.0));
}

#[test]
fn separable_logits_have_temperature_zero() {
    // The second row is tied at its maximum: half its mass is lost at any temperature.
    let logits = [2.0, 0.0, -1.0, 1.0, 1.0, 0.0];
    let fit = Temperature::fit_logits(&logits, &[0, 1], 3).expect("valid");
    assert_eq!(fit.temperature.value(), 0.0);
    assert_eq!(fit.nll_after, 2.0_f64.ln() / 2.0);
    let probabilities = fit.temperature.softmax(&logits, 3).expect("valid");
    assert_eq!(probabilities, [1.0, 0.0, 0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn misleading_logits_have_temperature_infinity() {
    let fit = Temperature::fit_logits(&[2.0, 0.0, 0.0, 2.0], &[1, 0], 2).expect("valid");
    assert_eq!(fit.temperature.value(), f64::INFINITY);
    assert_eq!(fit.nll_after, 2.0_f64.ln());
    let probabilities = fit.temperature.softmax(&[2.0, 0.0], 2).expect("valid");
    assert_eq!(probabilities, [0.5, 0.5]);
}

#[test]
fn constant_logits_keep_temperature_one() {
    let fit = Temperature::fit_logits(&[3.0, 3.0, -1.0, -1.0], &[1, 0], 2).expect("valid");
    assert_eq!(fit.temperature, Temperature::ONE);
    assert_eq!((fit.nll_before, fit.nll_after), (2.0_f64.ln(), 2.0_f64.ln()));
}

#[test]
fn the_fit_does_not_depend_on_the_scale_of_logits() {
    // Three in four right at a gap g: softmax(g / T) = 3/4, so T = g / ln 3.
    for gap in [1e-300, 1e-20, 1.0, 1e20, 1e300] {
        let logits = [gap, 0.0].repeat(4);
        let fit = Temperature::fit_logits(&logits, &[0, 0, 0, 1], 2).expect("valid");
        let expected = gap / 3.0_f64.ln();
        assert_close("T", fit.temperature.value() / expected, 1.0, 1e-14);
        let entropy = -(0.75 * 0.75_f64.ln() + 0.25 * 0.25_f64.ln());
        assert_close("NLL", fit.nll_after, entropy, 1e-14);
    }
}

#[test]
fn rare_errors_and_faint_signals_have_finite_temperatures() {
    // r right and w wrong at a gap of one: T = 1 / ln(r / w).
    for (right, wrong) in [(99_999, 1), (50_001, 49_999)] {
        let logits = [1.0_f32, 0.0].repeat(right + wrong);
        let labels: Vec<u8> = (0..right + wrong).map(|i| u8::from(i < wrong)).collect();
        let fit = Temperature::fit_logits(&logits, &labels, 2).expect("valid");
        let expected = 1.0 / (right as f64 / wrong as f64).ln();
        // 10^5 terms of size 1/2 that cancel to 1 leave the slope no more digits than this.
        assert_close("T", fit.temperature.value() / expected, 1.0, 1e-6);
    }
}

#[test]
fn a_true_class_of_probability_zero_is_read_as_an_underflow() {
    let p = Predictions::new(&[1.0, 0.0, 0.6, 0.4], &[1, 0], 2).expect("valid");
    assert_eq!(p.nll(), f64::INFINITY);
    let fit = Temperature::fit_probabilities(&p);
    let before = -(PROBABILITY_FLOOR.ln() + 0.6_f64.ln()) / 2.0;
    assert_close("before", fit.nll_before, before, 1e-15);
    assert!(fit.nll_after < fit.nll_before);
}

#[test]
fn logits_and_temperatures_that_are_none_are_refused() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
        let error = Temperature::fit_logits(&[0.0, 1.0, bad, 0.0], &[0, 1], 2).unwrap_err();
        assert!(matches!(error, MetricsError::Logit { row: 1, class: 0, .. }));
        assert!(Temperature::ONE.softmax(&[bad, 0.0], 2).is_err());
    }
    let none: [f64; 0] = [];
    let empty = Temperature::fit_logits(&none, &NO_LABELS, 2);
    assert_eq!(empty, Err(MetricsError::Empty));
    assert!(Temperature::ONE.softmax(&none, 2).is_err());
    assert!(Temperature::ONE.softmax(&[0.0, 1.0, 2.0], 2).is_err());
    assert!(Temperature::ONE.softmax(&[0.0], 0).is_err());
    assert!(Temperature::new(-1.0).is_err());
    assert!(Temperature::new(f64::NAN).is_err());
    assert_eq!(Temperature::new(1.0), Ok(Temperature::ONE));
}

#[test]
fn targets_have_the_corners_of_labels() {
    let fit =
        |logits: &[f64], targets: &[f64]| Temperature::fit_targets(logits, targets, 2).unwrap();
    // All mass on the largest logits, ties included; at the average logit or below; no effect.
    assert_eq!(fit(&[2.0, 0.0, 1.0, 1.0], &[1.0, 0.0, 0.3, 0.7]).temperature.value(), 0.0);
    assert_eq!(fit(&[2.0, 0.0], &[0.5, 0.5]).temperature.value(), f64::INFINITY);
    assert_eq!(fit(&[2.0, 0.0], &[0.1, 0.9]).temperature.value(), f64::INFINITY);
    assert_eq!(fit(&[3.0, 3.0], &[0.1, 0.9]).temperature, Temperature::ONE);
    for gap in [1e-300, 1.0, 1e300] {
        let value = fit(&[gap, 0.0], &[0.75, 0.25]).temperature.value();
        assert_close("T", value / (gap / 3.0_f64.ln()), 1.0, 1e-14);
    }
}

#[test]
fn targets_that_are_none_are_refused() {
    let error =
        |logits: &[f64], targets: &[f64]| Temperature::fit_targets(logits, targets, 2).unwrap_err();
    assert_eq!(error(&[], &[]), MetricsError::Empty);
    assert!(matches!(error(&[0.0, 1.0], &[0.5, 0.5, 0.5]), MetricsError::Shape { .. }));
    assert!(matches!(error(&[0.0, 1.0], &[0.5, 0.5, 0.5, 0.5]), MetricsError::Shape { .. }));
    assert!(matches!(error(&[0.0, 1.0], &[0.5, 0.6]), MetricsError::RowSum { row: 0, .. }));
    assert!(matches!(error(&[0.0, f64::NAN], &[0.5, 0.5]), MetricsError::Logit { .. }));
    assert!(Temperature::fit_targets(&[0.0], &[1.0], 0).is_err());
}
