//! beta found during training, from examples that are not trained on.
//!
//! # The signal
//!
//! A network is overconfident if its predictions on held-out examples get better when they are made
//! less sure. The temperature T that minimizes the held-out NLL of `p^(1/T)`, normalized, says by
//! how much: `ln T` is 0 for a calibrated network, and above 0 for an overconfident one. Unlike the
//! gap between confidence and accuracy it has no jumps, and it comes with a standard error.
//!
//! A network that has only begun to learn may be overconfident on every example, and training
//! itself cures that. So overconfidence on the examples of the step is subtracted: what remains is
//! overfitting, which training does not see.
//!
//! # The law
//!
//! More KL means more noise, and more noise means less confidence. So u, on a logarithmic scale of
//! beta, follows the signal by proportional and integral control,
//! ```text
//! e     = clamp(ln T - standard error, -1/2, 1/2)
//! I    += GAIN e (share of the training since the last measurement),   within [0, u_max]
//! u     = I + PROPORTIONAL e,                                          within [0, u_max]
//! beta  = suggested (FLOOR + START (exp(u) - 1)),                      at most 1
//! ```
//! It begins near zero and stays there while nothing overfits: noise costs accuracy as long as a
//! network has still to learn. Only evidence of overconfidence beyond one standard error raises it,
//! so a held-out set of a few dozen examples moves beta less than one of thousands.
//!
//! The constants were chosen on small networks, and kept for everything measured since.

use super::log_softmax;
use crate::error::{check_setting, check_shape};
use crate::pass::Forward;
use crate::posterior::Posterior;
use crate::predict::{Samples, measure_roughly, predict};
use candle_core::{DType, Result, Tensor};
use serde::{Deserialize, Serialize};

/// Measurements in a training: often enough to follow it. Each costs about as much as three steps on
/// as many examples as are held out, so in a training of thousands of steps they cost little.
const MEASUREMENTS: u32 = 100;
/// A measurement costs a few steps. In a training of some hundred steps there are fewer, one in this
/// many steps; but [`FEWEST`] in any.
const STEPS_BETWEEN: u32 = 10;
/// The fewest measurements in a short training.
const FEWEST: u32 = 20;
/// Integral gain for a whole training: an overconfidence of `ln T = 0.1` that lasts for a tenth of
/// the training raises u by 0.8.
const GAIN: f64 = 80.0;
/// Proportional gain: beta rises at once when overconfidence appears.
const PROPORTIONAL: f64 = 2.0;
/// The largest signal that counts in one measurement.
const LARGEST: f64 = 0.5;
/// beta at u = 0, in units of the suggested one: too little to cost anything.
const FLOOR: f64 = 1e-3;
/// beta grows by this share of the suggested one as u leaves 0.
const START: f64 = 0.1;

/// How overconfident predictions on held-out examples are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signal {
    /// The logarithm of the temperature that the predictions should have had: above 0 they are
    /// overconfident, below 0 underconfident.
    pub ln_temperature: f64,
    /// Its standard error.
    pub standard_error: f64,
}

impl Signal {
    /// From the probabilities (N, classes) that were predicted for examples with these labels (N).
    pub fn of_classes(probs: &Tensor, labels: &Tensor) -> Result<Self> {
        let (rows, classes) = probs.dims2()?;
        let labels = labels.to_dtype(DType::U32)?.to_vec1::<u32>()?;
        let valid = labels.len() == rows && rows > 0 && classes > 0;
        check_shape(valid, "held-out predictions", || {
            format!("{rows} rows of probabilities for {} labels", labels.len())
        })?;
        let largest = labels.iter().copied().max().unwrap_or(0);
        let requirement = "it must be below the number of classes";
        check_setting((largest as usize) < classes, "a held-out label", largest, requirement)?;
        let floor = f64::from(f32::MIN_POSITIVE);
        let logs = log_softmax(&probs.to_dtype(DType::F64)?.maximum(floor)?.log()?)?;
        Ok(temperature(&logs.flatten_all()?.to_vec1::<f64>()?, &labels))
    }

    /// The part of this signal that training examples, with a signal of their own, do not share:
    /// their overconfidence is subtracted as far as it exceeds its standard error.
    pub fn beyond(self, training: Self) -> Self {
        let shared = (training.ln_temperature - training.standard_error).max(0.0);
        Self { ln_temperature: self.ln_temperature - shared, ..self }
    }

