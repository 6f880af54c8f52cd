//! The settings of a run. Each of them is a flag and a field of config.json.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use vmf_candle::Schedule;

pub use crate::beta::Beta;
use crate::data::{Interface, Request, Source};
use crate::limits;
pub use crate::methods::Method;
use crate::methods::swa;
use crate::model::{IMAGE_SIZE, Model, NetworkConfig, Randomness};

/// The schedule of the learning rate of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// It stays the same
    Constant,
    /// It decays to zero at the end of training along half a cosine
    Cosine,
}

/// Defines the settings once, both as the struct that config.json keeps and as optional flags.
macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+ $(#[serde($($serde:tt)*)])? $(#[arg($($arg:tt)*)])?
        $name:ident: $type:ty,
    )*) => {
        /// The settings that decide what a run computes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            $( $(#[doc = $doc])+ $(#[serde($($serde)*)])? pub $name: $type, )*
        }

        /// The settings as flags. A flag that is not given leaves the value of the preset.
        #[derive(Clone, Debug, Default, clap::Args)]
        #[command(next_help_heading = "Settings (default: those of the preset)")]
        pub struct Flags {
            $( $(#[doc = $doc])+ #[arg(long, $($($arg)*)?)] pub $name: Option<$type>, )*
        }

        impl From<&Settings> for Flags {
            fn from(settings: &Settings) -> Self {
                Self { $( $name: Some(settings.$name), )* }
            }
        }

        impl Flags {
            /// Overwrites the settings that were given as flags.
            pub fn apply(&self, settings: &mut Settings) {
                $( if let Some(value) = self.$name { settings.$name = value; } )*
            }
        }
    };
}

settings! {
    /// Training method
    #[arg(value_enum)]
    method: Method,
    /// Data set
    #[arg(value_enum)]
    data: Source,
    /// Train on the first N images; 0 for all
    #[arg(value_name = "N")]
    train_images: usize,
    /// Test on the first N images; 0 for all
    #[arg(value_name = "N")]
    test_images: usize,
    /// Share of wrong labels in the synthetic set, from 0 to 0.9
    label_noise: f64,
    /// Shift training images by up to four pixels at random, and mirror them if that preserves classes
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    augment: bool,
    /// Network
    #[serde(default, alias = "depth")]
    #[arg(value_enum, alias = "depth")]
    model: Model,
    /// Factor of the number of channels of each layer; 1 is the network of its paper
    width: f64,
    /// Initial sigma_eff of each layer
    sigma: f64,
    /// Number of passes over the training images
    epochs: u32,
    /// Number of images per step
    batch: usize,
    /// Learning rate of the weights
    lr: f64,
    /// Schedule of the learning rate of the weights
    #[arg(value_enum)]
    lr_decay: Decay,
    /// Share of the epochs, at the beginning, in which the learning rate of the weights rises from 0
    #[serde(default)]
    #[arg(value_name = "SHARE")]
    lr_warmup: f64,
    /// Learning rate of the noise parameters
    noise_lr: f64,
    /// Weight of the KL with `--method vmf`: auto, to find it during training on the images that
    /// are held out, or a number, of which 1 gives the evidence lower bound
    beta: Beta,
    /// Share of the training images that are never trained on. What has to be chosen is chosen on
    /// them: automatic beta, the best epoch, a temperature
    #[serde(default)]
    #[arg(value_name = "SHARE")]
    held_out: f64,
    /// Number of epochs over which a beta that is a number rises from 0
    warmup: f64,
    /// Largest norm of the gradient of a step; 0 for no limit
    clip: f64,
    /// Share of the activations that `--method dropout` drops
    #[serde(default = "published::dropout")]
    #[arg(value_name = "RATE")]
    dropout: f64,
    /// Share of the epochs, at the end, over which weights are averaged; 0 for none
    #[serde(default)]
    #[arg(value_name = "SHARE")]
    swa: f64,
    /// First estimate of the curvature with `--method ivon`
    #[serde(default = "published::hess_init")]
    hess_init: f64,
    /// Weight decay of `--method ivon`, which is the precision of its prior
    #[serde(default = "published::weight_decay")]
    weight_decay: f64,
    /// Number of groups of channels in each layer with a sigma_eff of their own
    #[serde(default = "published::sigma_groups")]
    sigma_groups: usize,
    /// Keep sigma_eff at its initial value
    #[serde(default)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fixed_sigma: bool,
    /// Train on propagated means and variances, without drawing noise; some ten times slower
    #[serde(default)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    propagate: bool,
    /// Number of training images that the statistics of normalization are measured on after each epoch
    statistics_images: usize,
    /// Seed of the initial weights, the noise, the order of images and the augmentation
    seed: u64,
}

