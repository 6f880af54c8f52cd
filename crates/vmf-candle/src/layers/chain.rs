//! Layers in a chain.

use crate::moments::Moments;
use crate::pass::{Forward, Pass};
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Linear};
use std::any::Any;

/// A plain Candle module in a stochastic model. It computes the same in every pass.
#[derive(Clone, Debug)]
pub struct Deterministic<M>(pub M);

impl<M: Module> Forward for Deterministic<M> {
    fn forward(&self, xs: &Tensor, _pass: &Pass) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// A plain module, and what it makes of means and variances.
struct Map<M, F> {
    module: M,
    propagate: F,
}

impl<M: Module, F: Fn(&Moments) -> Result<Moments>> Forward for Map<M, F> {
    fn forward(&self, xs: &Tensor, _pass: &Pass) -> Result<Tensor> {
        self.module.forward(xs)
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        (self.propagate)(xs)
    }
}

/// A chain of layers, stochastic and plain.
///
/// ```
/// # use candle_core::{DType, Device, Result, Tensor};
/// # use candle_nn::VarMap;
/// use vmf_candle::prelude::*;
/// # let (vars, posterior) = (VarMap::new(), Posterior::new());
/// # let vb = seeded(&vars, 0, DType::F32, &Device::Cpu);
/// let model = Chain::new()
///     .add(vmf_linear(2, 16, VmfConfig::default().relu(), &posterior, vb.pp("hidden"))?)
///     .add_plain(candle_nn::linear(16, 3, vb.pp("head"))?);
/// let xs = Tensor::zeros((5, 2), DType::F32, &Device::Cpu)?;
/// assert_eq!(model.forward(&xs, &Pass::mean())?.dims(), [5, 3]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Default)]
pub struct Chain {
    layers: Vec<Box<dyn Forward + Send + Sync>>,
}

impl Chain {
    /// An empty chain, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a layer.
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, layer: impl Forward + Send + Sync + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Appends a plain Candle module, or a closure `|xs| ..`.
    ///
    /// [`Linear`] and [`Conv2d`] also propagate variances. For other modules
    /// [`add_map`](Self::add_map) says what becomes of them.
    pub fn add_plain(self, module: impl Module + Send + Sync + 'static) -> Self {
        let plain: &dyn Any = &module;
        if let Some(linear) = plain.downcast_ref::<Linear>() {
            let layer = linear.clone();
            return self.add_map(module, move |xs: &Moments| xs.linear(&layer));
        }
        if let Some(conv) = plain.downcast_ref::<Conv2d>() {
            let layer = conv.clone();
            return self.add_map(module, move |xs: &Moments| xs.conv2d(&layer));
        }
        self.add(Deterministic(module))
    }

    /// Appends a plain module with what it makes of means and variances.
    ///
    /// ```
    /// # use candle_core::Tensor;
    /// # use vmf_candle::prelude::*;
    /// let pooled = Chain::new()
    ///     .add_map(|xs: &Tensor| xs.mean((2, 3)), |xs: &Moments| xs.mean_over((2, 3)));
    /// ```
    pub fn add_map(
        self,
        module: impl Module + Send + Sync + 'static,
        propagate: impl Fn(&Moments) -> Result<Moments> + Send + Sync + 'static,
    ) -> Self {
        self.add(Map { module, propagate })
    }
}

impl Forward for Chain {
    fn forward(&self, xs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut xs = xs.clone();
        for layer in &self.layers {
            xs = layer.forward(&xs, pass)?;
        }
        Ok(xs)
    }

    fn propagate(&self, xs: &Moments) -> Result<Moments> {
        let mut xs = xs.clone();
        for layer in &self.layers {
            xs = layer.propagate(&xs)?;
        }
        Ok(xs)
    }
}
