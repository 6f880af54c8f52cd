//! The expected pass in its `full` grade, and both grades against brute force: mean and variance
//! over 100,000 noisy passes.
//!
//! Behind the first noise elements are independent and Gaussian, so the moments of one unit, and of
//! the sums that a second unit makes of them, are exact. Further on both are approximations, and
//! the tests bound how far off they are.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarMap;
use common::network::{Network, Plan, check_gradients, copy};
use common::{images, largest_difference, named, values, wave, weighted_sum};
use vmf_candle::prelude::*;

const PASSES: u32 = 100_000;
/// Standard errors within which a comparison must lie: 7 in a million are outside by chance. The
/// tests that compare so make 2,000 comparisons, so one in 70 choices of the seeds would fail; the
/// seeds are fixed.
const LIMIT: f64 = 4.5;

/// Means and variances over noisy passes, with their standard errors.
struct BruteForce {
    mean: Vec<[f64; 2]>,
    variance: Vec<[f64; 2]>,
}

impl BruteForce {
    fn of(model: &impl Forward, xs: &Tensor) -> Result<Self> {
        // Around some value of the right size, so that powers of the differences stay small.
        let centre = values(&model.forward(xs, &Pass::sample(1, 0))?);
        let mut sums = vec![[0.0; 4]; centre.len()];
        let together = 1000;
        for first in (0..PASSES).step_by(together) {
            let pass = Pass::folded(9, first, together as u32);
            let samples = values(&model.forward(&pass.repeat(xs)?, &pass)?);
            for (i, value) in samples.into_iter().enumerate() {
                let i = i % centre.len();
                let mut power = 1.0;
                for sum in &mut sums[i] {
                    power *= value - centre[i];
                    *sum += power;
                }
            }
        }
        let n = f64::from(PASSES);
        let (mut mean, mut variance) = (Vec::new(), Vec::new());
        for (sums, centre) in sums.into_iter().zip(centre) {
            let [m, second, third, fourth] = sums.map(|sum| sum / n);
            let v = second - m * m;
            let fourth = fourth - 4.0 * m * third + 6.0 * m * m * second - 3.0 * m.powi(4);
            mean.push([centre + m, (v / n).sqrt()]);
            variance.push([v, ((fourth - v * v).max(0.0) / n).sqrt()]);
        }
        Ok(Self { mean, variance })
    }

    /// Both moments are these, within the limit.
    fn assert_exact(&self, mean: &Tensor, variance: &Tensor) {
        for (found, measured) in [(mean, &self.mean), (variance, &self.variance)] {
            for (found, [value, error]) in values(found).into_iter().zip(measured) {
                let tolerance = LIMIT * error + 1e-5;
                assert!((found - value).abs() < tolerance, "{found} {value} {error}");
            }
        }
    }

    /// How far off a mean is: the root mean square in standard deviations of the values.
    fn mean_off(&self, mean: &Tensor) -> f64 {
        let off = values(mean).into_iter().zip(&self.mean).map(|(found, [m, _])| found - m);
        let squares = off.zip(&self.variance).map(|(off, [v, _])| off * off / v.max(1e-6));
        (squares.sum::<f64>() / self.mean.len() as f64).sqrt()
    }

    /// How far off a deviation is: the mean, and the root mean square, of its relative error.
    fn deviation_off(&self, variance: &Tensor) -> [f64; 2] {
        let ratios = values(variance).into_iter().zip(&self.variance);
        let off: Vec<f64> = ratios.map(|(v, [w, _])| (v / w).sqrt() - 1.0).collect();
        let n = off.len() as f64;
        [off.iter().sum::<f64>() / n, (off.iter().map(|x| x * x).sum::<f64>() / n).sqrt()]
    }
}

struct Built {
    vars: VarMap,
    posterior: Posterior,
}

impl Built {
    fn new() -> Self {
        Self { vars: VarMap::new(), posterior: Posterior::new() }
    }

