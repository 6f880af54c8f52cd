//! Temperature scaling: one number, fitted on held-out data, that makes a network honest.
//!
//! `p = softmax(z / T)`, with `T` minimizing the negative log-likelihood (Guo et al., *On
//! Calibration of Modern Neural Networks*, ICML 2017). `T > 1` softens an overconfident network;
//! the predicted classes, hence the accuracy, do not change. In place of labels the target may be
//! probabilities `q`, such as those of a Monte Carlo prediction; then `T` minimizes the
//! cross-entropy from `q`, and no label is needed.
//!
//! In the inverse temperature `b = 1 / T` the objective
//! `L(b) = 1/N sum_i [ln sum_k exp(b z_ik) - b t_i]` is convex, where `t_i` is the logit of the
//! label or the mean logit `sum_k q_ik z_ik` of the target, with
//! `L'(b) = 1/N sum_i (E_b[z_i] - t_i)` and `L''(b) = 1/N sum_i Var_b[z_i]`. So the minimum
//! over `b in [0, inf]` is found by Newton's method inside a bracket, and its two ends
//! are told apart from an interior minimum without iteration.

use std::fmt::Display;

use super::predictions::{check_labels, check_probabilities, check_shape};
use super::{MetricsError, Predictions};

/// Probabilities below this, the smallest positive `f32` (`1.4e-45`), are raised to it before
/// their logarithm is taken as a logit. Zeros are nearly always underflows of an `f32` softmax.
pub const PROBABILITY_FLOOR: f64 = f32::from_bits(1) as f64;

/// A softmax temperature in the closed interval `[0, inf]`.
///
/// Its ends are the limits of `softmax(z / T)`: at zero the largest logits of a row share all
/// probability, at infinity every class has the same.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Temperature(f64);

/// A fitted temperature and what it achieves on the data it was fitted to.
///
/// Where the target is probabilities, read "cross-entropy from the target" for "negative
/// log-likelihood".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TemperatureFit {
    /// The minimizer of the negative log-likelihood.
    pub temperature: Temperature,
    /// Mean negative log-likelihood at temperature one, in nats.
    pub nll_before: f64,
    /// Mean negative log-likelihood at the fitted temperature, in nats.
    pub nll_after: f64,
}

impl Temperature {
    /// The plain softmax.
    pub const ONE: Self = Self(1.0);

    /// A given temperature.
    ///
    /// # Errors
    /// If `value` is negative or NaN.
    pub fn new(value: f64) -> Result<Self, MetricsError> {
        if value >= 0.0 { Ok(Self(value)) } else { Err(MetricsError::Temperature { value }) }
    }

    /// The value of `T`.
    pub fn value(self) -> f64 {
        self.0
    }

    /// Minimizes the negative log-likelihood of `softmax(z / T)` over rows of logits.
    ///
    /// # Defined corners
    /// - **Every label has its row's largest logit** (the classes are separated): the smaller `T`
    ///   the better, and the result is `T = 0`. One error on other data then costs an infinite NLL:
    ///   fit on more data rather than use it.
    /// - **Labels have no more than the average logit** (`L'(0) >= 0`: the logits are uninformative
    ///   or misleading): the result is `T = inf`, the uniform prediction.
    /// - **Every row is constant** (one class included): `T` has no effect, and the result is one.
    ///
    /// # Errors
    /// If there are no rows, the shape or a label does not fit, or a logit is not finite.
    ///
    /// # Example
    /// ```
    /// use vmf_core::metrics::Temperature;
    ///
    /// // Logits 4 apart claim 98.2 %; three in four are right, which is a gap of ln 3.
    /// let logits = [4.0_f32, 0.0].repeat(4);
    /// let fit = Temperature::fit_logits(&logits, &[0, 0, 0, 1], 2)?;
    /// assert!((fit.temperature.value() - 4.0 / 3.0_f64.ln()).abs() < 1e-12);
    /// assert!(fit.nll_after < fit.nll_before);
    /// let calibrated = fit.temperature.softmax(&logits, 2)?;
    /// assert!((calibrated[0] - 0.75).abs() < 1e-12);
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn fit_logits<T, L>(
        logits: &[T],
        labels: &[L],
        classes: usize,
    ) -> Result<TemperatureFit, MetricsError>
    where
        T: Copy + Into<f64>,
        L: Copy + Display + TryInto<usize>,
    {
        check_shape(logits.len(), labels.len(), classes)?;
        let labels = check_labels(labels, classes)?;
        check_logits(logits, classes)?;
        let logits = logits.iter().map(|&z| z.into()).collect();
        Ok(Objective::to_labels(logits, &labels, classes).fit())
    }

