//! Nothing goes wrong in silence: what is said without being asked.

mod common;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Optimizer, VarMap};
use common::{Model, heard, images, named, state, values};
use vmf_candle::layers::ReluLayer;
use vmf_candle::predict::reestimate_mean;
use vmf_candle::prelude::*;

fn step(model: &Model, adam: &mut Adam, xs: &Tensor, labels: &Tensor, step: u32) -> Result<()> {
    model.step(adam, (xs, labels), Pass::train(7, step))
}

/// Images with one value that is not a number, in example 5.
fn spoiled(value: f32) -> Result<(Tensor, Tensor)> {
    let (xs, labels) = images(16, 0)?;
    let mut pixels = xs.flatten_all()?.to_vec1::<f32>()?;
    pixels[5 * 3 * 64 + 17] = value;
    Ok((Tensor::from_vec(pixels, xs.shape(), &Device::Cpu)?, labels))
}

#[test]
fn a_batch_with_nan_changes_nothing_and_names_the_layer() -> Result<()> {
    for bad in [f32::NAN, f32::INFINITY] {
        let model = Model::new(1)?;
        let mut adam = model.adam()?;
        let (xs, labels) = images(16, 0)?;
        step(&model, &mut adam, &xs, &labels, 0)?;
        let before = state(&model.vars);
        let (nan, labels) = spoiled(bad)?;
        let error = step(&model, &mut adam, &nan, &labels, 1).unwrap_err().to_string();
        assert!(error.contains("\"features.0\"") && error.contains("input holds NaN"), "{error}");
        assert!(!error.contains("usual remedies"), "{error}");
        assert_eq!(state(&model.vars), before);

        // Training goes on as if the batch had never been there.
        let unspoiled = Model::new(1)?;
        let mut other = unspoiled.adam()?;
        step(&unspoiled, &mut other, &xs, &labels, 0)?;
        for (model, adam) in [(&model, &mut adam), (&unspoiled, &mut other)] {
            step(model, adam, &xs, &labels, 2)?;
        }
        assert_eq!(state(&model.vars), state(&unspoiled.vars));
    }
    Ok(())
}

/// Sets all elements of a variable.
fn set(model: &Model, name: &str, value: f32) -> Result<()> {
    let (_, var) = named(&model.vars).into_iter().find(|(known, _)| known == name).unwrap();
    var.set(&Tensor::full(value, var.shape(), &Device::Cpu)?)
}

/// The weight of a later layer overflows, that of the classifier behind all layers, and the
/// gradients alone: statistics that were finite in earlier layers stay what they were.
#[test]
fn a_pass_that_does_not_end_well_leaves_no_statistics_behind() -> Result<()> {
    let (xs, labels) = images(16, 0)?;
    let steps_of = |pass: fn(u32) -> Pass| -> Result<()> {
        let model = Model::new(1)?;
        let mut adam = model.adam()?;
        let step = |adam: &mut Adam, number| model.step(adam, (&xs, &labels), pass(number));
        step(&mut adam, 0)?;
        for name in ["features.4.weight", "classifier.weight"] {
            let good =
                Checkpoint::capture(&model.vars, &model.posterior, None, Default::default())?;
            set(&model, name, f32::INFINITY)?;
            let before = state(&model.vars);
            let error = step(&mut adam, 1).unwrap_err().to_string();
            assert_eq!(state(&model.vars), before, "{name}: {error}");
            good.restore(&model.vars, &model.posterior, None)?;
        }
        // A loss without an optimizer of ours.
        let before = state(&model.vars);
        let nll = (cross_entropy(&model.forward(&xs, &pass(1))?, &labels)? * f64::NAN)?;
        assert_ne!(state(&model.vars), before);
        Elbo::new(160).loss(&nll, &model.posterior)?;
        assert_eq!(state(&model.vars), before);
        // The gradient alone: the loss is finite.
        let loss = cross_entropy(&model.forward(&xs, &pass(1))?, &labels)?;
        let mut gradients = loss.backward()?;
        let weight = named(&model.vars).swap_remove(0).1;
        gradients.insert(&weight, (weight.as_tensor() * f64::NAN)?);
        assert!(adam.step(&gradients).is_err());
        assert_eq!(state(&model.vars), before);
        // A step that was taken is not undone, nor is a pass before the last.
        step(&mut adam, 1)?;
        let before = state(&model.vars);
        model.posterior.undo_statistics()?;
        assert_eq!(state(&model.vars), before);
        model.forward(&xs, &pass(2))?;
        let before = state(&model.vars);
        model.forward(&(&xs * 1e30)?, &pass(3)).unwrap_err();
        model.forward(&(&xs * 1e30)?, &pass(3)).unwrap_err();
        assert_eq!(state(&model.vars), before);
        // A failure in a pass that changes nothing is none of a training pass.
        model.forward(&xs.narrow(1, 0, 2)?, &Pass::mean()).unwrap_err();
        assert_eq!(state(&model.vars), before);
        Ok(())
    };
    steps_of(|step| Pass::train(7, step))?;
    steps_of(|_| Pass::train_noiseless())
}

