//! Expected softmax: class probabilities and their uncertainty from the moments of the logits.
//!
//! # The problem
//!
//! The logits of a network with noise are nearly Gaussian, `l ~ N(m, C)`. Wanted are the predictive
//! distribution `p = E softmax(l)`, its entropy, and how much of that entropy is due to the noise:
//! the mutual information `I = H(p) - E H(softmax(l))`. There is no closed form for either.
//!
//! # The idea
//!
//! A softmax is a logistic function of the log-odds: `p_k = logistic(x_k)` with
//! `x_k = l_k - ln sum_(i != k) exp(l_i)`. The sum over many competitors varies less than each of
//! them, so `x_k` is close to Gaussian, and a Gaussian through a logistic function is a
//! one-dimensional integral. With two classes this is exact.
//!
//! Let `w` be the softmax of `m / sqrt(1 + lambda v)`, where `v` is the mean variance of the logits
//! without their common part, and `lambda = 3 / pi^2` (the logistic distribution has variance
//! `pi^2 / 3`). With `s_i = w_i / (1 - w_k)` for `i != k`, the shares of the competitors of `k`:
//!
//! ```text
//! W     = s^T C s                                    variance of the mean competitor
//! G     = sum_i s_i C_ii - W                         variance among the competitors
//! E x_k = m_k - ln sum_(i != k) exp(m_i) - G / (2 sqrt(1 + lambda G))
//! Var x_k = Var(l_k - s.l) = C_kk + W - 2 (C s)_k
//! ```
//!
//! For small noise this is the expansion of the log-sum to second order in the mean and to first
//! order in the variance. The roots keep it from running away for large noise: there the weights
//! must be those of the noisy softmax, and the log-sum grows more slowly than its expansion says.
//!
//! # How good it is
//!
//! Ten classes, means up to 10 in size, variances from 0.05 to 10, against a million samples; the
//! average over 100 cases each of independent and of correlated logits. `error in p` is the mean
//! absolute error of a probability, `excess NLL` the mean of `KL(p|q)`, `H` and `I` the mean
//! absolute errors of the two quantities (which are 1.40 and 0.32 on average), and `exp` the number
//! of exponentials per class.
//!
//! | | exp | error in p | excess NLL | H | I | correlated: error in p | excess NLL | H | I |
//! |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
//! | softmax of the mean | 1 | 0.0188 | 0.0654 | 0.207 |  | 0.0138 | 0.0386 | 0.125 |  |
//! | delta method, second order | 1 | 0.0145 | 0.2515 | 0.053 |  | 0.0128 | 0.3936 | 0.059 |  |
//! | Laplace bridge | 2 | 0.0394 | 0.1686 | 0.243 |  | 0.0494 | 0.3336 | 0.265 |  |
//! | probit | 1 | 0.0111 | 0.0177 | 0.051 |  | 0.0113 | 0.0230 | 0.055 |  |
//! | mf0 | K | 0.0061 | 0.0054 | 0.023 |  | 0.0073 | 0.0105 | 0.030 |  |
//! | mf1 | K | 0.0102 | 0.0158 | 0.110 |  | 0.0104 | 0.0196 | 0.099 |  |
//! | mf2 | K | 0.0102 | 0.0158 | 0.110 |  | 0.0094 | 0.0165 | 0.089 |  |
//! | Monte Carlo, 8 | 8 | 0.0136 | 0.0290 | 0.053 | 0.038 | 0.0149 | 0.0376 | 0.062 | 0.043 |
//! | Monte Carlo, 32 | 32 | 0.0101 | 0.0137 | 0.038 | 0.021 | 0.0077 | 0.0086 | 0.031 | 0.022 |
//! | Sobol points, 8 | 8 | 0.0086 | 0.0171 | 0.077 | 0.146 | 0.0079 | 0.0155 | 0.045 | 0.074 |
//! | Sobol points, 16 | 16 | 0.0054 | 0.0078 | 0.039 | 0.071 | 0.0048 | 0.0067 | 0.027 | 0.033 |
//! | Sobol points, 32 | 32 | 0.0037 | 0.0035 | 0.020 | 0.035 | 0.0028 | 0.0023 | 0.013 | 0.020 |
//! | rotated cubature, 2K | 2K | 0.0030 | 0.0023 | 0.009 | 0.018 | 0.0024 | 0.0020 | 0.010 | 0.016 |
//! | **log-odds, closed form** | 3 | 0.0027 | 0.0017 | 0.014 |  | 0.0023 | 0.0015 | 0.017 |  |
//! | log-odds, 5 points | 7 | 0.0011 | 0.0003 | 0.010 | 0.017 | 0.0011 | 0.0004 | 0.004 | 0.013 |
//! | **log-odds, 8 points** | 10 | 0.0010 | 0.0002 | 0.009 | 0.015 | 0.0010 | 0.0004 | 0.004 | 0.007 |
//! | log-odds, 16 points | 18 | 0.0010 | 0.0002 | 0.010 | 0.015 | 0.0009 | 0.0003 | 0.004 | 0.006 |
//!
//! (`cargo run -p vmf-core --example expected_softmax` makes this table, in about a minute.)
//!
//! # Source
//! The log-odds form was derived for this crate; it differs from the pairwise form of J. Daunizeau,
//! *Semi-analytical approximations to statistical moments of sigmoid and softmax mappings of normal
//! variables*, arXiv:1703.00091 (2017), which is `mf2` up to a constant. The probit form is D. J.
//! C. MacKay, *The evidence framework applied to classification networks*, Neural Computation 4
//! (1992), applied to each logit; `mf0` to `mf2` are Z. Lu, E. Ie and F. Sha, *Mean-field
//! approximation to Gaussian-softmax integral*, arXiv:2006.07584 (2020); the Laplace bridge is M.
//! Hobbhahn, A. Kristiadi and P. Hennig, *Fast predictive uncertainty for classification with
//! Bayesian deep networks*, UAI 2022.

