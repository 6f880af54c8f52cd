//! The variational unit: convolution, batch normalization, noise, ReLU and, if asked, maximum
//! pooling as one operation.
//!
//! ```text
//! u = x * w
//! y = pool( act( (u - mean) * rstd + sigma * z ) )
//! ```
//!
//! It is one node over (x, w, sigma) for an automatic differentiation: everything between is
//! computed in the layout `[position][image][channel]`, and the gradients of the parts meet in
//! scratch memory. A linear layer is the convolution of a 1x1 image with a 1x1 kernel.
//!
//! # What is kept for the backward pass
//! The input x and the output y, which the neighbouring units hold anyway, the convolution u, and
//! the statistics. With pooling also which element of each window was the largest, one byte an
//! output; the activations before pooling are not kept, as the gradient flows only to the largest,
//! whose sign is that of the output.

use crate::bn_noise::{self, Layout, NoiseTerm, Shape, Statistics};
use crate::conv::Conv2d;
use crate::error::{Error, check_length};
use crate::parallel::{ByTask, on_pool};
use crate::pool::{Pool, PoolShape};
use crate::scratch::Scratch;
use rayon::prelude::*;

/// A variational unit of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    conv: Conv2d,
    norm: bn_noise::Config,
    pool: Option<Pool>,
}

/// What a training pass computed besides the output.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The convolution, [`Unit::conv_len`] elements.
    pub u: Scratch,
    /// With pooling, which element of each window was the largest; empty without.
    pub tap: Vec<u8>,
    /// The statistics of the batch.
    pub statistics: Statistics,
}

/// What the backward pass needs of the forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// The input.
    pub x: &'a [f32],
    /// The weights.
    pub w: &'a [f32],
    /// The output. Only its sign is used, and only with ReLU.
    pub y: &'a [f32],
    /// What [`Unit::forward_train`] kept.
    pub kept: &'a Kept,
}

/// Where the backward pass writes.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// The gradient by the input, if it is needed: the first unit of a network does without.
    pub dx: Option<&'a mut [f32]>,
    /// The gradient by the weights.
    pub dw: &'a mut [f32],
}

impl Unit {
    /// A convolution followed by normalization (eps 1e-5) and ReLU.
    pub fn new(conv: Conv2d) -> Self {
        let shape = conv.shape();
        let [height, width] = shape.output();
        let shape = Shape::hwnc(shape.batch, shape.out_channels, height * width);
        Unit { conv, norm: bn_noise::Config::new(shape).relu(true), pool: None }
    }

    /// With or without ReLU.
    pub fn relu(self, relu: bool) -> Self {
        Unit { norm: self.norm.relu(relu), ..self }
    }

    /// With another eps.
    pub fn eps(self, eps: f64) -> Self {
        Unit { norm: self.norm.eps(eps), ..self }
    }

    /// Followed by maximum pooling with square windows side by side.
    pub fn max_pool(self, window: usize) -> Result<Self, Error> {
        let shape = self.conv.shape();
        let shape = PoolShape::tiling(shape.batch, shape.out_channels, shape.output(), window);
        Ok(Unit { pool: Some(Pool::new(shape, Layout::Hwnc)?), ..self })
    }

