//! The expected pass against what it stands for: the mean over many noisy passes.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarMap;
use common::network::{Network, Plan, check_gradients, copy};
use common::{images, largest_difference, named, values, wave, weighted_sum};
use vmf_candle::prelude::*;

fn plan(sigma: f64) -> Plan {
    Plan { channels: 12, poolings: 1, affine: false, sigma }
}

fn trained(sigma: f64, dtype: DType) -> Result<(Network, VarMap, Posterior)> {
    Network::trained(plan(sigma), 60, dtype)
}

fn measure(network: &Network, posterior: &Posterior, dtype: DType) -> Result<f64> {
    let batches = (0..8).map(|batch| images(32, 32 * batch)?.0.to_dtype(dtype));
    Ok(reestimate(network, posterior, batches)?.discrepancy)
}

/// In the first layer the theory is exact: the mean over 20,000 noisy passes, within 4.5 standard
/// errors for each of 64 numbers (a chance of 4 in 10,000 that one of them is further off).
#[test]
fn one_layer_is_the_mean_of_noisy_passes() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
    let config = VmfConfig::default().relu().sigma(0.8);
    let layer = vmf_linear(5, 8, config, &posterior, vb.pp("layer"))?;
    let xs = wave(&[8, 5], 1.7, 0.3)?.to_dtype(DType::F32)?;
    layer.forward(&xs, &Pass::train_noiseless())?;
    let expected = values(&layer.forward(&xs, &Pass::expected())?);
    let passes = 20_000;
    let (mut sums, mut squares) = (vec![0.0; 64], vec![0.0; 64]);
    for first in (0..passes).step_by(500) {
        let pass = Pass::folded(9, first, 500);
        let samples = values(&layer.forward(&pass.repeat(&xs)?, &pass)?);
        for (i, value) in samples.into_iter().enumerate() {
            sums[i % 64] += value;
            squares[i % 64] += value * value;
        }
    }
    for ((sum, square), expected) in sums.into_iter().zip(squares).zip(expected) {
        let mean = sum / f64::from(passes);
        let error = ((square / f64::from(passes) - mean * mean) / f64::from(passes)).sqrt();
        assert!((mean - expected).abs() < 4.5 * error + 1e-5, "{expected} {mean} {error}");
    }
    Ok(())
}

/// Little noise of a unit's own and much that it inherits: from the units before it, through a skip
/// connection, or into a sum of the model's own. The images are small, so that one
/// deviation per channel is a rough description of them. Even so one pass is closer to the mean over
/// 8,000 noisy passes than a pass that does not know what it inherits, in each of the four.
#[test]
fn a_unit_knows_what_it_inherits() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 2, DType::F32, &Device::Cpu);
    let conv = |name: &str, config: VmfConfig| {
        vmf_conv2d(4, 4, 3, config.padding(1), &posterior, vb.pp(name))
    };
    let (much, little) = (VmfConfig::default().sigma(1.5), VmfConfig::default().sigma(0.05));
    let (first, second) = (conv("a", much.clone().relu())?, conv("b", little.clone().relu())?);
    let affine = conv("c", little.clone().relu().affine())?;
    let (noisy, last) = (conv("d", much)?, conv("e", little.relu())?);
    let relu = relu_layer(4, vb.pp("relu"))?;
    for (name, var) in named(&vars) {
        if name == "c.norm.weight" {
            var.set(&(var.as_tensor() * -1.7)?)?;
        }
    }
    let (first, noisy) = (&first, &noisy);
    let behind = |xs: &Tensor, pass: &Pass| second.forward(&first.forward(xs, pass)?, pass);
    let scaled = |xs: &Tensor, pass: &Pass| affine.forward(&first.forward(xs, pass)?, pass);
    let skip =
        |xs: &Tensor, pass: &Pass| last.forward_residual(xs, &noisy.forward(xs, pass)?, pass);
    let sum = |xs: &Tensor, pass: &Pass| relu.forward(&(noisy.forward(xs, pass)? * 0.5)?, pass);
    let models: [(&str, &dyn Forward); 4] =
        [("behind", &behind), ("affine", &scaled), ("skip", &skip), ("sum", &sum)];
    let xs = wave(&[32, 4, 4, 4], 1.7, 0.3)?.to_dtype(DType::F32)?;
    for (name, model) in models {
        reestimate(model, &posterior, [Ok(xs.clone())])?;
        let inputs = xs.narrow(0, 0, 4)?;
        let sampled = predict_values(model, &inputs, Samples::monte_carlo(8000, 4))?;
        let off = |pass: Pass| -> Result<f64> {
            let found = values(&model.forward(&inputs, &pass)?);
            let pairs = found.iter().zip(values(&sampled.mean));
            let z = pairs.zip(values(&sampled.deviation)).map(|((f, m), s)| (f - m) / s.max(1e-3));
            Ok((z.map(|z| z * z).sum::<f64>() / found.len() as f64).sqrt())
        };
        let (expected, noise_off) = (off(Pass::expected())?, off(Pass::mean_as_trained())?);
        println!("{name}: off by {expected} deviations, with noise off by {noise_off}");
        assert!(expected < 0.7 * noise_off, "{name}: {expected} {noise_off}");
    }
    Ok(())
}

