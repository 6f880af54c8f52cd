//! The variational unit on the CPU as one node of the graph: convolution, normalization, noise,
//! ReLU and pooling.
//!
//! Candle's own convolution is some ten times slower here, and each further node costs two passes
//! over its gradient. Tensors are in the layout (H, W, N, C), in single precision.

use super::bn_noise::{Activation, BatchStatistics, BnNoise, check_count, kernel_noise};
use super::{contiguous_slice, cpu_slice, unwritten};
use crate::backward::deliver;
use crate::error::Error;
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};
use std::sync::{Arc, OnceLock};
use vmf_kernels::bn_noise::{self, NoiseTerm, Statistics};
use vmf_kernels::conv::{Conv2d, ConvShape};
use vmf_kernels::pool::{Pool, PoolShape};
use vmf_kernels::unit::{Gradients, Operands, Saved, Unit};

/// What a unit is applied to.
pub(crate) struct UnitArguments<'a> {
    /// The input (H, W, N, C).
    pub(crate) xs: &'a Tensor,
    /// The weight (M, C / groups, k, k), or (M, C) for a linear layer.
    pub(crate) weight: &'a Tensor,
    /// One sigma for each group of channels.
    pub(crate) sigma: &'a Tensor,
    /// The convolution.
    pub(crate) conv: ConvShape,
    /// The side of the windows that are pooled, if any.
    pub(crate) pool: Option<usize>,
}

impl UnitArguments<'_> {
    /// Normalized by its own batch. The output is (H', W', N, M).
    pub(crate) fn by_batch(&self, op: &BnNoise) -> Result<(Tensor, BatchStatistics)> {
        let [height, width] = self.conv.output();
        let count = self.conv.batch * height * width;
        check_count(count)?;
        let saved = Arc::default();
        let y = self.apply(op, Mode::Train(Arc::clone(&saved)))?;
        let Some(Saved { statistics, .. }) = saved.get() else {
            candle_core::bail!("the unit's forward pass saved no statistics")
        };
        let channels = |values: &[f64]| Tensor::new(values, &Device::Cpu)?.to_dtype(DType::F32);
        let batch = BatchStatistics {
            mean: channels(&statistics.mean)?,
            var: channels(&statistics.var)?,
            count,
        };
        Ok((y, batch))
    }

    /// Normalized by given statistics. The output is (H', W', N, M).
    pub(crate) fn by_given(&self, mean: &Tensor, var: &Tensor, op: &BnNoise) -> Result<Tensor> {
        let values = |tensor: &Tensor| tensor.detach().to_dtype(DType::F64)?.to_vec1();
        let statistics = Statistics { mean: values(mean)?, var: values(var)? };
        self.apply(op, Mode::Evaluate(statistics))
    }

    fn apply(&self, op: &BnNoise, mode: Mode) -> Result<Tensor> {
        if let Some(noise) = op.noise
            && (noise.folded == 0 || !self.conv.batch.is_multiple_of(noise.folded))
        {
            Err(Error::Shape {
                what: "variational unit".into(),
                reason: format!(
                    "a batch of {} cannot hold {} Monte Carlo samples: repeat the input with `Pass::repeat`",
                    self.conv.batch, noise.folded
                ),
            })?
        }
        let conv = Conv2d::new(self.conv).map_err(Error::from)?;
        let unit = FusedUnit {
            op: *op,
            conv,
            pool: self.pool,
            mode,
            // A tensor outside any graph is its own detached self. The images a network sees need
            // no gradient.
            needs_input_gradient: self.xs.detach().id() != self.xs.id(),
        };
        let sigma = self.sigma.to_dtype(DType::F32)?.contiguous()?;
        let weight = self.weight.contiguous()?;
        self.xs.contiguous()?.apply_op3(&weight, &sigma, unit)
    }
}

enum Mode {
    /// By the batch; what the backward pass needs is left here.
    Train(Arc<OnceLock<Saved>>),
    /// By these.
    Evaluate(Statistics),
}

struct FusedUnit {
    op: BnNoise,
    conv: Conv2d,
    pool: Option<usize>,
    mode: Mode,
    needs_input_gradient: bool,
}

impl FusedUnit {
    fn unit(&self) -> Result<Unit> {
        let unit =
            Unit::new(self.conv).relu(self.op.activation == Activation::Relu).eps(self.op.eps);
        Ok(match self.pool {
            Some(window) => unit.max_pool(window).map_err(Error::from)?,
            None => unit,
        })
    }

