//! Logits against a computation in plain loops of f64 that knows only the names of the tensors.

use std::collections::HashMap;
use std::sync::PoisonError;

use candle_core::{DType, Device};
use candle_nn::VarMap;
use vmf_candle::seeded;

use super::*;
use crate::model::Model;

/// Tensors by name, as values with their shapes.
type Tensors = HashMap<String, (Vec<f64>, Vec<usize>)>;

/// One image: channels of `size` x `size` values.
#[derive(Clone)]
struct Image {
    size: usize,
    channels: Vec<Vec<f64>>,
}

/// `(conv(x) - mean) / sqrt(var + 1e-5)`, with the kernel padded by half of it.
fn unit(tensors: &Tensors, name: &str, norm: &str, stride: usize, x: &Image) -> Image {
    let (weight, shape) = &tensors[&format!("{name}.weight")];
    let (mean, _) = &tensors[&format!("{norm}.noise_free_mean")];
    let (var, _) = &tensors[&format!("{norm}.noise_free_var")];
    let &[outputs, inputs, kernel, _] = shape.as_slice() else { panic!("{shape:?}") };
    let size = x.size.div_ceil(stride);
    let mut channels = vec![vec![0.0; size * size]; outputs];
    for (output, channel) in channels.iter_mut().enumerate() {
        for (place, value) in channel.iter_mut().enumerate() {
            for input in 0..inputs {
                for tap in 0..kernel * kernel {
                    let at = |position: usize, tap: usize| {
                        let at = (position * stride + tap).checked_sub(kernel / 2);
                        at.filter(|&at| at < x.size)
                    };
                    let (row, column) = (place / size, place % size);
                    let (row, column) = (at(row, tap / kernel), at(column, tap % kernel));
                    if let (Some(row), Some(column)) = (row, column) {
                        let tap = (output * inputs + input) * kernel * kernel + tap;
                        *value += weight[tap] * x.channels[input][row * x.size + column];
                    }
                }
            }
            *value = (*value - mean[output]) / (var[output] + 1e-5).sqrt();
        }
    }
    Image { size, channels }
}

fn relu(mut x: Image) -> Image {
    x.channels.iter_mut().flatten().for_each(|value| *value = value.max(0.0));
    x
}

fn plus(mut x: Image, y: &Image) -> Image {
    x.channels.iter_mut().flatten().zip(y.channels.iter().flatten()).for_each(|(x, y)| *x += y);
    x
}

/// ResNet as torchvision's source has it, with this number of blocks in each stage.
fn resnet(tensors: &Tensors, blocks: usize, image: &Image) -> Vec<f64> {
    let mut x = relu(unit(tensors, "conv1", "bn1", 1, image));
    for stage in 1..4 {
        for block in 0..blocks {
            let name = |layer: &str| format!("layer{stage}.{block}.{layer}");
            let stride = if stage > 1 && block == 0 { 2 } else { 1 };
            let y = relu(unit(tensors, &name("conv1"), &name("bn1"), stride, &x));
            let y = unit(tensors, &name("conv2"), &name("bn2"), 1, &y);
            let skip = match tensors.contains_key(&name("downsample.0.weight")) {
                true => unit(tensors, &name("downsample.0"), &name("downsample.1"), stride, &x),
                false => x,
            };
            x = relu(plus(y, &skip));
        }
    }
    let (weight, shape) = &tensors["fc.weight"];
    let positions = (x.size * x.size) as f64;
    let means: Vec<f64> = x.channels.iter().map(|c| c.iter().sum::<f64>() / positions).collect();
    let rows = weight.chunks(shape[1]).zip(&tensors["fc.bias"].0);
    rows.map(|(row, bias)| bias + row.iter().zip(&means).map(|(w, x)| w * x).sum::<f64>()).collect()
}

fn images(count: usize) -> Result<Tensor> {
    let values: Vec<f32> = (0..count * 3 * 1024).map(|i| (i as f32 * 0.37).sin()).collect();
    Ok(Tensor::from_vec(values, (count, 3, 32, 32), &Device::Cpu)?)
}

#[test]
fn logits_are_those_of_plain_loops() -> Result<()> {
    for (model, width, blocks) in [(Model::Resnet20, 0.25, 3), (Model::Wrn16, 0.375, 2)] {
        let config = NetworkConfig { model, width, ..Default::default() };
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, 3, DType::F32, &Device::Cpu);
        let network = Network::new(&config, &posterior, vb)?;
        // Statistics that are not 0 and 1.
        for batch in 0..2 {
            network.forward(&images(6)?, &Pass::estimate(batch))?;
        }
        let logits = network.forward(&images(2)?, &Pass::mean())?.to_vec2::<f32>()?;

        let mut tensors = Tensors::new();
        for (name, var) in vars.data().lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let values = var.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            tensors.insert(name.clone(), (values, var.dims().to_vec()));
        }
        let pixels = images(2)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        for (pixels, logits) in pixels.chunks(3 * 1024).zip(&logits) {
            let channels = pixels.chunks(1024).map(<[f64]>::to_vec).collect();
            let expected = resnet(&tensors, blocks, &Image { size: 32, channels });
            for (logit, expected) in logits.iter().zip(&expected) {
                let error = (f64::from(*logit) - expected).abs();
                assert!(error < 1e-4, "{model}: {logit} and {expected}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_part_can_be_built_on_its_own() -> Result<()> {
    let config = NetworkConfig { model: Model::Resnet20, width: 0.25, ..Default::default() };
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 3, DType::F32, &Device::Cpu);
    let whole = Network::new(&config, &posterior, vb.clone())?;
    let pass = Pass::sample(4, 0);
    let mut xs = images(3)?;
    for part in config.parts()? {
        xs = config.features(&[part], &Posterior::new(), &vb)?.forward(&xs, &pass)?;
    }
    let pieces = config.classifier(&vb)?.forward(&xs)?.to_vec2::<f32>()?;
    assert_eq!(whole.forward(&images(3)?, &pass)?.to_vec2::<f32>()?, pieces);
    Ok(())
}