use std::f64::consts::PI;

use super::{GaussHermite, Gaussian};
use crate::{
    Error,
    linalg::dot,
    metrics::{entropy, kl},
};

/// `3 / pi^2`: a logistic function is close to the distribution function of a Gaussian of variance
/// `pi^2 / 3`, so Gaussian noise of variance `v` stretches it by `sqrt(1 + lambda v)`.
const LAMBDA: f64 = 3.0 / (PI * PI);

/// Gaussian logits of one example: a mean for each class, and variances or a covariance matrix.
///
/// ```
/// use vmf_core::expected::{GaussHermite, softmax::Logits};
///
/// let logits = Logits::independent(&[2.0, 0.0, -1.0], &[4.0, 1.0, 1.0])?;
/// let prediction = logits.predict(&GaussHermite::new(8));
/// assert!((prediction.probabilities[0] - 0.708).abs() < 0.01); // 0.844 without noise
/// assert!((prediction.mutual_information - 0.260).abs() < 0.03); // 0 without noise
/// # Ok::<(), vmf_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    mean: &'a [f64],
    covariance: Covariance<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Covariance<'a> {
    Diagonal(&'a [f64]),
    Full(&'a [f64]),
}

/// The expected softmax of one example, in nats where it is an entropy.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The predictive distribution, `p = E softmax(l)`.
    pub probabilities: Vec<f64>,
    /// Total uncertainty: the entropy of the predictive distribution, `H(p)`.
    pub entropy: f64,
    /// The part that does not come from the noise, `E H(softmax(l))`.
    pub expected_entropy: f64,
    /// The part that comes from the noise, `H(p) - E H(softmax(l))`. Never negative.
    pub mutual_information: f64,
}

impl<'a> Logits<'a> {
    /// Independent logits with the given variances.
    ///
    /// # Errors
    /// If there are no classes, the lengths differ, a number is not finite, or a variance is
    /// negative.
    pub fn independent(mean: &'a [f64], variances: &'a [f64]) -> Result<Self, Error> {
        check_length("the variances of the logits", variances.len(), mean.len())?;
        Self { mean, covariance: Covariance::Diagonal(variances) }.checked(variances)
    }

