//! What a prediction costs, for each way to predict.

use super::Fused;
use super::machine::Clock;
use anyhow::Result;
use candle_core::Tensor;
use serde::Serialize;
use std::fmt;
use vmf_candle::{Samples, predict, reestimate};

/// Samples of the Monte Carlo prediction.
const SAMPLES: u32 = 8;

/// The time of one way to predict a batch.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Prediction {
    /// The way.
    way: &'static str,
    /// The fastest of several predictions, in milliseconds.
    ms: f64,
    /// Its time divided by that of the pass without noise.
    ratio: f64,
}

/// Times all ways in turn, round by round, so that all of them see the same machine.
pub(super) fn measure(
    subject: &Fused,
    images: &Tensor,
    clock: Clock,
    rounds: usize,
) -> Result<Vec<Prediction>> {
    let Fused { model, posterior, .. } = subject;
    reestimate(model, posterior, [Ok(images.clone())])?;
    let ways = [
        ("noise off", Samples::mean()),
        ("expected", Samples::expected(posterior)),
        ("expected, full", Samples::full(posterior)),
        ("Monte Carlo 8", Samples::monte_carlo(SAMPLES, 1)),
    ];
    let mut fastest = [f64::INFINITY; 4];
    // The first round allocates memory and does not count.
    for round in 0..=rounds {
        for ((_, samples), fastest) in ways.iter().zip(&mut fastest) {
            let start = clock.now();
            // A GPU computes asynchronously: reading the probabilities waits for it.
            predict(model, images, samples.clone())?.probs.to_vec2::<f32>()?;
            if round > 0 {
                *fastest = fastest.min(clock.now() - start);
            }
        }
    }
    let noise_off = fastest[0];
    let rows = ways.into_iter().zip(fastest);
    Ok(rows
        .map(|((way, _), seconds)| Prediction {
            way,
            ms: 1e3 * seconds,
            ratio: seconds / noise_off,
        })
        .collect())
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { way, ms, ratio } = self;
        write!(f, "{way:<18}{ms:>9.1} ms {ratio:>8.2} times the pass without noise")
    }
}
