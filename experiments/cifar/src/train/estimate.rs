//! How long a run will take, from a few steps of a network of the same size.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Device;

use super::Trainer;
use crate::data::Dataset;
use crate::settings::Settings;

/// Images in a timed step on the CPU, at most: enough for the speed of a full one, few enough not
/// to keep anyone waiting. A GPU is fast with full batches only, and takes no time for one.
const IMAGES_ON_CPU: usize = 128;
/// Steps that are timed, at most and at least. The first few also pay for memory and, on a GPU, for
/// compilation.
const STEPS: [usize; 2] = [10, 3];
/// After this time no more steps are taken than are needed.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pass without gradients costs about a third of a step of training.
const EVALUATION: f64 = 1.0 / 3.0;

/// Seconds that all epochs will take, from a few steps. The network that is timed is thrown away.
pub fn seconds(settings: &Settings, set: &Dataset, device: &Device) -> Result<f64> {
    let timed = Settings {
        batch: if device.is_cpu() { settings.batch.min(IMAGES_ON_CPU) } else { settings.batch },
        // Learning rates take no time, and a senseless one must show in training, not here.
        lr: 0.0,
        noise_lr: 0.0,
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
    let per_image = fastest / batch as f64;
    let evaluated = set.test.len() + 2 * settings.statistics_images.min(set.train.len());
    let images = set.train.len() as f64 + EVALUATION * evaluated as f64;
    Ok(f64::from(settings.epochs) * images * per_image)
}
