//! The expected softmax.

use proptest::prelude::*;
use vmf_core::{
    Error,
    expected::{GaussHermite, softmax::Logits},
};

use crate::golden;

fn softmax(mean: &[f64]) -> Vec<f64> {
    let largest = mean.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = mean.iter().map(|m| (m - largest).exp()).collect();
    exp.iter().map(|e| e / exp.iter().sum::<f64>()).collect()
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().map(|&p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum()
}

fn largest_difference(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| (p - q).abs()).fold(0.0, f64::max)
}

#[test]
fn two_classes_are_exact_up_to_quadrature() {
    let rule = GaussHermite::new(200);
    let mut count = 0;
    for case in golden().softmax.iter().filter(|case| case.mean.len() == 2) {
        let logits = Logits::correlated(&case.mean, &case.covariance).unwrap();
        let prediction = logits.predict(&rule);
        assert!(largest_difference(&prediction.probabilities, &case.probabilities) < 1e-7);
        assert!((prediction.expected_entropy - case.expected_entropy).abs() < 1e-6);
        count += 1;
    }
    assert_eq!(count, 8);
}

#[test]
fn several_classes_are_close() {
    let rule = GaussHermite::new(8);
    let (mut closed, mut points, mut probit, mut information) = (0.0, 0.0, 0.0, 0.0);
    let cases = golden().softmax;
    for case in &cases {
        let logits = Logits::correlated(&case.mean, &case.covariance).unwrap();
        let prediction = logits.predict(&rule);
        let error = |p: &[f64]| largest_difference(p, &case.probabilities);
        assert!(error(&prediction.probabilities) < 0.03, "{:?}", case.mean);
        closed += error(&logits.closed_form());
        points += error(&prediction.probabilities);
        probit += error(&logits.probit());
        let exact = entropy(&case.probabilities) - case.expected_entropy;
        information += (prediction.mutual_information - exact).abs();
    }
    // Means over the cases of the largest error of a class, each stated with little to spare.
    let n = cases.len() as f64;
    let [closed, points, probit, information] =
        [closed, points, probit, information].map(|e| e / n);
    assert!((0.003..0.012).contains(&closed), "{closed}");
    assert!((0.001..0.005).contains(&points), "{points}");
    assert!((0.012..0.05).contains(&probit), "{probit}");
    assert!((0.001..0.006).contains(&information), "{information}");
}

#[test]
fn without_noise_it_is_the_softmax() {
    let mean = [3.0, -1.0, 700.0, 2.0, 699.5];
    let logits = Logits::independent(&mean, &[0.0; 5]).unwrap();
    let prediction = logits.predict(&GaussHermite::new(5));
    for p in [&prediction.probabilities, &logits.closed_form(), &logits.probit()] {
        assert!(largest_difference(p, &softmax(&mean)) < 1e-15);
    }
    assert!(prediction.mutual_information < 1e-15);
    assert!((prediction.entropy - entropy(&softmax(&mean))).abs() < 1e-15);
}

/// For small noise `I = sum_k p_k Var(l_k - p.l) / 2`, far below the last digit of an entropy.
#[test]
fn small_noise_has_the_right_mutual_information() {
    let mean = [1.0, 0.3, -0.5, 0.0];
    for variance in [1e-4, 1e-8, 1e-16] {
        let p = softmax(&mean);
        let squares: f64 = p.iter().map(|p| p * p).sum();
        let exact: f64 =
            p.iter().map(|p| 0.5 * p * variance * ((1.0 - p).powi(2) + squares - p * p)).sum();
        let variances = [variance; 4];
        let logits = Logits::independent(&mean, &variances).unwrap();
        let information = logits.predict(&GaussHermite::new(8)).mutual_information;
        let tolerance = 2.0 * variance + 1e-6;
        assert!((information / exact - 1.0).abs() < tolerance, "{information:e} {exact:e}");
    }
}

