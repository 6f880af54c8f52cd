//! The variational unit: convolution, batch normalization, noise, ReLU and optionally gain and
//! shift, a skip connection or maximum pooling, as one operation.
//!
//! ```text
//! u = x * w
//! y = pool( act( gain * ((u - mean) * rstd + sigma * z) + shift + skip ) )
//! ```
//!
//! For automatic differentiation it is one node over x, w and its [`Terms`]. Tensors are in HWNC, and what
//! is computed on the way lives in scratch memory. A linear layer is the convolution of a 1x1 image
//! with a 1x1 kernel.
//!
//! # What is saved for the backward pass
//!
//! The convolution u and the statistics, and with pooling the argmax of each window, one byte per
//! output ([`Saved`]). The input x and the output y are needed too, but the neighbouring units hold
//! them anyway ([`Operands`]). The activations before pooling are not saved: the gradient flows
//! only to the largest element of a window, whose sign is that of the output.

use crate::across::Across;
use crate::bn_noise::pooled::{self, Pooling};
use crate::bn_noise::{self, Mode, Shape, Statistics, skip};
pub use crate::bn_noise::{Affine, NoiseTerm, ParameterGradients, Terms};
use crate::conv::Conv2d;
use crate::error::{Error, check_length};
use crate::expected::{self, Expected, Moments, MomentsMut};
use crate::layout::Layout;
use crate::parallel::on_pool;
use crate::pool::{Pool, PoolShape};
use crate::scratch::Scratch;

/// A variational unit of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    conv: Conv2d,
    norm: bn_noise::Config,
    pool: Option<Pool>,
}

/// What a training pass leaves for its backward pass, besides the input and the output.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// The convolution, [`Unit::conv_len`] elements.
    pub u: Scratch,
    /// Which element of each pooling window was the largest; empty without pooling.
    pub argmax: Vec<u8>,
    /// The statistics of the batch.
    pub statistics: Statistics,
}

/// The tensors of a training pass that its caller holds anyway.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// The input.
    pub x: &'a [f32],
    /// The weights.
    pub w: &'a [f32],
    /// The output.
    pub y: &'a [f32],
}

/// Where the backward pass writes.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// The gradient with respect to the input. The first unit of a network needs none.
    pub dx: Option<&'a mut [f32]>,
    /// The gradient with respect to the weights.
    pub dw: &'a mut [f32],
    /// The gradient with respect to the skip connection, if there is one.
    pub dskip: Option<&'a mut [f32]>,
}

impl Unit {
    /// A convolution followed by normalization (eps 1e-5) and ReLU.
    pub fn new(conv: Conv2d) -> Self {
        let shape = conv.shape();
        let [height, width] = shape.output();
        let shape = Shape::hwnc(shape.batch, shape.out_channels, height * width);
        Unit { conv, norm: bn_noise::Config::new(shape).relu(true), pool: None }
    }

    /// The same, with or without ReLU.
    pub fn relu(self, relu: bool) -> Self {
        Unit { norm: self.norm.relu(relu), ..self }
    }

    /// The same, with another eps.
    pub fn eps(self, eps: f64) -> Self {
        Unit { norm: self.norm.eps(eps), ..self }
    }

    /// The same, for a batch that processes share.
    pub fn across(self, across: Across) -> Self {
        Unit { norm: self.norm.across(across), ..self }
    }

    /// The same, followed by maximum pooling with square windows side by side.
    pub fn max_pool(self, window: usize) -> Result<Self, Error> {
        let shape = self.conv.shape();
        let shape = PoolShape::tiling(shape.batch, shape.out_channels, shape.output(), window);
        Ok(Unit { pool: Some(Pool::new(shape, Layout::Hwnc)?), ..self })
    }

    /// The convolution it begins with.
    pub fn conv(&self) -> &Conv2d {
        &self.conv
    }

    /// The normalization, noise and activation behind it.
    pub fn norm(&self) -> &bn_noise::Config {
        &self.norm
    }

    /// The pooling at its end, if there is one.
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// Elements of the convolution u.
    pub fn conv_len(&self) -> usize {
        self.conv.shape().output_len()
    }

    /// Elements of the output y.
    pub fn output_len(&self) -> usize {
        self.pool.map_or(self.conv_len(), |pool| pool.shape().output_len())
    }

