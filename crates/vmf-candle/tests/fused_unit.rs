//! The fused unit of the CPU in f32 against Candle's product and the node behind it in f64, which
//! `gradients.rs` checks against finite differences: values, gradients and statistics, in every
//! mode.

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use common::{largest_difference, named, values, wave, weighted_sum};
use vmf_candle::layers::WeightConstraint;
use vmf_candle::prelude::*;

type Build = dyn Fn(&Posterior, VarBuilder) -> Result<Box<dyn Forward>>;

/// All numbers that a pass computes, by name: the output, the gradients with respect to all
/// variables and the input, and the variables afterwards (a pass updates statistics).
fn run(
    build: &Build,
    dtype: DType,
    shape: &[usize],
    pass: &Pass,
) -> Result<Vec<(String, Vec<f64>)>> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = build(&posterior, seeded(&vars, 5, dtype, &Device::Cpu))?;
    // All running statistics differ, so that using the wrong ones shows.
    for (name, var) in named(&vars) {
        if name.contains("running_") || name.contains("noise_free_") {
            let shift = if name.contains("running_") { 0.3 } else { 0.6 };
            let value = (wave(var.dims(), 0.9, shift)? * 0.3)?;
            let value = if name.ends_with("var") { (value + 1.5)? } else { value };
            var.set(&value.to_dtype(var.dtype())?)?;
        }
    }
    let xs = Var::from_tensor(&wave(shape, 1.0, 0.0)?.to_dtype(dtype)?)?;
    let ys = model.forward(&xs, pass)?;
    let grads = weighted_sum(&ys)?.backward()?;
    let mut numbers = vec![("output".to_string(), values(&ys))];
    for (name, var) in named(&vars).into_iter().chain([("input".into(), xs.clone())]) {
        if let Some(gradient) = grads.get(&var) {
            numbers.push((format!("gradient of {name}"), values(gradient)));
        }
        numbers.push((name, values(&var)));
    }
    Ok(numbers)
}

fn compare(what: &str, shape: &[usize], build: &Build) -> Result<()> {
    for (mode, pass) in [
        ("train", Pass::train(3, 7)),
        ("mean", Pass::mean()),
        ("sample", Pass::folded(3, 1, 2).at_batch(4)),
        ("estimate", Pass::estimate(2)),
    ] {
        let fused = run(build, DType::F32, shape, &pass)?;
        let plain = run(build, DType::F64, shape, &pass)?;
        assert_eq!(fused.len(), plain.len(), "{what}, {mode}");
        for ((name, fused), (expected, plain)) in fused.iter().zip(&plain) {
            assert_eq!(name, expected);
            let scale = plain.iter().fold(1.0, |max: f64, v| max.max(v.abs()));
            let difference = largest_difference(fused, plain) / scale;
            assert!(difference < 2e-4, "{what}, {mode}: {name} differs by {difference:e}");
        }
    }
    Ok(())
}

fn conv(config: VmfConfig) -> impl Fn(&Posterior, VarBuilder) -> Result<Box<dyn Forward>> {
    move |posterior, vb| {
        let layer = vmf_conv2d(4, 6, 3, config.clone(), posterior, vb.pp("layer"))?;
        Ok(Box::new(layer))
    }
}

#[test]
fn convolutions() -> Result<()> {
    let unit = || VmfConfig::default().sigma(0.4);
    let shape = [4, 4, 9, 6];
    compare("plain", &shape, &conv(unit().padding(1)))?;
    compare("relu", &shape, &conv(unit().relu().padding(1)))?;
    compare("sigma groups", &shape, &conv(unit().relu().sigma_groups(3).padding(1)))?;
    compare("affine", &shape, &conv(unit().relu().affine().padding(1)))?;
    compare("stride", &shape, &conv(unit().relu().padding(1).stride(2)))?;
    compare("dilation", &shape, &conv(unit().padding(2).dilation(2)))?;
    compare("groups", &shape, &conv(unit().relu().padding(1).groups(2)))?;
    let constraint = WeightConstraint::WeightNorm { gain: 1.3 };
    compare("weight norm", &shape, &conv(unit().constraint(constraint).padding(1)))
}

#[test]
fn linear_layers() -> Result<()> {
    for shape in [&[6, 7][..], &[4, 3, 7]] {
        compare("linear", shape, &|posterior, vb| {
            let config = VmfConfig::default().sigma(0.4).relu();
            Ok(Box::new(vmf_linear(7, 5, config, posterior, vb.pp("layer"))?))
        })?;
    }
    Ok(())
}

/// A chain with poolings that are fused, which those of affine units are not.
#[test]
fn stacks() -> Result<()> {
    for affine in [false, true] {
        let build = move |posterior: &Posterior, vb: VarBuilder| -> Result<Box<dyn Forward>> {
            let unit = || {
                let unit = VmfConfig::default().sigma(0.4).relu();
                let unit = if affine { unit.affine() } else { unit };
                unit.padding(1)
            };
            let stack = ConvStack::new()
                .unit(vmf_conv2d(3, 5, 3, unit(), posterior, vb.pp("a"))?)
                .unit(vmf_conv2d(5, 4, 3, unit(), posterior, vb.pp("b"))?)
                .max_pool(2)
                .unit(vmf_conv2d(4, 6, 3, unit().stride(1), posterior, vb.pp("c"))?)
                .max_pool(2)
                .max_pool(1);
            Ok(Box::new(stack))
        };
        compare("stack", &[4, 3, 12, 8], &build)?;
    }
    Ok(())
}

/// The gradient with respect to images is computed only if it is needed, and nothing else changes.
#[test]
fn a_plain_input_needs_no_gradient() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F32, &Device::Cpu);
    let layer = vmf_conv2d(3, 4, 3, VmfConfig::default().padding(1), &posterior, vb.pp("a"))?;
    let xs = wave(&[2, 3, 5, 5], 1.0, 0.0)?.to_dtype(DType::F32)?;
    let tracked = Var::from_tensor(&xs)?;
    let gradient = |xs: &Tensor| -> Result<Vec<f64>> {
        let loss = weighted_sum(&layer.forward(xs, &Pass::train(1, 1))?)?;
        Ok(values(loss.backward()?.get(layer.weight()).unwrap()))
    };
    assert_eq!(gradient(&xs)?, gradient(&tracked)?);
    Ok(())
}
