//! Calibration: does an event predicted with confidence 0.8 happen 80 % of the time?
//!
//! The estimators group predictions into bins `B_1 .. B_M` by confidence and compare, in each bin,
//! the mean confidence with the frequency of the event: `gap_b = conf(B_b) - acc(B_b)`.
//!
//! # Which bin an edge belongs to
//! Bins are closed on the right, `(lower, upper]`, and the first includes zero. This is the
//! definition of Guo et al., *On Calibration of Modern Neural Networks* (ICML 2017), whose ECE with
//! 15 bins is the one papers report, and of scikit-learn's `calibration_curve`. It puts a
//! confidence of exactly one, the commonest tie in practice, into the last bin with its neighbours.
//! netcal (as `numpy.histogram`) closes bins on the left; torchmetrics does too, and gives a
//! confidence of exactly one a bin of its own. All agree when no confidence lies on an edge, up to
//! the `f32` to which torchmetrics rounds the probabilities of several classes.
//!
//! Edges are the `f64` nearest to `m / M`. A tie exists only if the confidence is that very number:
//! `0.2_f32` is `0.20000000298...` and lies above the edge `0.2`.

use super::{MetricsError, Predictions, SUM_TOLERANCE};

/// Number of bins when none is given, as in Guo et al. (2017): 15.
pub const DEFAULT_BINS: usize = 15;

/// How confidences are grouped.
///
/// ```
/// use vmf_core::metrics::Binning;
///
/// assert_eq!(Binning::default(), Binning::equal_width(15)?);
/// assert!(Binning::equal_mass(0).is_err());
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binning {
    spacing: Spacing,
    bins: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spacing {
    EqualWidth,
    EqualMass,
}

impl Default for Binning {
    /// [`DEFAULT_BINS`] bins of equal width.
    fn default() -> Self {
        Self { spacing: Spacing::EqualWidth, bins: DEFAULT_BINS }
    }
}

impl Binning {
    /// `bins` intervals `((m - 1) / bins, m / bins]` of the unit interval.
    ///
    /// # Errors
    /// If `bins` is zero.
    pub fn equal_width(bins: usize) -> Result<Self, MetricsError> {
        Self::checked(Spacing::EqualWidth, bins)
    }

    /// `bins` intervals between the quantiles `m / bins` of the confidences themselves, so that
    /// each holds about `N / bins` examples (Nguyen and O'Connor, EMNLP 2015).
    ///
    /// Quantiles interpolate linearly between order statistics, as `numpy.quantile` does; the
    /// outer edges are 0 and 1. Equal confidences always share a bin, so the result does not depend
    /// on the order of the examples; bins between equal quantiles stay empty.
    ///
    /// # Errors
    /// If `bins` is zero.
    pub fn equal_mass(bins: usize) -> Result<Self, MetricsError> {
        Self::checked(Spacing::EqualMass, bins)
    }

    fn checked(spacing: Spacing, bins: usize) -> Result<Self, MetricsError> {
        if bins == 0 {
            return Err(MetricsError::NoBins);
        }
        Ok(Self { spacing, bins })
    }

    /// The `bins + 1` edges, from 0 to 1.
    fn edges(self, confidences: &[f64]) -> Vec<f64> {
        match self.spacing {
            Spacing::EqualWidth => (0..=self.bins).map(|m| m as f64 / self.bins as f64).collect(),
            Spacing::EqualMass => {
                let mut sorted = confidences.to_vec();
                sorted.sort_unstable_by(f64::total_cmp);
                let inner = (1..self.bins).map(|m| quantile(&sorted, m, self.bins));
                std::iter::once(0.0).chain(inner).chain(std::iter::once(1.0)).collect()
            }
        }
    }
}

/// The quantile `m / parts` of sorted values: position `(N - 1) m / parts`, linear in between.
///
/// The position is split in integers, so that a quantile that falls on a value is that value.
fn quantile(sorted: &[f64], m: usize, parts: usize) -> f64 {
    let position = (sorted.len() - 1) as u128 * m as u128;
    let index = (position / parts as u128) as usize;
    let fraction = (position % parts as u128) as f64 / parts as f64;
    let below = sorted[index];
    if fraction == 0.0 {
        return below;
    }
    below + (sorted[index + 1] - below) * fraction
}

/// One bar of a reliability diagram: the predictions whose confidence lies in `(lower, upper]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// Lower edge, excluded (except 0 in the first bin).
    pub lower: f64,
    /// Upper edge, included.
    pub upper: f64,
    /// Number of predictions in the bin.
    pub count: usize,
    /// How many of them came true.
    pub correct: usize,
    confidence_sum: f64,
}

