//! The convolution against one written out as loops in f64, and against Candle's own, over random
//! shapes.

mod common;

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::{Conv2dConfig, VarMap};
use common::{largest_difference, values};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use vmf_candle::ops::{FusedConv2d, conv2d};
use vmf_candle::prelude::*;

/// A convolution: the shapes of its arguments and how it moves.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    channels: [usize; 2],
    input: [usize; 2],
    kernel: [usize; 2],
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

impl Case {
    fn random(rng: &mut StdRng) -> Self {
        loop {
            let groups = *[1, 1, 1, 2, 3].get(rng.random_range(0..5)).unwrap();
            let mut channels = || groups * rng.random_range(1..=5);
            let channels = [channels(), channels()];
            let mut sizes = |range: std::ops::RangeInclusive<usize>| {
                [rng.random_range(range.clone()), rng.random_range(range)]
            };
            let case = Self {
                channels,
                input: sizes(1..=9),
                kernel: sizes(1..=4),
                batch: rng.random_range(1..=3),
                padding: rng.random_range(0..=2),
                stride: rng.random_range(1..=3),
                dilation: rng.random_range(1..=2),
                groups,
            };
            if (0..2).all(|axis| case.reach(axis) <= case.input[axis] + 2 * case.padding) {
                return case;
            }
        }
    }

    fn reach(&self, axis: usize) -> usize {
        self.dilation * (self.kernel[axis] - 1) + 1
    }

    fn output(&self) -> [usize; 2] {
        [0, 1]
            .map(|axis| (self.input[axis] + 2 * self.padding - self.reach(axis)) / self.stride + 1)
    }

    fn input_shape(&self) -> [usize; 4] {
        [self.batch, self.channels[0], self.input[0], self.input[1]]
    }

    fn weight_shape(&self) -> [usize; 4] {
        let inputs = self.channels[0] / self.groups;
        [self.channels[1], inputs, self.kernel[0], self.kernel[1]]
    }

    fn output_shape(&self) -> [usize; 4] {
        let [height, width] = self.output();
        [self.batch, self.channels[1], height, width]
    }

    /// Calls `term` with the places in input, weight and output of every product that is summed.
    fn each_product(&self, mut term: impl FnMut(usize, usize, usize)) {
        let flat =
            |[_, b, c, d]: [usize; 4], [i, j, k, l]: [usize; 4]| ((i * b + j) * c + k) * d + l;
        let [outputs, inputs, kernel_height, kernel_width] = self.weight_shape();
        let [height, width] = self.output();
        let source = |out: usize, tap: usize, axis: usize| {
            (out * self.stride + tap * self.dilation)
                .checked_sub(self.padding)
                .filter(|at| *at < self.input[axis])
        };
        for n in 0..self.batch {
            for m in 0..outputs {
                let group = m / (outputs / self.groups);
                for (c, ky, kx) in product(inputs, kernel_height, kernel_width) {
                    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                        if let (Some(sy), Some(sx)) = (source(y, ky, 0), source(x, kx, 1)) {
                            term(
                                flat(self.input_shape(), [n, group * inputs + c, sy, sx]),
                                flat(self.weight_shape(), [m, c, ky, kx]),
                                flat(self.output_shape(), [n, m, y, x]),
                            );
                        }
                    }
                }
            }
        }
    }

    fn apply(&self, xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
        conv2d(xs, weight, self.padding, self.stride, self.dilation, self.groups)
    }
}

