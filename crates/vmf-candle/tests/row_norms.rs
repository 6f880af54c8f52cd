//! Layer, RMS and group normalization, softmax, GELU, SiLU, rotary embedding and attention as
//! operations: values and gradients.

mod common;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use common::{largest_difference, numeric_gradient, values, wave, weighted_sum};
use vmf_candle::ops::{self, Rotary};

/// A function of some tensors.
type Function = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// Every operation with a name, the shapes of its arguments, and itself.
fn operations() -> Vec<(&'static str, Vec<Vec<usize>>, Function)> {
    let rotary = || Rotary::new(6, 4, 100.0, &Device::Cpu);
    let three = |shape: &[usize]| vec![shape.to_vec(); 3];
    vec![
        (
            "layer norm",
            vec![vec![2, 3, 7], vec![7], vec![7]],
            Box::new(|x| ops::layer_norm(&x[0], Some(&x[1]), Some(&x[2]), 1e-5)),
        ),
        (
            "layer norm alone",
            vec![vec![4, 7]],
            Box::new(|x| ops::layer_norm(&x[0], None, None, 1e-5)),
        ),
        (
            "layer norm with shift",
            vec![vec![4, 7], vec![7]],
            Box::new(|x| ops::layer_norm(&x[0], None, Some(&x[1]), 1e-5)),
        ),
        (
            "RMS norm",
            vec![vec![2, 3, 7], vec![7]],
            Box::new(|x| ops::rms_norm(&x[0], Some(&x[1]), 1e-5)),
        ),
        (
            "group norm",
            vec![vec![2, 6, 2, 3], vec![6], vec![6]],
            Box::new(|x| ops::group_norm(&x[0], 3, Some(&x[1]), Some(&x[2]), 1e-5)),
        ),
        ("softmax", vec![vec![2, 3, 5]], Box::new(|x| ops::softmax_last_dim(&x[0]))),
        ("gelu", vec![vec![4, 5]], Box::new(|x| ops::gelu(&(&x[0] * 3.0)?))),
        ("silu", vec![vec![4, 5]], Box::new(|x| ops::silu(&(&x[0] * 3.0)?))),
        ("rotary", vec![vec![2, 3, 5, 4]], Box::new(move |x| rotary()?.apply(&x[0]))),
        (
            "rotary of heads",
            vec![vec![2, 5, 12]],
            Box::new(|x| Rotary::new(6, 4, 100.0, &Device::Cpu)?.apply_to_heads(&x[0])),
        ),
        (
            "attention",
            three(&[2, 4, 6]),
            Box::new(|x| ops::attention([&x[0], &x[1], &x[2]], 2, false)),
        ),
        (
            "causal attention",
            three(&[2, 4, 6]),
            Box::new(|x| ops::attention([&x[0], &x[1], &x[2]], 3, true)),
        ),
        ("linear", vec![vec![2, 3, 5], vec![4, 5]], Box::new(|x| ops::linear(&x[0], &x[1]))),
    ]
}

/// Arguments of these shapes as variables.
fn arguments(shapes: &[Vec<usize>], dtype: DType) -> Result<Vec<Var>> {
    let argument = |(i, shape): (usize, &Vec<usize>)| {
        Var::from_tensor(&wave(shape, 1.3 + i as f64, 0.4)?.to_dtype(dtype)?)
    };
    shapes.iter().enumerate().map(argument).collect()
}

fn tensors(vars: &[Var]) -> Vec<Tensor> {
    vars.iter().map(|var| var.as_tensor().clone()).collect()
}

#[test]
fn gradients_are_those_of_central_differences_in_double_precision() -> Result<()> {
    for (name, shapes, f) in operations() {
        let vars = arguments(&shapes, DType::F64)?;
        let loss = || weighted_sum(&f(&tensors(&vars))?);
        let gradients = loss()?.backward()?;
        for (i, var) in vars.iter().enumerate() {
            let Some(found) = gradients.get(var) else { panic!("{name}: no gradient {i}") };
            let error = largest_difference(&values(found), &numeric_gradient(var, &loss)?);
            assert!(error < 2e-8, "{name}, argument {i}: {error:e}");
        }
    }
    Ok(())
}

/// In single precision other code runs, whose results must be those of double precision.
#[test]
fn single_precision_agrees_with_double() -> Result<()> {
    for (name, shapes, f) in operations() {
        let run = |dtype| -> Result<Vec<Vec<f64>>> {
            let vars = arguments(&shapes, dtype)?;
            let ys = f(&tensors(&vars))?;
            let gradients = vmf_candle::train::backward(&weighted_sum(&ys)?)?;
            let gradients = vars.iter().map(|var| values(gradients.get(var).expect("a gradient")));
            Ok(std::iter::once(values(&ys)).chain(gradients).collect())
        };
        for (single, double) in run(DType::F32)?.iter().zip(&run(DType::F64)?) {
            let error = largest_difference(single, double);
            assert!(error < 2e-5, "{name}: {error:e}");
        }
    }
    Ok(())
}

/// The same from Candle's own operations.
#[test]
fn values_are_those_of_candle() -> Result<()> {
    let xs = wave(&[3, 4, 6], 0.9, 0.1)?;
    let gain = wave(&[6], 0.5, 1.0)?;
    let centred = xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?;
    let root = (centred.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
    let expected = centred.broadcast_div(&root)?.broadcast_mul(&gain)?;
    let found = ops::layer_norm(&xs, Some(&gain), None, 1e-5)?;
    assert!(largest_difference(&values(&found), &values(&expected)) < 1e-12);
    let expected = candle_nn::ops::softmax(&xs, 2)?;
    assert!(largest_difference(&values(&ops::softmax_last_dim(&xs)?), &values(&expected)) < 1e-14);
    // A view that is not contiguous gives the same.
    let transposed = xs.transpose(0, 1)?;
    let found = ops::softmax_last_dim(&transposed)?.transpose(0, 1)?;
    assert!(largest_difference(&values(&found), &values(&expected)) < 1e-14);
    Ok(())
}

#[test]
fn mistakes_are_errors() -> Result<()> {
    let xs = wave(&[2, 6], 1.0, 0.0)?;
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    assert!(
        message(ops::layer_norm(&xs, Some(&wave(&[5], 1.0, 0.0)?), None, 1e-5))
            .contains("6 channels")
    );
    assert!(message(ops::layer_norm(&xs, None, None, 0.0)).contains("eps"));
    assert!(message(ops::group_norm(&xs, 4, None, None, 1e-5)).contains("divide"));
    assert!(message(ops::softmax_last_dim(&xs.to_dtype(DType::U32)?)).contains("U32"));
    assert!(Rotary::new(4, 3, 1e4, &Device::Cpu).unwrap_err().to_string().contains("even"));
    let long = wave(&[1, 5, 4], 1.0, 0.0)?;
    let rotary = Rotary::new(4, 4, 1e4, &Device::Cpu)?;
    assert!(message(rotary.apply(&long)).contains("at most 4 tokens"));
    assert!(message(ops::attention([&long; 3], 3, false)).contains("divide"));
    assert!(message(ops::linear(&xs, &wave(&[3, 5], 1.0, 0.0)?)).contains("5"));
    Ok(())
}
