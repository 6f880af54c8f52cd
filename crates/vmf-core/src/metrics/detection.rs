//! Separating two groups by a score: in- from out-of-distribution, right from wrong predictions.
//!
//! A threshold `t` calls every example with score at least `t` positive. Lowering it from above
//! the largest score to the smallest traces the curves; equal scores are crossed in one step, so no
//! metric here depends on the order in which tied examples are stored.

use super::MetricsError;

/// Scores of positives and negatives, sorted; larger scores mean "positive".
///
/// # Defined corners
/// - NaN scores are errors; `+-inf` are ordered like any number, and `-0.0` equals `0.0`.
/// - At least one positive and one negative is needed: no rate is defined otherwise.
///
/// # Example
/// ```
/// use vmf_core::metrics::Detection;
///
/// // Is a high entropy a sign of an unfamiliar input?
/// let entropies = [0.9_f32, 0.8, 0.4, 0.4, 0.1];
/// let unfamiliar = [true, true, true, false, false];
/// let detection = Detection::new(&entropies, &unfamiliar)?;
/// assert_eq!(detection.auroc(), 5.5 / 6.0); // of 6 pairs 5 are in order, 1 is tied
/// assert_eq!(detection.fpr_at_tpr(0.95)?, 0.5);
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Detection {
    curve: Vec<OperatingPoint>,
    positives: usize,
    negatives: usize,
}

/// What one threshold achieves: counts of the examples whose score is at least `threshold`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperatingPoint {
    /// Examples with at least this score are called positive.
    pub threshold: f64,
    /// Positives called positive.
    pub true_positives: usize,
    /// Negatives called positive.
    pub false_positives: usize,
}

impl Detection {
    /// Sorts the scores once; every metric is then one pass.
    ///
    /// # Errors
    /// If the slices differ in length, a score is NaN, or one of the groups is empty.
    pub fn new<T: Copy + Into<f64>>(scores: &[T], positive: &[bool]) -> Result<Self, MetricsError> {
        if scores.len() != positive.len() {
            return Err(MetricsError::LengthMismatch { left: scores.len(), right: positive.len() });
        }
        let mut ranked: Vec<(f64, bool)> =
            scores.iter().map(|&score| score.into()).zip(positive.iter().copied()).collect();
        if let Some(index) = ranked.iter().position(|(score, _)| score.is_nan()) {
            return Err(MetricsError::NanScore { index });
        }
        let positives = positive.iter().filter(|&&positive| positive).count();
        let negatives = positive.len() - positives;
        if positives == 0 || negatives == 0 {
            return Err(MetricsError::OneSided { positives, negatives });
        }

        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let mut curve = Vec::new();
        let (mut true_positives, mut false_positives) = (0, 0);
        for tied in ranked.chunk_by(|a, b| a.0 == b.0) {
            let hits = tied.iter().filter(|(_, positive)| *positive).count();
            true_positives += hits;
            false_positives += tied.len() - hits;
            curve.push(OperatingPoint { threshold: tied[0].0, true_positives, false_positives });
        }
        Ok(Self { curve, positives, negatives })
    }

    /// Number of positives.
    pub fn positives(&self) -> usize {
        self.positives
    }

    /// Number of negatives.
    pub fn negatives(&self) -> usize {
        self.negatives
    }

    /// One point per distinct score, from the strictest threshold to the one that admits all.
    ///
    /// `true_positives / positives` over `false_positives / negatives` is the ROC curve (which also
    /// starts at the origin); `true_positives / (true_positives + false_positives)` over
    /// `true_positives / positives` is the precision-recall curve.
    pub fn curve(&self) -> &[OperatingPoint] {
        &self.curve
    }

    /// Area under the ROC curve: the probability that a positive scores above a negative.
    ///
    /// `AUROC = P(s+ > s-) + P(s+ = s-) / 2`, the Mann-Whitney statistic over all pairs
    /// (Hanley and McNeil, Radiology 143, 1982)
    ///
    /// Counted in integers, so it is exact up to the final division. Equals scikit-learn's
    /// `roc_auc_score` and torchmetrics' `binary_auroc`. 0.5 is chance.
    pub fn auroc(&self) -> f64 {
        let mut doubled_pairs: u128 = 0;
        let mut above = 0;
        let mut negatives_above = 0;
        for point in &self.curve {
            let tied_negatives = point.false_positives - negatives_above;
            doubled_pairs += tied_negatives as u128 * (above + point.true_positives) as u128;
            above = point.true_positives;
            negatives_above = point.false_positives;
        }
        let pairs = self.positives as u128 * self.negatives as u128;
        doubled_pairs as f64 / (2.0 * pairs as f64)
    }

    /// Area under the precision-recall curve, as average precision.
    ///
    /// `AUPR = sum_t (recall_t - recall_{t-1}) * precision_t`
    ///
    /// Steps, not straight lines: between two points of this curve a straight line is not
    /// achievable and its area too optimistic (Davis and Goadrich, ICML 2006). Equals
    /// scikit-learn's `average_precision_score` and torchmetrics' `binary_average_precision`.
    /// Chance is the share of positives. For negatives as the class to find, negate the scores
    /// and the labels.
    pub fn aupr(&self) -> f64 {
        let mut area = 0.0;
        let mut found = 0;
        for point in &self.curve {
            let called = point.true_positives + point.false_positives;
            let precision = point.true_positives as f64 / called as f64;
            area += (point.true_positives - found) as f64 * precision;
            found = point.true_positives;
        }
        area / self.positives as f64
    }

    /// The smallest false-positive rate among thresholds whose true-positive rate is at least
    /// `target`: `FPR95` of the out-of-distribution literature for `target = 0.95` (Liang et al.,
    /// ICLR 2018).
    ///
    /// `min { FPR(t) : TPR(t) >= target }` over thresholds at the scores, without interpolation.
    /// Equals `fpr[tpr >= target].min()` on scikit-learn's
    /// `roc_curve(drop_intermediate=False)`.
    ///
    /// # Errors
    /// If `target` is not in `(0, 1]`.
    pub fn fpr_at_tpr(&self, target: f64) -> Result<f64, MetricsError> {
        if !(target > 0.0 && target <= 1.0) {
            return Err(MetricsError::Rate { value: target });
        }
        let reached = self
            .curve
            .iter()
            .find(|point| point.true_positives as f64 / self.positives as f64 >= target);
        // The last threshold admits everything, so its rate of one reaches any target.
        let false_positives = reached.map_or(self.negatives, |point| point.false_positives);
        Ok(false_positives as f64 / self.negatives as f64)
    }
}