fn product(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

fn normal(shape: [usize; 4], rng: &mut StdRng) -> Result<Tensor> {
    let count = shape.iter().product();
    let numbers: Vec<f64> = StandardNormal.sample_iter(rng).take(count).collect();
    Tensor::from_vec(numbers, &shape, &Device::Cpu)
}

#[test]
fn values_and_gradients_are_those_of_the_loops_and_of_candle() -> Result<()> {
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..120 {
        let case = Case::random(&mut rng);
        let xs = normal(case.input_shape(), &mut rng)?;
        let weight = normal(case.weight_shape(), &mut rng)?;
        // The loss is a sum with random weights, which are then the gradient of the output.
        let dy = normal(case.output_shape(), &mut rng)?;
        let (x, w, g) = (values(&xs), values(&weight), values(&dy));
        let mut y = vec![0.0; g.len()];
        let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
        case.each_product(|i, j, k| {
            y[k] += x[i] * w[j];
            dx[i] += g[k] * w[j];
            dw[j] += g[k] * x[i];
        });
        // Our kernels compute in f32, Candle's in f64. The tolerances are those of the dtypes.
        for (dtype, tolerance) in [(DType::F32, 3e-5), (DType::F64, 1e-12)] {
            let xs = Var::from_tensor(&xs.to_dtype(dtype)?)?;
            let weight = Var::from_tensor(&weight.to_dtype(dtype)?)?;
            let ys = case.apply(&xs, &weight)?;
            assert_eq!(ys.dims(), case.output_shape(), "{case:?}");
            let grads = (&ys * dy.to_dtype(dtype)?)?.sum_all()?.backward()?;
            for (what, found, expected) in [
                ("values", &ys, &y),
                ("input gradient", grads.get(&xs).unwrap(), &dx),
                ("weight gradient", grads.get(&weight).unwrap(), &dw),
            ] {
                let scale = expected.iter().fold(1.0, |max: f64, v| max.max(v.abs()));
                let worst = largest_difference(&values(found), expected) / scale;
                assert!(worst < tolerance, "{case:?} in {dtype:?}: {what} differ by {worst}");
            }
            let stock =
                xs.conv2d(&weight, case.padding, case.stride, case.dilation, case.groups)?;
            let worst = largest_difference(&values(&ys), &values(&stock));
            assert!(worst < 100.0 * tolerance, "{case:?} in {dtype:?}: {worst} from Candle's");
        }
    }
    Ok(())
}

#[test]
fn a_wide_3x3_convolution_agrees_with_candle() -> Result<()> {
    // Wide enough for Winograd's algorithm, whose rounding differs.
    let mut rng = StdRng::seed_from_u64(8);
    let single = |tensor: Tensor| tensor.to_dtype(DType::F32);
    let xs = Var::from_tensor(&single(normal([4, 64, 16, 16], &mut rng)?)?)?;
    let weight = Var::from_tensor(&single(normal([64, 64, 3, 3], &mut rng)?)?)?;
    let dy = single(normal([4, 64, 16, 16], &mut rng)?)?;
    let gradients = |ys: &Tensor| -> Result<[Vec<f64>; 3]> {
        let grads = (ys * &dy)?.sum_all()?.backward()?;
        Ok([ys, grads.get(&xs).unwrap(), grads.get(&weight).unwrap()].map(values))
    };
    let ours = gradients(&conv2d(&xs, &weight, 1, 1, 1, 1)?)?;
    let stock = gradients(&xs.conv2d(&weight, 1, 1, 1, 1)?)?;
    for (ours, stock) in ours.iter().zip(&stock) {
        let scale = stock.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
        assert!(largest_difference(ours, stock) / scale < 1e-5);
    }
    Ok(())
}

#[test]
fn a_frozen_weight_or_input_gets_no_gradient_and_its_partner_does() -> Result<()> {
    let mut rng = StdRng::seed_from_u64(9);
    let mut single = |shape| normal(shape, &mut rng)?.to_dtype(DType::F32);
    let (xs, weight) = (single([2, 3, 5, 5])?, single([4, 3, 3, 3])?);
    let var = Var::from_tensor(&weight)?;
    let grads = conv2d(&xs, &var, 0, 1, 1, 1)?.sum_all()?.backward()?;
    assert!(grads.get(&var).is_some() && grads.get(&xs).is_none());
    let var = Var::from_tensor(&xs)?;
    let grads = conv2d(&var, &weight, 0, 1, 1, 1)?.sum_all()?.backward()?;
    assert!(grads.get(&var).is_some() && grads.get(&weight).is_none());
    // Behind another operation the input is not a leaf, but must carry the gradient on.
    let grads = conv2d(&(var.as_tensor() * 2.0)?, &weight, 0, 1, 1, 1)?.sum_all()?.backward()?;
    assert!(grads.get(&var).is_some());
    Ok(())
}

#[test]
fn a_layer_of_candle_nn_computes_the_same_with_our_kernels() -> Result<()> {
    let vars = VarMap::new();
    let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
    let config = Conv2dConfig { padding: 1, stride: 2, groups: 2, ..Default::default() };
    let layer = candle_nn::conv2d(4, 6, 3, config, vb)?;
    let xs = normal([2, 4, 7, 6], &mut StdRng::seed_from_u64(2))?.to_dtype(DType::F32)?;
    let stock = values(&layer.forward(&xs)?);
    let fused = values(&FusedConv2d::from(layer).forward(&xs)?);
    assert!(largest_difference(&fused, &stock) < 1e-5);
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_refused_in_words() -> Result<()> {
    let tensor = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    let xs = tensor(&[1, 4, 3, 3])?;
    let error = |weight: &[usize], stride: usize, groups: usize| {
        conv2d(&xs, &tensor(weight)?, 0, stride, 1, groups)
            .map(|_| String::new())
            .or_else(|error| Ok::<_, candle_core::Error>(error.to_string()))
    };
    assert!(error(&[2, 3, 1, 1], 1, 1)?.contains("images of 4 channels do not fit"));
    assert!(error(&[2, 4, 4, 4], 1, 1)?.contains("no larger than the padded input"));
    assert!(error(&[2, 4, 1, 1], 0, 1)?.contains("stride"));
    assert!(error(&[3, 2, 1, 1], 1, 2)?.contains("groups"));
    assert!(error(&[2, 4, 1], 1, 1)?.contains("rank"));
    Ok(())
}
