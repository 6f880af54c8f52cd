//! Converting trained networks: the variational network computes what the original did.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{BatchNorm, Conv2d, Conv2dConfig, Module, ModuleT, Optimizer, VarBuilder, VarMap};
use common::{images, largest_difference, named, values, wave};
use std::collections::HashMap;
use vmf_candle::checkpoint::{Convert, Converted};
use vmf_candle::layers::VmfConv2d;
use vmf_candle::ops::{max_pool2d, mean_over_positions};
use vmf_candle::posterior::Parameterization;
use vmf_candle::prelude::*;

/// The network of tests/golden/generate.py, of variational units.
fn variational(posterior: &Posterior, vb: VarBuilder) -> Result<Chain> {
    let unit = |norm: &str| VmfConfig::default().relu().affine().norm_at(norm).padding(1);
    Ok(Chain::new()
        .add(vmf_conv2d(3, 4, 3, unit("1"), posterior, vb.pp("features.0"))?)
        .add_plain(|xs: &Tensor| max_pool2d(xs, 2, 2, 0))
        .add(vmf_conv2d(4, 6, 3, unit("5"), posterior, vb.pp("features.4"))?)
        .add_plain(|xs: &Tensor| xs.mean((2, 3)))
        .add_plain(candle_nn::linear(6, 5, vb.pp("classifier.0"))?))
}

#[test]
fn a_torchvision_state_dict_keeps_its_logits() -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let state =
        candle_core::safetensors::load(format!("{folder}/vgg_bn.safetensors"), &Device::Cpu)?;
    let golden = std::fs::read_to_string(format!("{folder}/golden.json"))?;
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let theirs: Vec<f64> = serde_json::from_value(golden["vgg_bn_logits"].clone()).unwrap();

    let converted = Convert::new().state_dict(&state)?;
    let pairs = [("features.0", "features.1"), ("features.4", "features.5")];
    assert_eq!(converted.units, pairs.map(|(a, b)| (a.to_string(), b.to_string())));
    let vb = VarBuilder::from_tensors(converted.tensors.clone(), DType::F64, &Device::Cpu);
    let network = variational(&Posterior::new(), vb)?;
    let ours = values(&network.forward(&wave(&[3, 3, 8, 8], 1.1, 0.0)?, &Pass::mean())?);
    let difference = largest_difference(&ours, &theirs);
    assert!(difference < 1e-9, "logits differ by {difference:e}");
    Ok(())
}

/// A basic block of a residual network.
struct Block {
    first: VmfConv2d,
    second: VmfConv2d,
    projection: Option<VmfConv2d>,
}

/// ResNet-18 of tests/golden/resnet18.py, of variational units.
struct ResNet18 {
    stem: VmfConv2d,
    blocks: Vec<Block>,
    head: candle_nn::Linear,
}

impl ResNet18 {
    fn new(width: usize, posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let unit = |norm: &str| VmfConfig::default().affine().norm_at(norm).relu();
        let stem = vmf_conv2d(3, width, 3, unit("bn1").padding(1), posterior, vb.pp("conv1"))?;
        let (mut blocks, mut inputs) = (Vec::new(), width);
        for stage in 0..4 {
            for block in 0..2 {
                let vb = vb.pp(format!("layer{}.{block}", stage + 1));
                let (outputs, stride) =
                    (width << stage, if stage > 0 && block == 0 { 2 } else { 1 });
                let first = unit("bn1").padding(1).stride(stride);
                let projection = VmfConfig::default().affine().norm_at("1").stride(stride);
                blocks.push(Block {
                    first: vmf_conv2d(inputs, outputs, 3, first, posterior, vb.pp("conv1"))?,
                    second: vmf_conv2d(
                        outputs,
                        outputs,
                        3,
                        unit("bn2").padding(1),
                        posterior,
                        vb.pp("conv2"),
                    )?,
                    projection: (inputs != outputs)
                        .then(|| {
                            let vb = vb.pp("downsample.0");
                            vmf_conv2d(inputs, outputs, 1, projection, posterior, vb)
                        })
                        .transpose()?,
                });
                inputs = outputs;
            }
        }
        Ok(Self { stem, blocks, head: candle_nn::linear(inputs, 10, vb.pp("fc"))? })
    }
}

impl Forward for ResNet18 {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut xs = self.stem.forward(xs, pass)?;
        for Block { first, second, projection } in &self.blocks {
            let ys = first.forward(&xs, pass)?;
            let skip = match projection {
                Some(projection) => projection.forward(&xs, pass)?,
                None => xs,
            };
            xs = second.forward_residual(&ys, &skip, pass)?;
        }
        self.head.forward(&mean_over_positions(&xs)?)
    }
}

