//! Convolutions and poolings one after the other, without leaving the layout that the CPU is
//! fastest in.

use super::conv2d::VmfConv2d;
use crate::ops::{from_fast, max_pool2d, to_fast};
use crate::pass::{Forward, Pass};
use candle_core::{Result, Tensor};

/// A chain of [`VmfConv2d`] and maximum poolings.
///
/// It computes what the layers would one by one, with the same noise. In single precision on a CPU
/// it is the fastest form: images are brought into the kernels' layout once at the beginning and
/// back once at the end, and a pooling behind a unit is computed with it.
///
/// ```
/// # use candle_core::{DType, Device, Result, Tensor};
/// # use candle_nn::VarMap;
/// use vmf_candle::{ConvStack, Forward, Pass, Posterior, VmfConfig, vmf_conv2d};
/// # let (vars, posterior) = (VarMap::new(), Posterior::new());
/// # let vb = vmf_candle::seeded(&vars, 0, DType::F32, &Device::Cpu);
/// let unit = || VmfConfig::default().relu().padding(1);
/// let features = ConvStack::new()
///     .unit(vmf_conv2d(3, 16, 3, unit(), &posterior, vb.pp("features.0"))?)
///     .max_pool(2)
///     .unit(vmf_conv2d(16, 32, 3, unit(), &posterior, vb.pp("features.1"))?)
///     .max_pool(2);
/// let xs = Tensor::zeros((5, 3, 32, 32), DType::F32, &Device::Cpu)?;
/// assert_eq!(features.forward(&xs, &Pass::mean())?.dims(), [5, 32, 8, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConvStack {
    stages: Vec<Stage>,
}

#[derive(Clone, Debug)]
enum Stage {
    Unit(VmfConv2d),
    /// Windows of this side, next to each other.
    MaxPool(usize),
}

impl ConvStack {
    /// An empty chain, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// The chain with another convolution at its end.
    pub fn unit(mut self, conv: VmfConv2d) -> Self {
        self.stages.push(Stage::Unit(conv));
        self
    }

    /// The chain with maximum pooling over square windows next to each other at its end.
    pub fn max_pool(mut self, window: usize) -> Self {
        self.stages.push(Stage::MaxPool(window));
        self
    }

    fn forward_fast(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut xs = to_fast(xs)?;
        let mut stages = self.stages.iter().peekable();
        while let Some(stage) = stages.next() {
            xs = match (stage, stages.peek()) {
                (Stage::Unit(conv), Some(Stage::MaxPool(window))) if conv.can_pool() => {
                    stages.next();
                    conv.forward_fast(&xs, Some(*window), pass)?
                }
                (Stage::Unit(conv), _) => conv.forward_fast(&xs, None, pass)?,
                (Stage::MaxPool(window), _) => {
                    to_fast(&max_pool2d(&from_fast(&xs)?, *window, *window, 0)?)?
                }
            };
        }
        from_fast(&xs)
    }
}

impl Forward for ConvStack {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let is_fast = self.stages.iter().all(|stage| match stage {
            Stage::Unit(conv) => conv.is_fast(xs),
            Stage::MaxPool(_) => true,
        });
        if is_fast && !self.stages.is_empty() {
            return self.forward_fast(xs, pass);
        }
        let mut xs = xs.clone();
        for stage in &self.stages {
            xs = match stage {
                Stage::Unit(conv) => conv.forward(&xs, pass)?,
                Stage::MaxPool(window) => max_pool2d(&xs, *window, *window, 0)?,
            };
        }
        Ok(xs)
    }
}
