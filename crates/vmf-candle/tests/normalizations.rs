//! The unit on layer, RMS and group normalization, and without one: what is exact about it and what
//! is not, its gradients and its passes.

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarMap;
use common::{largest_difference, named, numeric_gradient, values, wave, weighted_sum};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use vmf_candle::ops;
use vmf_candle::prelude::*;
use vmf_core::{Sphere, VonMisesFisher, expected_cosine};

const NORMS: [Norm; 4] = [Norm::Layer, Norm::Rms, Norm::Group(2), Norm::None];

fn layer(
    [inputs, units]: [usize; 2],
    config: VmfConfig,
    dtype: DType,
) -> Result<(VarMap, Posterior, VmfLinear)> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 3, dtype, &Device::Cpu);
    let layer = vmf_linear(inputs, units, config, &posterior, vb.pp("unit"))?;
    Ok((vars, posterior, layer))
}

/// Gradients of weight, sigma, gain and shift under noise, for linear layers and convolutions.
#[test]
fn gradients_are_those_of_central_differences() -> Result<()> {
    for norm in NORMS {
        for gelu in [false, true] {
            let config = VmfConfig::default().norm(norm).affine().sigma(0.3).sigma_groups(2);
            let config = if gelu { config.gelu() } else { config };
            let (vars, posterior) = (VarMap::new(), Posterior::new());
            let vb = seeded(&vars, 3, DType::F64, &Device::Cpu);
            let linear = vmf_linear(5, 4, config.clone(), &posterior, vb.pp("linear"))?;
            let conv = vmf_conv2d(2, 4, 3, config.padding(1), &posterior, vb.pp("conv"))?;
            let (tokens, images) = (wave(&[2, 3, 5], 1.1, 0.2)?, wave(&[2, 2, 3, 4], 0.7, 0.1)?);
            let loss = || {
                let pass = Pass::train(1, 2);
                let ys = weighted_sum(&linear.forward(&tokens, &pass)?)?;
                ys + weighted_sum(&conv.forward(&images, &pass)?)?
            };
            let gradients = vmf_candle::train::backward(&loss()?)?;
            for (name, var) in named(&vars) {
                if name.ends_with("inherited_var") {
                    continue;
                }
                let Some(found) = gradients.get(&var) else { panic!("{norm:?}: no {name}") };
                let error = largest_difference(&values(found), &numeric_gradient(&var, &loss)?);
                assert!(error < 1e-7, "{norm:?} {name}: {error:e}");
            }
        }
    }
    Ok(())
}

/// One fused node in single precision, two nodes in double: the same numbers.
#[test]
fn single_precision_agrees_with_double() -> Result<()> {
    for norm in NORMS {
        let run = |dtype| -> Result<Vec<f64>> {
            let config = VmfConfig::default().norm(norm).affine().sigma(0.3).silu();
            let (vars, _posterior, layer) = layer([5, 8], config, dtype)?;
            let xs = Var::from_tensor(&wave(&[2, 3, 5], 1.1, 0.2)?.to_dtype(dtype)?)?;
            let ys = layer.forward(&xs, &Pass::train(1, 2))?;
            let gradients = vmf_candle::train::backward(&weighted_sum(&ys)?)?;
            let mut all = values(&ys);
            all.extend(values(gradients.get(&xs).expect("a gradient")));
            for (_, var) in named(&vars) {
                all.extend(gradients.get(&var).map(values).unwrap_or_default());
            }
            Ok(all)
        };
        let error = largest_difference(&run(DType::F32)?, &run(DType::F64)?);
        assert!(error < 3e-5, "{norm:?}: {error:e}");
    }
    Ok(())
}

