//! Normalization, noise and ReLU as one node of the graph.
//!
//! ```text
//! y = act((u - mean) / sqrt(var + eps) + sigma_g z)
//! ```
//!
//! The noise z is never stored: the backward pass generates it again from its key. The statistics
//! of the batch stay inside the node, since an operation of Candle has one output and no saved
//! context.

use super::reference::{bn_noise_eval_reference, bn_noise_reference};
use crate::dtype::stable_dtype;
use crate::error::{Error, check_shape};
use crate::storage::{contiguous_slice, cpu_slice, for_dtype, same_storage};
use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor, WithDType};
use std::sync::{Arc, OnceLock};
use vmf_kernels::bn_noise::{self as kernel, Config, NoiseTerm};
use vmf_kernels::noise::Noise;
use vmf_kernels::{Element, Real};

/// Mean and variance of each channel. The variance of a batch is the biased one, that of a running
/// estimate is unbiased, as in PyTorch.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The mean, one value per channel.
    pub mean: Tensor,
    /// The variance, one value per channel.
    pub var: Tensor,
}

impl Statistics {
    /// Statistics of a kernel, as tensors beside `tensor`.
    pub(super) fn from_kernel(statistics: &kernel::Statistics, tensor: &Tensor) -> Result<Self> {
        let dtype = stable_dtype(tensor.dtype());
        let channels = |values: &[f64]| Tensor::new(values, tensor.device())?.to_dtype(dtype);
        Ok(Self { mean: channels(&statistics.mean)?, var: channels(&statistics.var)? })
    }

    /// A scalar that is 1 if all values are finite and 0 otherwise, on their device: nobody has to
    /// wait for it.
    pub(crate) fn are_finite(&self) -> Result<Tensor> {
        // 0 x is 0 for every number, and NaN for what is none.
        ((&self.mean * 0.0)? + (&self.var * 0.0)?)?.sum_all()?.eq(0.0)
    }

    /// The same for a kernel on the CPU.
    pub(super) fn to_kernel(&self) -> Result<kernel::Statistics> {
        let values = |channels: &Tensor| channels.to_dtype(DType::F64)?.to_vec1();
        Ok(kernel::Statistics { mean: values(&self.mean)?, var: values(&self.var)? })
    }
}

/// The normalization of a tensor (N, C, ...), with eps = 1e-5 and without activation.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// use vmf_candle::{Pass, ops};
/// # fn main() -> candle_core::Result<()> {
/// let u = Tensor::ones((8, 4, 5, 5), DType::F32, &Device::Cpu)?;
/// let sigma = Tensor::new(&[0.1f32], &Device::Cpu)?;
/// let noise = Pass::train(42, 0).noise(7, u.dims())?; // seed 42, step 0, stream 7
/// let (y, batch) = ops::bn_noise(&u, &sigma, &ops::bn_noise_config(&u)?.relu(true), noise)?;
/// assert_eq!((y.dims(), batch.mean.dims()), (&[8, 4, 5, 5][..], &[4][..]));
/// # Ok(()) }
/// ```
pub fn bn_noise_config(u: &Tensor) -> Result<Config> {
    let dims = u.dims();
    check_shape(dims.len() >= 2, "batch normalization with noise", || {
        format!("expected (batch, channels, ...), not {dims:?}")
    })?;
    Ok(Config::new(kernel::Shape::nchw(dims[0], dims[1], dims[2..].iter().product())))
}

/// Normalizes `u`, of shape (N, C) or (N, C, ...), with the statistics of the batch, and adds
/// noise. Returns the statistics too.
///
/// `sigma` holds G values, where G divides C. Channel c uses value `c / (C / G)`. Differentiable in
/// `u` and `sigma`.
pub fn bn_noise(
    u: &Tensor,
    sigma: &Tensor,
    config: &Config,
    noise: Option<Noise>,
) -> Result<(Tensor, Statistics)> {
    check(u, sigma, config)?;
    check_batch(config)?;
    if !has_kernel(u, config, noise) {
        return bn_noise_reference(u, sigma, config, noise);
    }
    let saved = Arc::default();
    let node = BnNoise { config: *config, noise, given: None, saved: Arc::clone(&saved) };
    let y = node.apply(u, sigma)?;
    let statistics = match saved.get() {
        Some(Saved::Cpu(statistics)) => Statistics::from_kernel(statistics, u)?,
        #[cfg(feature = "cuda")]
        Some(Saved::Cuda(statistics)) => super::bn_noise_cuda::statistics(statistics, u.device())?,
        None => candle_core::bail!("bn-noise: the forward pass saved no statistics"),
    };
    Ok((y, statistics))
}