impl Bin {
    /// Mean confidence of the bin, `conf(B)`; `None` if it is empty.
    pub fn confidence(&self) -> Option<f64> {
        self.mean_of(self.confidence_sum)
    }

    /// Frequency of the event in the bin, `acc(B)`; `None` if it is empty.
    pub fn accuracy(&self) -> Option<f64> {
        self.mean_of(self.correct as f64)
    }

    /// `conf(B) - acc(B)`, positive where the model is overconfident; `None` if the bin is empty.
    pub fn gap(&self) -> Option<f64> {
        self.mean_of(self.excess())
    }

    /// `count * gap`, defined for empty bins too.
    fn excess(&self) -> f64 {
        self.confidence_sum - self.correct as f64
    }

    fn mean_of(&self, sum: f64) -> Option<f64> {
        (self.count > 0).then(|| sum / self.count as f64)
    }
}

/// The bins of a reliability diagram and the errors read off them.
///
/// ```
/// use vmf_core::metrics::{Binning, Predictions};
///
/// let p = Predictions::new(&[0.9, 0.1, 0.8, 0.2, 0.6, 0.4], &[0, 0, 1], 2)?;
/// let diagram = p.reliability(Binning::equal_width(4)?);
/// let last = diagram.bins()[3];
/// assert_eq!((last.lower, last.upper, last.count, last.correct), (0.75, 1.0, 2, 2));
/// assert!((diagram.ece() - (0.1 + 0.2 + 0.6) / 3.0).abs() < 1e-15);
/// assert!((diagram.mce() - 0.6).abs() < 1e-15);
/// assert_eq!(diagram.bins()[0].accuracy(), None); // nothing to say about an empty bin
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Reliability {
    bins: Vec<Bin>,
    total: usize,
}

impl Reliability {
    /// Groups predicted probabilities of an event with whether it happened.
    ///
    /// [`Predictions::reliability`] is the case in which the event is "the predicted class is
    /// right"; this constructor serves any other.
    ///
    /// # Errors
    /// If the slices differ in length or are empty, or a confidence is NaN or outside `[0, 1]` by
    /// more than [`SUM_TOLERANCE`].
    pub fn new(
        confidences: &[f64],
        happened: &[bool],
        binning: Binning,
    ) -> Result<Self, MetricsError> {
        if confidences.len() != happened.len() {
            return Err(MetricsError::LengthMismatch {
                left: confidences.len(),
                right: happened.len(),
            });
        }
        if confidences.is_empty() {
            return Err(MetricsError::Empty);
        }
        let allowed = 0.0..=1.0 + SUM_TOLERANCE;
        if let Some(index) = confidences.iter().position(|c| !allowed.contains(c)) {
            let value = confidences[index];
            return Err(MetricsError::Confidence { index, value });
        }
        Ok(Self::group(confidences, happened, binning))
    }

    fn group(confidences: &[f64], happened: &[bool], binning: Binning) -> Self {
        let edges = binning.edges(confidences);
        let mut bins: Vec<Bin> = edges
            .windows(2)
            .map(|edge| Bin {
                lower: edge[0],
                upper: edge[1],
                count: 0,
                correct: 0,
                confidence_sum: 0.0,
            })
            .collect();
        // The outer edges do not take part, so a confidence a rounding error above one still
        // lands in the last bin.
        let inner = &edges[1..edges.len() - 1];
        for (&confidence, &happened) in confidences.iter().zip(happened) {
            let bin = &mut bins[inner.partition_point(|&edge| edge < confidence)];
            bin.count += 1;
            bin.correct += usize::from(happened);
            bin.confidence_sum += confidence;
        }
        let total = confidences.len();
        Self { bins, total }
    }

    /// The bins in increasing confidence, empty ones included.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Expected calibration error: the mean absolute gap, each bin weighted by its share.
    ///
    /// `ECE = sum_b |B_b| / N * |conf(B_b) - acc(B_b)|` (Naeini et al., AAAI 2015; Guo et al.,
    /// ICML 2017). Empty bins weigh nothing.
    pub fn ece(&self) -> f64 {
        self.bins.iter().map(|bin| bin.excess().abs()).sum::<f64>() / self.total as f64
    }

    /// Maximum calibration error: the largest absolute gap of any bin that is not empty.
    ///
    /// `MCE = max_b |conf(B_b) - acc(B_b)|` (Naeini et al., AAAI 2015)
    pub fn mce(&self) -> f64 {
        let gaps = self.bins.iter().filter_map(Bin::gap);
        gaps.fold(0.0, |largest, gap| largest.max(gap.abs()))
    }
}

