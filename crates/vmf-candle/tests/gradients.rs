//! Every layer's gradients against finite differences in f64, the fused operation against its
//! reference, and what each kind of pass does.

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarMap;
use common::{
    Model, images, largest_difference, named, numeric_gradient, values, wave, weighted_sum,
};
use vmf_candle::layers::WeightConstraint;
use vmf_candle::ops::{
    Statistics, bn_noise, bn_noise_config, bn_noise_eval, bn_noise_eval_reference,
    bn_noise_reference,
};
use vmf_candle::posterior::{Parameterization, Sigma, SigmaConfig};
use vmf_candle::prelude::*;

/// What a normalization remembers is no parameter.
fn is_statistic(name: &str) -> bool {
    ["running_", "noise_free_", "inherited_var"].iter().any(|part| name.contains(part))
}

/// Compares the gradients of a loss with respect to every variable of a model and to its input with
/// finite differences. Running statistics are left out: a training pass does not use them.
fn check_gradients(
    what: &str,
    vars: &VarMap,
    xs: &Var,
    loss: &dyn Fn() -> Result<Tensor>,
) -> Result<()> {
    let grads = loss()?.backward()?;
    let mut variables: Vec<(String, Var)> =
        named(vars).into_iter().filter(|(name, _)| !is_statistic(name)).collect();
    variables.push(("input".into(), xs.clone()));
    for (name, var) in variables {
        let Some(gradient) = grads.get(&var) else { panic!("{what}: {name} received no gradient") };
        let numeric = numeric_gradient(&var, loss)?;
        let scale = numeric.iter().fold(1e-3, |max: f64, g| max.max(g.abs()));
        let difference = largest_difference(&values(gradient), &numeric) / scale;
        assert!(difference < 1e-6, "{what}: {name} differs by {difference:e}");
    }
    Ok(())
}

fn configs() -> Vec<(&'static str, VmfConfig)> {
    let base = VmfConfig::default().sigma(0.4);
    vec![
        ("plain", base.clone()),
        ("relu", base.clone().relu()),
        ("softplus", base.clone().parameterization(Parameterization::Softplus)),
        ("sigma groups", base.clone().sigma_groups(3)),
        ("affine", base.clone().affine().relu()),
        ("weight norm", base.constraint(WeightConstraint::WeightNorm { gain: 1.7 })),
    ]
}

#[test]
fn linear_layers() -> Result<()> {
    for (what, config) in configs() {
        for (mode, pass) in [("train", Pass::train(1, 2)), ("sample", Pass::sample(1, 2))] {
            let (vars, posterior) = (VarMap::new(), Posterior::new());
            let vb = seeded(&vars, 5, DType::F64, &Device::Cpu);
            let layer = vmf_linear(5, 6, config.clone(), &posterior, vb.pp("layer"))?;
            let xs = Var::from_tensor(&wave(&[7, 5], 1.0, 0.0)?)?;
            let loss = || {
                let nll = weighted_sum(&layer.forward(&xs, &pass)?)?;
                Elbo::new(10).loss(&nll, &posterior).map(|loss| loss.total)
            };
            check_gradients(&format!("linear, {what}, {mode}"), &vars, &xs, &loss)?;
        }
    }
    Ok(())
}

#[test]
fn convolutions() -> Result<()> {
    for (what, config) in configs() {
        for (geometry, padding, stride, dilation, groups) in [
            ("same", 1, 1, 1, 1),
            ("strided", 1, 2, 1, 1),
            ("grouped", 0, 1, 1, 3),
            ("dilated", 2, 1, 2, 1),
        ] {
            if geometry != "same" && what != "relu" {
                continue;
            }
            let (vars, posterior) = (VarMap::new(), Posterior::new());
            let vb = seeded(&vars, 5, DType::F64, &Device::Cpu);
            let config = config.clone().padding(padding).stride(stride);
            let config = config.dilation(dilation).groups(groups);
            let layer = vmf_conv2d(3, 6, 3, config, &posterior, vb.pp("layer"))?;
            let xs = Var::from_tensor(&wave(&[2, 3, 5, 4], 1.0, 0.0)?)?;
            let loss = || weighted_sum(&layer.forward(&xs, &Pass::train(1, 2))?);
            check_gradients(&format!("conv, {what}, {geometry}"), &vars, &xs, &loss)?;
        }
    }
    Ok(())
}