    /// From standardized residuals of a regression, `(target - mean) / deviation` with the
    /// deviation of the whole predictive distribution: their mean square should be 1.
    pub fn of_residuals(residuals: &[f64]) -> Self {
        let count = residuals.len().max(1) as f64;
        let mean = residuals.iter().map(|z| z * z).sum::<f64>() / count;
        let var = residuals.iter().map(|z| (z * z - mean).powi(2)).sum::<f64>() / count;
        // ln T = ln(mean z^2) / 2, and the error of a logarithm is relative.
        let ln_temperature = 0.5 * mean.max(f64::MIN_POSITIVE).ln();
        Self { ln_temperature, standard_error: 0.5 * (var / count).sqrt() / mean }
    }
}

/// The temperature with the least NLL, by Newton's method in theta = -ln T, and its standard error.
///
/// With b = exp(theta), the NLL of an example is `-b l_y + ln sum_k exp(b l_k)`, and with q the
/// probabilities at b,
/// ```text
/// d NLL / d theta   = b (E_q l - l_y) = g
/// d2 NLL / d theta2 = g + b^2 Var_q l
/// ```
/// The standard error is that of an M-estimator: the root of the sum of g^2 over the curvature.
fn temperature(logs: &[f64], labels: &[u32]) -> Signal {
    let classes = logs.len() / labels.len();
    let mut theta = 0.0f64;
    let mut standard_error = f64::INFINITY;
    for _ in 0..30 {
        let b = theta.exp();
        let (mut gradient, mut squares, mut curvature) = (0.0, 0.0, 0.0);
        for (l, &label) in logs.chunks(classes).zip(labels) {
            let largest = l.iter().fold(f64::NEG_INFINITY, |a, &x| a.max(b * x));
            let weights: Vec<f64> = l.iter().map(|x| (b * x - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mean = l.iter().zip(&weights).map(|(x, w)| x * w).sum::<f64>() / total;
            let var =
                l.iter().zip(&weights).map(|(x, w)| (x - mean).powi(2) * w).sum::<f64>() / total;
            let g = b * (mean - l[label as usize]);
            gradient += g;
            squares += g * g;
            // Of the curvature only the part that cannot be negative: Newton's method then goes
            // downhill wherever it stands.
            curvature += b * b * var;
        }
        if curvature <= 0.0 {
            break;
        }
        standard_error = squares.sqrt() / curvature;
        let step = (-gradient / curvature).clamp(-1.0, 1.0);
        theta = (theta + step).clamp(-LARGEST_LN, LARGEST_LN);
        if step.abs() < 1e-10 {
            break;
        }
    }
    Signal { ln_temperature: -theta, standard_error }
}

/// Beyond a temperature of e^5 there is nothing to be told apart.
const LARGEST_LN: f64 = 5.0;

/// A beta that follows how overconfident the network is on held-out examples.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Optimizer, VarMap};
/// # use vmf_candle::prelude::*;
/// # fn main() -> candle_core::Result<()> {
/// # let (vars, posterior, steps) = (VarMap::new(), Posterior::new(), 4);
/// # let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
/// # let model = Chain::new()
/// #     .add(vmf_linear(4, 8, VmfConfig::default().relu(), &posterior, vb.pp("layer"))?)
/// #     .add_plain(candle_nn::linear(8, 3, vb.pp("head"))?);
/// # let mut adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
/// # let (xs, held_out) = (Tensor::randn(0f32, 1.0, (32, 4), &Device::Cpu)?, Tensor::randn(0f32, 1.0, (16, 4), &Device::Cpu)?);
/// # let (ys, held_out_labels) = (Tensor::zeros(32, DType::U32, &Device::Cpu)?, Tensor::zeros(16, DType::U32, &Device::Cpu)?);
/// let mut beta = AutoBeta::new(&posterior, 32, steps)?;
/// for step in 0..steps {
///     let nll = cross_entropy(&model.forward(&xs, &Pass::train(0, step))?, &ys)?;
///     let loss = Elbo::new(32).beta(beta.value()).loss(&nll, &posterior)?;
///     adam.backward_step(&loss.total)?;
///     if beta.is_due(step) {
///         beta.update(step, &model, &posterior, (&xs, &ys), (&held_out, &held_out_labels))?;
///     }
/// }
/// # Ok(()) }
/// ```
///
/// Hold out a few per cent of the training set, at random; use some hundred examples if
/// you can, since fewer make the signal noisier. They may be used again for the next measurement,
/// but must never be trained on. The state is serializable: save it with the checkpoint, and a
/// resumed run is the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoBeta {
    #[serde(with = "bits")]
    suggested: f64,
    steps: u32,
    #[serde(with = "bits")]
    integral: f64,
    #[serde(with = "bits")]
    u: f64,
    /// The steps taken when it was last measured.
    measured: u32,
}

impl AutoBeta {
    /// For a training of so many steps, over all epochs, on so many examples, without those that are
    /// held out.
    pub fn new(posterior: &Posterior, train_set_len: usize, steps: u32) -> Result<Self> {
        check_setting(steps > 0, "the number of training steps", steps, "it must be positive")?;
        let suggested = posterior.suggested_beta(train_set_len);
        Ok(Self { suggested, steps, integral: 0.0, u: 0.0, measured: 0 })
    }

    /// The present beta.
    pub fn value(&self) -> f64 {
        (self.suggested * (FLOOR + START * self.u.exp_m1())).min(1.0)
    }

    /// Whether it is time for a measurement, after this step: 100 times in a training of thousands
    /// of steps, and less often in a short one.
    pub fn is_due(&self, step: u32) -> bool {
        let apart = STEPS_BETWEEN.min(self.steps.div_ceil(FEWEST));
        (step + 1).is_multiple_of(self.steps.div_ceil(MEASUREMENTS).max(apart))
    }

    /// Measures how overconfident the model is on held-out examples, as its
    /// [expected](Samples::expected) prediction is, and moves beta. `xs` and `ys` are training
    /// inputs and their labels, such as those of this step. It measures the statistics and variances
    /// of the network on them, since the running ones lag behind while weights move fast, and what
    /// overconfidence they [share](Signal::beyond).
    pub fn update<M: Forward + ?Sized>(
        &mut self,
        step: u32,
        model: &M,
        posterior: &Posterior,
        (xs, ys): (&Tensor, &Tensor),
        (held_out, labels): (&Tensor, &Tensor),
    ) -> Result<Signal> {
        measure_roughly(model, posterior, xs)?;
        let signal_on = |xs: &Tensor, labels: &Tensor| {
            let prediction = predict(model, xs, Samples::expected(posterior))?;
            Signal::of_classes(&prediction.probs, labels)
        };
        let signal = signal_on(held_out, labels)?.beyond(signal_on(xs, ys)?);
        self.observe(step, signal);
        Ok(signal)
    }

    /// Moves beta by a signal that was measured after this step: what [`update`](Self::update)
    /// does, for losses other than a cross-entropy. A signal that is not finite moves nothing.
    pub fn observe(&mut self, step: u32, signal: Signal) {
        let e = signal.ln_temperature - signal.standard_error;
        if !e.is_finite() {
            return;
        }
        let e = e.clamp(-LARGEST, LARGEST);
        // Where beta would reach 1.
        let most = (1.0 + 1.0 / (START * self.suggested)).ln();
        let taken = step.saturating_add(1);
        let share = f64::from(taken.saturating_sub(self.measured)) / f64::from(self.steps);
        self.measured = taken;
        self.integral = (self.integral + GAIN * share * e).clamp(0.0, most);
        self.u = (self.integral + PROPORTIONAL * e).clamp(0.0, most);
    }
}

/// Numbers by their bits: a decimal number may be read back with another last digit.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use candle_nn::VarMap;

    fn posterior() -> Result<Posterior> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = crate::layers::seeded(&vars, 1, DType::F32, &Device::Cpu);
        let config = crate::layers::VmfConfig::default();
        crate::layers::vmf_linear(100, 50, config, &posterior, vb.pp("layer"))?;
        Ok(posterior)
    }

    /// Logits l for which labels are drawn with probabilities softmax(l): predictions softmax(c l)
    /// should have had the temperature c.
    #[test]
    fn the_temperature_of_sharpened_predictions_is_found() -> Result<()> {
        let (rows, classes, sharpening) = (20_000, 4, 1.7);
        let value = |i: usize| 2.0 * (12.9898 * i as f64).sin();
        let logits: Vec<f64> = (0..rows * classes).map(value).collect();
        let mut labels = Vec::new();
        for (row, l) in logits.chunks(classes).enumerate() {
            let total: f64 = l.iter().map(|x| x.exp()).sum();
            // A point of a low-discrepancy sequence, which stands for a uniform draw.
            let mut left = (row as f64 * 0.618_033_988_749_895).fract() * total;
            let class = l.iter().position(|x| {
                left -= x.exp();
                left < 0.0
            });
            labels.push(class.unwrap_or(classes - 1) as u32);
        }
        let logits = Tensor::from_vec(logits, (rows, classes), &Device::Cpu)?;
        let probs = log_softmax(&(logits * sharpening)?)?.exp()?;
        let labels = Tensor::from_vec(labels, rows, &Device::Cpu)?;
        let signal = Signal::of_classes(&probs, &labels)?;
        let error = (signal.ln_temperature - f64::ln(sharpening)).abs();
        assert!(error < 4.0 * signal.standard_error, "{signal:?}");
        assert!(signal.standard_error > 0.003 && signal.standard_error < 0.03, "{signal:?}");
        Ok(())
    }

    #[test]
    fn residuals_of_twice_their_deviation_have_temperature_two() {
        let z: Vec<f64> = (0..10_000).map(|i| 2.0 * 2f64.sqrt() * f64::from(i).sin()).collect();
        let signal = Signal::of_residuals(&z);
        assert!((signal.ln_temperature - 2f64.ln()).abs() < 0.01, "{signal:?}");
    }

    #[test]
    fn overconfidence_that_training_examples_share_does_not_count() {
        let signal = |ln_temperature, standard_error| Signal { ln_temperature, standard_error };
        let held_out = signal(0.5, 0.1);
        assert_eq!(held_out.beyond(signal(0.4, 0.2)), signal(0.3, 0.1));
        // Neither what is uncertain nor underconfidence is subtracted.
        for training in [signal(0.4, 0.5), signal(-1.0, 0.1), signal(5.0, f64::INFINITY)] {
            assert_eq!(held_out.beyond(training), held_out);
        }
    }

    #[test]
    fn beta_rises_under_overconfidence_falls_without_and_stays_in_bounds() -> Result<()> {
        let mut beta = AutoBeta::new(&posterior()?, 1000, 6000)?;
        let start = beta.value();
        assert!(start < 1e-3 * 0.2, "{start}");
        let signal = |ln_temperature| Signal { ln_temperature, standard_error: 0.03 };
        let steps = |from: u32| (from..from + 3000).filter(|step| (step + 1).is_multiple_of(60));
        for step in steps(0) {
            assert!(beta.is_due(step));
            beta.observe(step, signal(-0.2));
        }
        assert_eq!(beta.value(), start, "nothing overfits");
        // An uncertain signal is no evidence.
        beta.observe(3000, Signal { ln_temperature: 0.2, standard_error: 0.3 });
        assert_eq!(beta.value(), start);
        let mut last = start;
        for step in steps(3000).take(5) {
            beta.observe(step, signal(0.3));
            assert!(beta.value() > last);
            last = beta.value();
        }
        for step in steps(3500) {
            beta.observe(step, signal(10.0));
        }
        assert!(beta.value() > 0.99 && beta.value() <= 1.0, "{}", beta.value());
        beta.observe(6600, Signal { ln_temperature: f64::NAN, standard_error: 1.0 });
        assert!(beta.value() > 0.99);
        Ok(())
    }

    #[test]
    fn the_state_survives_a_checkpoint_to_the_last_bit() -> Result<()> {
        let mut beta = AutoBeta::new(&posterior()?, 1000, 600)?;
        beta.observe(9, Signal { ln_temperature: 0.123_456_789, standard_error: 0.01 });
        let text = serde_json::to_string(&beta).unwrap();
        assert_eq!(serde_json::from_str::<AutoBeta>(&text).unwrap(), beta);
        Ok(())
    }

    #[test]
    fn predictions_and_labels_must_fit() -> Result<()> {
        let probs = Tensor::new(&[[0.5f32, 0.5], [0.9, 0.1]], &Device::Cpu)?;
        let labels = |values: &[u32]| Tensor::new(values, &Device::Cpu);
        assert!(Signal::of_classes(&probs, &labels(&[0, 1])?).is_ok());
        assert!(Signal::of_classes(&probs, &labels(&[0])?).is_err());
        assert!(Signal::of_classes(&probs, &labels(&[0, 2])?).is_err());
        Ok(())
    }
}
