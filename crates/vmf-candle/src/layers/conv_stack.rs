//! Convolutions and poolings in a chain, without a change of layout between them.

use super::conv2d::VmfConv2d;
use crate::moments::Moments;
use crate::ops::{Images, UncertainImages};
use crate::pass::{Forward, Pass};
use candle_core::{Result, Tensor};

/// A chain of [`VmfConv2d`] and maximum poolings.
///
/// It computes what its layers would compute one by one, with the same noise. In f32 on a CPU it is
/// the fastest form: images are converted to the kernels' layout, HWNC, once at the start and back
/// once at the end, and pooling is part of the unit before it.
///
/// ```
/// # use candle_core::{DType, Device, Result, Tensor};
/// # use candle_nn::VarMap;
/// use vmf_candle::prelude::*;
/// # let (vars, posterior) = (VarMap::new(), Posterior::new());
/// # let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
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
    /// A convolution, and windows of this side to pool its output over.
    Unit(Box<VmfConv2d>, Option<usize>),
    /// Pooling over windows of this side.
    MaxPool(usize),
}

impl ConvStack {
    /// An empty chain, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a convolution.
    pub fn unit(mut self, conv: VmfConv2d) -> Self {
        self.stages.push(Stage::Unit(Box::new(conv), None));
        self
    }

    /// Appends maximum pooling over square windows side by side.
    pub fn max_pool(mut self, window: usize) -> Self {
        match self.stages.last_mut() {
            Some(Stage::Unit(_, pool @ None)) => *pool = Some(window),
            _ => self.stages.push(Stage::MaxPool(window)),
        }
        self
    }
}

impl Forward for ConvStack {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut images = Images::of(xs)?;
        for stage in &self.stages {
            images = match stage {
                Stage::Unit(conv, pool) => conv.unit.forward(&images, None, *pool, pass)?,
                Stage::MaxPool(window) => images.max_pool(*window)?,
            };
        }
        images.to_tensor()
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        let mut images = UncertainImages::new(xs);
        for stage in &self.stages {
            images = match stage {
                Stage::Unit(conv, pool) => conv.unit.propagate(&images, None, *pool)?,
                Stage::MaxPool(window) => images.map(|images| images.max_pool(*window))?,
            };
        }
        images.moments()
    }
}
