//! The messages that a user gets for wrong arguments.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarMap;
use vmf_candle::prelude::*;

fn message(result: Result<Tensor>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_layer_names_itself_and_says_what_it_expects() -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
    let config = || VmfConfig::default().padding(1);
    let conv = vmf_conv2d(3, 8, 3, config(), &posterior, vb.pp("stem"))?;
    let linear = vmf_linear(5, 4, VmfConfig::default(), &posterior, vb.pp("neck"))?;
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu);

    let channels = message(conv.forward(&zeros(&[2, 1, 6, 7], DType::F32)?, &Pass::mean()));
    assert!(
        channels.contains("\"stem\"") && channels.contains("(N, 3, H, W), got [2, 1, 6, 7]"),
        "{channels}"
    );
    let single = message(conv.forward(&zeros(&[3, 6, 7], DType::F32)?, &Pass::mean()));
    assert!(single.contains("unsqueeze(0)"), "{single}");
    let matrix = message(conv.forward(&zeros(&[2, 3], DType::F32)?, &Pass::mean()));
    assert!(matrix.contains("(N, 3, H, W), got [2, 3]"), "{matrix}");
    for wide in [
        message(conv.forward(&zeros(&[2, 3, 6, 7], DType::F64)?, &Pass::mean())),
        message(linear.forward(&zeros(&[2, 5], DType::F64)?, &Pass::mean())),
    ] {
        assert!(wide.contains("weights are F32, its input is F64"), "{wide}");
    }
    Ok(())
}

#[test]
fn a_linear_layer_refuses_the_settings_of_a_convolution() -> Result<()> {
    let vars = VarMap::new();
    let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
    let refused = |config: VmfConfig| {
        let built = vmf_linear(8, 8, config, &Posterior::new(), vb.pp("layer"));
        built.unwrap_err().to_string()
    };
    let unit = VmfConfig::default;
    for (name, config) in [
        ("padding is 1", unit().relu().padding(1)),
        ("stride is 2", unit().stride(2).relu()),
        ("dilation is 2", unit().dilation(2)),
        ("groups is 4", unit().groups(4)),
    ] {
        let message = refused(config);
        assert!(message.contains(name) && message.contains("convolution"), "{message}");
    }
    assert!(refused(unit().groups(4)).contains("sigma_groups"));
    vmf_linear(8, 8, unit().sigma_groups(4), &Posterior::new(), vb.pp("layer"))?;
    Ok(())
}

/// A setting means the same wherever it stands in the chain, and both kinds of groups can be given.
#[test]
fn settings_come_in_any_order() -> Result<()> {
    let vars = VarMap::new();
    let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
    let build = |config: VmfConfig| vmf_conv2d(4, 8, 3, config, &Posterior::new(), vb.pp("layer"));
    let unit = VmfConfig::default;
    let first = build(unit().relu().padding(1).stride(2).groups(2).sigma_groups(4))?;
    let second = build(unit().sigma_groups(4).groups(2).stride(2).relu().padding(1))?;
    let xs = Tensor::ones((2, 4, 6, 6), DType::F32, &Device::Cpu)?;
    let run = |layer: &VmfConv2d| -> Result<Vec<f32>> {
        layer.forward(&xs, &Pass::sample(1, 2))?.flatten_all()?.to_vec1()
    };
    assert_eq!(run(&first)?, run(&second)?);
    assert_eq!(first.weight().dims(), [8, 2, 3, 3]);
    assert_eq!(first.sigma().values()?.len(), 4);
    for (config, expected) in [(unit().groups(3), "groups is 3"), (unit().stride(0), "stride is 0")]
    {
        let message = build(config).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    Ok(())
}

#[test]
fn a_label_that_is_no_class_is_named() -> Result<()> {
    let logits = Tensor::zeros((2, 5), DType::F32, &Device::Cpu)?;
    let labels = Tensor::new(&[0u32, 6], &Device::Cpu)?;
    let wrong = message(cross_entropy(&logits, &labels));
    assert!(wrong.contains("a label is 6") && wrong.contains("5 classes"), "{wrong}");
    Ok(())
}