#[test]
fn a_measurement_that_fails_in_a_later_layer_is_undone() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, _) = images(16, 0)?;
    set(&model, "features.4.weight", f32::NAN)?;
    let before = state(&model.vars);
    let error = reestimate(&model, &model.posterior, [Ok(xs.clone())]).unwrap_err().to_string();
    assert!(error.contains("\"features.4\""), "{error}");
    assert_eq!(state(&model.vars), before);
    // An error in the model's own code, between its layers.
    let model = Model::new(1)?;
    let before = state(&model.vars);
    let failing = |xs: &Tensor, pass: &Pass| model.forward(xs, pass)?.reshape((1, 1, 1, 1));
    assert!(reestimate(&failing, &model.posterior, [Ok(xs)]).is_err());
    assert_eq!(state(&model.vars), before);
    Ok(())
}

#[test]
fn activations_that_overflow_have_another_remedy() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, _) = images(16, 0)?;
    let before = state(&model.vars);
    let error = model.forward(&(xs * 1e30)?, &Pass::train(1, 0)).unwrap_err().to_string();
    assert!(error.contains("\"features.0\"") && error.contains("too large"), "{error}");
    assert_eq!(state(&model.vars), before);
    Ok(())
}

#[test]
fn inputs_and_outputs_that_are_not_finite_are_errors() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, _) = images(16, 0)?;
    reestimate(&model, &model.posterior, [Ok(xs.clone())])?;
    let (nan, _) = spoiled(f32::NAN)?;
    let ways =
        || [Samples::mean(), Samples::monte_carlo(3, 1), Samples::expected(&model.posterior)];
    for samples in ways() {
        let error = predict(&model, &nan, samples.clone()).unwrap_err().to_string();
        assert!(error.contains("example 5") && !error.contains("learning rate"), "{error}");
        let error = predict_values(&model, &nan, samples).unwrap_err().to_string();
        assert!(error.contains("example 5"), "{error}");
    }
    assert!(reestimate(&model, &model.posterior, [Ok(nan)]).is_err());

    // The largest finite scale in front of the last unit: what overflows is its output.
    let set = |name: &str, value: f32| set(&model, name, value);
    for set_of in ["running_mean", "noise_free_mean"] {
        set(&format!("features.5.{set_of}"), f32::INFINITY)?;
    }
    for samples in ways() {
        let error = match predict(&model, &xs, samples) {
            Err(error) => error.to_string(),
            // ReLU of minus infinity is 0.
            Ok(prediction) => {
                assert!(values(&prediction.probs).iter().all(|p| p.is_finite()));
                continue;
            }
        };
        assert!(error.contains("\"features.4\""), "{error}");
    }
    for set_of in ["running_mean", "noise_free_mean"] {
        set(&format!("features.5.{set_of}"), f32::NEG_INFINITY)?;
    }
    for samples in ways() {
        let error = predict(&model, &xs, samples).unwrap_err().to_string();
        assert!(error.contains("first layer concerned is \"features.4\""), "{error}");
    }
    for set_of in ["running_mean", "noise_free_mean"] {
        set(&format!("features.5.{set_of}"), 0.0)?;
    }
    set("classifier.bias", f32::NAN)?;
    let error = predict(&model, &xs, Samples::mean()).unwrap_err().to_string();
    assert!(error.contains("finite up to \"features.7\""), "{error}");
    Ok(())
}

