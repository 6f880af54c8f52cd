//! The objective on a CUDA device: one kernel adds the KL of all layers to the negative
//! log-likelihood and computes the gradient of each rho. From Candle's operations it would be some
//! 45 launches a layer.

use super::backward::deliver;
use crate::cuda::{Ready, cuda, failed, tensor, view};
use crate::ops::scale_kind;
use crate::posterior::LayerSpec;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use vmf_kernels::objective::{LayerKl, cuda as kernel};

/// nll + weight KL as a node, and the KL; nothing if this is not for the kernel.
pub(super) fn objective(
    nll: &Tensor,
    layers: &[LayerSpec],
    weight: f64,
) -> Result<Option<(Tensor, Tensor)>> {
    let is_single = |tensor: &Tensor| {
        let single = tensor.dtype() == DType::F32 && tensor.device().same_device(nll.device());
        single && tensor.device().is_cuda()
    };
    if !is_single(nll) || !layers.iter().all(|layer| is_single(layer.sigma.variable())) {
        return Ok(None);
    }
    let storages: Vec<_> =
        layers.iter().map(|layer| layer.sigma.variable().storage_and_layout()).collect();
    let mut table = Vec::with_capacity(layers.len());
    for (spec, (storage, layout)) in layers.iter().zip(&storages) {
        let config = spec.sigma.config();
        let layer = LayerKl {
            dim: spec.dim,
            units_per_group: spec.units / config.groups,
            groups: config.groups,
            kind: scale_kind(config.parameterization),
        };
        table.push((layer, view::<f32>((cuda(storage)?, layout))?));
    }
    let (storage, layout) = nll.storage_and_layout();
    let device = cuda(&storage)?.device().clone();
    let made = kernel::objective(
        &device.cuda_stream(),
        &table,
        weight,
        &view::<f32>((cuda(&storage)?, layout))?,
    )
    .map_err(failed)?;
    let slopes = made.slopes.len();
    let node = CudaObjective {
        slopes: tensor(made.slopes, slopes, &device),
        rhos: layers.iter().map(|layer| layer.sigma.rho()).collect(),
        ready: Ready::new(CudaStorage::wrap_cuda_slice(made.total, device.clone()), ()),
    };
    let kl = tensor(made.kl, (), &device);
    drop(storage);
    Ok(Some((nll.apply_op1(node)?, kl)))
}

struct CudaObjective {
    /// The gradient of the KL's term with respect to each rho, one after the other.
    slopes: Tensor,
    /// Variables, or constants if they are frozen.
    rhos: Vec<Tensor>,
    ready: Ready,
}

impl CustomOp1 for CudaObjective {
    fn name(&self) -> &'static str {
        "objective"
    }

    fn cpu_fwd(&self, _nll: &CpuStorage, _layout: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("the objective has another path on the CPU")
    }

    fn cuda_fwd(&self, _nll: &CudaStorage, _layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.ready.take()
    }

    /// The gradients of rho are delivered: they are no arguments of the node, which has one.
    fn bwd(&self, _nll: &Tensor, _total: &Tensor, dtotal: &Tensor) -> Result<Option<Tensor>> {
        let slopes = self.slopes.broadcast_mul(dtotal)?;
        let mut first = 0;
        for rho in &self.rhos {
            let slope = slopes.narrow(0, first, rho.elem_count())?;
            first += rho.elem_count();
            if rho.is_variable() && deliver(rho, slope).is_some() {
                candle_core::bail!(
                    "on a GPU the gradients of a loss with a KL are computed by \
                     `vmf_candle::train::backward(&loss)` or by `Adam::backward_step`; \
                     `loss.backward()` would miss those of the KL"
                )
            }
        }
        Ok(Some(dtotal.clone()))
    }
}
