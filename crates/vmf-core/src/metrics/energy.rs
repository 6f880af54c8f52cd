//! The energy of an input: a score from logits for detecting inputs unlike those of training.

use super::MetricsError;
use super::predictions::check_shape;
use super::temperature::{Temperature, check_logits};

impl Temperature {
    /// The energy of each row of logits (Liu et al., NeurIPS 2020).
    ///
    /// `E_i = -T ln sum_k exp(z_ik / T)`
    ///
    /// Softmax forgets the size of the logits; the energy is what it forgets. Inputs unlike those
    /// of training tend to have small logits, and hence a high energy. Its scale differs from
    /// network to network, so it is only good for ranking inputs of the same one, such as in
    /// [`Detection`](super::Detection). Equals `-T * scipy.special.logsumexp(z / T, axis=1)`.
    ///
    /// At `T = 0` it is the limit, minus the largest logit. At an infinite temperature it is minus
    /// infinity for more than one class.
    ///
    /// # Errors
    /// If the values are not whole rows of `classes`, or one is not finite.
    ///
    /// ```
    /// use vmf_core::metrics::Temperature;
    ///
    /// let energy = Temperature::ONE.energy(&[0.0, 0.0, 1000.0, 0.0], 2)?;
    /// assert_eq!(energy, [-std::f64::consts::LN_2, -1000.0]);
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn energy<T>(self, logits: &[T], classes: usize) -> Result<Vec<f64>, MetricsError>
    where
        T: Copy + Into<f64>,
    {
        let rows = logits.len().checked_div(classes).unwrap_or(0);
        check_shape(logits.len(), rows, classes)?;
        check_logits(logits, classes)?;
        let energy = |row: &[T]| {
            let values = || row.iter().map(|&z| z.into());
            let largest = values().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = values().map(|z| self.divide(z - largest).exp()).sum();
            // With one class, and at temperature 0 with one largest logit, nothing is added.
            let rest = if sum == 1.0 { 0.0 } else { self.value() * sum.ln() };
            -(largest + rest)
        };
        Ok(logits.chunks_exact(classes).map(energy).collect())
    }
}