    /// Height and width of the output.
    pub fn output(&self) -> [usize; 2] {
        self.pool.map_or(self.conv.shape().output(), |pool| pool.shape().output())
    }

    /// Normalizes with the statistics of the batch, writes y, and leaves in `saved` what the
    /// backward pass needs.
    ///
    /// The memory in `saved` is reused, by this unit or another, so a training loop allocates
    /// nothing.
    pub fn forward_train<'a>(
        &self,
        terms: impl Into<Terms<'a, f32>>,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
        saved: &mut Saved,
    ) -> Result<(), Error> {
        let terms = terms.into();
        on_pool(|| {
            check_length("y", y.len(), self.output_len())?;
            if saved.u.len() != self.conv_len() {
                saved.u = Scratch::take_to_keep(self.conv_len());
            }
            let Saved { u, argmax, statistics } = saved;
            self.conv.forward(x, w, u)?;
            *statistics = bn_noise::statistics(&self.norm, u)?;
            self.normalize(terms, statistics, u, y, argmax)
        })
    }

    /// Normalizes with given statistics, usually running estimates, and writes y.
    pub fn forward_eval<'a>(
        &self,
        terms: impl Into<Terms<'a, f32>>,
        statistics: &Statistics,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
    ) -> Result<(), Error> {
        let terms = terms.into();
        on_pool(|| {
            check_length("y", y.len(), self.output_len())?;
            let mut u = Scratch::take(self.conv_len());
            self.conv.forward(x, w, &mut u)?;
            self.normalize(terms, statistics, &u, y, &mut Vec::new())
        })
    }

    /// Normalizes with given statistics and writes the [`expected`] activation,
    /// where `deviation` is the standard deviation in front of the activation, one value per
    /// channel. Of the terms the noise is ignored.
    ///
    /// Without an activation that is the mean, whatever the deviation.
    pub fn forward_expected<'a>(
        &self,
        terms: impl Into<Terms<'a, f32>>,
        deviation: &[f32],
        statistics: &Statistics,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
    ) -> Result<(), Error> {
        let terms = Terms { noise: None, ..terms.into() };
        on_pool(|| {
            check_length("y", y.len(), self.output_len())?;
            let mut u = Scratch::take(self.conv_len());
            self.conv.forward(x, w, &mut u)?;
            let expected = Expected { config: &self.norm, terms, statistics, deviation };
            match &self.pool {
                _ if !self.norm.relu => self.normalize(terms, statistics, &u, y, &mut Vec::new()),
                None => expected.forward(&u, y),
                Some(pool) => expected.forward_pooled(pool.shape(), &u, y),
            }
        })
    }

    /// Mean and variance of each element of the output, from those of the input, whose elements
    /// count as independent: [`expected::propagate`] behind two convolutions, of the means with the
    /// weights and of the variances with the squared weights. `own` is the standard deviation of
    /// the unit's noise, one value per channel.
    pub fn propagate(
        &self,
        own: &[f32],
        statistics: &Statistics,
        x: Moments,
        w: &[f32],
        y: MomentsMut,
    ) -> Result<(), Error> {
        on_pool(|| {
            let mut u = Scratch::take(self.conv_len());
            self.conv.forward(x.mean, w, &mut u)?;
            let variance = match x.variance {
                None => None,
                Some(variance) => {
                    let squares: Vec<f32> = w.iter().map(|w| w * w).collect();
                    let mut q = Scratch::take(self.conv_len());
                    self.conv.forward(variance, &squares, &mut q)?;
                    Some(q)
                }
            };
            let u = Moments { mean: &u, variance: variance.as_deref() };
            match &self.pool {
                None => expected::propagate(&self.norm, statistics, own, u, y),
                Some(pool) => {
                    expected::propagate_pooled(&self.norm, statistics, own, pool.shape(), u, y)
                }
            }
        })
    }

    /// Everything behind the convolution: writes y and, with pooling, the argmax of each window.
    fn normalize(
        &self,
        terms: Terms<f32>,
        statistics: &Statistics,
        u: &[f32],
        y: &mut [f32],
        argmax: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match &self.pool {
            None => {
                argmax.clear();
                bn_noise::forward_terms(&self.norm, terms, statistics, u, y)
            }
            Some(pool) => {
                self.check_pooled(&terms)?;
                argmax.resize(y.len(), 0);
                pooled::forward(&self.norm, terms, statistics, pool, u, (y, argmax))
            }
        }
    }

    /// A pooled unit has no skip connection: none of the known networks pools behind one.
    fn check_pooled(&self, terms: &Terms<f32>) -> Result<(), Error> {
        match terms.skip {
            None => Ok(()),
            Some(_) => Err(Error::Value {
                name: "a unit with a skip connection",
                value: "pooled".into(),
                requirement: "without pooling: pool its output by an operation of its own",
            }),
        }
    }

    /// The gradients of [`forward_train`](Unit::forward_train); returns those of the terms.
    ///
    /// `terms`, `operands` and `saved` must be those of the forward pass.
    pub fn backward_train<'a>(
        &self,
        terms: impl Into<Terms<'a, f32>>,
        operands: Operands,
        saved: &Saved,
        dy: &[f32],
        mut gradients: Gradients,
    ) -> Result<ParameterGradients<f32>, Error> {
        let terms = terms.into();
        on_pool(|| {
            let Operands { x, w, y } = operands;
            check_length("y", y.len(), self.output_len())?;
            check_length("saved.u", saved.u.len(), self.conv_len())?;
            let Saved { u, argmax, statistics } = saved;
            let saved = bn_noise::Saved { u, y, statistics };
            let mut du = Scratch::take(self.conv_len());
            let to = (gradients.dskip.take(), &mut *du);
            let parameters = self.conv_gradient(terms, Mode::Train, (saved, argmax), dy, to)?;
            self.conv_backward(x, w, &du, gradients)?;
            Ok(parameters)
        })
    }

    /// The gradients of [`forward_eval`](Unit::forward_eval), whose statistics are constants;
    /// returns those of the terms.
    ///
    /// An evaluation pass saves nothing, so the convolution and the output are computed again.
    pub fn backward_eval<'a>(
        &self,
        terms: impl Into<Terms<'a, f32>>,
        statistics: &Statistics,
        x: &[f32],
        w: &[f32],
        dy: &[f32],
        mut gradients: Gradients,
    ) -> Result<ParameterGradients<f32>, Error> {
        let terms = terms.into();
        on_pool(|| {
            let (mut u, mut y) = (Scratch::take(self.conv_len()), Scratch::take(self.output_len()));
            let mut argmax = Vec::new();
            self.conv.forward(x, w, &mut u)?;
            self.normalize(terms, statistics, &u, &mut y, &mut argmax)?;

            let saved = bn_noise::Saved { u: &u, y: &y, statistics };
            let mut du = Scratch::take(self.conv_len());
            let to = (gradients.dskip.take(), &mut *du);
            let parameters = self.conv_gradient(terms, Mode::Eval, (saved, &argmax), dy, to)?;
            self.conv_backward(x, w, &du, gradients)?;
            Ok(parameters)
        })
    }

    /// The gradients with respect to the convolution u and the skip connection; returns those of
    /// the other terms.
    fn conv_gradient(
        &self,
        terms: Terms<f32>,
        mode: Mode,
        (saved, argmax): (bn_noise::Saved<f32>, &[u8]),
        dy: &[f32],
        (dskip, du): (Option<&mut [f32]>, &mut [f32]),
    ) -> Result<ParameterGradients<f32>, Error> {
        match (&self.pool, terms.skip) {
            (None, None) => bn_noise::backward_terms(&self.norm, terms, mode, saved, dy, du),
            (None, Some(_)) => {
                let mut unwanted = Scratch::take(if dskip.is_some() { 0 } else { dy.len() });
                let dskip = dskip.unwrap_or(&mut unwanted);
                skip::backward(&self.norm, terms, mode, saved, dy, (dskip, du))
            }
            (Some(pool), _) => {
                self.check_pooled(&terms)?;
                let pooling = Pooling { pool, argmax };
                let backward = match mode {
                    Mode::Train => pooled::backward_train,
                    Mode::Eval => pooled::backward_eval,
                };
                backward(&self.norm, terms, saved, pooling, dy, du)
            }
        }
    }

    /// The gradients of the convolution, from that with respect to its output u.
    fn conv_backward(
        &self,
        x: &[f32],
        w: &[f32],
        du: &[f32],
        gradients: Gradients,
    ) -> Result<(), Error> {
        self.conv.weight_gradient(x, du, gradients.dw)?;
        match gradients.dx {
            Some(dx) => self.conv.input_gradient(du, w, dx),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