#[test]
fn the_first_step_names_variables_without_a_gradient() -> Result<()> {
    let model = Model::new(1)?;
    let vb = seeded(&model.vars, 3, DType::F32, &Device::Cpu);
    vmf_linear(4, 4, VmfConfig::default(), &model.posterior, vb.pp("forgotten"))?;
    let frozen = VmfConfig::default().frozen();
    let _: VmfLinear = vmf_linear(4, 4, frozen, &model.posterior, vb.pp("frozen"))?;
    let _: ReluLayer = relu_layer(4, vb.pp("relu"))?;
    let mut adam = model.adam()?;
    let (xs, labels) = images(16, 0)?;
    let said = heard(|| step(&model, &mut adam, &xs, &labels, 0));
    assert!(said.contains("received no gradient"), "{said}");
    let named = said.split_once("not trained: ").unwrap().1.split_once(". ").unwrap().0;
    // Its rho has a gradient: that of the KL.
    assert_eq!(named, "forgotten.weight, frozen.weight");
    assert_eq!(heard(|| step(&model, &mut adam, &xs, &labels, 1)), "");
    Ok(())
}

#[test]
fn a_posterior_that_cannot_train_the_model_is_refused() -> Result<()> {
    let (model, other) = (Model::new(1)?, Model::new(2)?);
    let (xs, labels) = images(16, 0)?;
    let nll = cross_entropy(&model.forward(&xs, &Pass::train(1, 0))?, &labels)?;
    let loss = |posterior: &Posterior| {
        Elbo::new(10).loss(&nll, posterior).map(|_| ()).unwrap_err().to_string()
    };
    let optimizer = |posterior: &Posterior| {
        let adam = Adam::for_model(&model.vars, posterior, AdamConfig::default());
        adam.map(|_| ()).unwrap_err().to_string()
    };
    Elbo::new(10).loss(&nll, &model.posterior)?;
    let empty = Posterior::new();
    assert!(loss(&empty).contains("has no layers"), "{}", loss(&empty));
    assert!(optimizer(&empty).contains("has no layers"), "{}", optimizer(&empty));
    let foreign = &other.posterior;
    assert!(loss(foreign).contains("taken part in a forward pass"), "{}", loss(foreign));
    assert!(optimizer(foreign).contains("\"features.0.rho\""), "{}", optimizer(foreign));

    // Layers for inference have no variables to train.
    let checkpoint = Checkpoint::capture(&model.vars, &model.posterior, None, Progress::default())?;
    let fixed = Posterior::new();
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let loaded = common::small_vgg(&common::PLAN, &fixed, vb)?;
    loaded.forward(&xs, &Pass::mean())?;
    assert!(loss(&fixed).contains("is a constant"), "{}", loss(&fixed));
    Ok(())
}