/// The values of settings that only some methods have, where their papers give them. They also
/// stand for settings that older files do not have.
mod published {
    /// Ovadia et al. (2019) and the uncertainty baselines drop a tenth in residual networks.
    pub(super) fn dropout() -> f64 {
        0.1
    }

    /// Shen et al. (2024), residual networks on CIFAR-10.
    pub(super) fn hess_init() -> f64 {
        0.9
    }

    /// As [`hess_init`].
    pub(super) fn weight_decay() -> f64 {
        2e-4
    }

    /// One sigma_eff for all channels.
    pub(super) fn sigma_groups() -> usize {
        1
    }
}

/// Predefined settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The paper's appendix: VGG16, batch 256, 200 epochs; for a GPU
    Paper,
    /// A quarter of the width, for longer training on a CPU
    Cpu,
    /// An eighth of the width, for a first look on a CPU
    Quick,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Preset::Paper, Preset::Cpu, Preset::Quick];

    /// A description of a few words.
    pub fn in_short(self) -> &'static str {
        match self {
            Preset::Paper => "full width, 200 epochs, for a GPU",
            Preset::Cpu => "width 0.25, 60 epochs",
            Preset::Quick => "width 0.125, 10 epochs",
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Paper => "paper",
            Preset::Cpu => "cpu",
            Preset::Quick => "quick",
        }
    }

    /// Its settings.
    pub fn settings(self) -> Settings {
        // The paper does not give beta, augmentation or the initial sigma_eff.
        let paper = Settings {
            method: Method::Vmf,
            data: Source::Cifar10,
            train_images: 0,
            test_images: 0,
            label_noise: 0.0,
            augment: false,
            model: Model::Vgg16,
            width: 1.0,
            sigma: 0.1,
            epochs: 200,
            batch: 256,
            lr: 1e-4,
            lr_decay: Decay::Constant,
            lr_warmup: 0.0,
            noise_lr: 2e-2,
            beta: Beta::Auto,
            held_out: 0.05,
            warmup: 20.0,
            clip: 0.0,
            dropout: published::dropout(),
            swa: 0.0,
            hess_init: published::hess_init(),
            weight_decay: published::weight_decay(),
            sigma_groups: published::sigma_groups(),
            fixed_sigma: false,
            propagate: false,
            statistics_images: 4096,
            seed: 0,
        };
        match self {
            Preset::Paper => paper,
            Preset::Cpu => Settings {
                width: 0.25,
                epochs: 60,
                batch: 128,
                lr: 1e-3,
                lr_decay: Decay::Cosine,
                warmup: 6.0,
                ..paper
            },
            Preset::Quick => Settings {
                width: 0.125,
                epochs: 10,
                batch: 128,
                lr: 1e-3,
                lr_decay: Decay::Cosine,
                warmup: 2.0,
                ..paper
            },
        }
    }
}