#[test]
fn noise_layers_and_shared_sigma() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F64, &Device::Cpu);
    let shared = Sigma::new(SigmaConfig::default(), vb.pp("shared"))?;
    let mut grouped = NoiseLayerConfig::new(5, 6);
    grouped.channel_dim = 2;
    grouped.sigma.groups = 2;
    let first = noise_layer(grouped, &posterior, vb.pp("first"))?;
    let mut second = NoiseLayerConfig::behind(&wave(&[4, 5], 1.0, 0.0)?)?;
    second.shared = Some(shared.clone());
    let second = noise_layer(second, &posterior, vb.pp("second"))?;
    let third = VmfConfig::default().shared(&shared);
    let third = vmf_linear(6, 2, third, &posterior, vb.pp("third"))?;
    let xs = Var::from_tensor(&wave(&[3, 4, 6], 1.0, 0.0)?)?;
    let loss = || {
        let pass = Pass::train(3, 4);
        let ys = first.forward(&xs, &pass)?;
        let ys = second.forward(&ys, &pass)?;
        weighted_sum(&third.forward(&ys, &pass)?)
    };
    check_gradients("noise layers", &vars, &xs, &loss)
}

#[test]
fn fused_and_reference_agree() -> Result<()> {
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        for shape in [&[6, 4][..], &[6, 8, 5, 3], &[6, 2, 7]] {
            for relu in [false, true] {
                for noise in [Pass::folded(9, 4, 3).noise(77, shape)?, None] {
                    let u = Var::from_tensor(&wave(shape, 1.1, 0.3)?.to_dtype(dtype)?)?;
                    let config = bn_noise_config(&u)?.relu(relu);
                    let sigma = Var::new(&[0.5f64, 0.9], &Device::Cpu)?;
                    let given = Statistics {
                        mean: wave(&shape[1..2], 0.3, 0.0)?,
                        var: (wave(&shape[1..2], 0.9, 0.0)? + 2.0)?,
                    };
                    let outputs = [
                        bn_noise(&u, &sigma, &config, noise)?.0,
                        bn_noise_reference(&u, &sigma, &config, noise)?.0,
                        bn_noise_eval(&u, &sigma, &given, &config, noise)?,
                        bn_noise_eval_reference(&u, &sigma, &given, &config, noise)?,
                    ];
                    let results = outputs
                        .iter()
                        .map(|ys| {
                            let grads = weighted_sum(ys)?.backward()?;
                            let dsigma = grads.get(&sigma).map(values).unwrap_or(vec![0.0; 2]);
                            Ok([values(ys), values(grads.get(&u).unwrap()), dsigma])
                        })
                        .collect::<Result<Vec<_>>>()?;
                    let tolerance = match dtype {
                        DType::F64 => 1e-11,
                        DType::F32 => 1e-4,
                        DType::F16 => 2e-2,
                        _ => 1e-1,
                    };
                    for pair in results.chunks(2) {
                        for (fused, reference) in pair[0].iter().zip(&pair[1]) {
                            let difference = largest_difference(fused, reference);
                            assert!(difference < tolerance, "{dtype:?} {shape:?}: {difference:e}");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_trainable_variable_of_a_network_receives_a_gradient() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, labels) = images(12, 0)?;
    let nll = cross_entropy(&model.forward(&xs, &Pass::train(1, 0))?, &labels)?;
    let grads = Elbo::new(100).loss(&nll, &model.posterior)?.total.backward()?;
    for (name, var) in named(&model.vars) {
        let is_statistic = is_statistic(&name);
        match grads.get(&var) {
            Some(gradient) => {
                assert!(!is_statistic, "{name} is no parameter");
                assert!(values(gradient).iter().any(|g| *g != 0.0), "{name}: all zero");
            }
            None => assert!(is_statistic, "{name} received no gradient"),
        }
    }
    Ok(())
}

#[test]
fn modes_differ_as_documented() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, _) = images(12, 0)?;
    let run = |pass: Pass| model.forward(&xs, &pass).map(|ys| values(&ys));
    let statistics = || -> Vec<Vec<f64>> {
        let vars = named(&model.vars);
        let with = |part: &str| {
            let matching = vars.iter().filter(|(name, _)| name.contains(part));
            matching.flat_map(|(_, var)| values(var)).collect()
        };
        vec![with("running_"), with("noise_free_")]
    };

    // Equal passes give equal results, another step or seed gives another, and training updates
    // both sets of statistics alike.
    let before = statistics();
    let first = run(Pass::train(1, 0))?;
    let trained = statistics();
    assert_ne!(before[0], trained[0]);
    assert_eq!(trained[0], trained[1]);
    assert_eq!(first, run(Pass::train(1, 0))?);
    assert_ne!(first, run(Pass::train(1, 1))?);
    assert_ne!(first, run(Pass::train(2, 0))?);

    // Mean and sample passes change nothing; the mean pass has no noise.
    let before = statistics();
    let mean = run(Pass::mean())?;
    assert_eq!(mean, run(Pass::mean())?);
    assert_ne!(mean, run(Pass::sample(1, 0))?);
    assert_ne!(run(Pass::sample(1, 0))?, run(Pass::sample(1, 1))?);
    assert_ne!(run(Pass::sample(1, 0))?, run(Pass::sample(1, 0).at_batch(1))?);
    assert_eq!(before, statistics());

    // An estimating pass sets the noise-free set, and only that, to the statistics of the batch.
    run(Pass::estimate(0))?;
    let estimated = statistics();
    assert_eq!(before[0], estimated[0]);
    assert_ne!(before[1], estimated[1]);
    assert_ne!(mean, run(Pass::mean())?);
    Ok(())
}

/// Folding gives each copy the noise of its own pass.
#[test]
fn folded_samples_are_the_samples() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, _) = images(5, 0)?;
    model.forward(&xs, &Pass::train(1, 0))?;
    let folded = Pass::folded(3, 2, 4).at_batch(6);
    let all = model.forward(&folded.repeat(&xs)?, &folded)?;
    for k in 0..4 {
        let one = model.forward(&xs, &Pass::sample(3, 2 + k).at_batch(6))?;
        let block = all.narrow(0, 5 * k as usize, 5)?;
        assert!(largest_difference(&values(&one), &values(&block)) < 1e-5);
    }
    assert!(model.forward(&xs, &Pass::folded(3, 0, 2)).is_err());
    Ok(())
}

#[test]
fn wrong_shapes_are_refused_by_name() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F32, &Device::Cpu);
    let layer = vmf_linear(5, 6, VmfConfig::default(), &posterior, vb.pp("hidden"))?;
    let narrow = Tensor::zeros((3, 4), DType::F32, &Device::Cpu)?;
    let error = layer.forward(&narrow, &Pass::mean()).unwrap_err().to_string();
    assert!(error.contains("hidden") && error.contains('5'), "{error}");
    let single = Tensor::zeros((1, 5), DType::F32, &Device::Cpu)?;
    let error = layer.forward(&single, &Pass::train(0, 0)).unwrap_err();
    assert!(error.to_string().contains("two examples"), "{error}");
    assert!(layer.forward(&single, &Pass::mean()).is_ok());
    let again = vmf_linear(5, 6, VmfConfig::default(), &posterior, vb.pp("hidden"));
    assert!(again.unwrap_err().to_string().contains("already"));
    Ok(())
}