    /// The convolution it begins with.
    pub fn conv(&self) -> &Conv2d {
        &self.conv
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

    /// Normalizes with the statistics of the batch, writes y, and leaves in `kept` what the
    /// backward pass needs.
    ///
    /// The memory in `kept` is used again, by this unit or another, so a training loop allocates
    /// nothing.
    pub fn forward_train(
        &self,
        noise: Option<NoiseTerm<f32>>,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
        kept: &mut Kept,
    ) -> Result<(), Error> {
        on_pool(|| {
            check_length("y", y.len(), self.output_len())?;
            if kept.u.len() != self.conv_len() {
                kept.u = Scratch::take_to_keep(self.conv_len());
            }
            self.conv.forward(x, w, &mut kept.u)?;
            match self.pool {
                None => {
                    kept.tap.clear();
                    kept.statistics = bn_noise::forward_train(&self.norm, noise, &kept.u, y)?;
                }
                Some(pool) => {
                    kept.tap.resize(self.output_len(), 0);
                    kept.statistics = bn_noise::statistics(&self.norm, &kept.u)?;
                    let (tap, statistics) = (&mut kept.tap, &kept.statistics);
                    bn_noise::forward_pooled(
                        &self.norm,
                        noise,
                        statistics,
                        pool.shape(),
                        &kept.u,
                        y,
                        tap,
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Normalizes with given statistics, usually running estimates, and writes y.
    pub fn forward_eval(
        &self,
        noise: Option<NoiseTerm<f32>>,
        statistics: &Statistics,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
    ) -> Result<(), Error> {
        on_pool(|| {
            check_length("y", y.len(), self.output_len())?;
            let mut u = Scratch::take(self.conv_len());
            self.conv.forward(x, w, &mut u)?;
            match self.pool {
                None => bn_noise::forward_eval(&self.norm, noise, statistics, &u, y),
                Some(pool) => {
                    let tap = &mut vec![0; y.len()];
                    bn_noise::forward_pooled(
                        &self.norm,
                        noise,
                        statistics,
                        pool.shape(),
                        &u,
                        y,
                        tap,
                    )
                }
            }
        })
    }

    /// The gradients of [`forward_train`](Unit::forward_train); returns dsigma, one value for each
    /// scale of `noise`.
    ///
    /// `noise` must be that of the forward pass.
    pub fn backward(
        &self,
        noise: Option<NoiseTerm<f32>>,
        saved: Saved,
        dy: &[f32],
        gradients: Gradients,
    ) -> Result<Vec<f32>, Error> {
        on_pool(|| {
            check_length("y", saved.y.len(), self.output_len())?;
            check_length("dy", dy.len(), self.output_len())?;
            check_length("kept.u", saved.kept.u.len(), self.conv_len())?;
            let mut du = Scratch::take(self.conv_len());
            let dsigma = self.backward_norm(noise, &saved, dy, &mut du)?;
            self.conv.weight_gradient(saved.x, &du, gradients.dw)?;
            if let Some(dx) = gradients.dx {
                self.conv.input_gradient(&du, saved.w, dx)?;
            }
            Ok(dsigma)
        })
    }

    /// The gradient by the convolution u, and dsigma.
    fn backward_norm(
        &self,
        noise: Option<NoiseTerm<f32>>,
        saved: &Saved,
        dy: &[f32],
        du: &mut [f32],
    ) -> Result<Vec<f32>, Error> {
        let Kept { u, tap, statistics } = saved.kept;
        let inner = bn_noise::Saved { u, y: saved.y, statistics };
        let Some(pool) = self.pool else {
            return bn_noise::backward(&self.norm, noise, inner, dy, du);
        };
        let shape = pool.shape();
        if let Some(dsigma) =
            bn_noise::backward_pooled(&self.norm, noise, inner, shape, tap, dy, du)?
        {
            return Ok(dsigma);
        }
        let mut whole = Scratch::take(self.conv_len());
        self.unpool(pool, saved, dy, &mut whole)?;
        let inner = bn_noise::Saved { y: &[], ..inner };
        // `unpool` has applied ReLU's mask.
        bn_noise::backward(&self.norm.relu(false), noise, inner, &whole, du)
    }

    /// The gradient before pooling and ReLU.
    fn unpool(&self, pool: Pool, saved: &Saved, dy: &[f32], to: &mut [f32]) -> Result<(), Error> {
        if !self.norm.relu {
            return pool.max_backward(&saved.kept.tap, dy, to);
        }
        const TASK: usize = 1 << 14;
        let mut masked = Scratch::take(dy.len());
        masked
            .par_chunks_mut(TASK)
            .by_task()
            .zip(dy.par_chunks(TASK))
            .zip(saved.y.par_chunks(TASK))
            .for_each(|((masked, dy), y)| {
                for ((masked, dy), y) in masked.iter_mut().zip(dy).zip(y) {
                    *masked = if *y > 0.0 { *dy } else { 0.0 };
                }
            });
        pool.max_backward(&saved.kept.tap, &masked, to)
    }
}

#[cfg(test)]
mod tests;