impl Settings {
    /// The settings that change nothing, beside these others.
    pub fn unused(&self) -> impl Iterator<Item = &'static str> {
        // A beta that is found does not rise on a schedule.
        let of_beta = (self.beta == Beta::Auto).then_some("warmup");
        self.method.unused().chain(of_beta)
    }

    /// Refuses settings that a network cannot be trained with.
    pub fn check(&self) -> Result<()> {
        ensure!(
            (1..=limits::EPOCHS).contains(&self.epochs),
            "--epochs is {}; it must be at least 1 and at most {}",
            self.epochs,
            limits::EPOCHS
        );
        check_batch(self.batch)?;
        // The width is checked where it is used.
        self.network(3, 10).parts()?;
        for (name, count) in
            [("--train-images", self.train_images), ("--test-images", self.test_images)]
        {
            ensure!(
                count <= limits::IMAGES,
                "{name} is {count}; it must be at most {}",
                limits::IMAGES
            );
        }
        ensure!(
            (0.0..=0.9).contains(&self.label_noise),
            "the label noise is {}; it is the share of wrong labels, from 0 to 0.9",
            self.label_noise
        );
        for (name, value) in [
            ("--lr", self.lr),
            ("--noise-lr", self.noise_lr),
            ("--beta", self.beta.fixed().unwrap_or(0.0)),
            ("--warmup", self.warmup),
            ("--clip", self.clip),
            ("--weight-decay", self.weight_decay),
        ] {
            ensure!(
                value >= 0.0 && value.is_finite(),
                "{name} is {value}; it must be a number that is not negative"
            );
        }
        ensure!(
            (0.0..=0.5).contains(&self.held_out),
            "--held-out is {}; it is a share of the training images, from 0 to 0.5",
            self.held_out
        );
        let finds_beta = self.method == Method::Vmf && self.beta == Beta::Auto;
        ensure!(
            !finds_beta || self.held_out > 0.0,
            "--beta auto needs images that are held out: give --held-out 0.05, or a number as --beta"
        );
        ensure!(
            !self.propagate || self.method.is_noisy(),
            "--propagate replaces the noise of --method vmf or none, and --method {} has other noise, or none",
            self.method.name()
        );
        for (name, value) in [("--sigma", self.sigma), ("--hess-init", self.hess_init)] {
            ensure!(value > 0.0 && value.is_finite(), "{name} is {value}; it must be positive");
        }
        for (name, value) in
            [("--dropout", self.dropout), ("--swa", self.swa), ("--lr-warmup", self.lr_warmup)]
        {
            ensure!(
                (0.0..1.0).contains(&value),
                "{name} is {value}; it is a share, from 0 to below 1"
            );
        }
        ensure!(
            self.method != Method::Swa || self.swa > 0.0,
            "--method swa averages over the share of the epochs that --swa gives, such as 0.25, and it is 0"
        );
        self.check_layers()
    }

    /// Refuses a network that the method has no layers for, and groups that do not divide them.
    fn check_layers(&self) -> Result<()> {
        let parts = self.network(3, 10).parts()?;
        let layers: Vec<_> = parts.iter().flat_map(crate::model::Part::layers).collect();
        ensure!(
            self.method != Method::MeanField || layers.iter().all(|layer| layer.kernel > 0),
            "--method mean-field has no layers for {}: choose VGG or a residual network",
            self.model
        );
        let groups = self.sigma_groups;
        let undivided = layers.iter().find(|layer| groups == 0 || layer.outputs % groups != 0);
        if let Some(layer) = undivided {
            bail!(
                "--sigma-groups is {groups}, which does not divide the {} channels of {}",
                layer.outputs,
                layer.name
            );
        }
        Ok(())
    }

    /// The request for the data set, from `folder` if it is given.
    pub fn data_request(&self, folder: Option<PathBuf>) -> Request {
        let some = |count: usize| (count > 0).then_some(count);
        Request {
            source: self.data,
            folder,
            train_images: some(self.train_images),
            test_images: some(self.test_images),
            label_noise: self.label_noise,
            held_out: self.held_out,
            seed: self.seed,
        }
    }

    /// The network for images with this number of channels and classes.
    pub fn network(&self, in_channels: usize, classes: usize) -> NetworkConfig {
        NetworkConfig {
            model: self.model,
            width: self.width,
            in_channels,
            classes,
            sigma: self.sigma,
            affine: false,
            sigma_groups: self.sigma_groups,
            fixed_sigma: self.fixed_sigma,
            randomness: match self.method {
                Method::Dropout => Randomness::Dropout(self.dropout),
                Method::MeanField => Randomness::Weights,
                _ => Randomness::Units,
            },
        }
    }

    /// The weight of the KL after this many epochs; `None` if training finds it.
    pub fn beta_at(&self, epochs: f64) -> Option<f64> {
        match (self.method, self.beta) {
            (Method::Vmf, Beta::Auto) => None,
            (Method::Vmf, Beta::Fixed(beta)) => {
                Some(Schedule::warmup(beta, self.warmup).at(epochs))
            }
            // Without a controller of its own, the evidence lower bound.
            (Method::MeanField, beta) => {
                Some(Schedule::warmup(beta.fixed().unwrap_or(1.0), self.warmup).at(epochs))
            }
            _ => Some(0.0),
        }
    }

    /// The number of epochs before the first whose weights are averaged; `None` if none are.
    pub fn swa_start(&self) -> Option<u32> {
        let averaged = (self.swa * f64::from(self.epochs)).ceil() as u32;
        (self.swa > 0.0).then(|| self.epochs - averaged.clamp(1, self.epochs))
    }

    /// The learning rate of the weights after this many epochs.
    pub fn lr_at(&self, epochs: f64) -> f64 {
        let warmup = self.lr_warmup * f64::from(self.epochs);
        if epochs < warmup {
            return self.lr * epochs / warmup;
        }
        match (self.lr_decay, self.swa_start()) {
            (Decay::Constant, _) => self.lr,
            // The weights must not come to rest before their mean is taken.
            (Decay::Cosine, Some(start)) => {
                let (last, start) = (swa::RATE * self.lr, f64::from(start));
                if epochs >= start {
                    last
                } else {
                    Schedule::cosine(self.lr, last, start).at(epochs)
                }
            }
            (Decay::Cosine, None) => {
                Schedule::cosine(self.lr, 0.0, f64::from(self.epochs)).at(epochs)
            }
        }
    }
}