/// [`bn_noise`] with given statistics, which are constants for the gradient.
pub fn bn_noise_eval(
    u: &Tensor,
    sigma: &Tensor,
    statistics: &Statistics,
    config: &Config,
    noise: Option<Noise>,
) -> Result<Tensor> {
    check(u, sigma, config)?;
    for statistic in [&statistics.mean, &statistics.var] {
        check_shape(statistic.dims() == [config.shape.channels], "batch normalization", || {
            let (dims, channels) = (statistic.dims(), config.shape.channels);
            format!("statistics of shape {dims:?} for {channels} channels")
        })?;
    }
    if !has_kernel(u, config, noise) {
        return bn_noise_eval_reference(u, sigma, statistics, config, noise);
    }
    let Statistics { mean, var } = statistics;
    let given = Some(Statistics { mean: mean.detach(), var: var.detach() });
    BnNoise { config: *config, noise, given, saved: Arc::default() }.apply(u, sigma)
}

/// Checks what both the kernels and the reference rely on.
fn check(u: &Tensor, sigma: &Tensor, config: &Config) -> Result<()> {
    let (what, shape) = ("batch normalization with noise", config.shape);
    if !matches!(u.dtype(), DType::F32 | DType::F64 | DType::BF16 | DType::F16) {
        Err(Error::DType { what, dtype: u.dtype() })?
    }
    check_shape(u.elem_count() > 0 && shape == bn_noise_config(u)?.shape, what, || {
        format!("a tensor {:?} is empty or does not have the shape {shape:?}", u.dims())
    })?;
    let (groups, channels) = (sigma.dims1()?, shape.channels);
    Ok(check_shape(groups > 0 && channels.is_multiple_of(groups), what, || {
        format!(
            "{groups} values of sigma for {channels} channels: the first must divide the second"
        )
    })?)
}

/// A batch has a variance if each channel has at least two values.
pub(super) fn check_batch(config: &Config) -> Result<()> {
    // If processes share the batch, each of them has at least one example.
    let valid = config.shape.elements_per_channel() >= 2 || !config.across.is_alone();
    Ok(check_shape(valid, "batch normalization", || {
        "one value per channel has no variance: the batch needs at least two examples".into()
    })?)
}

/// Whether there is a kernel for this tensor. Elsewhere Candle's own operations compute the same.
/// The CUDA kernels know nothing of batches that processes share.
fn has_kernel(u: &Tensor, config: &Config, noise: Option<Noise>) -> bool {
    let on_cuda = cfg!(feature = "cuda") && u.device().is_cuda() && u.dtype() != DType::F64;
    let is_whole = config.across.is_alone() && noise.is_none_or(|noise| noise.first == 0);
    u.device().is_cpu() || (on_cuda && is_whole)
}

/// The statistics that a forward pass normalized with, where it computed them.
pub(super) enum Saved {
    Cpu(kernel::Statistics),
    #[cfg(feature = "cuda")]
    Cuda(kernel::cuda::Statistics),
}

impl Saved {
    fn on_cpu(&self) -> Result<&kernel::Statistics> {
        match self {
            Saved::Cpu(statistics) => Ok(statistics),
            #[cfg(feature = "cuda")]
            Saved::Cuda(_) => candle_core::bail!("bn-noise: a CUDA pass cannot end on the CPU"),
        }
    }
}

/// The node.
pub(super) struct BnNoise {
    pub(super) config: Config,
    pub(super) noise: Option<Noise>,
    /// The statistics to use instead of those of the batch.
    pub(super) given: Option<Statistics>,
    saved: Arc<OnceLock<Saved>>,
}