    /// Logits with a covariance matrix, row by row; it is taken to be symmetric.
    ///
    /// # Errors
    /// If there are no classes, the matrix does not have as many rows and columns, a number is not
    /// finite, or a variance is negative.
    pub fn correlated(mean: &'a [f64], covariance: &'a [f64]) -> Result<Self, Error> {
        check_length("the covariance of the logits", covariance.len(), mean.len().pow(2))?;
        Self { mean, covariance: Covariance::Full(covariance) }.checked(covariance)
    }

    fn checked(self, covariance: &[f64]) -> Result<Self, Error> {
        if self.mean.is_empty() {
            return Err(Error::NoClasses);
        }
        for values in [self.mean, covariance] {
            if let Some((index, &value)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return Err(Error::NotFinite { index, value });
            }
        }
        match (0..self.mean.len()).find(|&class| self.variance(class) < 0.0) {
            Some(class) => Err(Error::BadVariance { class, variance: self.variance(class) }),
            None => Ok(self),
        }
    }

    /// The predictive distribution by the probit form, `softmax(m / sqrt(1 + pi/8 v))`.
    ///
    /// The simplest form, and the one whose factors can be folded into the last layer if the
    /// variances are the same for all inputs. It ignores correlation, and depends on a constant
    /// that is added to all logits.
    pub fn probit(&self) -> Vec<f64> {
        let scaled = self.mean.iter().enumerate();
        softmax(scaled.map(|(k, m)| m / (1.0 + PI / 8.0 * self.variance(k)).sqrt()).collect())
    }

    /// The predictive distribution in closed form from the [`log_odds`](Self::log_odds):
    /// `p_k ~ logistic(E x_k / sqrt(1 + lambda Var x_k))`, divided by the sum.
    pub fn closed_form(&self) -> Vec<f64> {
        let odds = self.log_odds();
        normalized(odds.iter().map(|x| logistic(x.mean / (1.0 + LAMBDA * x.variance).sqrt())))
    }

    /// The predictive distribution and its uncertainty, by quadrature over the
    /// [`log_odds`](Self::log_odds) of each class. Eight points are plenty; five do nearly as well.
    ///
    /// With `q_k = E logistic(x_k)`, which is normalized to give the probabilities, the mutual
    /// information is
    ///
    /// ```text
    /// I = sum_k E [logistic(x_k) ln(logistic(x_k) / q_k)],
    /// ```
    ///
    /// a sum of positive terms that keeps its digits for small noise.
    pub fn predict(&self, rule: &GaussHermite) -> Prediction {
        let odds = self.log_odds();
        let at = |x: &Gaussian, z: f64| logistic(x.mean + x.deviation() * z);
        let expected: Vec<f64> = odds
            .iter()
            .map(|x| rule.points().iter().map(|&(z, weight)| weight * at(x, z)).sum())
            .collect();
        let information: f64 = rule
            .points()
            .iter()
            .map(|&(z, weight)| weight * kl(odds.iter().map(|x| at(x, z)), &expected))
            .sum();
        let probabilities = normalized(expected.into_iter());
        let entropy = entropy(probabilities.iter().copied());
        let mutual_information = information.min(entropy);
        let expected_entropy = entropy - mutual_information;
        Prediction { probabilities, entropy, expected_entropy, mutual_information }
    }