/// Which lengths a normalization removes. Batch normalization: those of each unit. Group: one that
/// the units of a group have in common. Layer and RMS: one that all units have in common.
#[test]
fn normalizations_remove_the_lengths_that_they_should() -> Result<()> {
    let xs = wave(&[16, 6], 1.7, 0.3)?;
    let change = |norm: Norm, scaled: &[usize]| -> Result<f64> {
        let config = VmfConfig::default().norm(norm).eps(1e-12);
        let (_vars, _posterior, layer) = layer([6, 8], config, DType::F64)?;
        let before = values(&layer.forward(&xs, &Pass::train_noiseless())?);
        let scale = |unit: usize| if scaled.contains(&unit) { 3.0 } else { 1.0 };
        let scales: Vec<f64> = (0..8).map(scale).collect();
        let scales = Tensor::from_vec(scales, (8, 1), &Device::Cpu)?;
        let weight = layer.weight();
        Var::from_tensor(weight)?.set(&weight.detach().broadcast_mul(&scales)?)?;
        Ok(largest_difference(&before, &values(&layer.forward(&xs, &Pass::train_noiseless())?)))
    };
    let (one, half, all) = ([2], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(change(Norm::Batch, &one)? < 1e-9);
    for norm in [Norm::Layer, Norm::Rms] {
        assert!(change(norm, &all)? < 1e-9);
        assert!(change(norm, &one)? > 0.1 && change(norm, &half)? > 0.1);
    }
    assert!(change(Norm::Group(2), &half)? < 1e-9 && change(Norm::Group(2), &one)? > 0.1);
    assert!(change(Norm::None, &all)? > 0.1);
    Ok(())
}

fn normals(count: usize, rng: &mut StdRng) -> Vec<f64> {
    StandardNormal.sample_iter(rng).take(count).collect()
}

/// A weight drawn from the posterior, sent through the normalization, acts like noise of deviation
/// sigma_eff behind it: `norm(W x) / A - norm(M x)` has mean 0 and variance sigma_eff^2, with
/// A = 1 / sqrt(1 + sigma_eff^2), for isotropic inputs.
///
/// The normalization is over 256 units (64 in a group), so the drawn weights change its statistics
/// by O(1 / units): the bound is four standard errors and four times that. Without a normalization
/// the variance is relative to the mean square of the outputs.
#[test]
fn a_weight_draw_acts_like_noise_behind_every_normalization() -> Result<()> {
    let (dim, units, inputs, draws, sigma) = (128, 256, 8, 12, 0.7);
    let mut rng = StdRng::seed_from_u64(5);
    let kappa = Sphere::new(dim).unwrap().kappa_from_sigma_eff(sigma);
    for (norm, together) in
        [(Norm::Layer, units), (Norm::Rms, units), (Norm::Group(4), units / 4), (Norm::None, units)]
    {
        let config = VmfConfig::default().norm(norm).sigma(sigma);
        let (_vars, _posterior, layer) = layer([dim, units], config, DType::F64)?;
        let xs = Tensor::from_vec(normals(inputs * dim, &mut rng), (inputs, dim), &Device::Cpu)?;
        let normalize = |u: &Tensor| match norm {
            Norm::Layer => ops::layer_norm(u, None, None, 1e-5),
            Norm::Rms => ops::rms_norm(u, None, 1e-5),
            Norm::Group(groups) => ops::group_norm(u, groups, None, None, 1e-5),
            _ => Ok(u.clone()),
        };
        let mean = layer.forward(&xs, &Pass::mean())?;
        let square = mean.sqr()?.mean_all()?.to_scalar::<f64>()?;
        let scale = if norm == Norm::None { square.sqrt() } else { 1.0 };
        let rows = layer.weight().to_vec2::<f64>()?;
        let (mut drawn, mut added) = (Vec::new(), Vec::new());
        for draw in 0..draws {
            let mut weight = vec![0.0; units * dim];
            for (row, weight) in rows.iter().zip(weight.chunks_mut(dim)) {
                let posterior = VonMisesFisher::new(row.clone(), kappa).unwrap();
                posterior.sample_into(&mut rng, weight).unwrap();
            }
            let weight = Tensor::from_vec(weight, (units, dim), &Device::Cpu)?;
            let ys = (normalize(&xs.matmul(&weight.t()?)?)? / expected_cosine(sigma))?;
            drawn.extend(values(&((ys - &mean)? / scale)?));
            let sample = layer.forward(&xs, &Pass::sample(1, draw))?;
            added.extend(values(&((sample - &mean)? / scale)?));
        }
        let count = drawn.len() as f64;
        let moment = |values: &[f64], power| {
            values.iter().map(|v: &f64| (v / sigma).powi(power)).sum::<f64>() / count
        };
        let (error, order) = (4.0 / count.sqrt(), 4.0 / together as f64);
        for (what, values, slack) in [("drawn", &drawn, order), ("added", &added, 0.0)] {
            let (mean, variance) = (moment(values, 1), moment(values, 2));
            assert!(mean.abs() < error, "{norm:?} {what}: mean {mean}");
            // Each row of `None` has its own root mean square: 1 + O(1 / units) on average.
            let bound = 2f64.sqrt() * error + slack + if norm == Norm::None { order } else { 0.0 };
            assert!((variance - 1.0).abs() < bound, "{norm:?} {what}: variance {variance}");
        }
    }
    Ok(())
}

/// Two layers: the expected pass is close to the mean over many samples, and closer than the mean
/// pass.
#[test]
fn the_expected_pass_is_the_mean_over_samples() -> Result<()> {
    for norm in NORMS {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, 4, DType::F32, &Device::Cpu);
        let unit = VmfConfig::default().norm(norm).sigma(0.6);
        let model = Chain::new()
            .add(vmf_linear(8, 64, unit.clone().gelu(), &posterior, vb.pp("a"))?)
            .add(vmf_linear(64, 64, unit.silu(), &posterior, vb.pp("b"))?)
            .add_plain(candle_nn::linear(64, 3, vb.pp("head"))?);
        let xs = wave(&[32, 8], 1.9, 0.2)?.to_dtype(DType::F32)?;
        let found = reestimate(&model, &posterior, [Ok(xs.clone())])?;
        // Eight samples alone leave 0.35.
        assert!(found.discrepancy < 0.6, "{norm:?}: {}", found.discrepancy);
        let expected = values(&model.forward(&xs, &Pass::expected())?);
        let samples = predict_values(&model, &xs, Samples::monte_carlo(400, 7))?;
        let without = values(&model.forward(&xs, &Pass::mean())?);
        let distance = |a: &[f64]| -> f64 {
            a.iter().zip(values(&samples.mean)).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
        };
        assert!(
            distance(&expected) < 0.5 * distance(&without),
            "{norm:?}: {} against {}",
            distance(&expected),
            distance(&without)
        );
    }
    Ok(())
}