    /// Minimizes the cross-entropy of `softmax(z / T)` from target probabilities, one row of them
    /// for each row of logits: `-1/N sum_i sum_k q_ik ln softmax(z_i / T)_k`.
    ///
    /// It differs from the mean `KL(q | softmax(z / T))` by a constant, and needs no labels: with
    /// the Monte Carlo predictions of a noisy network as the target, it calibrates the network's
    /// pass without noise on any inputs.
    ///
    /// # Defined corners
    /// Those of [`fit_logits`](Self::fit_logits), with "the label's logit" replaced by the target's
    /// mean logit: `T = 0` if all of the target's mass is on largest logits, `T = inf` if its mean
    /// logit is no more than the average, one if every row is constant.
    ///
    /// # Errors
    /// If there are no rows, the shapes do not fit, a logit is not finite, or a row of targets is
    /// not a distribution (within [`SUM_TOLERANCE`](super::SUM_TOLERANCE)).
    ///
    /// # Example
    /// ```
    /// use vmf_core::metrics::Temperature;
    ///
    /// let logits = [4.0, 0.0, -2.0, 1.0, 3.0, 0.5];
    /// let softer = Temperature::new(2.5)?.softmax(&logits, 3)?;
    /// let fit = Temperature::fit_targets(&logits, &softer, 3)?;
    /// assert!((fit.temperature.value() - 2.5).abs() < 1e-12);
    /// # Ok::<(), vmf_core::metrics::MetricsError>(())
    /// ```
    pub fn fit_targets<T, Q>(
        logits: &[T],
        targets: &[Q],
        classes: usize,
    ) -> Result<TemperatureFit, MetricsError>
    where
        T: Copy + Into<f64>,
        Q: Copy + Into<f64>,
    {
        let rows = targets.len().checked_div(classes).unwrap_or(0);
        check_shape(targets.len(), rows, classes)?;
        check_shape(logits.len(), rows, classes)?;
        check_probabilities(targets, classes)?;
        check_logits(logits, classes)?;
        let logits = logits.iter().map(|&z| z.into()).collect();
        let targets: Vec<f64> = targets.iter().map(|&q| q.into()).collect();
        Ok(Objective::to_probabilities(logits, &targets, classes).fit())
    }

    /// [`fit_logits`](Self::fit_logits) on the logarithms of probabilities, which are logits up to
    /// a constant per row that softmax ignores. Probabilities below [`PROBABILITY_FLOOR`] are
    /// raised to it.
    pub fn fit_probabilities<T>(predictions: &Predictions<'_, T>) -> TemperatureFit
    where
        T: Copy + Into<f64>,
    {
        let logits = log_probabilities(predictions);
        Objective::to_labels(logits, predictions.labels(), predictions.classes()).fit()
    }

    /// `softmax(z / T)` of each row of logits, ready for [`Predictions::new`].
    ///
    /// # Errors
    /// If the values are not whole rows of `classes`, or one is not finite.
    pub fn softmax<T>(self, logits: &[T], classes: usize) -> Result<Vec<f64>, MetricsError>
    where
        T: Copy + Into<f64>,
    {
        let rows = logits.len().checked_div(classes).unwrap_or(0);
        check_shape(logits.len(), rows, classes)?;
        check_logits(logits, classes)?;
        Ok(self.softmax_rows(logits.iter().map(|&z| z.into()).collect(), classes))
    }

    /// The distributions proportional to `p^(1/T)`: [`softmax`](Self::softmax) of the logarithms
    /// of probabilities, floored at [`PROBABILITY_FLOOR`].
    pub fn rescale<T>(self, predictions: &Predictions<'_, T>) -> Vec<f64>
    where
        T: Copy + Into<f64>,
    {
        self.softmax_rows(log_probabilities(predictions), predictions.classes())
    }

    fn softmax_rows(self, mut logits: Vec<f64>, classes: usize) -> Vec<f64> {
        for row in logits.chunks_exact_mut(classes) {
            subtract_maximum(row);
            for z in row.iter_mut() {
                *z = self.divide(*z).exp();
            }
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum);
        }
        logits
    }

    /// `d / T` for a logit `d <= 0` relative to its row's largest, which stays so at `T = 0`.
    pub(super) fn divide(self, d: f64) -> f64 {
        if d == 0.0 { 0.0 } else { d / self.0 }
    }
}

pub(super) fn check_logits<T: Copy + Into<f64>>(
    logits: &[T],
    classes: usize,
) -> Result<(), MetricsError> {
    let usable = |z: f64| z.abs() <= f64::MAX / 2.0;
    match logits.iter().position(|&z| !usable(z.into())) {
        Some(index) => Err(MetricsError::Logit {
            row: index / classes,
            class: index % classes,
            value: logits[index].into(),
        }),
        None => Ok(()),
    }
}

fn log_probabilities<T: Copy + Into<f64>>(predictions: &Predictions<'_, T>) -> Vec<f64> {
    let values = predictions.rows().flatten();
    values.map(|&p| p.into().max(PROBABILITY_FLOOR).ln()).collect()
}

fn subtract_maximum(row: &mut [f64]) {
    let maximum = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|z| *z -= maximum);
}