impl<T: Copy + Into<f64>> Predictions<'_, T> {
    /// The reliability diagram of the predicted class: confidence `max_k p_ik` against whether
    /// that class is the true one.
    pub fn reliability(&self, binning: Binning) -> Reliability {
        let (confidences, correct) = self.confidences();
        Reliability::group(&confidences, &correct, binning)
    }

    /// The reliability diagram of one class against the rest: `p_ik` against `1[y_i = k]`.
    ///
    /// # Errors
    /// If `class` is not below [`classes`](Self::classes).
    pub fn class_reliability(
        &self,
        class: usize,
        binning: Binning,
    ) -> Result<Reliability, MetricsError> {
        if class >= self.classes() {
            return Err(MetricsError::NoSuchClass { class, classes: self.classes() });
        }
        Ok(self.one_against_rest(class, binning))
    }

    fn one_against_rest(&self, class: usize, binning: Binning) -> Reliability {
        let (probabilities, is_class): (Vec<f64>, Vec<bool>) =
            self.labelled().map(|(row, label)| (row[class].into(), label == class)).unzip();
        Reliability::group(&probabilities, &is_class, binning)
    }

    /// Expected calibration error with 15 bins of equal width; see [`Reliability::ece`].
    ///
    /// Equals torchmetrics' `multiclass_calibration_error(n_bins=15, norm="l1")` and netcal's
    /// `ECE(15)` unless a confidence lies on an edge of a bin. (If no more than two classes occur
    /// among the labels, netcal bins the probability of class 1 instead; give it the confidences
    /// and whether they were right.) For another number of bins:
    /// `predictions.reliability(Binning::equal_width(10)?).ece()`.
    ///
    /// ```
    /// use vmf_core::metrics::Predictions;
    ///
    /// // Four predictions at 0.75, three of them right: perfectly calibrated.
    /// let probabilities = [0.75, 0.25].repeat(4);
    /// let p = Predictions::new(&probabilities, &[0, 0, 0, 1], 2)?;
    /// assert_eq!(p.ece(), 0.0);
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn ece(&self) -> f64 {
        self.reliability(Binning::default()).ece()
    }

    /// Maximum calibration error with 15 bins of equal width; see [`Reliability::mce`].
    ///
    /// Equals torchmetrics' `multiclass_calibration_error(n_bins=15, norm="max")` and netcal's
    /// `MCE(15)` unless a confidence lies on an edge. A bin with a single example can decide it:
    /// look at the counts of the [`reliability`](Self::reliability) diagram.
    pub fn mce(&self) -> f64 {
        self.reliability(Binning::default()).mce()
    }

    /// Adaptive calibration error: [`Reliability::ece`] over 15 bins of equal mass
    /// ([`Binning::equal_mass`]).
    ///
    /// Bins of equal width leave most of a confident network's predictions in the last bin, where
    /// over- and underconfidence cancel; bins of equal mass resolve that region. Equals
    /// netcal's `ECE(15, equal_intervals=False)` unless a confidence lies on a quantile, and its
    /// bins are those of scikit-learn's `calibration_curve(strategy="quantile")`. It is not
    /// the class-wise ACE of Nixon et al. (2019).
    pub fn adaptive_ece(&self) -> f64 {
        let binning = Binning { spacing: Spacing::EqualMass, bins: DEFAULT_BINS };
        self.reliability(binning).ece()
    }

    /// Classwise expected calibration error with 15 bins of equal width.
    ///
    /// `cw-ECE = 1/K sum_k sum_b |B_bk| / N * |mean p_k in B_bk - frequency of k in B_bk|`
    ///
    /// Every class's probability counts, not only the largest: the classwise ECE of Kull et al.
    /// (NeurIPS 2019), called static calibration error by Nixon et al. (CVPR workshops 2019).
    /// Equals the mean over classes of torchmetrics' `binary_calibration_error` unless a
    /// probability lies on an edge. The many near-zero probabilities make it small for large `K`;
    /// compare it between models of equal `K` only.
    pub fn classwise_ece(&self) -> f64 {
        self.classwise_ece_with(Binning::default())
    }

    /// [`classwise_ece`](Self::classwise_ece) with bins of choice.
    pub fn classwise_ece_with(&self, binning: Binning) -> f64 {
        let errors = (0..self.classes()).map(|class| self.one_against_rest(class, binning).ece());
        errors.sum::<f64>() / self.classes() as f64
    }

    /// Mean confidence minus accuracy: positive for an overconfident model.
    ///
    /// `gap = 1/N sum_i max_k p_ik - accuracy`
    ///
    /// The signed counterpart of the ECE, which it never exceeds in size:
    /// `|gap| <= ECE` for any bins.
    pub fn overconfidence(&self) -> f64 {
        let confidence: f64 = self.top().map(|(_, confidence)| confidence).sum();
        confidence / self.len() as f64 - self.accuracy()
    }
}
