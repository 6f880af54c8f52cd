//! Training on propagated moments, with the statistics of the batch and without noise.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarMap;
use common::{largest_difference, named, numeric_gradient, values, wave};
use vmf_candle::prelude::*;

const ROWS: usize = 64;

/// Two units, the second behind the noise of the first.
struct Network {
    vars: VarMap,
    first: VmfLinear,
    second: VmfLinear,
}

impl Network {
    fn new() -> Result<Self> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, 3, DType::F64, &Device::Cpu);
        let config = || VmfConfig::default().sigma(0.7);
        let first = vmf_linear(5, 6, config().relu(), &posterior, vb.pp("first"))?;
        let second = vmf_linear(6, 3, config().affine(), &posterior, vb.pp("second"))?;
        Ok(Self { vars, first, second })
    }
}

impl Forward for Network {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.second.forward(&self.first.forward(xs, pass)?, pass)
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        self.second.propagate(&self.first.propagate(xs)?)
    }
}

fn inputs() -> Result<Tensor> {
    wave(&[ROWS, 5], 1.7, 0.3)
}

/// Noise is independent from row to row, so the unbiased variance of a noisy batch is on average
/// that of the means plus the mean of the variances. The propagated one takes the biased sum for
/// the same count, which is larger by the mean of the variances over `ROWS - 1`.
#[test]
fn statistics_are_those_of_noisy_batches() -> Result<()> {
    const PASSES: u32 = 5_000;
    /// Running statistics move by this part, from mean 0 and variance 1.
    const MOMENTUM: f64 = 0.1;
    let (propagated, noisy) = (Network::new()?, Network::new()?);
    let xs = inputs()?;
    propagated.propagate(&Moments::training(&xs))?;
    let (mut squares, mut last) = (vec![0.0; 3], [vec![0.0; 3], vec![0.0; 3]]);
    for batch in 0..PASSES {
        noisy.forward(&xs, &Pass::estimate_noisy(5, batch))?;
        // The statistics of this batch alone, from the cumulative average, for their spread.
        let running = noisy.second.norm().running();
        let [mean, var] = [values(&running.mean), values(&running.var)];
        let n = f64::from(batch);
        for channel in 0..3 {
            let alone = (n + 1.0) * var[channel] - n * last[1][channel];
            squares[channel] += alone * alone;
        }
        last = [mean, var];
    }
    let running = propagated.second.norm().running();
    for channel in 0..3 {
        let mean = values(&running.mean)[channel] / MOMENTUM;
        let var = (values(&running.var)[channel] - (1.0 - MOMENTUM)) / MOMENTUM;
        let [noisy_mean, noisy_var] = last.each_ref().map(|statistics| statistics[channel]);
        let spread = squares[channel] / f64::from(PASSES) - noisy_var * noisy_var;
        let error = (spread / f64::from(PASSES)).sqrt();
        // The mean of a batch spreads less than its values do.
        let mean_error = (noisy_var / f64::from(PASSES)).sqrt();
        assert!((mean - noisy_mean).abs() < 4.5 * mean_error, "{mean} {noisy_mean} {mean_error}");
        let bias = noisy_var / (ROWS - 1) as f64;
        assert!(var > noisy_var - 4.5 * error, "{var} {noisy_var} {error}");
        assert!(var < noisy_var + bias + 4.5 * error, "{var} {noisy_var} {error}");
        // It would be far off without the variances of the first unit.
        assert!(12.0 * error + bias < 0.1 * noisy_var, "{error} {noisy_var}");
    }
    Ok(())
}

#[test]
fn gradients_of_the_expected_loss_are_those_of_finite_differences() -> Result<()> {
    let network = Network::new()?;
    let labels: Vec<u32> = (0..ROWS as u32).map(|row| row % 3).collect();
    let (xs, labels) = (inputs()?, Tensor::new(labels, &Device::Cpu)?);
    let loss = || network.propagate(&Moments::training(&xs))?.cross_entropy(&labels);
    let gradients = loss()?.backward()?;
    for (name, var) in named(&network.vars) {
        let Some(gradient) = gradients.get(&var) else {
            assert!(
                name.contains("running") || name.contains("noise_free") || name.contains("var")
            );
            continue;
        };
        let numeric = numeric_gradient(&var, &loss)?;
        assert!(largest_difference(&values(gradient), &numeric) < 1e-7, "{name}: {numeric:?}");
    }
    Ok(())
}

/// Without variances the bound is the cross-entropy; with them it lies above the expected
/// cross-entropy, here by 10^5 draws.
#[test]
fn the_loss_bounds_the_expected_cross_entropy() -> Result<()> {
    let (mean, labels) = (wave(&[4, 3], 2.0, 0.1)?, Tensor::new(&[0u32, 1, 2, 0], &Device::Cpu)?);
    let certain = Moments::certain(&mean).cross_entropy(&labels)?.to_scalar::<f64>()?;
    let plain = cross_entropy(&mean, &labels)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    assert!((certain - plain).abs() < 1e-12);

    let variance = (wave(&[4, 3], 1.3, 0.4)?.abs()? * 0.5)?;
    let bound = Moments::new(mean.clone(), variance.clone())?.cross_entropy(&labels)?;
    let (draws, copies) = (100_000, labels.repeat(100_000)?);
    let z = Tensor::randn(0.0, 1.0, (draws, 4, 3), &Device::Cpu)?;
    let logits = z.broadcast_mul(&variance.sqrt()?)?.broadcast_add(&mean)?;
    let expected = cross_entropy(&logits.reshape((draws * 4, 3))?, &copies)?;
    let (bound, expected) = (bound.to_scalar::<f64>()?, values(&expected)[0]);
    assert!(bound > expected && bound < expected + 0.1, "{bound} {expected}");
    Ok(())
}
