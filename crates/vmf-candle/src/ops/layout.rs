//! The two memory layouts of images. Candle's operations take (N, C, H, W), NCHW. The CPU kernels
//! compute in (H, W, N, C), HWNC, in which each position of a convolution is a dense matrix
//! product.
//!
//! What a layer hands on is a tensor (N, C, H, W) for the model's own code, whatever its memory: a
//! result in HWNC is handed on as a *view*, without a copy, and the next layer looks behind it
//! ([`Images::of`]).

use super::max_pool2d;
use crate::error::Error;
use crate::storage::contiguous_slice;
use candle_core::{CpuStorage, CustomOp1, DType, Result, Shape, Tensor};
use vmf_kernels::Layout;
use vmf_kernels::conv::{to_hwnc, to_nchw};

/// The order of dimensions that turns (N, C, H, W) into (H, W, N, C), and back.
const SWAPPED: (usize, usize, usize, usize) = (2, 3, 0, 1);

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

    /// Images (N, C, H, W), in the layout that they have in memory.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self> {
        Ok(match hwnc_behind(tensor)? {
            Some(hwnc) => Self::hwnc(hwnc),
            None => Self::nchw(tensor.clone()),
        })
    }

    /// The images as a tensor (N, C, H, W), without a copy.
    pub(crate) fn to_tensor(&self) -> Result<Tensor> {
        match (self.tensor.rank(), self.layout) {
            (4, Layout::Hwnc) => self.tensor.permute(SWAPPED),
            _ => Ok(self.tensor.clone()),
        }
    }

    pub(crate) fn is_hwnc(&self) -> bool {
        (self.tensor.rank(), self.layout) == (4, Layout::Hwnc)
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

    /// One value per channel, in a shape that broadcasts to the images.
    pub(crate) fn per_channel(&self, values: &Tensor) -> Result<Tensor> {
        let rank = self.tensor.rank();
        let axis = if (rank, self.layout) == (4, Layout::Hwnc) { 3 } else { 1 };
        let mut dims = vec![1; rank];
        dims[axis] = values.elem_count();
        values.to_dtype(self.tensor.dtype())?.reshape(dims)
    }

    /// One value per channel, in a shape that broadcasts to the images as NCHW.
    pub(crate) fn channel_shape(&self, values: &Tensor) -> Result<Tensor> {
        let mut dims = vec![1; self.tensor.rank()];
        dims[1] = values.elem_count();
        values.to_dtype(self.tensor.dtype())?.reshape(dims)
    }

    /// `gain * x + shift`, with one gain and one shift per channel.
    pub(crate) fn scale_and_shift(&self, gain: &Tensor, shift: &Tensor) -> Result<Self> {
        let (gain, shift) = (self.per_channel(gain)?, self.per_channel(shift)?);
        self.map(|xs| xs.broadcast_mul(&gain)?.broadcast_add(&shift))
    }

    /// The sum with other images, in the layout of these.
    pub(crate) fn add(&self, other: &Self) -> Result<Self> {
        let other = other.in_layout(self.layout)?;
        self.map(|xs| xs + other)
    }

    /// The variance across `count` blocks of images, block by block along the batch, averaged over
    /// images and positions: one value per channel.
    pub(crate) fn variance_across(&self, count: usize) -> Result<Tensor> {
        let xs = self.to_nchw()?.to_dtype(DType::F64)?;
        let (rows, channels) = (xs.dim(0)?, xs.dim(1)?);
        let xs = xs.reshape((count, rows / count, channels, ()))?;
        let centred = xs.broadcast_sub(&xs.mean_keepdim(0)?)?;
        let var = (centred.sqr()?.sum(0)? / (count - 1).max(1) as f64)?;
        var.mean((0, 2))
    }

    /// The elements of all windows of this side, side by side: one tensor (N, C, H / window,
    /// W / window) for each place in a window. The images are NCHW.
    pub(crate) fn window_elements(&self, window: usize) -> Result<Vec<Tensor>> {
        let (_, _, height, width) = self.tensor.dims4()?;
        let places = |size: usize, offset: usize| {
            let count = size / window;
            let indices: Vec<u32> = (0..count).map(|i| (i * window + offset) as u32).collect();
            Tensor::from_vec(indices, count, self.tensor.device())
        };
        let mut elements = Vec::with_capacity(window * window);
        for y in 0..window {
            let rows = self.tensor.index_select(&places(height, y)?, 2)?;
            for x in 0..window {
                elements.push(rows.index_select(&places(width, x)?, 3)?);
            }
        }
        Ok(elements)
    }

    /// Maximum pooling over square windows side by side.
    pub(crate) fn max_pool(&self, window: usize) -> Result<Self> {
        Self::of(&max_pool2d(&self.to_tensor()?, window, window, 0)?)
    }
}

/// The tensor in HWNC that a tensor (N, C, H, W) is a view of, if it is one.
///
/// In a graph that must be the very node behind the view: a view of a view would be further nodes,
/// and Candle adds up the gradients of views element by element in another order.
fn hwnc_behind(view: &Tensor) -> Result<Option<Tensor>> {
    let may_be = view.rank() == 4
        && view.device().is_cpu()
        && view.dtype() == DType::F32
        && !view.is_contiguous();
    if !may_be {
        return Ok(None);
    }
    let turned = view.permute(SWAPPED)?;
    if !turned.is_contiguous() {
        return Ok(None);
    }
    if !view.track_op() {
        return Ok(Some(turned));
    }
    // The first node is the view itself, and what it was made from follows it. Only views share
    // memory, so a node with the same memory in the same order has the same elements.
    let behind = view.sorted_nodes().get(1).map(|node| (*node).clone());
    Ok(behind.filter(|node| {
        let same_order = node.dims() == turned.dims() && node.is_contiguous();
        same_order && memory(node) == memory(view)
    }))
}

/// Where the elements of a tensor are.
fn memory(tensor: &Tensor) -> (usize, usize) {
    let (storage, layout) = tensor.storage_and_layout();
    (std::ptr::from_ref(&*storage).addr(), layout.start_offset())
}

/// The mean over all positions of images (N, C, H, W), (N, C): the pooling at the end of a residual
/// network.
pub fn mean_over_positions(xs: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = xs.dims4()?;
    let images = Images::of(xs)?;
    match images.is_hwnc() {
        true => {
            let positions = images.tensor().reshape((height * width, batch * channels))?;
            positions.mean(0)?.reshape((batch, channels))
        }
        false => xs.reshape((batch, channels, height * width))?.mean(2),
    }
}

/// Images (N, C, H, W) with the channels of all of these, one after the other. Images from layers
/// of this crate keep their layout, which `Tensor::cat` would change.
pub fn concat_channels(images: &[&Tensor]) -> Result<Tensor> {
    let all = images.iter().map(|images| Images::of(images)).collect::<Result<Vec<_>>>()?;
    if !all.iter().all(Images::is_hwnc) {
        return Tensor::cat(images, 1);
    }
    let tensors: Vec<&Tensor> = all.iter().map(Images::tensor).collect();
    Images::hwnc(Tensor::cat(&tensors, 3)?).to_tensor()
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
