//! Accuracy and the two proper scores: how good the predictions are overall.

use super::predictions::{check_probabilities, check_shape};
use super::{MetricsError, Predictions};

impl<T: Copy + Into<f64>> Predictions<'_, T> {
    /// Fraction of examples whose most probable class is the true one.
    ///
    /// `accuracy = 1/N sum_i 1[argmax_k p_ik = y_i]`, the first class winning ties.
    /// Equals scikit-learn's `accuracy_score(y, p.argmax(axis=1))`.
    pub fn accuracy(&self) -> f64 {
        let right = self
            .top()
            .zip(self.labels())
            .filter(|((predicted, _), label)| predicted == *label)
            .count();
        right as f64 / self.len() as f64
    }

    /// Mean negative log-likelihood in nats, the log score.
    ///
    /// `NLL = -1/N sum_i ln p_i[y_i]`
    ///
    /// It is `+inf` as soon as one true class has probability zero: the model called impossible
    /// what happened, and any finite number in its place would be a choice. To make that choice
    /// openly use [`nll_with_floor`](Self::nll_with_floor).
    ///
    /// ```
    /// use vmf_core::metrics::Predictions;
    ///
    /// let halves = Predictions::new(&[0.5, 0.5], &[1], 2)?;
    /// assert_eq!(halves.nll(), std::f64::consts::LN_2);
    ///
    /// let impossible = Predictions::new(&[1.0, 0.0], &[1], 2)?;
    /// assert_eq!(impossible.nll(), f64::INFINITY);
    /// assert_eq!(impossible.nll_with_floor(1e-10), -1e-10_f64.ln());
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn nll(&self) -> f64 {
        self.nll_with_floor(0.0)
    }

    /// [`nll`](Self::nll) with true-class probabilities below `floor` raised to it.
    ///
    /// `-1/N sum_i ln max(p_i[y_i], floor)`
    ///
    /// scikit-learn's `log_loss` does the same with the machine epsilon of its input as `floor`
    /// (`f64::EPSILON` or `f32::EPSILON`). A floor that is negative or NaN clips nothing.
    pub fn nll_with_floor(&self, floor: f64) -> f64 {
        let total: f64 =
            self.labelled().map(|(row, label)| -row[label].into().max(floor).ln()).sum();
        // A sum of -0.0 (every true class certain) would print as "-0".
        total / self.len() as f64 + 0.0
    }

    /// Mean cross-entropy from target distributions in nats, one row of them per example: how far
    /// the predictions are from labels that people do not agree on.
    ///
    /// `H = -1/N sum_i sum_k q_ik ln max(p_ik, floor)`, with `0 ln 0 = 0`
    ///
    /// With one-hot targets it is [`nll_with_floor`](Self::nll_with_floor). It is lowest, and equal
    /// to the mean entropy of the targets, where the predictions are the targets.
    ///
    /// # Errors
    /// If there are not as many rows of targets as of predictions, or a row of targets is not a
    /// distribution (within [`SUM_TOLERANCE`](super::SUM_TOLERANCE)).
    pub fn cross_entropy<Q>(&self, targets: &[Q], floor: f64) -> Result<f64, MetricsError>
    where
        Q: Copy + Into<f64>,
    {
        check_shape(targets.len(), self.len(), self.classes())?;
        check_probabilities(targets, self.classes())?;
        let values = self.rows().flatten().zip(targets);
        let total: f64 = values
            .map(|(&p, &q)| {
                let q = q.into();
                if q == 0.0 { 0.0 } else { -q * p.into().max(floor).ln() }
            })
            .sum();
        Ok(total / self.len() as f64 + 0.0)
    }

    /// Brier score: mean squared distance between the probabilities and the one-hot truth.
    ///
    /// `Brier = 1/N sum_i sum_k (p_ik - 1[y_i = k])^2`, in `[0, 2]`
    ///
    /// This is Brier's original sum over all classes (Monthly Weather Review 78, 1950), equal to
    /// scikit-learn's `brier_score_loss(y, p, scale_by_half=False)`. For two classes it is twice
    /// the score that looks at the positive class alone.
    ///
    /// ```
    /// use vmf_core::metrics::Predictions;
    ///
    /// let p = Predictions::new(&[0.75, 0.25], &[1], 2)?;
    /// assert_eq!(p.brier(), 2.0 * 0.75 * 0.75);
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn brier(&self) -> f64 {
        let distance = |(row, label): (&[T], usize)| -> f64 {
            row.iter()
                .enumerate()
                .map(|(class, &p)| {
                    let truth = if class == label { 1.0 } else { 0.0 };
                    (p.into() - truth).powi(2)
                })
                .sum()
        };
        self.labelled().map(distance).sum::<f64>() / self.len() as f64
    }
}
