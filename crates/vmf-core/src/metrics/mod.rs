//! Calibration and uncertainty metrics on plain slices of probabilities.
//!
//! A Bayesian network is worth its noise if its probabilities can be believed. This module answers
//! how far they can, in `f64`, for anything that yields rows of class probabilities:
//!
//! - [`Predictions`]: probabilities and labels, checked once; accuracy, NLL, Brier score, the
//!   calibration errors, the [`Reliability`] diagram and the entropy of each row are its methods.
//! - [`MonteCarlo`]: samples of the predictive distribution; total, aleatoric and epistemic
//!   uncertainty of each example.
//! - [`Detection`]: how well a score separates two groups; AUROC, AUPR, FPR at 95 % TPR.
//! - [`RiskCoverage`]: what abstaining gains; AURC, and the coverage at a given risk.
//! - [`Conformal`]: sets of classes with a guarantee, and how large they are (THR, APS, RAPS).
//! - [`Temperature`]: the one-parameter recalibration every method has to beat, fitted to labels or
//!   to the probabilities of another prediction; and the energy of logits.
//!
//! Inputs are validated when a view is built ([`MetricsError`] says what is wrong and where);
//! after that every metric is defined. Values are checked against torchmetrics, scikit-learn,
//! netcal and SciPy; each method's documentation names the function it equals, and where the
//! definitions differ.
//!
//! ```
//! use vmf_core::metrics::{Predictions, Temperature};
//!
//! let logits = [3.0_f32, 0.0, 0.0, 0.0, 2.0, 0.0, 4.0, 0.0, 1.0];
//! let labels = [0_u32, 1, 2];
//! let probabilities = Temperature::ONE.softmax(&logits, 3)?;
//! let predictions = Predictions::new(&probabilities, &labels, 3)?;
//! println!("accuracy {:.3}", predictions.accuracy());
//! println!("NLL      {:.3}", predictions.nll());
//! println!("ECE      {:.3}", predictions.ece());
//!
//! let fit = Temperature::fit_logits(&logits, &labels, 3)?;
//! assert!(fit.temperature.value() > 1.0 && fit.nll_after < predictions.nll());
//! # Ok::<(), vmf_core::metrics::MetricsError>(())
//! ```

mod calibration;
mod conformal;
mod detection;
mod energy;
mod error;
mod predictions;
mod scores;
mod selective;
mod temperature;
mod uncertainty;

pub use calibration::{Bin, Binning, DEFAULT_BINS, Reliability};
pub use conformal::{Conformal, Conformity, SetQuality};
pub use detection::{Detection, OperatingPoint};
pub use error::MetricsError;
pub use predictions::{Predictions, SUM_TOLERANCE};
pub use selective::RiskCoverage;
pub use temperature::{PROBABILITY_FLOOR, Temperature, TemperatureFit};
pub use uncertainty::{MonteCarlo, Uncertainty};
pub(crate) use uncertainty::{entropy, kl};
