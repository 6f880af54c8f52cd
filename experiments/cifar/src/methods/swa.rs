//! Stochastic weight averaging (Izmailov et al., 2018).
//!
//! ```text
//! average <- average + (weights - average) / n      after the n-th of the last epochs
//! ```
//!
//! The learning rate does not fall to zero but stays at a fifth of its first value in those epochs,
//! so that the weights keep moving around the minimum that the mean is then close to. Statistics of
//! normalization are measured for the averaged network, as they are for any other.

use anyhow::Result;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;

use super::{keep, parameters};
use crate::settings::Settings;

/// The learning rate in the epochs that are averaged over, relative to the first one: 0.01 to 0.05
/// in the paper's VGG16.
pub const RATE: f64 = 0.2;

/// Parameters and their averages.
pub struct Swa {
    pairs: Vec<(String, Var, Var)>,
    /// The number of epochs before the first that is averaged over.
    start: u32,
}

impl Swa {
    /// The averages of a network that is trained with these settings, if they ask for them.
    pub fn new(settings: &Settings, vars: &VarMap) -> Result<Option<Self>> {
        let Some(start) = settings.swa_start() else { return Ok(None) };
        let pairs = parameters(vars, settings.method.is_noisy()).into_iter();
        let pairs = pairs.map(|(name, var)| {
            let average = Var::from_tensor(&var.as_detached_tensor().copy()?)?;
            Ok((name, var, average))
        });
        Ok(Some(Self { pairs: pairs.collect::<Result<_>>()?, start }))
    }

    /// Adds the averages to the variables that a checkpoint holds.
    pub fn keep_in(&self, vars: &VarMap) {
        keep(vars, "swa", self.pairs.iter().map(|(name, _, average)| (name.as_str(), average)));
    }

    /// Takes the present weights into the average, as those at the end of epoch `epoch`, which
    /// counts from 1. Nothing happens before the first epoch that is averaged over.
    pub fn update(&self, epoch: u32) -> Result<()> {
        let Some(count) = epoch.checked_sub(self.start).filter(|count| *count > 0) else {
            return Ok(());
        };
        for (_, var, average) in &self.pairs {
            let mean = average.as_detached_tensor();
            let step = ((var.as_detached_tensor() - &mean)? / f64::from(count))?;
            average.set(&(mean + step)?)?;
        }
        Ok(())
    }

    /// Puts the averages in the place of the weights, if there are any after `epoch` epochs.
    /// Returns the weights.
    pub fn install(&self, epoch: u32) -> Result<Vec<Tensor>> {
        let weights = self.pairs.iter().map(|(_, var, _)| var.as_detached_tensor().copy());
        let weights = weights.collect::<candle_core::Result<_>>()?;
        if epoch > self.start {
            for (_, var, average) in &self.pairs {
                var.set(&average.as_detached_tensor())?;
            }
        }
        Ok(weights)
    }

    /// Puts the weights back.
    pub fn restore(&self, weights: &[Tensor]) -> Result<()> {
        for ((_, var, _), weight) in self.pairs.iter().zip(weights) {
            var.set(weight)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Method, Preset};
    use candle_core::Device;

    #[test]
    fn the_average_is_the_mean_of_the_last_epochs() -> Result<()> {
        let settings =
            Settings { method: Method::Swa, swa: 0.5, epochs: 6, ..Preset::Quick.settings() };
        let vars = VarMap::new();
        let var = Var::new(&[0f32, 0.0], &Device::Cpu)?;
        vars.data().lock().unwrap().insert("a.weight".into(), var.clone());
        let swa = Swa::new(&settings, &vars)?.unwrap();
        for epoch in 1..=6u32 {
            let value = epoch as f32;
            var.set(&Tensor::new(&[value, value * value], &Device::Cpu)?)?;
            swa.update(epoch)?;
        }
        let weights = swa.install(6)?;
        let mean = var.to_vec1::<f32>()?;
        // Of 4, 5, 6 and of 16, 25, 36.
        assert!((mean[0] - 5.0).abs() < 1e-6 && (mean[1] - 77.0 / 3.0).abs() < 1e-5, "{mean:?}");
        swa.restore(&weights)?;
        assert_eq!(var.to_vec1::<f32>()?, [6.0, 36.0]);
        // Before the averaging begins there is nothing to install.
        swa.install(3)?;
        assert_eq!(var.to_vec1::<f32>()?, [6.0, 36.0]);
        Ok(())
    }

    #[test]
    fn the_learning_rate_falls_to_a_fifth_and_stays_there() {
        let quick = Preset::Quick.settings();
        let swa = Settings { method: Method::Swa, swa: 0.25, epochs: 8, ..quick.clone() };
        assert_eq!(swa.lr_at(0.0), quick.lr);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(swa.lr_at(3.0), quick.lr * (RATE + (1.0 - RATE) * 0.5)));
        assert!([6.0, 7.0, 8.0].iter().all(|t| close(swa.lr_at(*t), RATE * quick.lr)));
    }
}