impl BnNoise {
    fn apply(self, u: &Tensor, sigma: &Tensor) -> Result<Tensor> {
        let sigma = sigma.to_dtype(stable_dtype(u.dtype()))?.contiguous()?;
        u.contiguous()?.apply_op2(&sigma, self)
    }

    /// What the forward pass left.
    pub(super) fn saved(&self) -> Result<&Saved> {
        match self.saved.get() {
            Some(saved) => Ok(saved),
            None => candle_core::bail!("bn-noise: the backward pass came before the forward pass"),
        }
    }

    /// Leaves statistics for the backward pass. A graph evaluates a node once; a second evaluation
    /// would save the same.
    pub(super) fn save(&self, statistics: Saved) {
        let _ = self.saved.set(statistics);
    }

    fn noise_term<'a, R>(&self, sigma: &'a [R]) -> Option<NoiseTerm<'a, R>> {
        self.noise.map(|noise| NoiseTerm { noise, sigma })
    }

    fn forward<E: Element>(&self, u: &[E], sigma: &[E::Real]) -> Result<Vec<E>> {
        let mut y = vec![E::default(); u.len()];
        let (config, noise) = (&self.config, self.noise_term(sigma));
        let statistics = match &self.given {
            None => kernel::forward_train(config, noise, u, &mut y).map_err(Error::from)?,
            Some(given) => {
                let given = given.to_kernel()?;
                kernel::forward_eval(config, noise, &given, u, &mut y).map_err(Error::from)?;
                given
            }
        };
        self.save(Saved::Cpu(statistics));
        Ok(y)
    }

    /// du and dsigma.
    fn backward<E>(&self, [u, sigma, y, dy]: [&Tensor; 4]) -> Result<(Tensor, Tensor)>
    where
        E: Element + WithDType,
        E::Real: WithDType,
    {
        let storages = [u, sigma, y, dy].map(Tensor::storage_and_layout);
        let [us, ys, dys] = [0, 2, 3].map(|i| cpu_slice::<E>(&storages[i]));
        let (us, ys, dys, sigmas) = (us?, ys?, dys?, cpu_slice::<E::Real>(&storages[1])?);
        let saved = kernel::Saved { u: us, y: ys, statistics: self.saved()?.on_cpu()? };
        let backward = match self.given {
            Some(_) => kernel::backward_eval,
            None => kernel::backward_train,
        };
        let mut du = vec![E::default(); dys.len()];
        let noise = self.noise_term(sigmas);
        let mut dsigma = backward(&self.config, noise, saved, dys, &mut du).map_err(Error::from)?;
        // Without noise the kernel returns no dsigma.
        dsigma.resize(sigmas.len(), <E::Real as Real>::ZERO);
        Ok((
            Tensor::from_vec(du, u.shape(), &Device::Cpu)?,
            Tensor::from_vec(dsigma, sigma.shape(), &Device::Cpu)?,
        ))
    }
}

impl CustomOp2 for BnNoise {
    fn name(&self) -> &'static str {
        "bn-noise"
    }

    fn cpu_fwd(
        &self,
        u: &CpuStorage,
        u_layout: &Layout,
        sigma: &CpuStorage,
        sigma_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y = same_storage!(
            u,
            "bn-noise",
            self.forward(contiguous_slice(u, u_layout)?, contiguous_slice(sigma, sigma_layout)?,)?
        );
        Ok((y, u_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        u: &candle_core::CudaStorage,
        u_layout: &Layout,
        sigma: &candle_core::CudaStorage,
        sigma_layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let y = super::bn_noise_cuda::forward(self, (u, u_layout), (sigma, sigma_layout))?;
        Ok((y, u_layout.shape().clone()))
    }

    fn bwd(
        &self,
        u: &Tensor,
        sigma: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = &dy.contiguous()?;
        #[cfg(feature = "cuda")]
        if u.device().is_cuda() {
            let (du, dsigma) = super::bn_noise_cuda::backward(self, u, sigma, dy)?;
            return Ok((Some(du), Some(dsigma)));
        }
        let tensors = [u, sigma, y, dy];
        let (du, dsigma) = for_dtype!(u.dtype(), "bn-noise", self.backward(tensors))?;
        Ok((Some(du), Some(dsigma)))
    }
}
