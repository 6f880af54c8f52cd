//! The training methods: ours, and those that a user would pick instead. One file each, behind the
//! same loop, the same order of images and the same evaluation.
//!
//! | method | what it is | in this folder |
//! |---|---|---|
//! | `vmf`, `none`, `map` | noise with the KL, noise without it, no noise | nothing: they are settings of the library |
//! | `dropout` | Monte Carlo dropout | [`dropout`] |
//! | `mean-field` | an independent Gaussian for every weight | [`mean_field`] |
//! | `ivon` | the variational online Newton method | [`ivon`] |
//! | `swa` | the mean of the weights of the last epochs; `--swa` adds it to any other method | [`swa`] |
//!
//! Ensembles are made of finished runs, by `cifar eval --ensemble`.

pub mod dropout;
pub mod ivon;
pub mod mean_field;
pub mod swa;

use std::sync::PoisonError;

use candle_core::Var;
use candle_nn::VarMap;
use serde::{Deserialize, Serialize};
use vmf_candle::Pass;

use crate::settings::Settings;

/// The training method. Everything else is the same for all of them, so that they can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The paper's method: noise is learned with the KL to the prior
    Vmf,
    /// The paper's baseline: noise is learned without the KL
    None,
    /// An ordinary network without noise
    Map,
    /// Monte Carlo dropout: activations are dropped at random, in prediction too
    Dropout,
    /// An independent Gaussian for every weight, trained with local reparameterization
    MeanField,
    /// The variational online Newton method, whose posterior is a Gaussian too
    Ivon,
    /// An ordinary network whose weights are averaged over the last epochs
    Swa,
}

/// The settings that only some methods use, and which.
const OWN_SETTINGS: [(&str, &[Method]); 10] = [
    ("beta", &[Method::Vmf, Method::MeanField]),
    ("warmup", &[Method::Vmf, Method::MeanField]),
    ("sigma", &[Method::Vmf, Method::None, Method::MeanField]),
    ("noise_lr", &[Method::Vmf, Method::None]),
    ("sigma_groups", &[Method::Vmf, Method::None]),
    ("fixed_sigma", &[Method::Vmf, Method::None]),
    ("propagate", &[Method::Vmf, Method::None]),
    ("dropout", &[Method::Dropout]),
    ("hess_init", &[Method::Ivon]),
    ("weight_decay", &[Method::Ivon]),
];

/// The share of the epochs that `--method swa` averages over, as in its paper.
const SWA_SHARE: f64 = 0.25;

impl Method {
    /// Whether the units have noise that is learned, which an expected pass can replace.
    pub fn is_noisy(self) -> bool {
        matches!(self, Method::Vmf | Method::None)
    }

    /// Whether several predictions can be drawn and averaged.
    pub fn has_samples(self) -> bool {
        !matches!(self, Method::Map | Method::Swa)
    }

    /// Whether the samples are draws of all weights, which stay the same for a whole pass over the
    /// images.
    pub fn draws_weights(self) -> bool {
        self == Method::Ivon
    }

    /// The pass of a training step.
    pub fn pass(self, seed: u64, step: u32) -> Pass {
        match self {
            Method::Map | Method::Swa | Method::Ivon => Pass::train_noiseless(),
            _ => Pass::train(seed, step),
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::Vmf => "vmf",
            Method::None => "none",
            Method::Map => "map",
            Method::Dropout => "dropout",
            Method::MeanField => "mean-field",
            Method::Ivon => "ivon",
            Method::Swa => "swa",
        }
    }

    /// Its name, for people.
    pub fn title(self) -> &'static str {
        match self {
            Method::Vmf => "vmf",
            Method::None => "none (no KL)",
            Method::Map => "map (no noise)",
            Method::Dropout => "MC dropout",
            Method::MeanField => "mean-field",
            Method::Ivon => "IVON",
            Method::Swa => "SWA",
        }
    }

    /// The settings that it does not use.
    pub fn unused(self) -> impl Iterator<Item = &'static str> {
        OWN_SETTINGS.iter().filter(move |(_, users)| !users.contains(&self)).map(|(name, _)| *name)
    }

    /// Replaces settings of a preset by those that the method was published with.
    pub fn recipe(self, settings: &mut Settings) {
        match self {
            // Shen et al. (2024) train residual networks on CIFAR-10 at a rate of 0.2, which is in
            // units of a gradient, and not of Adam's steps. It rises in 5 of 200 epochs.
            Method::Ivon => (settings.lr, settings.lr_warmup) = (0.2, 0.025),
            Method::Swa => settings.swa = SWA_SHARE,
            _ => {}
        }
    }
}

/// What is not a parameter, among the variables of a network.
const NO_PARAMETERS: [&str; 5] =
    ["running_mean", "running_var", "noise_free_mean", "noise_free_var", "inherited_var"];

/// The parameters of a network by name, in the order of their names: without statistics, and
/// without those of the units' noise unless they are asked for.
pub fn parameters(vars: &VarMap, with_noise: bool) -> Vec<(String, Var)> {
    let vars = vars.data().lock().unwrap_or_else(PoisonError::into_inner);
    let is_parameter = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or(name);
        !NO_PARAMETERS.contains(&last) && (with_noise || last != "rho")
    };
    let parameters = vars.iter().filter(|(name, _)| is_parameter(name));
    let mut parameters: Vec<_> = parameters.map(|(n, var)| (n.clone(), var.clone())).collect();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    parameters
}

/// Keeps variables of a method in a map, under names that no network has.
fn keep<'a>(vars: &VarMap, prefix: &str, named: impl Iterator<Item = (&'a str, &'a Var)>) {
    let mut vars = vars.data().lock().unwrap_or_else(PoisonError::into_inner);
    for (name, var) in named {
        vars.insert(format!("{prefix}.{name}"), var.clone());
    }
}

/// A map with the same variables, to which others can be added.
pub fn copy_of(vars: &VarMap) -> VarMap {
    let copy = VarMap::new();
    {
        let vars = vars.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut inner = copy.data().lock().unwrap_or_else(PoisonError::into_inner);
        inner.extend(vars.iter().map(|(name, var)| (name.clone(), var.clone())));
    }
    copy
}
