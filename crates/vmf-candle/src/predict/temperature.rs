//! A temperature for the pass without noise, found without labels.

use super::samples::output;
use super::{Samples, predict_batch};
use crate::error::{Error, check_setting};
use crate::metrics::{Temperature, TemperatureFit};
use crate::pass::{Forward, Pass};
use candle_core::{DType, Device, Result, Tensor};

/// Fits the temperature T with which `softmax(logits / T)` of the pass without noise comes closest
/// to what `samples` predict, on inputs that need no labels:
///
/// ```text
/// minimize over T   - mean of sum_k q_k ln softmax(logits / T)_k,    q = the prediction of `samples`
/// ```
///
/// It is for networks that are given away without their noise, as plain networks of another
/// library: dividing their logits by T is all that is left to do. It repairs most of their
/// overconfidence, though less than [`Samples::expected`] does in this crate. A few thousand inputs
/// are enough; training inputs will do, because labels play no part.
///
/// ```
/// # use candle_core::{DType, Device, Result, Tensor};
/// # use candle_nn::VarMap;
/// use vmf_candle::predict::match_temperature;
/// use vmf_candle::prelude::*;
/// # let (vars, posterior) = (VarMap::new(), Posterior::new());
/// # let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
/// # let config = VmfConfig::default().relu().sigma(0.8);
/// # let model = Chain::new()
/// #     .add(vmf_linear(4, 16, config, &posterior, vb.pp("hidden"))?)
/// #     .add_plain(candle_nn::linear(16, 3, vb.pp("head"))?);
/// # let inputs = Tensor::arange(0f32, 256., &Device::Cpu)?.sin()?.reshape((64, 4))?;
/// reestimate(&model, &posterior, [Ok(inputs.clone())])?;
/// let fit = match_temperature(&model, [Ok(inputs)], Samples::expected(&posterior))?;
/// println!("divide the logits by {:.3}", fit.temperature.value());
/// # assert!(fit.temperature.value() > 1.0);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn match_temperature<M: Forward + ?Sized>(
    model: &M,
    batches: impl IntoIterator<Item = Result<Tensor>>,
    samples: Samples,
) -> Result<TemperatureFit> {
    let (mut logits, mut targets, mut classes) = (Vec::new(), Vec::new(), 0);
    for (number, xs) in batches.into_iter().enumerate() {
        let xs = xs?;
        let certain = output(model, &xs, &Pass::mean())?;
        classes = certain.dims2()?.1;
        logits.extend(values(&certain)?);
        targets.extend(values(&predict_batch(model, &xs, &samples, number as u32)?.probs)?);
    }
    let name = "the number of examples to fit a temperature to";
    check_setting(!logits.is_empty(), name, 0, "it must be at least 1")?;
    Ok(Temperature::fit_targets(&logits, &targets, classes).map_err(Error::from)?)
}

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
