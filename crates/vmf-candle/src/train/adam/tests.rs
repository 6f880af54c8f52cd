//! Against PyTorch's numbers, and what the guard refuses.

use super::*;
use candle_core::{DType, Device};

fn config() -> AdamConfig {
    AdamConfig { lr: 0.01, weight_decay: 0.1, ..Default::default() }
}

/// PyTorch 2, `torch.optim.AdamW([w], lr=0.01, weight_decay=0.1)` on `w = [1., -2., 3.]` in double
/// precision, five steps of the loss `(w ** 3 * torch.tensor([1., .5, -.2])).sum()`: see
/// tests/golden/generate.py.
#[test]
fn is_pytorchs_adamw() -> Result<()> {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/golden/golden.json")).unwrap();
    let w = Var::new(&[1f64, -2., 3.], &Device::Cpu)?;
    let c = Tensor::new(&[1f64, 0.5, -0.2], &Device::Cpu)?;
    let mut adam = Adam::new(vec![w.clone()], config())?;
    for _ in 0..5 {
        adam.backward_step(&(w.powf(3.0)? * &c)?.sum_all()?)?;
    }
    for (ours, theirs) in w.to_vec1::<f64>()?.iter().zip(golden["adamw"].as_array().unwrap()) {
        assert!((ours - theirs.as_f64().unwrap()).abs() < 1e-12, "{ours} {theirs}");
    }
    Ok(())
}

#[test]
fn stops_at_what_is_not_finite_and_names_it() -> Result<()> {
    let good = Var::ones(3, DType::F32, &Device::Cpu)?;
    let bad = Var::zeros(3, DType::F32, &Device::Cpu)?;
    let mut adam = Adam::new(vec![good.clone(), bad.clone()], config())?;
    // The loss is 0 and finite, its gradient in `bad` is not: d sqrt(x) at 0.
    let loss = (bad.sqrt()?.sum_all()? + good.sum_all()?)?;
    let error = adam.backward_step(&loss).unwrap_err().to_string();
    assert!(error.contains("gradient of variable 1"), "{error}");
    let error = adam.backward_step(&(loss * f64::NAN)?).unwrap_err();
    assert!(error.to_string().contains("the loss"), "{error}");
    assert_eq!(good.to_vec1::<f32>()?, [1.0; 3]);
    assert_eq!(bad.to_vec1::<f32>()?, [0.0; 3]);
    assert_eq!(adam.state()?.len(), 0);
    Ok(())
}

#[test]
fn clips_the_common_norm() -> Result<()> {
    let step = |clip_norm: Option<f64>, factor: f64| -> Result<Vec<f64>> {
        let w = Var::new(&[1f64, -2., 3.], &Device::Cpu)?;
        // A large eps makes the step depend on the size of the gradient, which Adam otherwise
        // removes.
        let config = AdamConfig { clip_norm, eps: 1.0, ..config() };
        let mut adam = Adam::new(vec![w.clone()], config)?;
        adam.backward_step(&(w.sqr()?.sum_all()? * factor)?)?;
        w.to_vec1()
    };
    // The gradient 2 w has norm 2 sqrt(14): clipping to half of it is halving the loss.
    let norm = 2.0 * 14f64.sqrt();
    let (clipped, halved) = (step(Some(norm / 2.0), 1.0)?, step(None, 0.5)?);
    assert!(clipped.iter().zip(&halved).all(|(a, b)| (a - b).abs() < 1e-15));
    assert_eq!(step(Some(norm * 1.01), 1.0)?, step(None, 1.0)?);
    Ok(())
}

#[test]
fn refuses_settings_and_state_that_cannot_be_right() -> Result<()> {
    let w = Var::new(&[1f64], &Device::Cpu)?;
    for bad in [
        AdamConfig { lr: -1.0, ..config() },
        AdamConfig { beta2: 1.0, ..config() },
        AdamConfig { clip_norm: Some(0.0), ..config() },
    ] {
        assert!(Adam::new(vec![w.clone()], bad).is_err());
    }
    let mut adam = Adam::new(vec![w.clone()], config())?;
    adam.backward_step(&w.sqr()?.sum_all()?)?;
    let moments = adam.state()?.remove(0).1;
    let other = Moments { first: Tensor::zeros(2, DType::F64, &Device::Cpu)?, ..moments.clone() };
    assert!(adam.load_state(vec![("variable 0".into(), other)]).is_err());
    assert!(adam.load_state(vec![("nobody".into(), moments)]).is_err());
    assert_eq!(adam.state()?.len(), 1);
    Ok(())
}

/// The fused step of the CPU, in single precision, against the plain one in double precision, for
/// each kind of parameter.
#[test]
fn fused_and_plain_steps_agree() -> Result<()> {
    let run = |dtype: DType| -> Result<Vec<Vec<f64>>> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = crate::layers::seeded(&vars, 4, dtype, &Device::Cpu);
        let unit = crate::layers::VmfConfig::default().affine();
        let layer = crate::layers::vmf_linear(5, 3, unit, &posterior, vb.pp("layer"))?;
        let mut adam = Adam::for_model(&vars, &posterior, config())?;
        let xs: Vec<f64> = (0..40).map(|i| (1.3 * f64::from(i)).sin()).collect();
        let xs = Tensor::from_vec(xs, (8, 5), &Device::Cpu)?.to_dtype(dtype)?;
        for step in 0..20 {
            let ys = crate::Forward::forward(&layer, &xs, &crate::Pass::train(1, step))?;
            adam.backward_step(&(ys - 0.3)?.sqr()?.mean_all()?)?;
        }
        let rows = layer.weight().sqr()?.sum(1)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        assert!(rows.iter().all(|length| (length - 1.0).abs() < 1e-5), "{rows:?}");
        let mut named: Vec<_> = lock(&vars).clone().into_iter().collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let mut tensors: Vec<Tensor> =
            named.iter().map(|(_, var)| var.as_detached_tensor()).collect();
        for (_, moments) in adam.state()? {
            tensors.extend([moments.first, moments.second]);
        }
        let values = |tensor: &Tensor| tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1();
        tensors.iter().map(values).collect()
    };
    let (fused, plain) = (run(DType::F32)?, run(DType::F64)?);
    assert_eq!(fused.len(), plain.len());
    for (fused, plain) in fused.iter().flatten().zip(plain.iter().flatten()) {
        assert!((fused - plain).abs() < 1e-3, "{fused} {plain}");
    }
    Ok(())
}
