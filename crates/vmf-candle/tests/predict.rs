//! Prediction with a small network: all ways to run it agree, and statistics are re-estimated.

mod common;

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use candle_nn::VarMap;
use common::{Model, images, largest_difference, named, values};
use vmf_candle::predict::{Folding, match_temperature, predict_stream, reestimate_mean};
use vmf_candle::prelude::*;

fn trained() -> Result<Model> {
    let model = Model::new(3)?;
    for step in 0..20 {
        model.forward(&images(16, 16 * step)?.0, &Pass::train(3, step as u32))?;
    }
    Ok(model)
}

#[test]
fn loop_and_folded_batches_agree() -> Result<()> {
    let model = trained()?;
    let (xs, _) = images(6, 0)?;
    let run = |folding| predict(&model, &xs, Samples::monte_carlo(7, 5).folding(folding));
    let reference = run(Folding::Loop)?;
    for folding in [Folding::Fold, Folding::Automatic] {
        let other = run(folding)?;
        for (a, b) in [
            (&reference.probs, &other.probs),
            (&reference.deviation, &other.deviation),
            (&reference.entropy, &other.entropy),
            (&reference.mutual_information, &other.mutual_information),
        ] {
            assert!(largest_difference(&values(a), &values(b)) < 1e-5);
        }
    }
    let total = values(&reference.probs.sum(1)?);
    assert!(total.iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    assert!(values(&reference.mutual_information).iter().any(|mi| *mi > 0.0));
    Ok(())
}

#[test]
fn a_stream_draws_fresh_noise_for_each_batch() -> Result<()> {
    let model = trained()?;
    let (xs, _) = images(4, 0)?;
    let samples = Samples::monte_carlo(3, 5);
    let batches = (0..2).map(|_| Ok(xs.clone()));
    let predictions =
        predict_stream(&model, batches, samples.clone()).collect::<Result<Vec<_>>>()?;
    let first = predict(&model, &xs, samples.clone())?;
    assert_eq!(values(&predictions[0].probs), values(&first.probs));
    assert_ne!(values(&predictions[1].probs), values(&first.probs));
    let failing = [Ok(xs), Err(candle_core::Error::msg("no more"))];
    let results: Vec<_> = predict_stream(&model, failing, samples).collect();
    assert!(results[0].is_ok() && results[1].is_err());
    Ok(())
}

/// The statistics after re-estimation are those of the data: here a single layer whose inputs are
/// known, so that mean and unbiased variance can be computed by hand. Noise comes after them.
#[test]
fn reestimation_averages_the_statistics_of_batches() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F64, &Device::Cpu);
    let layer = vmf_linear(2, 1, VmfConfig::default(), &posterior, vb.pp("layer"))?;
    let weight = values(layer.weight());
    let batches = [[[1f64, 2.], [3., 5.]], [[-1., 4.], [2., 2.]]];
    let tensors = batches.map(|batch| Tensor::new(&batch, &Device::Cpu));
    assert_eq!(reestimate(&layer, &posterior, tensors)?.batches, 2);
    let (mut mean, mut var) = (0.0, 0.0);
    for batch in batches {
        let u = batch.map(|x| weight[0] * x[0] + weight[1] * x[1]);
        mean += (u[0] + u[1]) / 2.0 / 2.0;
        var += (u[0] - u[1]).powi(2) / 2.0 / 2.0;
    }
    for actual in [layer.norm().noise_free(), layer.norm().running()] {
        assert!((values(&actual.mean)[0] - mean).abs() < 1e-12);
        assert!((values(&actual.var)[0] - var).abs() < 1e-12);
    }
    assert!(reestimate(&layer, &posterior, []).is_err());
    Ok(())
}

/// Before re-estimation both sets of statistics follow training, and the two noise-free passes
/// agree. After that of the mean pass alone only the mean pass has changed. Once the noisy set holds
/// the same statistics, the passes agree again.
#[test]
fn the_mean_pass_as_trained_keeps_the_statistics_of_training() -> Result<()> {
    let model = trained()?;
    let (xs, _) = images(6, 0)?;
    let run = |pass: Pass| -> Result<Vec<f64>> { Ok(values(&model.forward(&xs, &pass)?)) };
    let before = run(Pass::mean_as_trained())?;
    assert_eq!(before, run(Pass::mean())?);
    reestimate_mean(&model, (0..4).map(|i| Ok(images(16, 16 * i)?.0)))?;
    assert_eq!(before, run(Pass::mean_as_trained())?);
    assert!(largest_difference(&before, &run(Pass::mean())?) > 1e-3);
    for (name, var) in named(&model.vars) {
        for (of_mean_pass, of_training) in
            [("noise_free_mean", "running_mean"), ("noise_free_var", "running_var")]
        {
            if let Some(place) = name.strip_suffix(of_mean_pass) {
                let target = format!("{place}{of_training}");
                let (_, target) =
                    named(&model.vars).into_iter().find(|(name, _)| *name == target).unwrap();
                target.set(&var.as_detached_tensor())?;
            }
        }
    }
    assert_eq!(run(Pass::mean_as_trained())?, run(Pass::mean())?);
    Ok(())
}

