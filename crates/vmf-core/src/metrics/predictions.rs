//! Class probabilities with their labels, checked once so that no metric has to.

use std::fmt::Display;

use super::MetricsError;

/// How far the sum of a row of probabilities may be from one: `1e-4`.
///
/// A softmax over a thousand classes in `f32` is off by about `1e-6`; an average over Monte Carlo
/// samples by less. A row of logits, of unnormalized scores or of percentages is off by far more.
/// Rows within the tolerance are used as they are, never renormalized.
pub const SUM_TOLERANCE: f64 = 1e-4;

/// A view of `N` rows of `K` class probabilities (row-major) and their true classes.
///
/// [`Predictions::new`] checks everything a metric relies on, so that the metrics are plain
/// functions that return numbers:
///
/// - How good are they? [`accuracy`](Self::accuracy), [`nll`](Self::nll), [`brier`](Self::brier).
/// - Can their confidence be believed? [`ece`](Self::ece), [`mce`](Self::mce),
///   [`adaptive_ece`](Self::adaptive_ece), [`classwise_ece`](Self::classwise_ece),
///   [`overconfidence`](Self::overconfidence), and the diagram behind them,
///   [`reliability`](Self::reliability).
/// - Is it worth abstaining? [`risk_coverage`](Self::risk_coverage).
/// - Are they as uncertain as people are? [`cross_entropy`](Self::cross_entropy).
/// - How uncertain are they? [`entropy`](Self::entropy); from Monte Carlo samples,
///   [`MonteCarlo`](super::MonteCarlo).
///
/// Probabilities may be of any type that converts to `f64` without loss, so `f32` needs no copy;
/// labels of any integer type.
///
/// # Defined corners
/// - `N = 0` is an error: each metric is a mean. `N = 1` is like any other `N`.
/// - `K = 1` is allowed: the one class has probability one, and every error is zero.
/// - NaN, infinite or negative probabilities, and rows that do not sum to one within
///   [`SUM_TOLERANCE`], are errors that name the row.
/// - When several classes share the largest probability, the first of them is the prediction (the
///   rule of `numpy.argmax`).
///
/// # Example
/// ```
/// use vmf_core::metrics::Predictions;
///
/// let probabilities = [
///     0.7_f32, 0.2, 0.1, // right
///     0.1, 0.5, 0.4, // wrong: the label is 2
/// ];
/// let predictions = Predictions::new(&probabilities, &[0, 2], 3)?;
/// assert_eq!(predictions.accuracy(), 0.5);
/// assert!((predictions.overconfidence() - 0.1).abs() < 1e-7);
///
/// let percent = Predictions::new(&[70.0, 20.0, 10.0], &[0], 3);
/// let message = percent.unwrap_err().to_string();
/// assert!(message.starts_with("row 0, class 0: 70 is not a probability"));
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Predictions<'a, T = f64> {
    probabilities: &'a [T],
    labels: Vec<usize>,
    classes: usize,
}

impl<'a, T: Copy + Into<f64>> Predictions<'a, T> {
    /// Checks `labels.len()` rows of `classes` probabilities against their labels.
    ///
    /// # Errors
    /// See the corners of [`Predictions`]; the message names the first row at fault and its value.
    pub fn new<L>(
        probabilities: &'a [T],
        labels: &[L],
        classes: usize,
    ) -> Result<Self, MetricsError>
    where
        L: Copy + Display + TryInto<usize>,
    {
        check_shape(probabilities.len(), labels.len(), classes)?;
        let labels = check_labels(labels, classes)?;
        check_probabilities(probabilities, classes)?;
        Ok(Self { probabilities, labels, classes })
    }

    /// Number of examples, `N`. Never zero.
    #[allow(clippy::len_without_is_empty)] // there is no empty set of predictions
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Number of classes, `K`.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The true class of each example.
    pub fn labels(&self) -> &[usize] {
        &self.labels
    }

    /// The rows of probabilities, in order.
    pub fn rows(&self) -> std::slice::ChunksExact<'a, T> {
        self.probabilities.chunks_exact(self.classes)
    }

    /// Predicted class and its probability, the confidence, of each example in order.
    pub fn top(&self) -> impl Iterator<Item = (usize, f64)> + use<'_, 'a, T> {
        self.rows().map(|row| argmax(row))
    }

    /// The confidence of each example, and whether its predicted class is the true one.
    pub(super) fn confidences(&self) -> (Vec<f64>, Vec<bool>) {
        let top = self.top().zip(&self.labels);
        top.map(|((predicted, confidence), &label)| (confidence, predicted == label)).unzip()
    }

    /// Each row with its label.
    pub(super) fn labelled(&self) -> impl Iterator<Item = (&'a [T], usize)> + use<'_, 'a, T> {
        self.rows().zip(self.labels.iter().copied())
    }
}

/// The first of the largest entries, with its value. Rows are validated: not empty, no NaN.
fn argmax<T: Copy + Into<f64>>(row: &[T]) -> (usize, f64) {
    let mut best = (0, f64::NEG_INFINITY);
    for (class, &value) in row.iter().enumerate() {
        let value = value.into();
        if value > best.1 {
            best = (class, value);
        }
    }
    best
}

pub(super) fn check_shape(values: usize, rows: usize, classes: usize) -> Result<(), MetricsError> {
    if classes == 0 {
        return Err(MetricsError::NoClasses);
    }
    if rows.checked_mul(classes) != Some(values) {
        return Err(MetricsError::Shape { values, rows, classes });
    }
    if rows == 0 {
        return Err(MetricsError::Empty);
    }
    Ok(())
}

pub(super) fn check_labels<L>(labels: &[L], classes: usize) -> Result<Vec<usize>, MetricsError>
where
    L: Copy + Display + TryInto<usize>,
{
    let checked = labels.iter().enumerate().map(|(row, &label)| {
        let class: Option<usize> = label.try_into().ok();
        class.filter(|&class| class < classes).ok_or_else(|| MetricsError::Label {
            row,
            label: label.to_string(),
            classes,
        })
    });
    checked.collect()
}

pub(super) fn check_probabilities<T>(values: &[T], classes: usize) -> Result<(), MetricsError>
where
    T: Copy + Into<f64>,
{
    for (row, entries) in values.chunks_exact(classes).enumerate() {
        let mut sum = 0.0;
        for (class, &value) in entries.iter().enumerate() {
            let value = value.into();
            if !(0.0..=1.0 + SUM_TOLERANCE).contains(&value) {
                return Err(MetricsError::NotAProbability { row, class, value });
            }
            sum += value;
        }
        if (sum - 1.0).abs() > SUM_TOLERANCE {
            return Err(MetricsError::RowSum { row, sum });
        }
    }
    Ok(())
}
