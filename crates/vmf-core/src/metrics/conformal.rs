//! Split-conformal prediction: sets of classes that hold the true one with a given probability.
//!
//! A conformity score `s(p, k)` says how odd class `k` looks beside a prediction `p`. With the
//! scores of the true classes of `n` calibration examples in increasing order, let
//!
//! `q = s_(ceil((n + 1) (1 - alpha)))`, or infinity if there is no such element.
//!
//! The set `{ k : s(p, k) <= q }` of a new example from the same distribution then holds its true
//! class with a probability of at least `1 - alpha`, whatever the network is worth (Vovk et al.,
//! 2005). What a better network changes is the *size* of the sets.

use super::{MetricsError, Predictions};

/// How odd a class looks beside a prediction. With the probabilities in decreasing order (the first
/// class first among equals), `rank(k)` counts from 1, and `mass(k)` is the sum of all up to and
/// including `p_k`.
///
/// The adaptive scores are the deterministic ones, which count the class itself in full. The
/// randomized ones, which count a random share of it, have smaller sets and the same guarantee on
/// average, but another set each time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Conformity {
    /// THR (or LAC): `1 - p_k`. It has the smallest sets on average (Sadinle et al., JASA 2019).
    Threshold,
    /// APS: `mass(k)`. Its sets grow for hard examples (Romano et al., NeurIPS 2020).
    Adaptive,
    /// RAPS: `mass(k) + penalty * max(0, rank(k) - free)`, which keeps sets short (Angelopoulos et
    /// al., ICLR 2021).
    Regularized {
        /// What each class beyond the first `free` ones costs.
        penalty: f64,
        /// Number of classes that cost nothing.
        free: usize,
    },
}

impl Conformity {
    /// The score of each class.
    fn scores<T: Copy + Into<f64>>(self, row: &[T]) -> Vec<f64> {
        let mut scores: Vec<f64> = row.iter().map(|&p| p.into()).collect();
        let (penalty, free) = match self {
            Conformity::Threshold => {
                scores.iter_mut().for_each(|p| *p = 1.0 - *p);
                return scores;
            }
            Conformity::Adaptive => (0.0, usize::MAX),
            Conformity::Regularized { penalty, free } => (penalty, free),
        };
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut mass = 0.0;
        for (place, class) in order.into_iter().enumerate() {
            mass += scores[class];
            scores[class] = mass + penalty * (place + 1).saturating_sub(free) as f64;
        }
        scores
    }
}

/// A threshold for conformity scores, from calibration examples.
///
/// # Example
/// ```
/// use vmf_core::metrics::{Conformal, Conformity, Predictions};
///
/// // Nine calibration examples whose true class has probability 0.9, 0.8, .., 0.1.
/// let rows: Vec<f64> = (1..10).rev().flat_map(|p| [p as f64 / 10.0, 1.0 - p as f64 / 10.0]).collect();
/// let calibration = Predictions::new(&rows, &[0; 9], 2)?;
/// let conformal = Conformal::calibrate(Conformity::Threshold, &calibration, 0.2)?;
/// assert!((conformal.quantile() - 0.8).abs() < 1e-12); // the 8th of 9 scores
/// assert_eq!(conformal.set(&[0.9, 0.1]), [0]);
/// assert_eq!(conformal.set(&[0.7, 0.3]), [0, 1]);
/// # Ok::<(), vmf_core::metrics::MetricsError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conformal {
    conformity: Conformity,
    quantile: f64,
}

/// The prediction sets of labelled examples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetQuality {
    /// Share of examples whose set holds the true class.
    pub coverage: f64,
    /// Mean number of classes in a set.
    pub mean_size: f64,
    /// Share of examples whose set is a single class.
    pub singletons: f64,
}

impl Conformal {
    /// Finds the threshold for sets that miss the true class with a probability of at most
    /// `miscoverage`. The examples must not have been trained on.
    ///
    /// With fewer than `1 / miscoverage - 1` examples nothing can be promised but sets of all
    /// classes, and the threshold is infinite.
    ///
    /// # Errors
    /// If `miscoverage` is not in `[0, 1]`, or a penalty is negative or not finite.
    pub fn calibrate<T: Copy + Into<f64>>(
        conformity: Conformity,
        calibration: &Predictions<'_, T>,
        miscoverage: f64,
    ) -> Result<Self, MetricsError> {
        if !(0.0..=1.0).contains(&miscoverage) {
            return Err(MetricsError::Share { what: "miscoverage", value: miscoverage });
        }
        if let Conformity::Regularized { penalty, .. } = conformity
            && !(penalty >= 0.0 && penalty.is_finite())
        {
            return Err(MetricsError::Penalty { value: penalty });
        }
        let score = |(row, label): (&[T], usize)| conformity.scores(row)[label];
        let mut scores: Vec<f64> = calibration.labelled().map(score).collect();
        scores.sort_unstable_by(f64::total_cmp);
        // Rounding in the product must not push a whole number up to the next one.
        let place = ((scores.len() + 1) as f64 * (1.0 - miscoverage) - 1e-9).ceil().max(1.0);
        let quantile = scores.get(place as usize - 1).copied().unwrap_or(f64::INFINITY);
        Ok(Self { conformity, quantile })
    }

    /// The largest score of a class in a set.
    pub fn quantile(&self) -> f64 {
        self.quantile
    }

    /// The classes in the set of one prediction, in increasing order.
    pub fn set<T: Copy + Into<f64>>(&self, probabilities: &[T]) -> Vec<usize> {
        let scores = self.conformity.scores(probabilities);
        (0..scores.len()).filter(|&class| scores[class] <= self.quantile).collect()
    }

    /// How often the sets hold the true class, and how large they are.
    pub fn judge<T: Copy + Into<f64>>(&self, predictions: &Predictions<'_, T>) -> SetQuality {
        let (mut held, mut classes, mut singletons) = (0, 0, 0);
        for (row, label) in predictions.labelled() {
            let set = self.set(row);
            held += usize::from(set.contains(&label));
            classes += set.len();
            singletons += usize::from(set.len() == 1);
        }
        let share = |count: usize| count as f64 / predictions.len() as f64;
        SetQuality {
            coverage: share(held),
            mean_size: share(classes),
            singletons: share(singletons),
        }
    }
}
