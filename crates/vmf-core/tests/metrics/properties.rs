//! Laws that hold for any predictions.

use proptest::prelude::*;
use vmf_core::metrics::{Binning, Detection, MonteCarlo, Predictions, Temperature};

/// Slack for sums of some dozens of terms of order one.
const ROUNDING: f64 = 1e-12;

/// Logits (with frequent ties) and labels of up to 40 rows of up to 6 classes.
fn logits_and_labels() -> impl Strategy<Value = (Vec<f64>, Vec<usize>, usize)> {
    (1_usize..=6, 1_usize..=40).prop_flat_map(|(classes, rows)| {
        let logit = prop_oneof![-8.0..8.0, (-3_i8..=3).prop_map(f64::from)];
        (
            prop::collection::vec(logit, rows * classes),
            prop::collection::vec(0..classes, rows),
            Just(classes),
        )
    })
}

fn scores_and_groups() -> impl Strategy<Value = (Vec<f64>, Vec<bool>)> {
    let pair = (prop_oneof![-1e3..1e3, (-3_i8..=3).prop_map(f64::from)], any::<bool>());
    prop::collection::vec(pair, 2..60).prop_map(|pairs| pairs.into_iter().unzip()).prop_filter(
        "both groups",
        |(_, positive): &(Vec<f64>, Vec<bool>)| {
            positive.iter().any(|&p| p) && positive.iter().any(|&p| !p)
        },
    )
}

fn softmax(logits: &[f64], classes: usize) -> Vec<f64> {
    Temperature::ONE.softmax(logits, classes).expect("finite logits")
}