    /// Mean and variance of each class's log-odds, `x_k = l_k - ln sum_(i != k) exp(l_i)`: the
    /// equations of the [module](self).
    ///
    /// A single class has infinite log-odds.
    pub fn log_odds(&self) -> Vec<Gaussian> {
        let classes = self.mean.len();
        if classes == 1 {
            return vec![Gaussian { mean: f64::INFINITY, variance: 0.0 }];
        }
        let scale = 1.0 / (1.0 + LAMBDA * self.mean_variance()).sqrt();
        // What belongs to a class is subtracted from sums over all of them. That loses digits only
        // for the largest class, which therefore has sums of its own, without it.
        let top = (0..classes).fold(0, |t, k| if self.mean[k] > self.mean[t] { k } else { t });
        let (all, others) = (Sums::new(self, scale, None), Sums::new(self, scale, Some(top)));
        (0..classes)
            .map(|k| {
                let (sums, own) = if k == top { (&others, 0.0) } else { (&all, all.weights[k]) };
                let own_exp = if k == top { 0.0 } else { (self.mean[k] - all.largest).exp() };
                let (variance, total) = (self.variance(k), sums.total - own);
                let competitors = (sums.variance - own * variance) / total;
                let mean_competitor = (sums.quadratic - 2.0 * own * sums.product[k]
                    + own * own * variance)
                    / (total * total);
                let covariance = (sums.product[k] - own * variance) / total;
                let among = (competitors - mean_competitor).max(0.0);
                let log_sum = sums.largest + (sums.exp - own_exp).ln();
                Gaussian {
                    mean: self.mean[k] - log_sum - 0.5 * among / (1.0 + LAMBDA * among).sqrt(),
                    variance: (variance + mean_competitor - 2.0 * covariance).max(0.0),
                }
            })
            .collect()
    }

    /// The variance of class `k`, `C_kk`.
    fn variance(&self, k: usize) -> f64 {
        match self.covariance {
            Covariance::Diagonal(variances) => variances[k],
            Covariance::Full(matrix) => matrix[k * (self.mean.len() + 1)],
        }
    }

    /// `C w`.
    fn times(&self, w: &[f64]) -> Vec<f64> {
        match self.covariance {
            Covariance::Diagonal(v) => v.iter().zip(w).map(|(v, w)| v * w).collect(),
            Covariance::Full(matrix) => {
                matrix.chunks_exact(w.len()).map(|row| dot(row, w)).collect()
            }
        }
    }

    /// The mean variance of the logits less that of their mean: noise that all logits share has no
    /// effect on a softmax.
    fn mean_variance(&self) -> f64 {
        let classes = self.mean.len() as f64;
        let trace: f64 = (0..self.mean.len()).map(|k| self.variance(k)).sum();
        let common: f64 = self.times(&vec![1.0; self.mean.len()]).iter().sum();
        ((trace - common / classes) / (classes - 1.0)).max(0.0)
    }
}

/// Sums over all classes, or over all but one.
struct Sums {
    /// The largest mean.
    largest: f64,
    /// `sum_i exp(m_i - largest)`.
    exp: f64,
    /// `w_i = exp(scale (m_i - largest))`, zero for the class left out.
    weights: Vec<f64>,
    /// `sum_i w_i`.
    total: f64,
    /// `sum_i w_i C_ii`.
    variance: f64,
    /// `C w`.
    product: Vec<f64>,
    /// `w^T C w`.
    quadratic: f64,
}

impl Sums {
    fn new(logits: &Logits<'_>, scale: f64, without: Option<usize>) -> Self {
        let included = |&k: &usize| Some(k) != without;
        let classes = || (0..logits.mean.len()).filter(included);
        let largest = classes().map(|k| logits.mean[k]).fold(f64::NEG_INFINITY, f64::max);
        let mut weights = vec![0.0; logits.mean.len()];
        classes().for_each(|k| weights[k] = (scale * (logits.mean[k] - largest)).exp());
        let product = logits.times(&weights);
        Self {
            largest,
            exp: classes().map(|k| (logits.mean[k] - largest).exp()).sum(),
            total: weights.iter().sum(),
            variance: classes().map(|k| weights[k] * logits.variance(k)).sum(),
            quadratic: dot(&weights, &product),
            weights,
            product,
        }
    }
}

fn check_length(what: &'static str, actual: usize, expected: usize) -> Result<(), Error> {
    if actual == expected { Ok(()) } else { Err(Error::LengthMismatch { what, expected, actual }) }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(logits: Vec<f64>) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    normalized(logits.into_iter().map(|l| (l - largest).exp()))
}

fn normalized(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
    values
}
