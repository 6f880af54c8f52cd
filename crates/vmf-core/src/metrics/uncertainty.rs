//! Entropy, and its split into aleatoric and epistemic uncertainty.
//!
//! A Bayesian network gives a distribution per posterior sample, `p_s`. The entropy of their
//! mean `p = 1/S sum_s p_s` is the total uncertainty; the mean of their entropies is the part the
//! samples agree on (noise in the data, aleatoric); the difference is the mutual information
//! between label and weights, the part on which they disagree (epistemic; BALD of Houlsby et al.,
//! 2011; Depeweg et al., ICML 2018):
//!
//! `H[p] = 1/S sum_s H[p_s] + I`, in nats, with `H[p] = -sum_k p_k ln p_k` and `0 ln 0 = 0`.

use super::predictions::check_probabilities;
use super::{MetricsError, Predictions};

impl<T: Copy + Into<f64>> Predictions<'_, T> {
    /// Entropy of each row in nats, in `[0, ln K]`.
    ///
    /// `H_i = -sum_k p_ik ln p_ik`, with `0 ln 0 = 0`. Equals `scipy.stats.entropy(p, axis=1)` for
    /// rows that sum to one.
    ///
    /// ```
    /// use vmf_core::metrics::Predictions;
    ///
    /// let p = Predictions::new(&[0.5, 0.5, 0.0, 1.0], &[0, 0], 2)?;
    /// assert_eq!(p.entropy(), [std::f64::consts::LN_2, 0.0]);
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn entropy(&self) -> Vec<f64> {
        self.rows().map(|row| entropy(row.iter().map(|&p| p.into()))).collect()
    }
}

/// A view of `S` Monte Carlo samples of `N` rows of `K` probabilities, laid out `S x N x K`.
///
/// # Example
/// ```
/// use vmf_core::metrics::MonteCarlo;
///
/// // Two samples of two examples. On the first they agree that it is a coin toss;
/// // on the second each is certain, of different classes.
/// let probabilities = [
///     0.5, 0.5, 1.0, 0.0, // sample 0
///     0.5, 0.5, 0.0, 1.0, // sample 1
/// ];
/// let uncertainty = MonteCarlo::new(&probabilities, 2, 2)?.uncertainty();
/// let ln2 = std::f64::consts::LN_2;
/// assert_eq!(uncertainty.predictive_entropy, [ln2, ln2]);
/// assert_eq!(uncertainty.expected_entropy, [ln2, 0.0]);
/// assert_eq!(uncertainty.mutual_information, [0.0, ln2]);
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MonteCarlo<'a, T = f64> {
    probabilities: &'a [T],
    samples: usize,
    classes: usize,
}

/// The uncertainty of each example, in nats; see the equation of [`MonteCarlo::uncertainty`].
#[derive(Debug, Clone, PartialEq)]
pub struct Uncertainty {
    /// Total: entropy of the mean prediction, `H[p]`.
    pub predictive_entropy: Vec<f64>,
    /// Aleatoric: mean entropy of the samples, `1/S sum_s H[p_s]`.
    pub expected_entropy: Vec<f64>,
    /// Epistemic: mutual information of label and weights, `I`. Never negative.
    pub mutual_information: Vec<f64>,
}

impl<'a, T: Copy + Into<f64>> MonteCarlo<'a, T> {
    /// Checks the samples; `N` follows from the length.
    ///
    /// # Errors
    /// If `samples` or `classes` is zero, the values do not divide into `samples` equal blocks of
    /// rows, there are no examples, or a row is not a distribution (within
    /// [`SUM_TOLERANCE`](super::SUM_TOLERANCE)). Rows in messages count through all samples: sample
    /// `row / N`, example `row % N`.
    pub fn new(
        probabilities: &'a [T],
        samples: usize,
        classes: usize,
    ) -> Result<Self, MetricsError> {
        let values = probabilities.len();
        let block = samples.checked_mul(classes);
        match block {
            Some(block) if block > 0 && values.is_multiple_of(block) => {}
            _ => {
                return Err(MetricsError::Samples { values, samples, classes });
            }
        }
        if values == 0 {
            return Err(MetricsError::Empty);
        }
        check_probabilities(probabilities, classes)?;
        Ok(Self { probabilities, samples, classes })
    }

    /// Number of samples, `S`.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Number of examples, `N`.
    pub fn examples(&self) -> usize {
        self.probabilities.len() / (self.samples * self.classes)
    }

    /// The predictive distribution, `p_i = 1/S sum_s p_si`: `N x K`, ready for
    /// [`Predictions::new`].
    pub fn mean(&self) -> Vec<f64> {
        let block = self.examples() * self.classes;
        let mut mean = vec![0.0; block];
        for sample in self.probabilities.chunks_exact(block) {
            for (mean, &p) in mean.iter_mut().zip(sample) {
                *mean += p.into();
            }
        }
        for mean in &mut mean {
            *mean /= self.samples as f64;
        }
        mean
    }

    /// Splits the uncertainty of each example: `H[p] = 1/S sum_s H[p_s] + I`.
    ///
    /// The mutual information is computed as the mean Kullback-Leibler divergence of the samples
    /// from their mean, `I = 1/S sum_s sum_k p_sk ln(p_sk / p_k)`, term by term from the relative
    /// deviation. The difference of the two entropies would lose all digits, and at times
    /// the sign, when samples nearly agree. One sample has `I = 0`.
    pub fn uncertainty(&self) -> Uncertainty {
        let mean = self.mean();
        let examples = self.examples();
        let mut expected_entropy = vec![0.0; examples];
        let mut mutual_information = vec![0.0; examples];
        for (row, sample) in self.probabilities.chunks_exact(self.classes).enumerate() {
            let example = row % examples;
            let center = &mean[example * self.classes..][..self.classes];
            expected_entropy[example] += entropy(sample.iter().map(|&p| p.into()));
            mutual_information[example] += kl(sample.iter().map(|&p| p.into()), center);
        }
        let scale = self.samples as f64;
        expected_entropy.iter_mut().for_each(|h| *h /= scale);
        mutual_information.iter_mut().for_each(|i| *i /= scale);
        Uncertainty {
            predictive_entropy: mean
                .chunks_exact(self.classes)
                .map(|row| entropy(row.iter().copied()))
                .collect(),
            expected_entropy,
            mutual_information,
        }
    }
}

/// `-sum_k p_k ln p_k` with `0 ln 0 = 0`.
pub(crate) fn entropy(row: impl Iterator<Item = f64>) -> f64 {
    // A probability a rounding error above one must not make the entropy negative.
    row.map(|p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum::<f64>().max(0.0)
}

/// `sum_k p_k ln(p_k / q_k) - (p_k - q_k)`, every term of which is at least zero.
///
/// The second part sums to zero over the samples, because `q` is their mean. With it, samples that
/// nearly agree keep their digits: `ln(p / q) = ln(1 + d)` with the small `d = (p - q) / q`.
pub(crate) fn kl(row: impl Iterator<Item = f64>, mean: &[f64]) -> f64 {
    row.zip(mean)
        .map(|(p, &q)| {
            if p == 0.0 || q == 0.0 {
                return q;
            }
            let deviation = (p - q) / q;
            let log_ratio = if deviation.abs() < 0.5 { deviation.ln_1p() } else { (p / q).ln() };
            (p * log_ratio - (p - q)).max(0.0)
        })
        .sum()
}
