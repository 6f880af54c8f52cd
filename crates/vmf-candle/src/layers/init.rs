//! Seeded initialisation.
//!
//! Candle draws initial weights from a thread's generator, which cannot be seeded on the CPU. Here
//! a variable's initial value is a function of the seed and the variable's name. It does not depend
//! on the order in which layers are built, on the device or on the number of threads. candle-nn's
//! own layers get their variables from the same `VarBuilder`, and so are seeded too.

use crate::error::check_shape;
use crate::pass::INITIALISATION;
use crate::posterior::stream_of;
use crate::vars::lock;
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::init::NormalOrUniform;
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use vmf_kernels::noise::{self, NoiseKey};

/// A `VarBuilder` that keeps its variables in `vars` and draws their initial values from `seed`.
///
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::VarMap;
/// let (a, b) = (VarMap::new(), VarMap::new());
/// for vars in [&a, &b] {
///     let vb = vmf_candle::layers::seeded(vars, 42, DType::F32, &Device::Cpu);
///     candle_nn::linear(3, 2, vb.pp("head"))?;
/// }
/// let weight = |vars: &VarMap| vars.data().lock().unwrap()["head.weight"].to_vec2::<f32>();
/// assert_eq!(weight(&a)?, weight(&b)?);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn seeded(vars: &VarMap, seed: u64, dtype: DType, device: &Device) -> VarBuilder<'static> {
    let backend = Seeded { vars: vars.clone(), seed };
    VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
}

struct Seeded {
    vars: VarMap,
    seed: u64,
}

impl SimpleBackend for Seeded {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut vars = lock(&self.vars);
        if let Some(var) = vars.get(name) {
            check_shape(var.shape() == &s, name, || {
                format!("the shape {s:?} was asked for, but the variable has {:?}", var.shape())
            })?;
            return Ok(var.as_tensor().clone());
        }
        let values = draw(h, &s, self.seed, name);
        let value = Tensor::from_vec(values, s, &Device::Cpu)?.to_dtype(dtype)?.to_device(dev)?;
        let var = Var::from_tensor(&value)?;
        let tensor = var.as_tensor().clone();
        vars.insert(name.to_string(), var);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        match lock(&self.vars).get(name) {
            Some(var) => var.to_dtype(dtype)?.to_device(dev),
            None => candle_core::bail!("there is no variable named {name:?}"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        lock(&self.vars).contains_key(name)
    }
}

/// The initial values of the variable `name`.
fn draw(init: Init, shape: &Shape, seed: u64, name: &str) -> Vec<f64> {
    let key = NoiseKey { seed, stream: stream_of(name), step: 0, sample: INITIALISATION };
    let elements = 0..shape.elem_count() as u64;
    let normals = |mean: f64, deviation: f64| {
        elements.clone().map(|element| mean + deviation * noise::normal(key, element)).collect()
    };
    let uniforms = |low: f64, high: f64| {
        elements.clone().map(|element| low + (high - low) * uniform(key, element)).collect()
    };
    match init {
        Init::Const(value) => vec![value; shape.elem_count()],
        Init::Randn { mean, stdev } => normals(mean, stdev),
        Init::Uniform { lo, up } => uniforms(lo, up),
        Init::Kaiming { dist, fan, non_linearity } => {
            let deviation = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => normals(0.0, deviation),
                NormalOrUniform::Uniform => {
                    let bound = 3f64.sqrt() * deviation;
                    uniforms(-bound, bound)
                }
            }
        }
    }
}

/// One uniform number in (0, 1), from the same counter as the normal of that element.
fn uniform(key: NoiseKey, element: u64) -> f64 {
    let counter = [(element / 4) as u32, key.stream, key.step, key.sample];
    let words = noise::philox4x32_10(counter, [key.seed as u32, (key.seed >> 32) as u32]);
    (f64::from(words[(element % 4) as usize]) + 0.5) * 2f64.powi(-32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn follows_the_hint_and_not_the_order() -> Result<()> {
        let device = Device::Cpu;
        let build = |names: &[&str]| -> Result<HashMap<String, Vec<f64>>> {
            let vars = VarMap::new();
            let vb = seeded(&vars, 3, DType::F64, &device);
            for name in names {
                let hint = Init::Randn { mean: 1.0, stdev: 2.0 };
                vb.get_with_hints(20_000, name, hint)?;
            }
            let vars = lock(&vars);
            vars.iter().map(|(name, var)| Ok((name.clone(), var.to_vec1()?))).collect()
        };
        let forward = build(&["a", "b"])?;
        assert_eq!(forward, build(&["b", "a"])?);
        assert_ne!(forward["a"], forward["b"]);

        let values = &forward["a"];
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        // Five standard errors of the mean and of the variance of 20,000 draws from N(1, 4).
        assert!((mean - 1.0).abs() < 5.0 * 2.0 / count.sqrt(), "mean {mean}");
        assert!((variance - 4.0).abs() < 5.0 * 4.0 * (2.0 / count).sqrt(), "variance {variance}");
        Ok(())
    }

    #[test]
    fn uniform_hint_fills_its_range() -> Result<()> {
        let vars = VarMap::new();
        let vb = seeded(&vars, 3, DType::F64, &Device::Cpu);
        let hint = Init::Uniform { lo: -2.0, up: 3.0 };
        let values = vb.get_with_hints(20_000, "u", hint)?.to_vec1::<f64>()?;
        let (low, high) =
            values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        assert!(low > -2.0 && low < -1.99 && high < 3.0 && high > 2.99);
        Ok(())
    }
}
