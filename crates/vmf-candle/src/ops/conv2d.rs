//! Convolution with gradients, on the kernels of `vmf-kernels`.
//!
//! On a CPU Candle's forward pass is several times slower, and its gradients are slower still: that
//! with respect to the input is a loop without matrix products. Here all three are dense products
//! or Winograd's algorithm.

use super::layout::Images;
use crate::error::{Error, check_shape};
use crate::storage::{contiguous_slice, cpu_slice};
use crate::train::deliver;
use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Module, Result, Shape, Tensor};
use vmf_kernels::conv::{Conv2d, ConvShape};

/// Convolution of images with a kernel; the arguments are those of [`Tensor::conv2d`].
///
/// In f32 on a CPU the kernels of `vmf-kernels` compute it, with the same bits on any number of
/// threads; on an NVIDIA GPU cuDNN does, or matrix products where it is not installed. Otherwise
/// Candle does.
///
/// # Shapes
/// `xs` (N, C, H, W), `weight` (M, C / groups, kh, kw); output (N, M, H', W').
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let images = Tensor::ones((8, 3, 32, 32), DType::F32, &Device::Cpu)?;
/// let weight = Tensor::ones((16, 3, 3, 3), DType::F32, &Device::Cpu)?;
/// let (padding, stride, dilation, groups) = (1, 2, 1, 1);
/// let features = vmf_candle::ops::conv2d(&images, &weight, padding, stride, dilation, groups)?;
/// assert_eq!(features.dims(), [8, 16, 16, 16]);
/// # Ok(()) }
/// ```
pub fn conv2d(
    xs: &Tensor,
    weight: &Tensor,
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
) -> Result<Tensor> {
    let (batch, in_channels, height, width) = xs.dims4()?;
    let (out_channels, group_inputs, kernel_height, kernel_width) = weight.dims4()?;
    check_shape(group_inputs.checked_mul(groups) == Some(in_channels), "conv2d", || {
        let dims = weight.dims();
        format!("images of {in_channels} channels do not fit a weight {dims:?} in {groups} groups")
    })?;
    let shape = ConvShape {
        batch,
        in_channels,
        out_channels,
        input: [height, width],
        kernel: [kernel_height, kernel_width],
        stride,
        padding,
        dilation,
        groups,
    };
    let conv = Conv2d::new(shape).map_err(Error::from)?;
    let is_fused = |tensor: &Tensor| tensor.device().is_cpu() && tensor.dtype() == DType::F32;
    if !(is_fused(xs) && is_fused(weight)) {
        return candle_conv2d(xs, weight, &shape);
    }
    let node = Convolution { conv, needs_dx: is_tracked(xs), needs_dw: is_tracked(weight) };
    let xs = Images::of(xs)?.to_hwnc()?.contiguous()?;
    Images::hwnc(xs.apply_op2(&weight.contiguous()?, node)?).to_tensor()
}

/// The convolution by Candle, or on a GPU by the kernels for it.
pub(crate) fn candle_conv2d(xs: &Tensor, weight: &Tensor, shape: &ConvShape) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if crate::cuda::has_kernels(xs) && xs.dtype() == weight.dtype() {
        return super::conv2d_cuda::conv2d(xs, weight, shape);
    }
    let ConvShape { padding, stride, dilation, groups, .. } = *shape;
    let unused = [0, 1].map(|axis| {
        let reach = dilation * (shape.kernel[axis] - 1) + 1;
        (shape.input[axis] + 2 * padding).checked_sub(reach).map(|room| room % stride)
    });
    let (xs, padding) = match unused {
        // Candle's gradient of a strided convolution is wrong if no window reaches the last pixels,
        // and their number is not the same below as to the right. Without those pixels it is the
        // same convolution, with the right gradient.
        [Some(below), Some(right)] if below != right => {
            let xs = trim(xs, 2, padding, below)?;
            (trim(&xs, 3, padding, right)?, 0)
        }
        _ => (xs.clone(), padding),
    };
    xs.conv2d(weight, padding, stride, dilation, groups)
}

/// `xs` with `padding` zeros on both sides of a dimension, without the last `unused` elements.
fn trim(xs: &Tensor, dim: usize, padding: usize, unused: usize) -> Result<Tensor> {
    let padded = xs.pad_with_zeros(dim, padding, padding)?;
    padded.narrow(dim, 0, padded.dim(dim)? - unused)
}

/// Whether a gradient with respect to a tensor may be needed. A tensor outside any graph is
/// returned by `detach` as it is.
pub(super) fn is_tracked(tensor: &Tensor) -> bool {
    tensor.is_variable() || tensor.detach().id() != tensor.id()
}

/// The node, in HWNC.
struct Convolution {
    conv: Conv2d,
    needs_dx: bool,
    needs_dw: bool,
}

impl CustomOp2 for Convolution {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = self.conv.shape();
        let mut y = vec![0f32; shape.output_len()];
        let (x, w) = (contiguous_slice(x, x_layout)?, contiguous_slice(w, w_layout)?);
        self.conv.forward(x, w, &mut y).map_err(Error::from)?;
        let [height, width] = shape.output();
        Ok((CpuStorage::F32(y), (height, width, shape.batch, shape.out_channels).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let storages = [x, w, &dy].map(Tensor::storage_and_layout);
        let [xs, ws, dys] = [0, 1, 2].map(|i| cpu_slice::<f32>(&storages[i]));
        let (xs, ws, dys) = (xs?, ws?, dys?);
        let mut dx = None;
        if self.needs_dx {
            let mut values = vec![0f32; xs.len()];
            self.conv.input_gradient(dys, ws, &mut values).map_err(Error::from)?;
            dx = Some(Tensor::from_vec(values, x.shape(), &Device::Cpu)?);
        }
        let mut dw = None;
        if self.needs_dw {
            let mut values = vec![0f32; ws.len()];
            self.conv.weight_gradient(xs, dys, &mut values).map_err(Error::from)?;
            dw = deliver(w, Tensor::from_vec(values, w.shape(), &Device::Cpu)?);
        }
        Ok((dx, dw))
    }
}

/// A convolution layer of candle-nn, computed by [`conv2d`].
///
/// ```
/// # use candle_core::{DType, Device, Module, Tensor};
/// # use candle_nn::{VarBuilder, VarMap};
/// # fn main() -> candle_core::Result<()> {
/// # let (vars, device) = (VarMap::new(), Device::Cpu);
/// # let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
/// use vmf_candle::ops::FusedConv2d;
/// let conv = FusedConv2d::from(candle_nn::conv2d(3, 16, 3, Default::default(), vb.pp("conv"))?);
/// let features = conv.forward(&Tensor::ones((2, 3, 8, 8), DType::F32, &device)?)?;
/// assert_eq!(features.dims(), [2, 16, 6, 6]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FusedConv2d(candle_nn::Conv2d);

impl From<candle_nn::Conv2d> for FusedConv2d {
    fn from(layer: candle_nn::Conv2d) -> Self {
        Self(layer)
    }
}

impl Module for FusedConv2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let config = self.0.config();
        let ys = conv2d(
            xs,
            self.0.weight(),
            config.padding,
            config.stride,
            config.dilation,
            config.groups,
        )?;
        match self.0.bias() {
            Some(bias) => ys.broadcast_add(&bias.reshape((1, bias.elem_count(), 1, 1))?),
            None => Ok(ys),
        }
    }
}
