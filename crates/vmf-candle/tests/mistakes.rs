//! What a user is told who gives a layer or a loss something it cannot use.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarMap;
use vmf_candle::{
    Forward, Pass, Posterior, VmfConfig, cross_entropy, seeded, vmf_conv2d, vmf_linear,
};

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
    for wide in [
        message(conv.forward(&zeros(&[2, 3, 6, 7], DType::F64)?, &Pass::mean())),
        message(linear.forward(&zeros(&[2, 5], DType::F64)?, &Pass::mean())),
    ] {
        assert!(wide.contains("weights are F32, its input is F64"), "{wide}");
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
