//! The fused unit of the CPU in f32 against Candle's product and the node behind it in f64, which
//! `gradients.rs` checks against finite differences: values, gradients and statistics, in every
//! mode.

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use common::{largest_difference, named, values, wave, weighted_sum};
use vmf_candle::layers::{VmfConv2d, WeightConstraint};
use vmf_candle::ops::{avg_pool2d, concat_channels, max_pool2d, mean_over_positions};
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
        // Gains of both signs, shifts, and variances to inherit.
        let start = match name.rsplit_once('.') {
            Some((layer, "weight")) if layer.ends_with("norm") => Some((1.3, 0.4)),
            Some((_, "bias")) => Some((0.9, 0.0)),
            Some((_, "inherited_var")) => Some((0.2, 0.3)),
            _ => None,
        };
        if let Some((scale, shift)) = start {
            let value = ((wave(var.dims(), 1.9, 0.5)? * scale)? + shift)?;
            let value = if name.ends_with("var") { value.abs()? } else { value };
            var.set(&value.to_dtype(var.dtype())?)?;
        }
    }
    let xs = Var::from_tensor(&wave(shape, 1.0, 0.0)?.to_dtype(dtype)?)?;
    let ys = model.forward(&xs, pass)?;
    let grads = weighted_sum(&ys)?.backward()?;
    let mut numbers = vec![("output".to_string(), values(&ys))];
    for (name, var) in named(&vars).into_iter().chain([("input".into(), xs.clone())]) {
        // No gradient is a gradient of zero: without an activation the expected pass does not depend
        // on sigma, and only one of the two paths says so.
        let gradient = grads.get(&var).map_or_else(|| vec![0.0; var.elem_count()], values);
        numbers.push((format!("gradient of {name}"), gradient));
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
        ("expected", Pass::expected()),
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

/// A residual block that changes the shape, written as a model's own code would be, with what may
/// stand between layers: pooling, concatenation, the mean over positions, and Candle's own
/// operations.
struct Residual {
    stem: VmfConv2d,
    first: VmfConv2d,
    second: VmfConv2d,
    projection: VmfConv2d,
    last: VmfConv2d,
}

impl Residual {
    fn new(affine: bool, posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let unit = || {
            let unit = VmfConfig::default().sigma(0.4);
            if affine { unit.affine() } else { unit }
        };
        let conv = |name: &str, inputs, outputs, kernel, unit: VmfConfig| {
            let unit = unit.padding(kernel / 2);
            vmf_conv2d(inputs, outputs, kernel, unit, posterior, vb.pp(name))
        };
        Ok(Self {
            stem: conv("stem", 3, 5, 3, unit().relu())?,
            first: conv("first", 5, 6, 3, unit().relu().stride(2))?,
            second: conv("second", 6, 6, 3, unit().relu())?,
            projection: conv("projection", 5, 6, 1, unit().stride(2))?,
            last: conv("last", 12, 4, 3, unit())?,
        })
    }
}

impl Forward for Residual {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let xs = self.stem.forward(xs, pass)?;
        let skip = self.projection.forward(&xs, pass)?;
        let ys = self.second.forward_residual(&self.first.forward(&xs, pass)?, &skip, pass)?;
        let tripled = (&ys * 3.0)?;
        let both = concat_channels(&[&ys, &self.second.forward_residual(&tripled, &ys, pass)?])?;
        let pooled = (max_pool2d(&both, 2, 2, 0)? + avg_pool2d(&both, 2, 2, 0)?)?;
        let skip = self.last.forward(&pooled, pass)?;
        mean_over_positions(&self.last.forward_residual(&pooled, &skip, pass)?)
    }
}

#[test]
fn residual_networks() -> Result<()> {
    for affine in [false, true] {
        let build = move |posterior: &Posterior, vb: VarBuilder| -> Result<Box<dyn Forward>> {
            Ok(Box::new(Residual::new(affine, posterior, vb)?))
        };
        compare(&format!("residual, affine {affine}"), &[4, 3, 8, 12], &build)?;
    }
    Ok(())
}

/// Images are handed on as views that hold no copy, and a copy of one gives the same bits.
#[test]
fn layers_look_behind_views() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F32, &Device::Cpu);
    let model = Residual::new(true, &posterior, vb)?;
    let xs = wave(&[4, 3, 8, 12], 1.0, 0.0)?.to_dtype(DType::F32)?;
    for pass in [Pass::train(3, 7), Pass::sample(1, 0)] {
        let view = model.stem.forward(&xs, &pass)?;
        assert_eq!(view.dims(), [4, 5, 8, 12]);
        assert!(!view.is_contiguous() && view.permute((2, 3, 0, 1))?.is_contiguous());
        let gradients = |xs: &Tensor| -> Result<Vec<f64>> {
            let ys = model.first.forward(xs, &pass)?;
            let gradients = weighted_sum(&ys.contiguous()?)?.backward()?;
            let weights = [model.stem.weight(), model.first.weight()];
            let gradients = weights.map(|weight| values(gradients.get(weight).unwrap()));
            Ok([values(&ys), gradients.concat()].concat())
        };
        assert_eq!(gradients(&view)?, gradients(&view.contiguous()?)?);
        // A view that was turned by hand is no view of ours.
        let turned = view.contiguous()?.permute((2, 3, 0, 1))?.contiguous()?;
        assert_eq!(gradients(&view)?, gradients(&turned.permute((2, 3, 0, 1))?)?);
    }
    Ok(())
}

/// A skip connection of another shape is named.
#[test]
fn a_skip_connection_that_does_not_fit_is_refused() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F32, &Device::Cpu);
    let model = Residual::new(false, &posterior, vb)?;
    let xs = wave(&[4, 6, 8, 12], 1.0, 0.0)?.to_dtype(DType::F32)?;
    let skip = xs.narrow(1, 0, 5)?;
    let error = model.second.forward_residual(&xs, &skip, &Pass::mean()).unwrap_err().to_string();
    assert!(error.contains("[4, 5, 8, 12]"), "{error}");
    Ok(())
}

/// A chain with poolings that are fused.
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