    fn noise<'a>(&self, sigma: &'a [f32]) -> Option<NoiseTerm<'a, f32>> {
        let elements = self.conv.shape().output_len();
        self.op.noise.map(|noise| NoiseTerm { noise: kernel_noise(noise, elements), sigma })
    }

    /// The gradients of a pass by given statistics: the convolution is computed again, since such a
    /// pass keeps nothing.
    fn backward_eval(
        &self,
        statistics: &Statistics,
        [x, w, sigma, dy]: [&[f32]; 4],
        gradients: Gradients,
    ) -> std::result::Result<Vec<f32>, vmf_kernels::Error> {
        let shape = self.conv.shape();
        let [height, width] = shape.output();
        let space = bn_noise::Shape::hwnc(shape.batch, shape.out_channels, height * width);
        let config = bn_noise::Config::new(space)
            .relu(self.op.activation == Activation::Relu)
            .eps(self.op.eps);
        let mut u = vec![0.0; shape.output_len()];
        self.conv.forward(x, w, &mut u)?;
        let mut y = vec![0.0; u.len()];
        bn_noise::forward_eval(&config, self.noise(sigma), statistics, &u, &mut y)?;
        let unpooled = match self.pool {
            None => None,
            Some(window) => {
                let pool =
                    PoolShape::tiling(shape.batch, shape.out_channels, shape.output(), window);
                let pool = Pool::new(pool, vmf_kernels::Layout::Hwnc)?;
                let mut winners = vec![0; dy.len()];
                pool.max_forward(&y, &mut vec![0.0; dy.len()], &mut winners)?;
                let mut gradient = vec![0.0; u.len()];
                pool.max_backward(&winners, dy, &mut gradient)?;
                Some(gradient)
            }
        };
        let saved = bn_noise::Saved { u: &u, y: &y, statistics };
        let mut du = vec![0.0; u.len()];
        let dy = unpooled.as_deref().unwrap_or(dy);
        let dsigma = bn_noise::backward_eval(&config, self.noise(sigma), saved, dy, &mut du)?;
        self.conv.weight_gradient(x, &du, gradients.dw)?;
        if let Some(dx) = gradients.dx {
            self.conv.input_gradient(&du, w, dx)?;
        }
        Ok(dsigma)
    }
}

impl CustomOp3 for FusedUnit {
    fn name(&self) -> &'static str {
        "variational-unit"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        sigma: &CpuStorage,
        sigma_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?);
        let noise = self.noise(contiguous_slice(sigma, sigma_layout)?);
        let unit = self.unit()?;
        // SAFETY: both passes write all of y; after an error nobody reads it.
        let mut y = unsafe { unwritten(unit.output_len()) };
        match &self.mode {
            Mode::Evaluate(statistics) => {
                unit.forward_eval(noise, statistics, x, w, &mut y).map_err(Error::from)?;
            }
            Mode::Train(saved) => {
                let mut fresh = Saved::default();
                unit.forward_train(noise, x, w, &mut y, &mut fresh).map_err(Error::from)?;
                // A graph evaluates an op once; a second evaluation would find the same.
                let _ = saved.set(fresh);
            }
        }
        let [height, width] = unit.output();
        let shape = self.conv.shape();
        Ok((CpuStorage::F32(y), (height, width, shape.batch, shape.out_channels).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        sigma: &Tensor,
        y: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let storages = [x, w, sigma, y, &gradient].map(Tensor::storage_and_layout);
        let [xs, ws, sigmas, ys, dys] = [0, 1, 2, 3, 4].map(|i| cpu_slice::<f32>(&storages[i]));
        let (xs, ws, sigmas, ys, dys) = (xs?, ws?, sigmas?, ys?, dys?);
        // SAFETY: the backward pass writes all of what it is asked for; after an error nobody reads
        // it.
        let (mut dw, mut dx) = unsafe {
            let dx = self.needs_input_gradient.then(|| unwritten(xs.len()));
            (unwritten(ws.len()), dx)
        };
        let gradients = Gradients { dx: dx.as_deref_mut(), dw: &mut dw };
        let dsigma = match &self.mode {
            Mode::Evaluate(statistics) => {
                self.backward_eval(statistics, [xs, ws, sigmas, dys], gradients)
            }
            Mode::Train(saved) => {
                let Some(saved) = saved.get() else {
                    candle_core::bail!("the unit's backward pass came before its forward pass")
                };
                let operands = Operands { x: xs, w: ws, y: ys };
                self.unit()?.backward_train(self.noise(sigmas), operands, saved, dys, gradients)
            }
        };
        let mut dsigma = dsigma.map_err(Error::from)?;
        dsigma.resize(sigmas.len(), 0.0);
        Ok((
            dx.map(|dx| Tensor::from_vec(dx, x.shape(), &Device::Cpu)).transpose()?,
            deliver(w, Tensor::from_vec(dw, w.shape(), &Device::Cpu)?),
            Some(Tensor::from_vec(dsigma, sigma.shape(), &Device::Cpu)?),
        ))
    }
}
