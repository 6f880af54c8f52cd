//! Which values are numbers.
//!
//! Activations do not tell: ReLU turns NaN into 0. So values are looked at where they come from, in
//! inputs, statistics, variables and gradients.

use crate::error::{Error, Result};
use candle_core::{CpuStorage, DType, Storage, Tensor};
use std::cmp::Ordering;

/// The sum of squares of all elements, or nothing if one of them is not finite.
pub(crate) fn sum_of_squares(tensor: &Tensor) -> candle_core::Result<Option<f64>> {
    let tensor = tensor.detach().contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let range = layout.contiguous_offsets();
    let sum = match (&*storage, range) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) => {
            vmf_kernels::adam::sum_of_squares(&values[start..end])
        }
        (Storage::Cpu(CpuStorage::F64(values)), Some((start, end))) => {
            if values[start..end].iter().any(|value| !value.is_finite()) {
                return Ok(None);
            }
            // A sum of finite squares may overflow, which is no reason to stop.
            let sum: f64 = values[start..end].iter().map(|value| value * value).sum();
            sum.min(f64::MAX)
        }
        _ => {
            drop(storage);
            let wide = match tensor.device().is_metal() {
                true => DType::F32,
                false => DType::F64,
            };
            let sum = tensor.to_dtype(wide)?.sqr()?.sum_all()?;
            sum.to_dtype(DType::F64)?.to_scalar::<f64>()?
        }
    };
    Ok(sum.is_finite().then_some(sum))
}

/// Whether all values of a tensor are finite.
pub(crate) fn is_finite(tensor: &Tensor) -> candle_core::Result<bool> {
    Ok(!tensor.dtype().is_float() || sum_of_squares(tensor)?.is_some())
}

/// Refuses inputs that are not finite, and says which example it is.
pub(crate) fn check_inputs(xs: &Tensor) -> Result<()> {
    match first_bad_example(xs)? {
        None => Ok(()),
        Some(example) => Err(Error::NonFiniteInput { example }),
    }
}

/// The first example along the first dimension that holds NaN or infinity.
pub(crate) fn first_bad_example(xs: &Tensor) -> candle_core::Result<Option<usize>> {
    if is_finite(xs)? {
        return Ok(None);
    }
    for example in 0..xs.dim(0)? {
        if !is_finite(&xs.get(example)?)? {
            return Ok(Some(example));
        }
    }
    Ok(None)
}

/// Whether a variable that is named as a variance holds a negative one.
pub(crate) fn has_negative_variance(name: &str, tensor: &Tensor) -> candle_core::Result<bool> {
    if !name.ends_with("_var") || !tensor.dtype().is_float() || tensor.elem_count() == 0 {
        return Ok(false);
    }
    Ok(tensor.flatten_all()?.to_dtype(DType::F64)?.min(0)?.to_scalar::<f64>()? < 0.0)
}

/// The names of variables in the order of the layers they belong to, as far as names show it:
/// first those whose path begins as that of a layer does, in the order of the layers, and among
/// these `features.2` before `features.10`.
pub(crate) fn in_layer_order<'a>(
    names: impl Iterator<Item = &'a String>,
    layers: &[String],
) -> Vec<&'a String> {
    let top = |name: &'_ str| name.split('.').next().unwrap_or_default().to_owned();
    let tops: Vec<String> = layers.iter().map(|layer| top(layer)).collect();
    let place = |name: &str| tops.iter().position(|layer| *layer == top(name));
    let place = |name: &str| place(name).unwrap_or(usize::MAX);
    let mut names: Vec<&String> = names.collect();
    names.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| natural(a, b)));
    names
}

/// Compares paths component by component, numbers by their values.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.split('.'), b.split('.'));
    let components = |(a, b): (&str, &str)| match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        _ => a.cmp(b),
    };
    let lengths = a.clone().count().cmp(&b.clone().count());
    a.zip(b).map(components).find(|order| order.is_ne()).unwrap_or(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn names_are_in_the_order_of_layers() {
        let names = ["classifier.bias", "features.10.weight", "features.2.rho", "stem.weight"]
            .map(String::from);
        let layers = ["stem", "features.2", "features.10"].map(String::from);
        let sorted = in_layer_order(names.iter(), &layers);
        assert_eq!(sorted, [&names[3], &names[2], &names[1], &names[0]]);
    }

    #[test]
    fn every_float_that_is_no_number_is_found() -> candle_core::Result<()> {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut values = vec![1.0; 300];
                let tensor = |values: &[f64]| {
                    Tensor::new(values, &Device::Cpu)?.reshape((100, 3))?.to_dtype(dtype)
                };
                assert!(is_finite(&tensor(&values)?)?);
                values[200] = bad;
                assert!(!is_finite(&tensor(&values)?)?, "{dtype:?} {bad}");
                assert_eq!(first_bad_example(&tensor(&values)?)?, Some(66));
            }
        }
        // The squares overflow, the values do not.
        assert!(is_finite(&Tensor::new(&[3e38f32, -3e38], &Device::Cpu)?)?);
        assert!(is_finite(&Tensor::new(&[1e300f64, 1e300], &Device::Cpu)?)?);
        assert!(is_finite(&Tensor::new(&[u32::MAX], &Device::Cpu)?)?);
        Ok(())
    }
}