/// A state dict of ResNet-18 in torchvision's names, made by PyTorch: equal logits without noise, in
/// the fused path and in Candle's, and a network that goes on training.
#[test]
fn a_residual_state_dict_keeps_its_logits_and_goes_on_training() -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let state =
        candle_core::safetensors::load(format!("{folder}/resnet18.safetensors"), &Device::Cpu)?;
    let theirs = std::fs::read_to_string(format!("{folder}/resnet18_logits.json"))?;
    let theirs: Vec<f64> = serde_json::from_str(&theirs).unwrap();
    let converted = Convert::new().state_dict(&state)?;
    assert_eq!(converted.units.len(), 20);
    let (xs, labels) = images(7, 100)?;
    for dtype in [DType::F32, DType::F64] {
        let vb = VarBuilder::from_tensors(converted.tensors.clone(), dtype, &Device::Cpu);
        let network = ResNet18::new(2, &Posterior::new(), vb)?;
        let ours = values(&network.forward(&xs.to_dtype(dtype)?, &Pass::mean())?);
        let difference = largest_difference(&ours, &theirs);
        assert!(difference < 1e-4, "{dtype:?}: logits differ by {difference:e}");
    }

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let network = ResNet18::new(2, &posterior, seeded(&vars, 0, DType::F32, &Device::Cpu))?;
    converted.load_into(&vars)?;
    let config = AdamConfig { lr: 1e-2, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let nll = |pass: &Pass| cross_entropy(&network.forward(&xs, pass)?, &labels);
    let before = nll(&Pass::train_noiseless())?.to_scalar::<f32>()?;
    for step in 0..20 {
        adam.backward_step(&nll(&Pass::train(1, step))?)?;
    }
    let after = nll(&Pass::train_noiseless())?.to_scalar::<f32>()?;
    assert!(after < 0.8 * before, "{before} to {after}");
    Ok(())
}

/// The converted network and its plain twin are trained further for equally many steps on images of
/// which a third has a wrong label. The variational one finds beta itself, on images that are held
/// out, and predicts in one pass; the plain one has all of the images to train on.
#[test]
fn a_converted_network_beats_its_plain_twin_trained_equally_long() -> Result<()> {
    const STEPS: u32 = 240;
    const BATCH: usize = 40;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/resnet18.safetensors");
    let converted =
        Convert::new().state_dict(&candle_core::safetensors::load(file, &Device::Cpu)?)?;
    let build = || -> Result<(ResNet18, VarMap, Posterior)> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let network = ResNet18::new(2, &posterior, seeded(&vars, 0, DType::F32, &Device::Cpu))?;
        converted.load_into(&vars)?;
        Ok((network, vars, posterior))
    };
    let config = AdamConfig { lr: 1e-2, ..Default::default() };
    let batch = |step: u32, of: usize| -> Result<(Tensor, Tensor)> {
        let (xs, labels) = images(BATCH, step as usize % of * BATCH)?;
        Ok((xs, wrong_in_part(&labels)?))
    };
    // 400 images to train on, of which the variational network has 320.
    let test = images(1000, 5000)?;
    let test = (test.0, wrong_in_part(&test.1)?);

    let (twin, vars, posterior) = build()?;
    let mut adam = Adam::for_model(&vars, &posterior, config.clone())?;
    let elbo = Elbo::new(10 * BATCH).beta(0.0);
    for step in 0..STEPS {
        let (xs, labels) = batch(step, 10)?;
        let nll = cross_entropy(&twin.forward(&xs, &Pass::train_noiseless())?, &labels)?;
        adam.backward_step(&elbo.loss(&nll, &posterior)?.total)?;
    }
    let plain = Calibration::of(&predict(&twin, &test.0, Samples::mean())?.probs, &test.1)?;

    let (network, vars, posterior) = build()?;
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let mut beta = AutoBeta::new(&posterior, 8 * BATCH, STEPS)?;
    let (held_out, held_out_labels) = images(2 * BATCH, 8 * BATCH)?;
    let held_out_labels = wrong_in_part(&held_out_labels)?;
    for step in 0..STEPS {
        let (xs, labels) = batch(step, 8)?;
        let nll = cross_entropy(&network.forward(&xs, &Pass::train(1, step))?, &labels)?;
        let elbo = Elbo::new(8 * BATCH).beta(beta.value());
        adam.backward_step(&elbo.loss(&nll, &posterior)?.total)?;
        if beta.is_due(step) {
            let held_out = (&held_out, &held_out_labels);
            beta.update(step, &network, &posterior, (&xs, &labels), held_out)?;
        }
    }
    reestimate(&network, &posterior, (0..8).map(|step| Ok(batch(step, 8)?.0)))?;
    let one_pass = predict(&network, &test.0, Samples::expected(&posterior))?;
    let one_pass = Calibration::of(&one_pass.probs, &test.1)?;
    assert!(one_pass.nll < 0.8 * plain.nll, "{} against {}", one_pass.nll, plain.nll);
    assert!(one_pass.accuracy > plain.accuracy - 0.02, "{} {}", one_pass.accuracy, plain.accuracy);
    Ok(())
}