/// A deep network: the logits of one pass are close to the mean over 2,000 noisy ones, much closer
/// than those of the network with its noise turned off, and so are probabilities and uncertainty.
#[test]
fn a_network_predicts_in_one_pass_what_noisy_passes_predict_on_average() -> Result<()> {
    let (network, _, posterior) = trained(0.7, DType::F32)?;
    let discrepancy = measure(&network, &posterior, DType::F32)?;
    assert!(discrepancy < 0.6, "{discrepancy}");
    let (xs, _) = images(16, 5000)?;
    let sampled = predict_values(&network, &xs, Samples::monte_carlo(2000, 4))?;
    let (mean, deviation) = (values(&sampled.mean), values(&sampled.deviation));
    let off = |pass: Pass| -> Result<f64> {
        let found = values(&network.forward(&xs, &pass)?);
        let z = found.iter().zip(&mean).zip(&deviation).map(|((f, m), s)| ((f - m) / s).powi(2));
        Ok((z.sum::<f64>() / mean.len() as f64).sqrt())
    };
    let (expected, noise_off) = (off(Pass::expected())?, off(Pass::mean_as_trained())?);
    assert!(expected < 0.35 && expected < 0.2 * noise_off, "{expected} {noise_off}");

    let one = predict(&network, &xs, Samples::expected(&posterior))?;
    let many = predict(&network, &xs, Samples::monte_carlo(2000, 4))?;
    let probs = largest_difference(&values(&one.probs), &values(&many.probs));
    let total = largest_difference(&values(&one.entropy), &values(&many.entropy));
    let information =
        largest_difference(&values(&one.mutual_information), &values(&many.mutual_information));
    assert!(probs < 0.03 && total < 0.06 && information < 0.02, "{probs} {total} {information}");
    assert!(values(&one.mutual_information).iter().all(|value| *value > 0.0));
    Ok(())
}

/// The kernel in f32 and Candle's operations in f64 compute the same.
#[test]
fn both_paths_agree() -> Result<()> {
    let (single, vars, posterior) = trained(0.7, DType::F32)?;
    measure(&single, &posterior, DType::F32)?;
    let (double, copies, _) = Network::new(plan(0.7), DType::F64)?;
    copy(&vars, &copies)?;
    let (xs, _) = images(4, 77)?;
    let a = values(&single.forward(&xs, &Pass::expected())?);
    let b = values(&double.forward(&xs.to_dtype(DType::F64)?, &Pass::expected())?);
    assert!(largest_difference(&a, &b) < 1e-5, "{a:?} {b:?}");
    Ok(())
}

#[test]
fn gradients_are_those_of_finite_differences() -> Result<()> {
    let (network, vars, posterior) = trained(0.7, DType::F64)?;
    measure(&network, &posterior, DType::F64)?;
    check_gradients(plan(0.7), (&network, &vars), |network, xs| {
        weighted_sum(&network.forward(xs, &Pass::expected())?)
    })
}

#[test]
fn a_skip_connection_is_what_the_models_own_code_would_compute() -> Result<()> {
    let (network, _, _) = trained(0.3, DType::F32)?;
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 3, DType::F32, &Device::Cpu);
    let plain = VmfConfig::default().padding(1).sigma(0.3);
    let plain = vmf_conv2d(12, 12, 3, plain, &posterior, vb.pp("c"))?;
    let xs = wave(&[3, 12, 4, 4], 0.9, 0.1)?.to_dtype(DType::F32)?;
    let skip = wave(&[3, 12, 4, 4], 0.3, 0.7)?.to_dtype(DType::F32)?;
    let pass = Pass::train(8, 2);
    let one = network.block.forward_residual(&xs, &skip, &pass)?;
    let two = (plain.forward(&xs, &pass)? + skip)?.relu()?;
    assert_eq!(values(&one), values(&two));
    Ok(())
}

/// A model whose own code has a plain ReLU behind a noisy unit is found out.
#[test]
fn an_activation_that_the_expected_pass_cannot_see_shows_as_a_discrepancy() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
    let config = VmfConfig::default().sigma(2.0);
    let model = Chain::new()
        .add(vmf_linear(6, 64, config, &posterior, vb.pp("a"))?)
        .add_plain(|xs: &Tensor| xs.relu())
        .add_plain(|xs: &Tensor| xs.sum_keepdim(1));
    let xs = wave(&[64, 6], 1.3, 0.2)?.to_dtype(DType::F32)?;
    model.forward(&xs, &Pass::train_noiseless())?;
    let found = reestimate(&model, &posterior, [Ok(xs)])?;
    assert!(found.discrepancy > 2.0, "{found:?}");
    Ok(())
}

#[test]
fn what_was_measured_is_in_the_checkpoint() -> Result<()> {
    let (network, vars, posterior) = trained(0.7, DType::F32)?;
    let (xs, _) = images(4, 0)?;
    let error = predict(&network, &xs, Samples::expected(&posterior)).unwrap_err();
    assert!(error.to_string().contains("call `reestimate`"), "{error}");
    measure(&network, &posterior, DType::F32)?;
    let before = values(&predict(&network, &xs, Samples::expected(&posterior))?.probs);

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint");
    Checkpoint::capture(&vars, &posterior, None, Progress::default())?.save(&path)?;
    let (network, vars, posterior) = Network::new(plan(0.1), DType::F32)?;
    Checkpoint::open(&path)?.restore(&vars, &posterior, None)?;
    let after = values(&predict(&network, &xs, Samples::expected(&posterior))?.probs);
    assert_eq!(before, after);
    Ok(())
}

#[test]
fn inputs_that_are_not_numbers_reach_no_statistics() -> Result<()> {
    let (network, vars, posterior) = trained(0.7, DType::F32)?;
    let state = || named(&vars).into_iter().map(|(_, var)| values(&var)).collect::<Vec<_>>();
    let before = state();
    let bad = (images(4, 0)?.0 * f64::NAN)?;
    assert!(reestimate(&network, &posterior, [Ok(bad)]).is_err());
    assert_eq!(state(), before);
    assert!(posterior.output_covariance().is_none());
    Ok(())
}