/// Refuses a batch that cannot be normalized or is too large.
pub fn check_batch(batch: usize) -> Result<()> {
    ensure!(
        batch >= 2,
        "a batch of {batch} has no variance to normalize by: --batch must be at least 2"
    );
    ensure!(
        batch <= limits::BATCH,
        "a batch of {batch} is too large: --batch must be at most {}",
        limits::BATCH
    );
    Ok(())
}

/// Where a run computes and how often it saves. None of this changes the results, so a resumed run
/// may use other values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Machine")]
pub struct Machine {
    /// Device to compute on: cpu, cuda or cuda:N [default: the best available]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of CPU threads [default: one per processor]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Folder with the files of the data set
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Minutes between checkpoints, also within an epoch [default: 5]
    #[arg(long, value_name = "MINUTES")]
    pub checkpoint_minutes: Option<f64>,
    /// Epochs between checkpoints [default: 1]
    #[arg(long, value_name = "EPOCHS")]
    pub checkpoint_epochs: Option<u32>,
}

impl Machine {
    /// Refuses values that make no sense.
    pub fn check(&self) -> Result<()> {
        let minutes = self.minutes();
        ensure!(
            (0.0..=1e9).contains(&minutes),
            "--checkpoint-minutes is {minutes}; it must be a number that is not negative"
        );
        ensure!(self.epochs() > 0, "--checkpoint-epochs is 0; it must be at least 1");
        Ok(())
    }

    /// Minutes between checkpoints.
    pub fn minutes(&self) -> f64 {
        self.checkpoint_minutes.unwrap_or(5.0)
    }

    /// Epochs between checkpoints.
    pub fn epochs(&self) -> u32 {
        self.checkpoint_epochs.unwrap_or(1)
    }

    /// These values, with those of `before` where none are given.
    pub fn or(self, before: Self) -> Self {
        Self {
            device: self.device.or(before.device),
            threads: self.threads.or(before.threads),
            data_dir: self.data_dir.or(before.data_dir),
            checkpoint_minutes: self.checkpoint_minutes.or(before.checkpoint_minutes),
            checkpoint_epochs: self.checkpoint_epochs.or(before.checkpoint_epochs),
        }
    }
}

/// The version of the run folder that this program writes and reads.
pub const RUN_VERSION: u64 = 1;

/// The contents of config.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The version of the run folder, [`RUN_VERSION`].
    pub version: u64,
    /// What is trained.
    pub settings: Settings,
    /// Where it is trained.
    pub machine: Machine,
    /// The format of images and classes, with which pictures can be classified without the data
    /// set.
    pub interface: Interface,
}

impl Config {
    /// Refuses a configuration that this program would not write: the file may come from anywhere,
    /// and memory is allocated by what it says.
    pub fn check(&self) -> Result<()> {
        self.settings.check()?;
        self.machine.check()?;
        let Interface { shape, normalization, classes } = &self.interface;
        ensure!(
            matches!(shape.channels, 1 | 3) && shape.size == IMAGE_SIZE,
            "its images have {} channels and {} x {} pixels; the networks take 1 or 3 channels and {IMAGE_SIZE} x {IMAGE_SIZE} pixels",
            shape.channels,
            shape.size,
            shape.size
        );
        let lengths = [&normalization.mean, &normalization.deviation].map(Vec::len);
        ensure!(
            lengths == [shape.channels; 2],
            "its normalization has {lengths:?} channels, and its images have {}",
            shape.channels
        );
        let is_usable = |deviation: &f64| deviation.is_finite() && *deviation > 0.0;
        ensure!(
            normalization.mean.iter().all(|mean| mean.is_finite())
                && normalization.deviation.iter().all(is_usable),
            "its normalization has a mean that is not finite, or a deviation that is not positive"
        );
        ensure!(
            (1..=limits::CLASSES).contains(&classes.len()),
            "it has {} classes; there must be at least 1 and at most {}",
            classes.len(),
            limits::CLASSES
        );
        let is_name = |name: &String| {
            let length = name.chars().count();
            (1..=limits::CLASS_NAME).contains(&length) && !name.chars().any(char::is_control)
        };
        if let Some(name) = classes.iter().find(|name| !is_name(name)) {
            let start: String = name.chars().take(20).collect();
            bail!(
                "the class {start:?} must have 1 to {} characters, and no control characters",
                limits::CLASS_NAME
            );
        }
        Ok(())
    }