/// The labels of `images`, with another class in place of every third.
fn wrong_in_part(labels: &Tensor) -> Result<Tensor> {
    let labels = labels.to_vec1::<u32>()?.into_iter().enumerate();
    let labels = labels.map(|(i, label)| match i % 3 {
        0 => (label + 1 + (i as u32 / 3 * 7 + 3) % 9) % 10,
        _ => label,
    });
    Tensor::new(labels.collect::<Vec<_>>(), &Device::Cpu)
}

/// A network of candle-nn's own layers, named as many of its users do.
struct Plain {
    conv: Conv2d,
    norm: BatchNorm,
    head: candle_nn::Linear,
}

impl Plain {
    fn new(vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig { padding: 1, ..Default::default() };
        Ok(Self {
            conv: candle_nn::conv2d(3, 8, 3, config, vb.pp("stem"))?,
            norm: candle_nn::batch_norm(8, 1e-3, vb.pp("stem_norm"))?,
            head: candle_nn::linear(8, 10, vb.pp("head"))?,
        })
    }

    fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let xs = self.norm.forward_t(&self.conv.forward(xs)?, train)?.relu()?;
        self.head.forward(&xs.mean((2, 3))?)
    }
}

#[test]
fn a_candle_model_keeps_its_logits_and_goes_on_training() -> Result<()> {
    let plain_vars = VarMap::new();
    let plain = Plain::new(seeded(&plain_vars, 3, DType::F32, &Device::Cpu))?;
    let mut sgd = candle_nn::SGD::new(plain_vars.all_vars(), 0.1)?;
    for step in 0..10 {
        let (xs, labels) = images(16, 16 * step)?;
        sgd.backward_step(&cross_entropy(&plain.forward(&xs, true)?, &labels)?)?;
    }

    let convert = Convert::new().pair("stem", "stem_norm").source_eps(1e-3);
    let converted = convert.sigma(0.2, Parameterization::Softplus).vars(&plain_vars)?;
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
    let config = VmfConfig::default().relu().affine().norm_at("stem_norm");
    let config = config.parameterization(Parameterization::Softplus).padding(1);
    let network = Chain::new()
        .add(vmf_conv2d(3, 8, 3, config, &posterior, vb.pp("stem"))?)
        .add_plain(|xs: &Tensor| xs.mean((2, 3)))
        .add_plain(candle_nn::linear(8, 10, vb.pp("head"))?);
    converted.load_into(&vars)?;

    let (xs, labels) = images(20, 500)?;
    let logits = network.forward(&xs, &Pass::mean())?;
    let difference = largest_difference(&values(&logits), &values(&plain.forward(&xs, false)?));
    assert!(difference < 1e-4, "logits differ by {difference:e}");
    assert!((posterior.summary()?.layers()[0].sigma_eff() - 0.2).abs() < 1e-6);

    let mut adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
    adam.backward_step(&cross_entropy(&network.forward(&xs, &Pass::train(1, 0))?, &labels)?)?;
    assert_ne!(values(&logits), values(&network.forward(&xs, &Pass::mean())?));
    Ok(())
}

#[test]
fn what_cannot_be_converted_is_named() -> Result<()> {
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu);
    let state = |weight: Tensor, mean: Tensor| {
        HashMap::from([("a.0.weight".to_string(), weight), ("a.1.running_mean".to_string(), mean)])
    };
    let message = |result: vmf_candle::Result<Converted>| result.unwrap_err().to_string();
    let none = HashMap::from([("a.weight".to_string(), ones(&[2, 3])?)]);
    assert!(message(Convert::new().state_dict(&none)).contains("Convert::pair"));
    assert!(message(Convert::new().pair("b", "c").state_dict(&none)).contains("b.weight"));
    let short = state(ones(&[2, 3])?, ones(&[3])?);
    assert!(message(Convert::new().state_dict(&short)).contains("a.1.running_mean"));
    let dead = state(ones(&[2, 3])?.zeros_like()?, ones(&[2])?);
    assert!(message(Convert::new().state_dict(&dead)).contains("no direction"));

    let sound = Convert::new().state_dict(&state(ones(&[2, 3])?, ones(&[2])?))?;
    let vars = VarMap::new();
    seeded(&vars, 0, DType::F32, &Device::Cpu).get(3, "other")?;
    assert!(sound.load_into(&vars).is_err());
    assert_eq!(values(&named(&vars)[0].1), [0.0; 3]);
    Ok(())
}
