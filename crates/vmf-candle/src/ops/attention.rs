//! Self-attention with gradients.

use super::softmax_last_dim;
use crate::error::{Error, check_setting, check_shape};
use crate::storage::{contiguous_slice, cpu_slice, unwritten};
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};
use std::sync::{Arc, OnceLock};
use vmf_kernels::attention::Attention;

/// Self-attention with several heads: `softmax(q kᵀ / sqrt(dim)) v` for each, differentiable.
///
/// With `causal`, no token sees a later one. In f32 on a CPU it is one kernel,
/// [`vmf_kernels::attention`]; elsewhere it is made of Candle's operations.
///
/// # Shapes
/// Queries, keys and values (N, T, heads * dim), as linear layers leave them; output the same.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let xs = Tensor::randn(0f32, 1.0, (2, 5, 12), &Device::Cpu)?;
/// let ys = vmf_candle::ops::attention([&xs, &xs, &xs], 3, true)?; // 3 heads of 4
/// assert_eq!(ys.dims(), [2, 5, 12]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn attention([q, k, v]: [&Tensor; 3], heads: usize, causal: bool) -> Result<Tensor> {
    let (batch, tokens, width) = q.dims3()?;
    let valid = heads > 0 && width.is_multiple_of(heads) && q.elem_count() > 0;
    check_setting(valid, "the number of heads", heads, "it must divide the number of channels")?;
    check_shape(k.dims() == q.dims() && v.dims() == q.dims(), "attention", || {
        let dims = [q.dims(), k.dims(), v.dims()];
        format!("queries, keys and values must have one shape, not {dims:?}")
    })?;
    let dim = width / heads;
    let scale = 1.0 / (dim as f64).sqrt();
    let is_fused = |tensor: &Tensor| tensor.device().is_cpu() && tensor.dtype() == DType::F32;
    if is_fused(q) && is_fused(k) && is_fused(v) {
        let kernel = Attention { batch, tokens, heads, dim, scale: scale as f32, causal };
        let node = Node { kernel, probabilities: Arc::default() };
        return q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, node);
    }
    let heads_first = |tensor: &Tensor| {
        tensor.reshape((batch, tokens, heads, dim))?.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = (heads_first(q)?, heads_first(k)?, heads_first(v)?);
    let mut scores = (q.matmul(&k.t()?.contiguous()?)? * scale)?;
    if causal {
        let seen = |i: usize| if i % tokens > i / tokens { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..tokens * tokens).map(seen).collect();
        let mask = Tensor::from_vec(mask, (tokens, tokens), scores.device())?;
        scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
    }
    let output = softmax_last_dim(&scores)?.matmul(&v)?;
    output.transpose(1, 2)?.reshape((batch, tokens, width))
}

struct Node {
    kernel: Attention,
    /// P, for the backward pass.
    probabilities: Arc<OnceLock<Vec<f32>>>,
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let q = contiguous_slice(q, q_layout)?;
        let (k, v) = (contiguous_slice(k, k_layout)?, contiguous_slice(v, v_layout)?);
        // SAFETY: the kernel writes both; after an error nobody reads them.
        let (mut p, mut o) =
            unsafe { (unwritten(self.kernel.probabilities()), unwritten(self.kernel.elements())) };
        self.kernel.forward([q, k, v], &mut p, &mut o).map_err(Error::from)?;
        // A graph evaluates a node once; a second evaluation would save the same.
        let _ = self.probabilities.set(p);
        Ok((CpuStorage::F32(o), q_layout.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let d_o = d_o.contiguous()?;
        let storages = [q, k, v, &d_o].map(Tensor::storage_and_layout);
        let [qs, ks, vs, dos] = [0, 1, 2, 3].map(|i| cpu_slice::<f32>(&storages[i]));
        let (qs, ks, vs, dos) = (qs?, ks?, vs?, dos?);
        let Some(p) = self.probabilities.get() else {
            candle_core::bail!("attention: the backward pass came before the forward pass")
        };
        // SAFETY: the kernel writes all of them; after an error nobody reads them.
        let [mut dq, mut dk, mut dv] = [0; 3].map(|_| unsafe { unwritten(qs.len()) });
        self.kernel
            .backward([qs, ks, vs], p, dos, [&mut dq, &mut dk, &mut dv])
            .map_err(Error::from)?;
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, q.shape(), &Device::Cpu).map(Some);
        Ok((tensor(dq)?, tensor(dk)?, tensor(dv)?))
    }
}
