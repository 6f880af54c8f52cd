//! What training prints while it runs.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Device;
use vmf_candle::ranks::Ranks;

use crate::data::Dataset;
use crate::device;
use crate::run::Record;
use crate::settings::{Preset, Settings};
use crate::terminal;
use crate::training::Trainer;

/// The first line: the preset, what is trained, how long it will take, and the other presets.
pub(super) fn beginning(
    settings: &Settings,
    set: &Dataset,
    preset: Option<Preset>,
    device: &Device,
    threads: usize,
    seconds: f64,
) -> String {
    let what = format!(
        "training {} of width {} with --method {} on {} images of {} for {}, on {}: about {}",
        settings.model,
        settings.width,
        settings.method.name(),
        set.train.len(),
        set.name,
        match settings.epochs {
            1 => "1 epoch".into(),
            epochs => format!("{epochs} epochs"),
        },
        device::in_words(device, threads),
        duration(Duration::from_secs_f64(seconds.min(1e9))),
    );
    let Some(preset) = preset else { return what };
    let changes = if *settings == preset.settings() { "" } else { " with changes" };
    let others = Preset::ALL.into_iter().filter(|other| *other != preset);
    let others: Vec<String> =
        others.map(|other| format!("--preset {} ({})", other.name(), other.in_short())).collect();
    format!("--preset {}{changes}: {what}. Others: {}", preset.name(), others.join(", "))
}

/// A duration, rounded and in a unit that keeps it short.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// The progress bar of an epoch.
pub(super) struct EpochBar {
    bar: lab::ProgressBar,
    start: Instant,
    first: usize,
    is_noisy: bool,
    /// What the bar says about the noise, and the step at which it was last looked at.
    noise: RefCell<Option<(u32, String)>>,
}

/// Steps between two looks at the noise on a GPU.
const LOOK_EVERY: u32 = 100;

impl EpochBar {
    pub(super) fn new(trainer: &Trainer, settings: &Settings) -> Self {
        let task = format!("epoch {}/{}", trainer.epoch() + 1, settings.epochs);
        let bar = lab::ProgressBar::new(task, trainer.steps_per_epoch() as u64);
        bar.advance(trainer.step_in_epoch() as u64);
        Self {
            bar,
            start: Instant::now(),
            first: trainer.step_in_epoch(),
            is_noisy: settings.method.is_noisy(),
            noise: RefCell::default(),
        }
    }

    /// Advances the bar by one step.
    pub(super) fn step(&self, trainer: &Trainer, batch: usize) -> Result<()> {
        self.bar.advance(1);
        let done = (trainer.step_in_epoch() - self.first) * batch;
        let speed = done as f64 / self.start.elapsed().as_secs_f64();
        let sums = trainer.sums();
        let mut message =
            format!("{speed:.0} images/s, nll {:.3}, accuracy {:.3}", sums.nll(), sums.accuracy());
        if self.is_noisy {
            let mut noise = self.noise.borrow_mut();
            let since = noise.as_ref().map(|(step, _)| trainer.step() - step);
            // To look at the noise on a GPU means to wait for it, once for each layer.
            if since.is_none_or(|since| !trainer.is_on_gpu() || since >= LOOK_EVERY) {
                let summary = trainer.summary()?;
                let sigmas: Vec<f64> = summary.iter().map(|layer| layer.sigma_eff()).collect();
                let text = format!(", kl {:.3e}, {}", summary.kl(), sigma_range(&sigmas));
                *noise = Some((trainer.step(), text));
            }
            message += noise.as_ref().map_or("", |(_, text)| text);
        }
        tracing::debug!(step = trainer.step(), "{message}");
        self.bar.message(message);
        Ok(())
    }
}

fn sigma_range(sigmas: &[f64]) -> String {
    let low = sigmas.iter().copied().fold(f64::INFINITY, f64::min);
    let high = sigmas.iter().copied().fold(0.0, f64::max);
    format!("sigma_eff {low:.3} to {high:.3}")
}

/// The line about the ranks in an epoch.
pub(super) fn ranks(ranks: Ranks, communication: f64, efficiency: f64) -> String {
    format!(
        "           {} ranks, {:.0} % of the time in communication, efficiency {efficiency:.2}",
        ranks.size(),
        100.0 * communication
    )
}

/// The line of an epoch.
pub(super) fn epoch(record: &Record, epochs: u32, images_per_second: f64, left: Duration) {
    let mut line = format!(
        "epoch {:>3}/{epochs}  train nll {:.3} acc {:.3}  test nll {:.3} acc {:.3} ece {:.3}",
        record.epoch,
        record.running_nll,
        record.running_accuracy,
        record.test.nll,
        record.test.accuracy,
        record.test.ece
    );
    if let Some(kl) = record.kl {
        let sigmas: Vec<f64> = record.sigma_eff.iter().map(|s| s.sigma_eff).collect();
        line += &format!("  kl {kl:.3e}");
        if !sigmas.is_empty() {
            line += &format!("  {}", sigma_range(&sigmas));
        }
    }
    line += &format!("  {images_per_second:.0} images/s");
    if record.epoch < u64::from(epochs) {
        line += &format!(", about {} left", duration(left));
    }
    terminal::say(line);
    for layer in &record.sigma_eff {
        tracing::info!("{}: sigma_eff {:.4}", layer.layer, layer.sigma_eff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic;

    #[test]
    fn the_first_line_says_the_preset_the_time_and_the_other_presets() {
        let set = synthetic::generate(&synthetic::Config {
            train_images: 20,
            test_images: 10,
            label_noise: 0.0,
        })
        .unwrap();
        let line =
            |settings: &Settings, preset| beginning(settings, &set, preset, &Device::Cpu, 2, 300.0);
        let quick = Preset::Quick.settings();
        assert_eq!(
            line(&quick, Some(Preset::Quick)),
            "--preset quick: training vgg16 of width 0.125 with --method vmf on 20 images of the synthetic set \
             for 10 epochs, on the CPU with 2 threads: about 5 min. \
             Others: --preset paper (full width, 200 epochs, for a GPU), --preset cpu (width 0.25, 60 epochs)"
        );
        let changed = Settings { epochs: 3, ..quick };
        assert!(line(&changed, Some(Preset::Quick)).starts_with("--preset quick with changes: "));
        assert!(line(&changed, None).starts_with("training vgg16"));
        assert!(!line(&changed, None).contains("Others"));
    }

    #[test]
    fn durations_are_short_and_in_their_unit() {
        for (seconds, text) in
            [(5, "5 s"), (300, "5 min"), (9_000, "2.5 h"), (864_000, "10.0 days")]
        {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