#[test]
fn what_is_not_supported_is_an_error() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 4, DType::F32, &Device::Cpu);
    let batch = vmf_linear(8, 4, VmfConfig::default().gelu(), &posterior, vb.pp("a"));
    assert!(batch.unwrap_err().to_string().contains("ops::gelu"));
    let odd = VmfConfig::default().norm(Norm::Group(3));
    let odd = vmf_linear(8, 4, odd, &posterior, vb.pp("b"))?;
    let xs = wave(&[2, 8], 1.0, 0.0)?.to_dtype(DType::F32)?;
    assert!(odd.forward(&xs, &Pass::mean()).unwrap_err().to_string().contains("divide"));
    let unit = VmfConfig::default().norm(Norm::Layer).relu();
    let conv = vmf_conv2d(2, 4, 1, unit, &posterior, vb.pp("c"))?;
    let stack = ConvStack::new().unit(conv).max_pool(2);
    let images = wave(&[2, 2, 4, 4], 1.0, 0.0)?.to_dtype(DType::F32)?;
    assert_eq!(stack.forward(&images, &Pass::sample(1, 0))?.dims(), [2, 4, 2, 2]);
    let message = stack.forward(&images, &Pass::expected()).unwrap_err().to_string();
    assert!(message.contains("monte_carlo"), "{message}");
    Ok(())
}