/// The running statistics that training leaves lag behind the weights, so prediction must not depend
/// on them.
#[test]
fn after_reestimation_no_prediction_depends_on_the_running_statistics_of_training() -> Result<()> {
    let model = trained()?;
    let (xs, _) = images(6, 0)?;
    let predictions = || -> Result<Vec<Vec<f64>>> {
        reestimate(&model, &model.posterior, (0..4).map(|i| Ok(images(16, 16 * i)?.0)))?;
        let passes = [Pass::mean(), Pass::mean_as_trained(), Pass::sample(3, 1), Pass::expected()];
        passes.iter().map(|pass| Ok(values(&model.forward(&xs, pass)?))).collect()
    };
    let first = predictions()?;
    let mut moved = 0;
    for (name, var) in named(&model.vars) {
        let is_statistic = ["_mean", "_var"].iter().any(|ending| name.ends_with(ending));
        if is_statistic {
            var.set(&var.ones_like()?.affine(7.0, 1.0)?)?;
            moved += 1;
        }
    }
    assert!(moved >= 5, "{moved}");
    assert_ne!(values(&model.forward(&xs, &Pass::sample(3, 1))?), first[2]);
    assert_eq!(predictions()?, first);
    Ok(())
}

/// In the first layer noise comes after the statistics, so both sets must be the mean over batches
/// of each batch's mean and unbiased variance. In later layers noise widens the noisy set.
#[test]
fn noisy_statistics_are_those_of_noisy_passes() -> Result<()> {
    let model = trained()?;
    reestimate(&model, &model.posterior, (0..4).map(|i| Ok(images(16, 16 * i)?.0)))?;
    let vars = named(&model.vars);
    let get = |ending: &str| -> Vec<Vec<f64>> {
        let all = vars.iter().filter(|(name, _)| name.ends_with(ending));
        all.map(|(_, var)| values(var)).collect()
    };
    let (noisy, noise_free) = (get("running_var"), get("noise_free_var"));
    assert!(largest_difference(&noisy[0], &noise_free[0]) < 1e-5);
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    for (noisy, noise_free) in noisy.iter().zip(&noise_free).skip(1) {
        assert!(sum(noisy) > 1.001 * sum(noise_free), "{noisy:?} {noise_free:?}");
    }
    Ok(())
}

#[test]
fn regression_values_have_a_deviation() -> Result<()> {
    let model = trained()?;
    let (xs, _) = images(4, 0)?;
    let outputs: Vec<Tensor> =
        (0..5).map(|k| model.forward(&xs, &Pass::sample(9, k))).collect::<Result<_>>()?;
    let stacked = Tensor::stack(&outputs, 0)?.to_dtype(DType::F64)?;
    let prediction = predict_values(&model, &xs, Samples::monte_carlo(5, 9))?;
    let mean = stacked.mean(0)?;
    let squares = stacked.broadcast_sub(&mean)?.sqr()?.sum(0)?;
    let deviation = (squares / 4.0)?.sqrt()?;
    assert!(largest_difference(&values(&prediction.mean), &values(&mean)) < 1e-5);
    assert!(largest_difference(&values(&prediction.deviation), &values(&deviation)) < 1e-5);
    assert_eq!(prediction.mean.i(0)?.dims(), [10]);
    Ok(())
}

/// A model whose noisy passes are its noise-free pass at a higher temperature has just that
/// temperature, found on two batches. Of a network, it is the temperature at which the
/// cross-entropy from the target is least.
#[test]
fn a_temperature_is_found_without_labels() -> Result<()> {
    let softer = |xs: &Tensor, pass: &Pass| match pass.is_noisy() {
        true => xs / 2.5,
        false => Ok(xs.clone()),
    };
    let logits = common::wave(&[8, 3], 1.3, 0.4)?.affine(4.0, 0.0)?;
    let batches = [0, 1].map(|half| logits.narrow(0, 4 * half, 4));
    let fit = match_temperature(&softer, batches, Samples::monte_carlo(3, 0))?;
    assert!((fit.temperature.value() - 2.5).abs() < 1e-9, "{fit:?}");

    let model = trained()?;
    let (xs, _) = images(64, 0)?;
    reestimate(&model, &model.posterior, [Ok(xs.clone())])?;
    let samples = || Samples::expected(&model.posterior);
    let fit = match_temperature(&model, [Ok(xs.clone())], samples())?;
    let target = values(&predict(&model, &xs, samples())?.probs);
    let logits = model.forward(&xs, &Pass::mean())?.to_dtype(DType::F64)?;
    let cross_entropy = |temperature: f64| -> Result<f64> {
        let log_probs = candle_nn::ops::log_softmax(&(&logits / temperature)?, 1)?;
        let terms = values(&log_probs).into_iter().zip(&target).map(|(l, q)| -q * l);
        Ok(terms.sum::<f64>() / 64.0)
    };
    let t = fit.temperature.value();
    let least = cross_entropy(t)?;
    assert!((least - fit.nll_after).abs() < 1e-6, "{least} {fit:?}");
    assert!(least < cross_entropy(1.01 * t)? && least < cross_entropy(0.99 * t)?, "{fit:?}");
    let none: [Result<Tensor>; 0] = [];
    assert!(match_temperature(&model, none, samples()).is_err());
    Ok(())
}
