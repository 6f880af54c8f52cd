//! Estimates how long a run will take, from a few steps of a network of the same size.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Device;

use super::Trainer;
use crate::beta::Beta;
use crate::data::Dataset;
use crate::settings::Settings;

/// Largest batch of a timed step on the CPU. It is large enough to run at the speed of a full batch
/// and small enough not to keep the user waiting. On a GPU the full batch is timed: smaller ones
/// would underestimate its speed, and a full one takes little time.
const IMAGES_ON_CPU: usize = 128;
/// The largest and the smallest number of timed steps. The first few also allocate memory and, on a
/// GPU, compile kernels.
const STEPS: [usize; 2] = [10, 3];
/// After this time, no more than the smallest number of steps is taken.
const PATIENCE: Duration = Duration::from_secs(2);

/// The cost of a pass without gradients, relative to a training step.
const EVALUATION: f64 = 1.0 / 3.0;

/// Estimates the seconds that all epochs will take. The network that is timed is thrown away.
pub fn seconds(settings: &Settings, set: &Dataset, device: &Device) -> Result<f64> {
    let per_second = images_per_second(settings, set, device)?;
    Ok(seconds_at(per_second, settings, set))
}

/// The seconds that all epochs take at this speed of training steps.
pub fn seconds_at(images_per_second: f64, settings: &Settings, set: &Dataset) -> f64 {
    let evaluated = set.test.len() + 2 * settings.statistics_images.min(set.train.len());
    let images = set.train.len() as f64 + EVALUATION * evaluated as f64;
    f64::from(settings.epochs) * images / images_per_second
}

/// How many images a second this process trains on, all by itself.
pub fn images_per_second(settings: &Settings, set: &Dataset, device: &Device) -> Result<f64> {
    let timed = Settings {
        batch: if device.is_cpu() { settings.batch.min(IMAGES_ON_CPU) } else { settings.batch },
        // Learning rates do not change the time, and one that makes training diverge must be
        // reported by training, not here.
        lr: 0.0,
        noise_lr: 0.0,
        // Automatic beta measures in one of many steps only.
        beta: Beta::Fixed(0.0),
        ..settings.clone()
    };
    let batch = timed.batch;
    let mut trainer = Trainer::new(timed, set.clone(), device.clone())?;
    let mut fastest = f64::INFINITY;
    let start = Instant::now();
    let [most, least] = STEPS;
    for (step, batch) in trainer.batches().take(most).enumerate() {
        if step >= least && start.elapsed() > PATIENCE {
            break;
        }
        let begin = Instant::now();
        trainer.train_step(batch)?;
        fastest = fastest.min(begin.elapsed().as_secs_f64());
    }
    Ok(batch as f64 / fastest)
}
