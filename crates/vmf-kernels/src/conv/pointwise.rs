//! Convolution with a 1x1 kernel: in the layout `[position][image][channel]` one product of
//! matrices for all positions.
//!
//! ```text
//! y = x wᵀ        dx = dy w        dw = dyᵀ x
//! ```
//!
//! A linear layer is such a convolution of an image of one position. Gradients of few weights are
//! left to [`direct_gradient`](super::direct_gradient): the product has no tasks for several
//! threads there, and a long sum has.

use super::shape::ConvShape;
use crate::error::Error;
use crate::gemm::{Matrix, gemm_on};
use crate::simd::Isa;

/// Positions and images together, and channels: the matrix that a tensor is.
fn rows(data: &[f32], channels: usize) -> Result<Matrix<'_>, Error> {
    Matrix::new(data, data.len() / channels, channels)
}

/// `y = x wᵀ`
pub(super) fn forward(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
) -> Result<(), Error> {
    let (x, w) = (rows(x, shape.in_channels)?, rows(w, shape.in_channels)?);
    gemm_on(isa, x, w.transposed(), y, false)
}

/// `dx = dy w`
pub(super) fn input_gradient(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
) -> Result<(), Error> {
    let (dy, w) = (rows(dy, shape.out_channels)?, rows(w, shape.in_channels)?);
    gemm_on(isa, dy, w, dx, false)
}

/// Whether there are weights enough for every thread to have some of their gradients.
pub(super) fn shares_weights(shape: &ConvShape) -> bool {
    shape.weight_len() >= 128 * 128
}

/// `dw = dyᵀ x`
pub(super) fn weight_gradient(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
) -> Result<(), Error> {
    let (x, dy) = (rows(x, shape.in_channels)?, rows(dy, shape.out_channels)?);
    gemm_on(isa, dy.transposed(), x, dw, false)
}
