//! Layers, gradients, running statistics and pooling against the numbers of PyTorch
//! (tests/golden/generate.py).

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarMap;
use common::{largest_difference, values, wave, weighted_sum};
use serde_json::Value;
use vmf_candle::ops::{Statistics, avg_pool2d, max_pool2d};
use vmf_candle::posterior::Sigma;
use vmf_candle::prelude::*;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/golden.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().unwrap();
    numbers.iter().map(|v| v.as_f64().unwrap()).collect()
}

struct Case<'a> {
    golden: &'a Value,
    xs: Var,
    weight: &'a Tensor,
    sigma: &'a Sigma,
    running: Statistics,
    ys: Tensor,
}

fn check(case: Case) -> Result<()> {
    let grads = weighted_sum(&case.ys)?.backward()?;
    let gradient = |tensor: &Tensor| values(grads.get(tensor).unwrap());
    // drho = dsigma * sigma for the exponential parameterization.
    let by_rho: Vec<f64> = numbers(&case.golden["dsigma"])
        .iter()
        .zip(case.sigma.values()?)
        .map(|(gradient, sigma)| gradient * sigma)
        .collect();
    for (name, ours, theirs) in [
        ("y", values(&case.ys), numbers(&case.golden["y"])),
        ("dx", gradient(&case.xs), numbers(&case.golden["dx"])),
        ("dw", gradient(case.weight), numbers(&case.golden["dw"])),
        ("drho", gradient(&case.sigma.rho()), by_rho),
        ("mean", values(&case.running.mean), numbers(&case.golden["running_mean"])),
        ("var", values(&case.running.var), numbers(&case.golden["running_var"])),
    ] {
        let difference = largest_difference(&ours, &theirs);
        assert!(difference < 1e-9, "{name} differs by {difference:e}");
    }
    Ok(())
}

#[test]
fn linear_layer() -> Result<()> {
    let golden = &golden()["linear"];
    let (mut vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F64, &Device::Cpu);
    let config = VmfConfig::default().relu().sigma(0.3);
    let layer = vmf_linear(7, 4, config, &posterior, vb.pp("linear"))?;
    let weight = Tensor::from_vec(numbers(&golden["weight"]), (4, 7), &Device::Cpu)?;
    vars.set_one("linear.weight", weight)?;
    let xs = Var::from_tensor(&wave(&[5, 7], 1.0, 0.0)?)?;
    let ys = layer.forward(&xs, &Pass::train(42, 3))?;
    let (weight, sigma, running) = (layer.weight(), layer.sigma(), layer.norm().running());
    check(Case { golden, xs, ys, weight, sigma, running })
}

#[test]
fn convolution_with_stride_groups_and_two_sigmas() -> Result<()> {
    let golden = &golden()["conv"];
    let (mut vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F64, &Device::Cpu);
    let config = VmfConfig::default().relu().sigma_groups(2).padding(1).stride(2).groups(2);
    let layer = vmf_conv2d(4, 6, 3, config, &posterior, vb.pp("conv"))?;
    let weight = Tensor::from_vec(numbers(&golden["weight"]), (6, 2, 3, 3), &Device::Cpu)?;
    vars.set_one("conv.weight", weight)?;
    let rho = Tensor::new(&[0.3f64.ln(), 0.7f64.ln()], &Device::Cpu)?;
    vars.set_one("conv.rho", rho)?;
    let xs = Var::from_tensor(&wave(&[3, 4, 6, 5], 1.0, 0.0)?)?;
    let ys = layer.forward(&xs, &Pass::train((7 << 40) + 5, 9))?;
    let (weight, sigma, running) = (layer.weight(), layer.sigma(), layer.norm().running());
    check(Case { golden, xs, ys, weight, sigma, running })
}

/// The noise layer behind a normalization is the unit without its ReLU: on top of PyTorch's
/// normalized values it must give PyTorch's noisy ones.
#[test]
fn noise_layer_adds_the_noise_of_its_name() -> Result<()> {
    let golden = &golden()["linear"];
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F64, &Device::Cpu);
    let mut config = NoiseLayerConfig::new(7, 4);
    config.sigma.initial = 0.3;
    let layer = noise_layer(config, &posterior, vb.pp("linear"))?;

    let weight = Tensor::from_vec(numbers(&golden["weight"]), (4, 7), &Device::Cpu)?;
    let u = wave(&[5, 7], 1.0, 0.0)?.matmul(&weight.t()?)?;
    let centred = u.broadcast_sub(&u.mean_keepdim(0)?)?;
    let var = centred.sqr()?.mean_keepdim(0)?;
    let normal = centred.broadcast_div(&(var + 1e-5)?.sqrt()?)?;
    let ys = layer.forward(&normal, &Pass::train(42, 3))?.relu()?;
    assert!(largest_difference(&values(&ys), &numbers(&golden["y"])) < 1e-9);
    let mean = layer.forward(&normal, &Pass::mean())?;
    assert_eq!(values(&mean), values(&normal));
    Ok(())
}

#[test]
fn pooling() -> Result<()> {
    let golden = golden();
    let max: fn(&Tensor) -> Result<Tensor> = |xs| max_pool2d(xs, 3, 2, 1);
    let mean: fn(&Tensor) -> Result<Tensor> = |xs| avg_pool2d(xs, 3, 2, 1);
    for (name, pool) in [("max_pool", max), ("avg_pool", mean)] {
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6)] {
            let xs = Var::from_tensor(&wave(&[2, 3, 7, 6], 1.3, 0.0)?.to_dtype(dtype)?)?;
            let ys = pool(&xs)?;
            let grads = weighted_sum(&ys)?.backward()?;
            let gradient = values(grads.get(&xs).unwrap());
            assert!(largest_difference(&values(&ys), &numbers(&golden[name]["y"])) < tolerance);
            assert!(largest_difference(&gradient, &numbers(&golden[name]["dx"])) < tolerance);
        }
    }
    Ok(())
}
