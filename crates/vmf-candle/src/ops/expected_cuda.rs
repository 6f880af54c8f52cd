//! Normalization and expected ReLU as one node on a CUDA device, optionally with pooling over 2x2
//! windows. Without the kernel they would be some twenty of Candle's operations.

use super::bn_noise::{Statistics, bn_noise_eval};
use super::bn_noise_cuda::{Located, cuda, on_device, view};
use super::layout::Images;
use super::unit::{Inputs, Unit};
use crate::error::Error;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, Var};
use half::{bf16, f16};
use vmf_kernels::bn_noise::Config;
use vmf_kernels::bn_noise::cuda::CudaElement;
use vmf_kernels::expected::cuda as kernel;

impl Unit {
    /// The expected activation by the CUDA kernel; `None` if it has none for these images and this
    /// unit.
    pub(super) fn expected_on_cuda(
        &self,
        deviation: &Tensor,
        statistics: &Statistics,
        inputs: &Inputs,
    ) -> Result<Option<Images>> {
        let tensor = inputs.xs.tensor();
        let stored = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
        let image = match self.kernel.pool() {
            None => None,
            Some(pool) if pool.shape().window == [2, 2] => Some(pool.shape().input),
            Some(_) => return Ok(None),
        };
        // It has no gain, shift and skip connection either: then the ReLU is not part of the node.
        let config = self.norm(inputs);
        if !(tensor.device().is_cuda() && stored && config.relu) {
            return Ok(None);
        }
        let u = self.product(inputs.xs, inputs.w)?.contiguous()?;
        let node = ExpectedActivation { config, statistics: statistics.clone(), image };
        let deviation = deviation.to_dtype(DType::F32)?.contiguous()?;
        Ok(Some(Images::nchw(u.apply_op2(&deviation, node)?)))
    }
}

/// The node over (u, deviation), in NCHW.
struct ExpectedActivation {
    config: Config,
    statistics: Statistics,
    /// Height and width of the images, if they are pooled.
    image: Option<[usize; 2]>,
}

impl ExpectedActivation {
    fn output_shape(&self, u: &Layout) -> Shape {
        let shape = self.config.shape;
        match self.image {
            None => u.shape().clone(),
            Some([height, width]) => (shape.batch, shape.channels, height / 2, width / 2).into(),
        }
    }

    fn forward<T: CudaElement + CudaDType>(
        &self,
        u: Located,
        deviation: Located,
        outputs: usize,
    ) -> Result<CudaStorage> {
        let device = u.0.device();
        let (u, deviation) = (view::<T>(u)?, view::<f32>(deviation)?);
        // SAFETY: the kernel writes every element before any is read.
        let mut y = unsafe { device.alloc::<T>(outputs) }?;
        let Statistics { mean, var } = &self.statistics;
        let (mean, var) = (on_device(mean, device)?, on_device(var, device)?);
        let (mean, var) = (mean.storage_and_layout(), var.storage_and_layout());
        let mean = view::<f32>((cuda(&mean.0)?, mean.1))?;
        let variance = view::<f32>((cuda(&var.0)?, var.1))?;
        let channels = kernel::Channels { mean: &mean, variance: &variance, deviation: &deviation };
        kernel::forward(&device.cuda_stream(), &self.config, channels, self.image, &u, &mut y)
            .map_err(Error::from)?;
        Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
    }
}

impl CustomOp2 for ExpectedActivation {
    fn name(&self) -> &'static str {
        "expected-activation"
    }

    fn cpu_fwd(
        &self,
        _u: &CpuStorage,
        _u_layout: &Layout,
        _deviation: &CpuStorage,
        _deviation_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("the expected activation has another kernel on the CPU")
    }

    fn cuda_fwd(
        &self,
        u: &CudaStorage,
        u_layout: &Layout,
        deviation: &CudaStorage,
        deviation_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let shape = self.output_shape(u_layout);
        let (located, deviation) = ((u, u_layout), (deviation, deviation_layout));
        let y = match u.dtype() {
            DType::F32 => self.forward::<f32>(located, deviation, shape.elem_count())?,
            DType::F16 => self.forward::<f16>(located, deviation, shape.elem_count())?,
            DType::BF16 => self.forward::<bf16>(located, deviation, shape.elem_count())?,
            dtype => candle_core::bail!("the expected activation has no kernel for {dtype:?}"),
        };
        Ok((y, shape))
    }

    /// The gradients of the same function from Candle's operations.
    fn bwd(
        &self,
        u: &Tensor,
        deviation: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (u, s) = (Var::from_tensor(&u.detach())?, Var::from_tensor(&deviation.detach())?);
        let config = self.config.relu(false);
        let zero = deviation.zeros_like()?;
        let m = bn_noise_eval(u.as_tensor(), &zero, &self.statistics, &config, None)?;
        let m = Images::nchw(m);
        let y = match self.image {
            None => m.expected_relu(s.as_tensor())?,
            Some(_) => m.expected_max_pool(s.as_tensor(), 2, true)?,
        };
        let mut gradients = (y.to_nchw()? * dy)?.sum_all()?.backward()?;
        Ok((gradients.remove(&u), gradients.remove(&s)))
    }
}