proptest! {
    #[test]
    fn calibration_errors_are_bounded_and_ordered(
        (logits, labels, classes) in logits_and_labels(),
    ) {
        let probabilities = softmax(&logits, classes);
        let p = Predictions::new(&probabilities, &labels, classes).unwrap();
        let (ece, mce) = (p.ece(), p.mce());
        prop_assert!((0.0..=1.0).contains(&ece));
        prop_assert!(mce <= 1.0 && ece <= mce + ROUNDING);
        prop_assert!((0.0..=1.0).contains(&p.adaptive_ece()));
        prop_assert!((0.0..=1.0).contains(&p.classwise_ece()));
        let gap = p.overconfidence();
        prop_assert!(gap.abs() <= ece + ROUNDING);
        prop_assert!(gap.abs() <= p.adaptive_ece() + ROUNDING);

        // With a single bin nothing is left of the ECE but the size of the gap.
        let single = p.reliability(Binning::equal_width(1).unwrap());
        prop_assert!((single.ece() - gap.abs()).abs() <= ROUNDING);
    }

    #[test]
    fn every_prediction_is_in_the_bin_that_holds_it(
        (logits, labels, classes) in logits_and_labels(),
        bins in 1_usize..30,
    ) {
        let probabilities = softmax(&logits, classes);
        let p = Predictions::new(&probabilities, &labels, classes).unwrap();
        for binning in [Binning::equal_width(bins).unwrap(), Binning::equal_mass(bins).unwrap()] {
            let diagram = p.reliability(binning);
            prop_assert_eq!(diagram.bins().len(), bins);
            let count: usize = diagram.bins().iter().map(|bin| bin.count).sum();
            prop_assert_eq!(count, p.len());
            let correct: usize = diagram.bins().iter().map(|bin| bin.correct).sum();
            prop_assert_eq!(correct as f64 / p.len() as f64, p.accuracy());
            for bin in diagram.bins() {
                let inside = p.top().filter(|&(_, c)| bin.lower < c && c <= bin.upper);
                prop_assert_eq!(inside.count(), bin.count);
            }
        }
    }

    #[test]
    fn the_order_of_examples_does_not_matter(
        (logits, labels, classes) in logits_and_labels(),
        seed in any::<u64>(),
    ) {
        // Sorting by a hash of the position is a permutation that depends on the seed.
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.sort_by_key(|&i| (i as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let probabilities = softmax(&logits, classes);
        let moved: Vec<f64> = order
            .iter()
            .flat_map(|&i| probabilities[i * classes..(i + 1) * classes].to_vec())
            .collect();
        let moved_labels: Vec<usize> = order.iter().map(|&i| labels[i]).collect();

        let here = Predictions::new(&probabilities, &labels, classes).unwrap();
        let there = Predictions::new(&moved, &moved_labels, classes).unwrap();
        let metrics = |p: &Predictions<'_>| [
            p.accuracy(),
            p.nll(),
            p.brier(),
            p.ece(),
            p.mce(),
            p.adaptive_ece(),
            p.classwise_ece(),
            p.overconfidence(),
        ];
        for (here, there) in metrics(&here).into_iter().zip(metrics(&there)) {
            prop_assert!((here - there).abs() <= ROUNDING);
        }
    }

    #[test]
    fn proper_scores_and_entropies_are_bounded((logits, labels, classes) in logits_and_labels()) {
        let probabilities = softmax(&logits, classes);
        let p = Predictions::new(&probabilities, &labels, classes).unwrap();
        prop_assert!(p.nll() >= 0.0);
        prop_assert!((0.0..=2.0).contains(&p.brier()));
        let most = (classes as f64).ln() + ROUNDING;
        prop_assert!(p.entropy().iter().all(|h| (0.0..=most).contains(h)));
    }

    #[test]
    fn uncertainty_is_additive_and_disagreement_at_most_ln_of_samples(
        (logits, _, classes) in logits_and_labels(),
        samples in 1_usize..5,
    ) {
        let block = samples * classes;
        let whole = logits.len() / block * block;
        prop_assume!(whole > 0);
        let probabilities = softmax(&logits[..whole], classes);
        let u = MonteCarlo::new(&probabilities, samples, classes).unwrap().uncertainty();
        for i in 0..whole / block {
            let epistemic = u.mutual_information[i];
            prop_assert!(epistemic >= 0.0);
            prop_assert!(epistemic <= (samples.min(classes) as f64).ln() + ROUNDING);
            let parts = u.expected_entropy[i] + epistemic;
            prop_assert!((u.predictive_entropy[i] - parts).abs() <= ROUNDING);
        }
    }

    #[test]
    fn auroc_is_the_share_of_ordered_pairs((scores, positive) in scores_and_groups()) {
        let mut wins = 0.0;
        let mut pairs = 0.0;
        for (&s, _) in scores.iter().zip(&positive).filter(|&(_, &p)| p) {
            for (&t, _) in scores.iter().zip(&positive).filter(|&(_, &p)| !p) {
                pairs += 1.0;
                wins += if s > t { 1.0 } else if s == t { 0.5 } else { 0.0 };
            }
        }
        let d = Detection::new(&scores, &positive).unwrap();
        prop_assert!((d.auroc() - wins / pairs).abs() <= 1e-15);

        // Ties count half either way, so this holds with them too.
        let negated: Vec<f64> = scores.iter().map(|s| -s).collect();
        let mirrored = Detection::new(&negated, &positive).unwrap();
        prop_assert!((d.auroc() + mirrored.auroc() - 1.0).abs() <= 1e-15);
    }

    #[test]
    fn detection_sees_only_the_order_of_scores((scores, positive) in scores_and_groups()) {
        let d = Detection::new(&scores, &positive).unwrap();
        let doubled: Vec<f64> = scores.iter().map(|s| 2.0 * s).collect();
        let other = Detection::new(&doubled, &positive).unwrap();
        prop_assert_eq!(d.auroc(), other.auroc());
        prop_assert_eq!(d.aupr(), other.aupr());
        prop_assert!(d.aupr() > 0.0 && d.aupr() <= 1.0 + ROUNDING);
        let rates = [0.1, 0.5, 0.8, 0.95, 1.0].map(|target| d.fpr_at_tpr(target).unwrap());
        prop_assert!(rates.is_sorted());
        prop_assert_eq!(rates, [0.1, 0.5, 0.8, 0.95, 1.0].map(|t| other.fpr_at_tpr(t).unwrap()));
    }

    #[test]
    fn no_temperature_is_better_than_the_fitted_one(
        (logits, labels, classes) in logits_and_labels(),
        log_other in -5.0..5.0,
    ) {
        let fit = Temperature::fit_logits(&logits, &labels, classes).unwrap();
        prop_assert!(fit.nll_after <= fit.nll_before + ROUNDING);
        let other = Temperature::new(f64::exp(log_other)).unwrap();
        let scaled = other.softmax(&logits, classes).unwrap();
        let nll = Predictions::new(&scaled, &labels, classes).unwrap().nll();
        prop_assert!(fit.nll_after <= nll + ROUNDING);
    }

    /// Labels are targets that put all their mass on one class.
    #[test]
    fn one_hot_targets_are_labels((logits, labels, classes) in logits_and_labels()) {
        let one_hot: Vec<f32> = labels
            .iter()
            .flat_map(|&label| (0..classes).map(move |k| if k == label { 1.0 } else { 0.0 }))
            .collect();
        let to_labels = Temperature::fit_logits(&logits, &labels, classes).unwrap();
        let to_targets = Temperature::fit_targets(&logits, &one_hot, classes).unwrap();
        prop_assert_eq!(to_labels, to_targets);
    }

    /// A target made by a temperature gives that temperature back; the cross-entropy is then the
    /// target's entropy, and no other temperature does better.
    #[test]
    fn a_temperature_is_recovered_from_its_probabilities(
        (logits, _, classes) in logits_and_labels(),
        log_temperature in -0.5..4.0,
        log_other in -1.0..4.0,
    ) {
        prop_assume!(logits.chunks_exact(classes).any(|row| {
            row.iter().any(|z| (z - row[0]).abs() > 0.1)
        }));
        let [truth, other] = [log_temperature, log_other].map(|t: f64| Temperature::new(t.exp()).unwrap());
        let targets = truth.softmax(&logits, classes).unwrap();
        let fit = Temperature::fit_targets(&logits, &targets, classes).unwrap();
        prop_assert!((fit.temperature.value() / truth.value() - 1.0).abs() < 1e-6);
        let zeros = vec![0; targets.len() / classes];
        let p = Predictions::new(&targets, &zeros, classes).unwrap();
        let entropy = p.entropy().iter().sum::<f64>() / p.len() as f64;
        prop_assert!((fit.nll_after - entropy).abs() < 1e-9);
        let scaled = other.softmax(&logits, classes).unwrap();
        let cross: f64 = targets.iter().zip(&scaled).map(|(q, p)| -q * p.max(1e-300).ln()).sum();
        prop_assert!(fit.nll_after <= cross / p.len() as f64 + ROUNDING);
    }

    #[test]
    fn temperature_keeps_the_predicted_class(
        (logits, labels, classes) in logits_and_labels(),
        log_temperature in -2.0..4.0,
    ) {
        let probabilities = softmax(&logits, classes);
        let before = Predictions::new(&probabilities, &labels, classes).unwrap();
        let temperature = Temperature::new(f64::exp(log_temperature)).unwrap();
        let scaled = temperature.softmax(&logits, classes).unwrap();
        let after = Predictions::new(&scaled, &labels, classes).unwrap();
        prop_assert_eq!(before.accuracy(), after.accuracy());
    }
}