    fn linear(&self, name: &str, dims: [usize; 2], config: VmfConfig) -> Result<VmfLinear> {
        let vb = seeded(&self.vars, 0, DType::F32, &Device::Cpu);
        vmf_linear(dims[0], dims[1], config, &self.posterior, vb.pp(name))
    }

    fn conv(&self, name: &str, dims: [usize; 2], config: VmfConfig) -> Result<VmfConv2d> {
        let vb = seeded(&self.vars, 0, DType::F32, &Device::Cpu);
        vmf_conv2d(dims[0], dims[1], 3, config.padding(1), &self.posterior, vb.pp(name))
    }
}

fn inputs(dims: &[usize]) -> Result<Tensor> {
    wave(dims, 1.7, 0.3)?.to_dtype(DType::F32)
}

/// Leaves the statistics of noisy training passes.
fn train(model: &impl Forward, xs: &Tensor) -> Result<()> {
    (0..40).try_for_each(|step| model.forward(xs, &Pass::train(1, step)).map(|_| ()))
}

#[test]
fn one_unit_is_exact() -> Result<()> {
    let built = Built::new();
    let config = || VmfConfig::default().sigma(0.8);
    let rows = inputs(&[8, 5])?;
    let linear = built.linear("linear", [5, 8], config().relu())?;
    let linear_without = built.linear("identity", [5, 8], config().sigma_groups(2))?;
    for layer in [linear, linear_without] {
        train(&layer, &rows)?;
        let found = layer.propagate(&Moments::certain(&rows))?;
        let brute = BruteForce::of(&layer, &rows)?;
        brute.assert_exact(found.mean(), &found.variance()?);
        // In the first layer the fixed grade has the same mean.
        let fixed = layer.forward(&rows, &Pass::expected())?;
        assert!(largest_difference(&values(&fixed), &values(found.mean())) < 1e-6);
    }
    let pictures = inputs(&[2, 2, 4, 4])?;
    let conv = built.conv("conv", [2, 3], config().relu())?;
    let affine = built.conv("affine", [2, 3], config().relu().affine())?;
    let gains = named(&built.vars).into_iter().filter(|(name, _)| name.starts_with("affine.norm"));
    for (name, var) in gains {
        match name.rsplit('.').next() {
            Some("weight") => var.set(&Tensor::new(&[0.5f32, -1.5, 2.0], &Device::Cpu)?)?,
            Some("bias") => var.set(&Tensor::new(&[0.3f32, 0.0, -1.0], &Device::Cpu)?)?,
            _ => {}
        }
    }
    for layer in [conv, affine] {
        train(&layer, &pictures)?;
        let found = layer.propagate(&Moments::certain(&pictures))?;
        BruteForce::of(&layer, &pictures)?.assert_exact(found.mean(), &found.variance()?);
        let fixed = layer.forward(&pictures, &Pass::expected())?;
        assert!(largest_difference(&values(&fixed), &values(found.mean())) < 1e-5);
    }
    Ok(())
}

/// A second unit without activation, and a skip connection: sums of independent values.
#[test]
fn sums_behind_one_unit_are_exact() -> Result<()> {
    let built = Built::new();
    let config = || VmfConfig::default().sigma(0.8);
    let pictures = inputs(&[2, 2, 4, 4])?;
    let first = built.conv("first", [2, 6], config().relu())?;
    let second = built.conv("second", [6, 2], config())?;
    let block = Residual { first, second };
    train(&block, &pictures)?;
    let found = block.propagate(&Moments::certain(&pictures))?;
    let brute = BruteForce::of(&block, &pictures)?;
    brute.assert_exact(found.mean(), &found.variance()?);
    Ok(())
}

/// Two units with a skip connection around them, and an average over positions.
struct Residual {
    first: VmfConv2d,
    second: VmfConv2d,
}

