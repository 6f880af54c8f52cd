//! The mean cross-entropy of labels under a softmax, with its gradient, and how many labels are
//! right.
//!
//! ```text
//! loss = mean over rows of  (1 - s) (L - x[label]) + s (L - mean x),     L = ln sum exp x
//! dx   = (softmax(x) - (1 - s) [label] - s / classes) / rows
//! ```
//!
//! s is the label smoothing. One function computes all three, because loss and gradient need the
//! same exponentials. A label that is no class makes the loss NaN. The first of several largest
//! logits is the prediction.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod launches;

use crate::error::{Error, check_length};

/// What a batch of labels is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The mean loss.
    pub loss: f64,
    /// How many predictions are right.
    pub right: usize,
}

/// Writes the gradient of the mean loss, and returns the loss. The logits are (rows, classes).
pub fn cross_entropy(
    logits: &[f32],
    labels: &[u32],
    smoothing: f64,
    gradient: &mut [f32],
) -> Result<Outcome, Error> {
    let rows = labels.len();
    if rows == 0 || logits.is_empty() || !logits.len().is_multiple_of(rows) {
        let shape = format!("({rows} labels, {} logits)", logits.len());
        return Err(Error::EmptyShape { shape });
    }
    check_length("gradient", gradient.len(), logits.len())?;
    let classes = logits.len() / rows;
    let mut outcome = Outcome { loss: 0.0, right: 0 };
    let rows = logits.chunks(classes).zip(gradient.chunks_mut(classes)).zip(labels);
    for ((row, gradient), &label) in rows {
        let mut best = 0;
        for (place, value) in row.iter().enumerate() {
            if *value > row[best] || (value.is_nan() && !row[best].is_nan()) {
                best = place;
            }
        }
        let top = f64::from(row[best]);
        let shifted = |x: &f32| f64::from(*x) - top;
        let sum: f64 = row.iter().map(|x| shifted(x).exp()).sum();
        let mean = row.iter().map(shifted).sum::<f64>() / classes as f64;
        let at = row.get(label as usize).map_or(f64::NAN, shifted);
        outcome.loss += sum.ln() - (1.0 - smoothing) * at - smoothing * mean;
        outcome.right += usize::from(best == label as usize);
        for (place, (x, gradient)) in row.iter().zip(gradient).enumerate() {
            let target = if place == label as usize { 1.0 - smoothing } else { 0.0 };
            let target = target + smoothing / classes as f64 + 0.0 * at;
            *gradient = ((shifted(x).exp() / sum - target) / labels.len() as f64) as f32;
        }
    }
    outcome.loss /= labels.len() as f64;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let (rows, classes) = (5, 7);
        let mut logits = Rng::new(3).normals(rows * classes);
        let labels = [0, 6, 3, 3, 1];
        let mut gradient = vec![0.0; logits.len()];
        let mut unused = gradient.clone();
        for smoothing in [0.0, 0.1] {
            cross_entropy(&logits, &labels, smoothing, &mut gradient).unwrap();
            for i in 0..logits.len() {
                let (at, step) = (logits[i], 1e-2);
                let mut loss = |x: f32| {
                    logits[i] = x;
                    cross_entropy(&logits, &labels, smoothing, &mut unused).unwrap().loss
                };
                let slope = (loss(at + step) - loss(at - step))
                    / (f64::from(at + step) - f64::from(at - step));
                logits[i] = at;
                assert!((slope - f64::from(gradient[i])).abs() < 1e-5, "{i}: {slope}");
            }
        }
    }

    #[test]
    fn predictions_ties_and_what_is_no_number() {
        let mut gradient = [0.0; 4];
        let mut of = |logits: [f32; 4], labels: [u32; 2]| {
            cross_entropy(&logits, &labels, 0.0, &mut gradient).unwrap()
        };
        assert_eq!(of([1.0, 1.0, 0.0, 2.0], [0, 1]).right, 2);
        assert_eq!(of([1.0, 1.0, 0.0, 2.0], [1, 0]).right, 0);
        assert!(of([1.0, f32::NAN, 0.0, 2.0], [0, 1]).loss.is_nan());
        assert!(of([1.0, 2.0, 0.0, 2.0], [2, 1]).loss.is_nan());
        assert!(of([1e4, -1e4, 0.0, 0.0], [0, 1]).loss.is_finite());
        assert!(cross_entropy(&[0.0; 3], &[0, 0], 0.0, &mut [0.0; 3]).is_err());
    }
}
