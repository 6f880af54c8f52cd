//! The two memory layouts of images. Candle's operations take (N, C, H, W), NCHW. The CPU kernels
//! compute in (H, W, N, C), HWNC, in which each position of a convolution is a dense matrix
//! product.

use super::max_pool2d;
use crate::error::Error;
use crate::storage::contiguous_slice;
use candle_core::{CpuStorage, CustomOp1, Result, Shape, Tensor};
use vmf_kernels::Layout;
use vmf_kernels::conv::{to_hwnc, to_nchw};

/// A batch of images with its layout.
///
/// A matrix (N, C) is a batch of images of one pixel, whose elements have the same order in both
/// layouts.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    tensor: Tensor,
    layout: Layout,
}

impl Images {
    pub(crate) fn nchw(tensor: Tensor) -> Self {
        Self { tensor, layout: Layout::Nchw }
    }

    pub(crate) fn hwnc(tensor: Tensor) -> Self {
        Self { tensor, layout: Layout::Hwnc }
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The dimensions in the order N, C, H, W.
    pub(crate) fn dims(&self) -> Vec<usize> {
        match (self.tensor.dims(), self.layout) {
            (&[h, w, n, c], Layout::Hwnc) => vec![n, c, h, w],
            (dims, _) => dims.to_vec(),
        }
    }

    pub(crate) fn to_nchw(&self) -> Result<Tensor> {
        self.in_layout(Layout::Nchw)
    }

    pub(crate) fn to_hwnc(&self) -> Result<Tensor> {
        self.in_layout(Layout::Hwnc)
    }

    fn in_layout(&self, to: Layout) -> Result<Tensor> {
        match self.tensor.dims() {
            [_, _, _, _] if self.layout != to => {
                self.tensor.contiguous()?.apply_op1(Transposition { to })
            }
            _ => Ok(self.tensor.clone()),
        }
    }

    /// Applies an elementwise function.
    pub(crate) fn map(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { tensor: f(&self.tensor)?, layout: self.layout })
    }

    /// `gain * x + shift`, with one gain and one shift per channel.
    pub(crate) fn scale_and_shift(&self, gain: &Tensor, shift: &Tensor) -> Result<Self> {
        let rank = self.tensor.rank();
        let axis = if (rank, self.layout) == (4, Layout::Hwnc) { 3 } else { 1 };
        let mut channels = vec![1; rank];
        channels[axis] = gain.elem_count();
        let (gain, shift) = (gain.reshape(&*channels)?, shift.reshape(&*channels)?);
        self.map(|xs| xs.broadcast_mul(&gain)?.broadcast_add(&shift))
    }

    /// Maximum pooling over square windows side by side.
    pub(crate) fn max_pool(&self, window: usize) -> Result<Self> {
        Ok(Self::nchw(max_pool2d(&self.to_nchw()?, window, window, 0)?))
    }
}

/// The change of layout as a node of the graph, in f32 on the CPU.
#[derive(Clone, Copy)]
struct Transposition {
    to: Layout,
}

impl CustomOp1 for Transposition {
    fn name(&self) -> &'static str {
        "image-layout"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &candle_core::Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let from = contiguous_slice::<f32>(storage, layout)?;
        let mut to = vec![0f32; from.len()];
        let (a, b, c, d) = layout.shape().dims4()?;
        let shape = (c, d, a, b).into();
        match self.to {
            Layout::Hwnc => to_hwnc(from, a, b, c * d, &mut to),
            Layout::Nchw => to_nchw(from, c, d, a * b, &mut to),
        }
        .map_err(Error::from)?;
        Ok((CpuStorage::F32(to), shape))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let back = match self.to {
            Layout::Hwnc => Layout::Nchw,
            Layout::Nchw => Layout::Hwnc,
        };
        grad_res.contiguous()?.apply_op1_no_bwd(&Self { to: back }).map(Some)
    }
}