impl Forward for Residual {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let ys = self.first.forward(xs, pass)?;
        self.second.forward_residual(&ys, &(xs * 0.5)?, pass)
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        let ys = self.first.propagate(xs)?;
        self.second.propagate_residual(&ys, &xs.affine(0.5, 0.0)?)
    }
}

/// The maximum of four Gaussians is one for Clark only. Its mean is off by at most 0.04 standard
/// deviations, where ReLU cuts all but the upper tail of it off, and by 0.01 on average; its
/// deviation is 2 to 4 % too small.
#[test]
fn pooling_is_off_by_what_clark_leaves_out() -> Result<()> {
    let built = Built::new();
    let pictures = inputs(&[2, 2, 4, 4])?;
    for (name, config) in [("relu", VmfConfig::default().relu()), ("id", VmfConfig::default())] {
        let conv = built.conv(name, [2, 6], config.sigma(0.8))?;
        let stack = ConvStack::new().unit(conv).max_pool(2);
        train(&stack, &pictures)?;
        let found = stack.propagate(&Moments::certain(&pictures))?;
        let brute = BruteForce::of(&stack, &pictures)?;
        for ((m, [mean, error]), [v, _]) in
            values(found.mean()).into_iter().zip(&brute.mean).zip(&brute.variance)
        {
            let tolerance = 0.04 * v.sqrt() + LIMIT * error + 1e-5;
            assert!((m - mean).abs() < tolerance, "{m} {mean} {error}");
        }
        let (mean, [bias, off]) =
            (brute.mean_off(found.mean()), brute.deviation_off(&found.variance()?));
        println!("{name}: mean off by {mean}, deviation by {bias}, {off}");
        assert!(mean < 0.015 && bias.abs() < 0.04 && off < 0.06, "{mean} {bias} {off}");
    }
    Ok(())
}

/// Behind three units means are off by a hundredth of a standard deviation in both grades (a third
/// of it is the error of brute force), where a pass without noise is off by 0.3 of one. The
/// propagated deviation is off by 1.5 %.
#[test]
fn three_units_are_off_by_what_independence_leaves_out() -> Result<()> {
    let built = Built::new();
    let unit = || VmfConfig::default().relu().sigma(0.8);
    let stack = ConvStack::new()
        .unit(built.conv("a", [2, 12], unit())?)
        .max_pool(2)
        .unit(built.conv("b", [12, 12], unit())?)
        .unit(built.conv("c", [12, 6], VmfConfig::default().sigma(0.8))?);
    let many = inputs(&[64, 2, 4, 4])?;
    train(&stack, &many)?;
    let head = |xs: &Tensor| xs.flatten_from(1);
    let flat = Chain::new().add(stack.clone()).add_plain(head);
    reestimate(&flat, &built.posterior, [Ok(many.clone())])?;
    let pictures = many.narrow(0, 0, 2)?;
    let brute = BruteForce::of(&stack, &pictures)?;
    let full = stack.propagate(&Moments::certain(&pictures))?;
    let fixed = stack.forward(&pictures, &Pass::expected())?;
    let noise_off = stack.forward(&pictures, &Pass::mean_as_trained())?;
    let off = [full.mean(), &fixed, &noise_off].map(|mean| brute.mean_off(mean));
    let deviation = brute.deviation_off(&full.variance()?);
    println!("means off by {off:?} standard deviations, deviations by {deviation:?}");
    assert!(off[0] < 0.01 && off[1] < 0.02 && off[2] > 0.2, "{off:?}");
    assert!(deviation[0].abs() < 0.01 && deviation[1] < 0.02, "{deviation:?}");
    Ok(())
}

const PLAN: Plan = Plan { channels: 8, poolings: 2, affine: true, sigma: 0.7 };

fn trained(dtype: DType) -> Result<(Network, VarMap, Posterior)> {
    Network::trained(PLAN, 40, dtype)
}