/// The negative log-likelihood, or the cross-entropy, as a function of the temperature.
struct Objective {
    /// Logits less their row's maximum, divided by `scale`: in `[-1, 0]`.
    deficits: Vec<f64>,
    /// The largest spread of a row, so that the search works on numbers of order one.
    scale: f64,
    /// The deficit of each row's label, or the mean deficit of its target.
    targets: Vec<f64>,
    classes: usize,
}

impl Objective {
    fn to_labels(logits: Vec<f64>, labels: &[usize], classes: usize) -> Self {
        Self::new(logits, classes, |i, row| row[labels[i]])
    }

    fn to_probabilities(logits: Vec<f64>, targets: &[f64], classes: usize) -> Self {
        Self::new(logits, classes, |i, row| {
            let target = &targets[i * classes..][..classes];
            // Rows are distributions up to a tolerance; here they are made so.
            let sum: f64 = target.iter().sum();
            row.iter().zip(target).map(|(d, q)| q * d).sum::<f64>() / sum
        })
    }

    fn new(mut logits: Vec<f64>, classes: usize, target: impl Fn(usize, &[f64]) -> f64) -> Self {
        logits.chunks_exact_mut(classes).for_each(subtract_maximum);
        let scale = logits.iter().fold(0.0, |largest: f64, d| largest.max(-d));
        if scale > 0.0 {
            logits.iter_mut().for_each(|d| *d /= scale);
        }
        let rows = logits.chunks_exact(classes).enumerate();
        let targets = rows.map(|(i, row)| target(i, row)).collect();
        Self { deficits: logits, scale, targets, classes }
    }

    fn fit(&self) -> TemperatureFit {
        let temperature = if self.scale == 0.0 {
            Temperature::ONE
        } else {
            Temperature(self.scale / self.best_inverse_temperature())
        };
        TemperatureFit {
            temperature,
            nll_before: self.nll(Temperature::ONE),
            nll_after: self.nll(temperature),
        }
    }

    fn rows(&self) -> impl Iterator<Item = (&[f64], f64)> {
        let rows = self.deficits.chunks_exact(self.classes);
        rows.zip(self.targets.iter().copied())
    }

    /// `1/N sum_i [ln sum_k exp(d_ik / T) - t_i / T]`
    fn nll(&self, temperature: Temperature) -> f64 {
        let scaled =
            Temperature(if self.scale > 0.0 { temperature.0 / self.scale } else { temperature.0 });
        let total: f64 = self
            .rows()
            .map(|(row, target)| {
                let sum: f64 = row.iter().map(|&d| scaled.divide(d).exp()).sum();
                sum.ln() - scaled.divide(target)
            })
            .sum();
        total / self.targets.len() as f64
    }

    /// `L'(b)` and `L''(b)`, both times `N`.
    fn slope_and_curvature(&self, b: f64) -> (f64, f64) {
        let (mut slope, mut curvature) = (0.0, 0.0);
        for (row, target) in self.rows() {
            let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
            for &d in row {
                let weight = (b * d).exp();
                sum += weight;
                first += weight * d;
                second += weight * d * d;
            }
            let mean = first / sum;
            slope += mean - target;
            curvature += second / sum - mean * mean;
        }
        (slope, curvature)
    }

    /// The minimizer of `L` over `b in [0, inf]`, for rows that are not all constant.
    fn best_inverse_temperature(&self) -> f64 {
        if self.targets.iter().all(|&target| target == 0.0) {
            return f64::INFINITY;
        }
        let rising = |b: f64| self.slope_and_curvature(b).0 >= 0.0;
        if rising(0.0) {
            return 0.0;
        }

        // L' rises from below zero at 0 to above zero at infinity: double or halve until the
        // sign changes between `low` and `high = 2 low`.
        let mut high = 1.0;
        while !rising(high) {
            high *= 2.0;
            if high.is_infinite() {
                return f64::INFINITY;
            }
        }
        let mut low = high / 2.0;
        while rising(low) {
            high = low;
            low /= 2.0;
            if low < f64::MIN_POSITIVE {
                return 0.0;
            }
        }

        let mut b = 0.5 * (low + high);
        for _ in 0..100 {
            let (slope, curvature) = self.slope_and_curvature(b);
            let step = slope / curvature;
            if step.abs() <= 2.0 * f64::EPSILON * b {
                break;
            }
            if slope < 0.0 {
                low = b;
            } else {
                high = b;
            }
            let newton = b - step;
            b = if low < newton && newton < high { newton } else { 0.5 * (low + high) };
        }
        b
    }
}