#[test]
fn extreme_logits_stay_finite() {
    let rule = GaussHermite::new(8);
    for scale in [1e-300, 1.0, 1e4, 1e150] {
        for variance in [0.0, 1e-300, 1.0, 1e6, 1e200] {
            let mean = [scale, -scale, 0.0, scale];
            let variances = [variance, 0.0, variance, variance];
            let logits = Logits::independent(&mean, &variances).unwrap();
            let prediction = logits.predict(&rule);
            for p in [&prediction.probabilities, &logits.closed_form(), &logits.probit()] {
                let sum: f64 = p.iter().sum();
                assert!((sum - 1.0).abs() < 1e-14, "{scale:e} {variance:e}: {p:?}");
            }
            assert!(prediction.expected_entropy >= 0.0 && prediction.mutual_information >= 0.0);
        }
    }
}

#[test]
fn one_class_is_certain() {
    let prediction = Logits::independent(&[2.0], &[1.0]).unwrap().predict(&GaussHermite::new(3));
    assert_eq!(prediction.probabilities, [1.0]);
    assert_eq!((prediction.entropy, prediction.mutual_information), (0.0, 0.0));
}

#[test]
fn bad_arguments_are_named() {
    let none = Logits::independent(&[], &[]).unwrap_err();
    assert_eq!(none, Error::NoClasses);
    let lengths = Logits::independent(&[0.0, 1.0], &[1.0]).unwrap_err();
    assert!(matches!(lengths, Error::LengthMismatch { expected: 2, actual: 1, .. }));
    let matrix = Logits::correlated(&[0.0, 1.0], &[1.0, 1.0]).unwrap_err();
    assert!(matches!(matrix, Error::LengthMismatch { expected: 4, actual: 2, .. }));
    let nan = Logits::independent(&[0.0, f64::NAN], &[1.0, 1.0]).unwrap_err();
    assert!(matches!(nan, Error::NotFinite { index: 1, .. }));
    let negative = Logits::correlated(&[0.0, 1.0], &[1.0, 0.0, 0.0, -2.0]).unwrap_err();
    assert_eq!(negative, Error::BadVariance { class: 1, variance: -2.0 });
}

/// Means and variances of two to eight classes.
fn any_logits() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec((-10f64..10.0, 0f64..10.0), 2..8)
}

proptest! {
    #[test]
    fn uncertainty_is_additive_and_bounded(classes in any_logits()) {
        let (mean, variances): (Vec<f64>, Vec<f64>) = classes.into_iter().unzip();
        let logits = Logits::independent(&mean, &variances).unwrap();
        let prediction = logits.predict(&GaussHermite::new(8));
        prop_assert!((prediction.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-14);
        prop_assert!(prediction.mutual_information >= 0.0);
        prop_assert!(prediction.expected_entropy >= 0.0);
        let parts = prediction.expected_entropy + prediction.mutual_information;
        prop_assert!((prediction.entropy - parts).abs() < 1e-14);
        prop_assert!(prediction.entropy <= (mean.len() as f64).ln() + 1e-14);
    }

    /// A softmax does not see a number, or a noise, that is added to all logits.
    #[test]
    fn what_all_logits_share_has_no_effect(
        classes in any_logits(), shift in -10f64..10.0, common in 0f64..10.0,
    ) {
        let (mean, variances): (Vec<f64>, Vec<f64>) = classes.into_iter().unzip();
        let k = mean.len();
        let shifted: Vec<f64> = mean.iter().map(|m| m + shift).collect();
        let covariance: Vec<f64> = (0..k * k)
            .map(|i| common + if i % (k + 1) == 0 { variances[i / k] } else { 0.0 })
            .collect();
        let (here, there) = (
            Logits::independent(&mean, &variances).unwrap(),
            Logits::correlated(&shifted, &covariance).unwrap(),
        );
        let rule = GaussHermite::new(8);
        let (a, b) = (here.predict(&rule), there.predict(&rule));
        prop_assert!(largest_difference(&a.probabilities, &b.probabilities) < 1e-12);
        prop_assert!((a.mutual_information - b.mutual_information).abs() < 1e-12);
        prop_assert!(largest_difference(&here.closed_form(), &there.closed_form()) < 1e-12);
    }
}