#[test]
fn a_model_of_ones_own_predicts_in_the_full_grade() -> Result<()> {
    let (network, _, posterior) = trained(DType::F32)?;
    let batches = (0..8).map(|batch| Ok(images(32, 32 * batch)?.0));
    reestimate(&network, &posterior, batches)?;
    let (xs, _) = images(16, 5000)?;
    let sampled = predict_values(&network, &xs, Samples::monte_carlo(2000, 4))?;
    let full = predict_values(&network, &xs, Samples::full(&posterior))?;
    let (mean, deviation) = (values(&sampled.mean), values(&sampled.deviation));
    let off = |found: &Tensor| {
        let z = values(found).into_iter().zip(&mean).zip(&deviation).map(|((f, m), s)| (f - m) / s);
        (z.map(|z| z * z).sum::<f64>() / mean.len() as f64).sqrt()
    };
    let noise_off = off(&network.forward(&xs, &Pass::mean_as_trained())?);
    assert!(off(&full.mean) < 0.35 && off(&full.mean) < 0.4 * noise_off, "{noise_off}");
    // The covariance of the outputs is the measured one.
    let fixed = predict_values(&network, &xs, Samples::expected(&posterior))?;
    assert_eq!(values(&full.deviation), values(&fixed.deviation));

    let one = predict(&network, &xs, Samples::full(&posterior))?;
    let many = predict(&network, &xs, Samples::monte_carlo(2000, 4))?;
    let probs = largest_difference(&values(&one.probs), &values(&many.probs));
    assert!(probs < 0.03, "{probs}");
    Ok(())
}

