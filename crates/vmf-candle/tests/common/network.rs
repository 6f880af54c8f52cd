//! A small network with everything that the expected pass meets.

use super::{images, named};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarMap;
use vmf_candle::layers::ReluLayer;
use vmf_candle::prelude::*;

/// Two units with pooling behind them, a residual block, a sum of the model's own and a linear head.
pub struct Network {
    features: ConvStack,
    pub block: VmfConv2d,
    relu: ReluLayer,
    head: candle_nn::Linear,
}

/// How a network is made.
#[derive(Clone, Copy)]
pub struct Plan {
    pub channels: usize,
    pub poolings: usize,
    /// Whether the residual block has gain and shift.
    pub affine: bool,
    pub sigma: f64,
}

impl Network {
    pub fn new(plan: Plan, dtype: DType) -> Result<(Self, VarMap, Posterior)> {
        let Plan { channels, poolings, affine, sigma } = plan;
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, 3, dtype, &Device::Cpu);
        let unit = || VmfConfig::default().relu().padding(1).sigma(sigma);
        let features = ConvStack::new()
            .unit(vmf_conv2d(3, channels, 3, unit(), &posterior, vb.pp("a"))?)
            .unit(vmf_conv2d(channels, channels, 3, unit(), &posterior, vb.pp("b"))?);
        let features = (0..poolings).fold(features, |features, _| features.max_pool(2));
        let block = if affine { unit().affine() } else { unit() };
        let block = vmf_conv2d(channels, channels, 3, block, &posterior, vb.pp("c"))?;
        let relu = relu_layer(channels, vb.pp("relu"))?;
        let head = candle_nn::linear(channels, 10, vb.pp("head"))?;
        Ok((Self { features, block, relu, head }, vars, posterior))
    }

    /// A network with the running statistics that training would leave.
    pub fn trained(plan: Plan, steps: usize, dtype: DType) -> Result<(Self, VarMap, Posterior)> {
        let (network, vars, posterior) = Self::new(plan, dtype)?;
        for step in 0..steps {
            let xs = images(32, 32 * step)?.0.to_dtype(dtype)?;
            network.forward(&xs, &Pass::train(1, step as u32))?;
        }
        Ok((network, vars, posterior))
    }
}

impl Forward for Network {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let xs = self.features.forward(xs, pass)?;
        let ys = self.block.forward_residual(&xs, &xs, pass)?;
        // A sum that only the model's own code knows of.
        let ys = self.relu.forward(&(ys - (xs * 0.5)?)?, pass)?;
        self.head.forward(&ys.mean((2, 3))?)
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        let xs = self.features.propagate(xs)?;
        let ys = self.block.propagate_residual(&xs, &xs)?;
        let ys = self.relu.propagate(&ys.add(&xs.affine(-0.5, 0.0)?)?)?;
        ys.mean_over((2, 3))?.linear(&self.head)
    }
}

/// Copies variables to a network in another dtype.
pub fn copy(from: &VarMap, to: &VarMap) -> Result<()> {
    for ((name, from), (other, to)) in named(from).into_iter().zip(named(to)) {
        assert_eq!(name, other);
        to.set(&from.to_dtype(to.dtype())?)?;
    }
    Ok(())
}

/// Compares the gradients of a loss in f64 with finite differences, and with those of the same loss
/// in f32. Statistics have none; a large weight takes long, and a unit's are alike.
pub fn check_gradients(
    plan: Plan,
    (network, vars): (&Network, &VarMap),
    loss_of: impl Fn(&Network, &Tensor) -> Result<Tensor>,
) -> Result<()> {
    let xs = images(2, 0)?.0.to_dtype(DType::F64)?;
    let loss = || loss_of(network, &xs);
    let gradients = loss()?.backward()?;
    let (single, copies, _) = Network::new(plan, DType::F32)?;
    copy(vars, &copies)?;
    let in_single = loss_of(&single, &xs.to_dtype(DType::F32)?)?;
    let in_single = vmf_candle::train::backward(&in_single)?;
    let copies = named(&copies);
    for (i, (name, var)) in named(vars).into_iter().enumerate() {
        if !(name.ends_with("rho") || name == "a.weight") {
            continue;
        }
        let found = super::values(gradients.get(&var).unwrap());
        let numeric = super::numeric_gradient(&var, &loss)?;
        let fused = super::values(in_single.get(&copies[i].1).unwrap());
        let off = super::largest_difference(&found, &numeric);
        assert!(off < 1e-5, "{name}: {found:?} {numeric:?}");
        let off = super::largest_difference(&found, &fused);
        assert!(off < 1e-3, "{name}: {found:?} {fused:?}");
    }
    Ok(())
}