#[test]
fn a_mean_pass_before_its_statistics_are_measured_is_reported_once() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, labels) = images(16, 0)?;
    let mean = || predict(&model, &xs, Samples::mean()).map(|_| ());
    step(&model, &mut model.adam()?, &xs, &labels, 0)?;
    let said = heard(mean);
    assert_eq!(said.matches("reestimate").count(), 1, "{said}");
    assert_eq!(heard(mean), "");
    // After more training again, after measuring not.
    step(&model, &mut model.adam()?, &xs, &labels, 1)?;
    assert!(heard(mean).contains("reestimate"));
    step(&model, &mut model.adam()?, &xs, &labels, 2)?;
    reestimate_mean(&model, [Ok(xs.clone())])?;
    assert_eq!(heard(mean), "");
    // Training without noise collects statistics without noise.
    model.forward(&xs, &Pass::train_noiseless())?;
    assert_eq!(heard(mean), "");
    Ok(())
}

#[test]
fn a_model_that_returns_probabilities_is_reported() -> Result<()> {
    let xs = images(16, 0)?.0.flatten_from(1)?.narrow(1, 0, 10)?;
    let softmax = |xs: &Tensor, _: &Pass| candle_nn::ops::softmax(xs, D::Minus1);
    let logits = |xs: &Tensor, _: &Pass| Ok(xs.clone());
    for samples in [Samples::mean(), Samples::monte_carlo(3, 1)] {
        let said = heard(|| predict(&softmax, &xs, samples.clone()).map(|_| ()));
        assert_eq!(said.matches("are probabilities").count(), 1, "{said}");
        assert_eq!(heard(|| predict(&logits, &xs, samples).map(|_| ())), "");
    }
    let labels = images(16, 0)?.1;
    let said = heard(|| cross_entropy(&softmax(&xs, &Pass::mean())?, &labels).map(|_| ()));
    assert!(said.contains("are probabilities"), "{said}");
    Ok(())
}

#[test]
fn a_collapse_during_training_is_reported_once() -> Result<()> {
    let model = Model::new(1)?;
    let (xs, labels) = images(16, 0)?;
    let nll = cross_entropy(&model.forward(&xs, &Pass::train(1, 0))?, &labels)?;
    let steps = |count: usize| {
        heard(|| {
            (0..count).try_for_each(|_| Elbo::new(10).loss(&nll, &model.posterior).map(|_| ()))
        })
    };
    assert_eq!(steps(60), "");
    let (_, rho) =
        named(&model.vars).into_iter().find(|(name, _)| name == "features.4.rho").unwrap();
    rho.set(&Tensor::new(&[3f32], &Device::Cpu)?)?;
    let said = steps(200);
    assert_eq!(said.matches("collapsed").count(), 1, "{said}");
    assert!(said.contains("to the prior") && said.contains("features.4"), "{said}");
    Ok(())
}

#[test]
fn errors_of_shapes_name_the_layer() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
    let conv = vmf_conv2d(3, 8, 3, VmfConfig::default(), &posterior, vb.pp("stem"))?;
    let linear = vmf_linear(5, 4, VmfConfig::default(), &posterior, vb.pp("neck"))?;
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu);
    let train = Pass::train(1, 0);
    let small = conv.forward(&zeros(&[2, 3, 2, 2])?, &train);
    let single = linear.forward(&zeros(&[1, 5])?, &train);
    let empty = linear.forward(&zeros(&[0, 5])?, &train);
    let units = vmf_conv2d(3, 8, 3, VmfConfig::default().sigma_groups(3), &posterior, vb.pp("a"));
    let groups = vmf_conv2d(3, 8, 3, VmfConfig::default().groups(2), &posterior, vb.pp("b"));
    for (result, layer, reason) in [
        (small, "\"stem\"", "kernel"),
        (single, "\"neck\"", "at least two examples"),
        (empty, "\"neck\"", "the batch is empty"),
        (units.map(|_| zeros(&[1]).unwrap()), "\"a\"", "8 units"),
        (groups.map(|_| zeros(&[1]).unwrap()), "\"b\"", "groups is 2"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(layer) && error.contains(reason), "{layer} {reason}: {error}");
    }
    let error = predict(&linear, &zeros(&[0, 5])?, Samples::mean()).unwrap_err().to_string();
    assert!(error.contains("is empty"), "{error}");
    Ok(())
}