/// The kernel in f32 and Candle's operations in f64 compute the same.
#[test]
fn both_paths_agree() -> Result<()> {
    let (single, vars, _) = trained(DType::F32)?;
    let (double, copies, _) = trained(DType::F64)?;
    copy(&vars, &copies)?;
    let (xs, _) = images(4, 77)?;
    let a = single.propagate(&Moments::certain(&xs))?;
    let b = double.propagate(&Moments::certain(&xs.to_dtype(DType::F64)?))?;
    for (a, b) in [(a.mean(), b.mean()), (&a.variance()?, &b.variance()?)] {
        let (a, b) = (values(a), values(b));
        let size = b.iter().copied().map(f64::abs).fold(0.0, f64::max);
        assert!(largest_difference(&a, &b) < 2e-5 * size, "{a:?} {b:?}");
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_finite_differences() -> Result<()> {
    let (network, vars, _) = trained(DType::F64)?;
    check_gradients(PLAN, (&network, &vars), |network, xs| {
        let ys = network.propagate(&Moments::certain(xs))?;
        weighted_sum(ys.mean())? + (weighted_sum(&ys.variance()?)? * 3.0)?
    })
}

/// A model that says nothing of variances is refused by name, as is a plain closure in a chain.
#[test]
fn what_cannot_propagate_says_so() -> Result<()> {
    let built = Built::new();
    let xs = inputs(&[4, 5])?;
    let layer = built.linear("layer", [5, 3], VmfConfig::default().relu())?;
    let chain = Chain::new().add(layer.clone()).add_plain(|xs: &Tensor| xs.sqr());
    train(&chain, &xs)?;
    let error = chain.propagate(&Moments::certain(&xs)).unwrap_err().to_string();
    assert!(error.contains("add_map") && error.contains("closure"), "{error}");
    let closure = |xs: &Tensor, pass: &Pass| layer.forward(xs, pass);
    assert!(closure.propagate(&Moments::certain(&xs)).is_err());

    // With it, and with a linear layer, the chain propagates.
    let weight = Tensor::new(&[[1f32, -2.0, 0.5]], &Device::Cpu)?;
    let chain = Chain::new()
        .add(layer.clone())
        .add_map(|xs: &Tensor| xs * 2.0, |xs: &Moments| xs.affine(2.0, 0.0))
        .add_plain(candle_nn::Linear::new(weight, None));
    let (inner, outer) =
        (layer.propagate(&Moments::certain(&xs))?, chain.propagate(&Moments::certain(&xs))?);
    let (m, v) = (values(inner.mean()), values(&inner.variance()?));
    for (row, (mean, variance)) in
        values(outer.mean()).into_iter().zip(values(&outer.variance()?)).enumerate()
    {
        let (m, v) = (&m[3 * row..], &v[3 * row..]);
        assert!((mean - 2.0 * (m[0] - 2.0 * m[1] + 0.5 * m[2])).abs() < 1e-5);
        assert!((variance - 4.0 * (v[0] + 4.0 * v[1] + 0.25 * v[2])).abs() < 1e-5);
    }
    assert!(Moments::new(xs.clone(), xs.narrow(0, 0, 1)?).is_err());
    Ok(())
}

/// The methods of moments against their definitions.
#[test]
fn moments_of_plain_operations() -> Result<()> {
    let (m, v) = (wave(&[2, 3, 4, 4], 0.9, 0.1)?, wave(&[2, 3, 4, 4], 0.4, 0.3)?.sqr()?);
    let xs = Moments::new(m.clone(), v.clone())?;
    let close = |a: &Tensor, b: &Tensor| largest_difference(&values(a), &values(b)) < 1e-12;
    let pooled = xs.avg_pool(2)?;
    let by_hand = vmf_candle::ops::avg_pool2d(&v, 2, 2, 0)?;
    assert!(close(&pooled.variance()?, &(by_hand / 4.0)?));
    let over = xs.mean_over((2, 3))?;
    assert!(close(over.mean(), &m.mean((2, 3))?));
    assert!(close(&over.variance()?, &(v.mean((2, 3))? / 16.0)?));
    // A quadratic function has moments in closed form: those of x^2.
    let square = xs.activation(5, |x| x.sqr())?;
    assert!(close(square.mean(), &(m.sqr()? + &v)?));
    let exact = ((v.sqr()? * 2.0)? + ((m.sqr()? * &v)? * 4.0)?)?;
    assert!(close(&square.variance()?, &exact));
    // ReLU and the maximum of a window, element by element.
    use vmf_core::expected::{Gaussian, maximum_of_window, relu};
    let gaussians: Vec<Gaussian> = values(&m)
        .into_iter()
        .zip(values(&v))
        .map(|(mean, variance)| Gaussian { mean, variance })
        .collect();
    let activated = xs.relu()?;
    let moments = values(activated.mean()).into_iter().zip(values(&activated.variance()?));
    for (x, (mean, variance)) in gaussians.iter().zip(moments) {
        let y = relu(*x);
        assert!((y.mean - mean).abs() < 1e-12 && (y.variance - variance).abs() < 1e-12, "{x:?}");
    }
    let largest = xs.max_pool(2)?;
    let moments = values(largest.mean()).into_iter().zip(values(&largest.variance()?));
    for (i, (mean, variance)) in moments.enumerate() {
        let corner = i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2;
        let y = maximum_of_window([0, 1, 4, 5].map(|offset| gaussians[corner + offset]));
        assert!((y.mean - mean).abs() < 1e-12 && (y.variance - variance).abs() < 1e-12);
    }
    // Certain values stay certain, and the noise layer adds its own variance.
    let certain = Moments::certain(&m);
    assert!(values(&certain.relu()?.max_pool(2)?.variance()?).iter().all(|v| *v == 0.0));
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 0, DType::F64, &Device::Cpu);
    let noise = vmf_candle::noise_layer(NoiseLayerConfig::new(9, 3), &posterior, vb.pp("noise"))?;
    let sigma = noise.sigma().values()?[0];
    let noisy = noise.propagate(&xs)?;
    assert!(close(&noisy.variance()?, &(v + sigma * sigma)?));
    Ok(())
}
