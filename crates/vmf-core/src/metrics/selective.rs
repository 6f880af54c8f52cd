//! Selective prediction: to answer only where the network is confident, and to abstain elsewhere.
//!
//! Answering the `k` most confident of `N` examples has the coverage `k / N` and the risk
//! `r_k = errors among them / k`. A score that ranks errors last has a low risk at every coverage
//! (El-Yaniv and Wiener, JMLR 2010; Geifman and El-Yaniv, NeurIPS 2017).

use super::{MetricsError, Predictions};

/// The risk at each coverage, from the most confident example to all of them.
///
/// # Defined corners
/// - Examples of equal confidence have no order. The risk within such a group is the mean over all
///   orders, so that no result depends on how the examples are stored, and
///   [`coverage_at_risk`](Self::coverage_at_risk) takes a group as a whole or not at all.
/// - NaN confidences are errors; `+-inf` are ordered like any number.
///
/// # Example
/// ```
/// use vmf_core::metrics::RiskCoverage;
///
/// let confidences = [0.9, 0.8, 0.7, 0.6];
/// let right = [true, true, false, true];
/// let curve = RiskCoverage::new(&confidences, &right)?;
/// assert_eq!(curve.risks(), [0.0, 0.0, 1.0 / 3.0, 0.25]);
/// assert_eq!(curve.coverage_at_risk(0.05)?, 0.5); // the two most confident are right
/// assert_eq!(curve.coverage_at_risk(0.25)?, 1.0);
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RiskCoverage {
    risks: Vec<f64>,
    /// The ends of groups of equal confidence, as numbers of examples.
    ends: Vec<usize>,
}

impl RiskCoverage {
    /// Ranks examples by confidence, the highest first.
    ///
    /// # Errors
    /// If the slices differ in length or are empty, or a confidence is NaN.
    pub fn new<T: Copy + Into<f64>>(
        confidences: &[T],
        right: &[bool],
    ) -> Result<Self, MetricsError> {
        let (left, right_len) = (confidences.len(), right.len());
        if left != right_len {
            return Err(MetricsError::LengthMismatch { left, right: right_len });
        }
        if confidences.is_empty() {
            return Err(MetricsError::Empty);
        }
        let mut ranked: Vec<(f64, bool)> =
            confidences.iter().map(|&c| c.into()).zip(right.iter().copied()).collect();
        if let Some(index) = ranked.iter().position(|(confidence, _)| confidence.is_nan()) {
            return Err(MetricsError::NanScore { index });
        }
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let (mut risks, mut ends) = (Vec::with_capacity(ranked.len()), Vec::new());
        let mut errors = 0;
        for tied in ranked.chunk_by(|a, b| a.0 == b.0) {
            let wrong = tied.iter().filter(|(_, right)| !right).count();
            for place in 1..=tied.len() {
                // In a random order of the group, its share of errors is expected at every place.
                let expected = (place * wrong) as f64 / tied.len() as f64;
                risks.push((errors as f64 + expected) / (risks.len() + 1) as f64);
            }
            errors += wrong;
            ends.push(risks.len());
        }
        Ok(Self { risks, ends })
    }

    /// The risk of answering the `k` most confident examples, for `k = 1 .. N`.
    pub fn risks(&self) -> &[f64] {
        &self.risks
    }

    /// Area under the risk-coverage curve: the mean risk over all coverages.
    ///
    /// `AURC = 1/N sum_k r_k`
    ///
    /// It is 0 for a network without errors, and the rate of errors for confidences that say
    /// nothing. It judges accuracy and ranking together: compare networks of similar accuracy.
    pub fn aurc(&self) -> f64 {
        self.risks.iter().sum::<f64>() / self.risks.len() as f64
    }

    /// The largest coverage whose risk is at most `risk`: `max { k / N : r_k <= risk }`, over
    /// thresholds between distinct confidences. It is 0 if the most confident examples already
    /// have a higher risk.
    ///
    /// # Errors
    /// If `risk` is not in `[0, 1]`.
    pub fn coverage_at_risk(&self, risk: f64) -> Result<f64, MetricsError> {
        if !(0.0..=1.0).contains(&risk) {
            return Err(MetricsError::Share { what: "risk", value: risk });
        }
        let within = self.ends.iter().rev().find(|&&end| self.risks[end - 1] <= risk);
        Ok(within.map_or(0.0, |&end| end as f64 / self.risks.len() as f64))
    }
}

impl<T: Copy + Into<f64>> Predictions<'_, T> {
    /// The risk-coverage curve of the predicted class, ranked by its probability.
    pub fn risk_coverage(&self) -> RiskCoverage {
        let (confidences, right) = self.confidences();
        // Confidences of checked predictions are numbers, and there is at least one.
        RiskCoverage::new(&confidences, &right)
            .unwrap_or_else(|_| RiskCoverage { risks: vec![0.0], ends: vec![1] })
    }
}
