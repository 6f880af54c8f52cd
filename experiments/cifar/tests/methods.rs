//! Every training method: it learns, a run that is resumed continues bit for bit, and the folder
//! it leaves can be evaluated.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device};
use cifar::checkpoint;
use cifar::commands::train;
use cifar::data::{self, Dataset, Source};
use cifar::evaluation::Options;
use cifar::evaluation::results::Way;
use cifar::model::Model;
use cifar::settings::{Beta, Flags, Method, Preset, Settings};
use cifar::training::Trainer;

fn settings(method: Method) -> Settings {
    let mut settings = Settings {
        method,
        data: Source::Synthetic,
        train_images: 96,
        test_images: 40,
        model: Model::Vgg11,
        width: 0.0625,
        epochs: 4,
        batch: 24,
        beta: Beta::Fixed(0.01),
        held_out: 0.25,
        statistics_images: 48,
        warmup: 1.0,
        ..Preset::Quick.settings()
    };
    method.recipe(&mut settings);
    settings
}

const METHODS: [Method; 7] = [
    Method::Vmf,
    Method::None,
    Method::Map,
    Method::Dropout,
    Method::MeanField,
    Method::Ivon,
    Method::Swa,
];

fn epoch(trainer: &mut Trainer, steps: usize) -> Result<()> {
    for batch in trainer.batches().take(steps) {
        trainer.train_step(batch)?;
    }
    Ok(())
}

/// The bits of all variables and moments that a checkpoint holds.
fn bits(path: &Path) -> Result<BTreeMap<String, Vec<u32>>> {
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    let bits = tensors.into_iter().map(|(name, tensor)| {
        let values = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        Ok((name, values.iter().map(|value| value.to_bits()).collect()))
    });
    bits.collect()
}

fn finish(trainer: &mut Trainer) -> Result<()> {
    while !trainer.is_finished() {
        epoch(trainer, usize::MAX)?;
        trainer.finish_epoch()?;
    }
    Ok(())
}

fn resumed_equals_uninterrupted(settings: &Settings, set: &Dataset) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [whole, half, resumed] = ["whole", "half", "resumed"].map(|name| folder.path().join(name));
    let new = || Trainer::new(settings.clone(), set.clone(), Device::Cpu);
    let mut trainer = new()?;
    finish(&mut trainer)?;
    trainer.save(&whole)?;

    // Within an epoch, after weights have begun to be averaged.
    let mut trainer = new()?;
    for _ in 0..3 {
        epoch(&mut trainer, usize::MAX)?;
        trainer.finish_epoch()?;
    }
    epoch(&mut trainer, 1)?;
    trainer.save(&half)?;
    let mut trainer = new()?;
    trainer.restore(&checkpoint::open(&half, &settings.network(3, set.classes.len()))?)?;
    finish(&mut trainer)?;
    trainer.save(&resumed)?;

    let (whole, resumed) = (bits(&whole)?, bits(&resumed)?);
    assert!(whole.keys().eq(resumed.keys()));
    for (name, values) in &whole {
        assert_eq!(values, &resumed[name], "{}: {name}", settings.method.name());
    }
    assert_ne!(whole, bits(&half)?);
    Ok(())
}

#[test]
fn every_method_resumes_bit_for_bit() -> Result<()> {
    for method in METHODS {
        let settings = settings(method);
        let set = data::load(&settings.data_request(None))?;
        resumed_equals_uninterrupted(&settings, &set)?;
    }
    // Averaging is an option of every method, and groups of sigma one of ours.
    let averaged = Settings { swa: 0.5, sigma_groups: 2, ..settings(Method::Vmf) };
    let set = data::load(&averaged.data_request(None))?;
    resumed_equals_uninterrupted(&averaged, &set)?;
    let propagated = Settings { propagate: true, ..settings(Method::Vmf) };
    resumed_equals_uninterrupted(&propagated, &set)
}

#[test]
fn residual_networks_train_with_every_method() -> Result<()> {
    for method in METHODS {
        let settings =
            Settings { model: Model::Resnet20, width: 0.25, epochs: 1, ..settings(method) };
        let set = data::load(&settings.data_request(None))?;
        let mut trainer = Trainer::new(settings, set, Device::Cpu)?;
        let before = trainer.step();
        finish(&mut trainer)?;
        assert_eq!(trainer.step() - before, 3, "{}", method.name());
    }
    Ok(())
}

/// Trains with the command, and evaluates what it leaves.
#[test]
fn every_method_learns_and_can_be_evaluated() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for method in METHODS {
        let run = folder.path().join(method.name());
        let base = settings(method);
        let flags = Flags {
            method: Some(method),
            data: Some(base.data),
            train_images: Some(960),
            test_images: Some(200),
            model: Some(base.model),
            width: Some(base.width),
            epochs: Some(4),
            batch: Some(48),
            beta: Some(base.beta),
            held_out: Some(0.1),
            statistics_images: Some(96),
            warmup: Some(1.0),
            ..Flags::default()
        };
        let out = Some(run.clone());
        train::run(&train::Args { preset: Some(Preset::Quick), out, flags, ..Default::default() })?;
        let options = Options { samples: 3, ..Options::default() };
        let trained = options.open(&run)?;
        let set = options.dataset(&trained)?;
        let evaluation = options.evaluation(&trained, &set)?;
        let name = method.name();
        assert_eq!(evaluation.way(Way::Expected).is_some(), method.is_noisy(), "{name}");
        assert_eq!(evaluation.way(Way::MonteCarlo).is_some(), method.has_samples(), "{name}");
        let accuracy = evaluation.way(Way::Mean).unwrap().all.accuracy;
        assert!(accuracy > 0.3, "{name}: guessing has 0.1, and this network {accuracy}");
        if let Some(sampled) = evaluation.way(Way::MonteCarlo) {
            let information = sampled.all.mutual_information.unwrap();
            assert!(information > 1e-6, "{name}: {information}");
            assert!(sampled.all.accuracy > 0.2, "{name}: {}", sampled.all.accuracy);
        }
        // What was drawn is taken back: a second evaluation finds the same.
        let again = options.open(&run)?;
        assert_eq!(again.fingerprint()?, trained.fingerprint()?, "{name}");
    }
    Ok(())
}
