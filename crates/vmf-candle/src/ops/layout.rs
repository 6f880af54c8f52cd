//! Between Candle's image layout (N, C, H, W) and the one that the CPU kernels are fastest in, (H,
//! W, N, C): there each position of a convolution is a dense matrix product.

use super::contiguous_slice;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use vmf_kernels::conv::{to_hwnc, to_nchw};

/// (N, C, H, W) to (H, W, N, C), differentiable.
pub(crate) fn to_fast(xs: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = xs.dims4()?;
    xs.contiguous()?.apply_op1(Transposition { batch, channels, height, width, to_fast: true })
}

/// (H, W, N, C) to (N, C, H, W), differentiable.
pub(crate) fn from_fast(xs: &Tensor) -> Result<Tensor> {
    let (height, width, batch, channels) = xs.dims4()?;
    xs.contiguous()?.apply_op1(Transposition { batch, channels, height, width, to_fast: false })
}

#[derive(Clone, Copy)]
struct Transposition {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    to_fast: bool,
}

impl CustomOp1 for Transposition {
    fn name(&self) -> &'static str {
        "image-layout"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Self { batch, channels, height, width, to_fast } = *self;
        let from = contiguous_slice::<f32>(storage, layout)?;
        let mut to = vec![0f32; from.len()];
        let (transpose, shape): (fn(_, _, _, _, _) -> _, Shape) = if to_fast {
            (to_hwnc, (height, width, batch, channels).into())
        } else {
            (to_nchw, (batch, channels, height, width).into())
        };
        transpose(from, batch, channels, height * width, &mut to).map_err(crate::Error::from)?;
        Ok((CpuStorage::F32(to), shape))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let inverse = Self { to_fast: !self.to_fast, ..*self };
        grad_res.contiguous()?.apply_op1_no_bwd(&inverse).map(Some)
    }
}