    /// The network.
    pub fn network(&self) -> NetworkConfig {
        let Interface { shape, classes, .. } = &self.interface;
        self.settings.network(shape.channels, classes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_file() {
        for preset in Preset::ALL {
            let settings = preset.settings();
            settings.check().unwrap();
            let text = serde_json::to_string_pretty(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
        }
        for preset in [Preset::Cpu, Preset::Quick] {
            let Settings { width, epochs, .. } = preset.settings();
            assert_eq!(preset.in_short(), format!("width {width}, {epochs} epochs"));
        }
        let text = serde_json::to_string(&Preset::Quick.settings()).unwrap();
        let unknown = text.replacen("\"epochs\"", "\"epoch\"", 1);
        let error = serde_json::from_str::<Settings>(&unknown).unwrap_err();
        assert!(error.to_string().contains("epoch"), "{error}");
    }

    #[test]
    fn settings_from_before_images_were_held_out_can_be_read() {
        let quick = Settings { beta: Beta::Fixed(0.1), held_out: 0.0, ..Preset::Quick.settings() };
        let mut old = serde_json::to_value(&quick).unwrap();
        old.as_object_mut().unwrap().remove("held_out");
        assert_eq!(serde_json::from_value::<Settings>(old).unwrap(), quick);
    }

    #[test]
    fn the_paper_s_settings_are_those_of_its_appendix() {
        let paper = Preset::Paper.settings();
        assert_eq!((paper.batch, paper.epochs, paper.width), (256, 200, 1.0));
        assert_eq!((paper.lr, paper.noise_lr), (1e-4, 2e-2));
        assert_eq!(paper.lr_at(150.0), 1e-4);
        let warmed = Settings { lr_warmup: 0.05, ..paper.clone() };
        assert_eq!([0.0, 5.0, 10.0].map(|epoch| warmed.lr_at(epoch)), [0.0, 0.5e-4, 1e-4]);
        assert_eq!(paper.beta_at(100.0), None);
        let fixed = Settings { beta: Beta::Fixed(0.002), ..paper.clone() };
        assert_eq!([0.0, 10.0].map(|epoch| fixed.beta_at(epoch)), [Some(0.0), Some(0.001)]);
        assert_eq!([20.0, 200.0].map(|epoch| fixed.beta_at(epoch)), [Some(0.002); 2]);
        for method in [Method::None, Method::Map] {
            let other = Settings { method, ..paper.clone() };
            assert_eq!(other.beta_at(100.0), Some(0.0));
        }
    }

    #[test]
    fn flags_replace_only_what_they_name() {
        let mut settings = Preset::Quick.settings();
        let flags = Flags { width: Some(0.5), augment: Some(true), ..Flags::default() };
        flags.apply(&mut settings);
        assert_eq!(settings, Settings { width: 0.5, augment: true, ..Preset::Quick.settings() });
    }

    #[test]
    fn senseless_settings_are_refused_by_name() {
        let quick = Preset::Quick.settings();
        for (settings, word) in [
            (Settings { epochs: 0, ..quick.clone() }, "epochs"),
            (Settings { epochs: u32::MAX, ..quick.clone() }, "--epochs"),
            (Settings { batch: 1, ..quick.clone() }, "batch"),
            (Settings { batch: 1 << 32, ..quick.clone() }, "batch"),
            (Settings { width: 8.0, ..quick.clone() }, "width"),
            (Settings { width: f64::NAN, ..quick.clone() }, "width"),
            (Settings { train_images: usize::MAX, ..quick.clone() }, "--train-images"),
            (Settings { test_images: 1 << 40, ..quick.clone() }, "--test-images"),
            (Settings { label_noise: -0.1, ..quick.clone() }, "label noise"),
            (Settings { lr: -1.0, ..quick.clone() }, "--lr"),
            (Settings { beta: Beta::Fixed(f64::NAN), ..quick.clone() }, "--beta"),
            (Settings { held_out: 0.6, ..quick.clone() }, "--held-out"),
            (Settings { held_out: 0.0, ..quick.clone() }, "--held-out 0.05"),
            (Settings { sigma: 0.0, ..quick.clone() }, "--sigma"),
            (Settings { dropout: 1.0, ..quick.clone() }, "--dropout"),
            (Settings { method: Method::Swa, ..quick.clone() }, "--swa"),
            (Settings { sigma_groups: 3, ..quick.clone() }, "--sigma-groups"),
            (Settings { hess_init: 0.0, ..quick.clone() }, "--hess-init"),
            (
                Settings { method: Method::MeanField, model: Model::Vit, ..quick.clone() },
                "mean-field",
            ),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
