//! Convolution with a 1x1 kernel: in the layout `[position][image][channel]` one product of
//! matrices for all positions.
//!
//! ```text
//! y = x wᵀ        dx = dy w        dw = dyᵀ x
//! ```
//!
//! A linear layer is such a convolution of an image of one position. The gradient of few weights is
//! left to [`direct_gradient`](super::direct_gradient): the product would have too few tasks for
//! several threads, but its long sum can be divided.

use super::Conv2d;
use super::shape::{ConvShape, Direction};
use crate::error::Error;
use crate::gemm::{Matrix, gemm_on};

/// The matrix that a tensor is: positions and images by channels.
fn matrix(data: &[f32], channels: usize) -> Result<Matrix<'_>, Error> {
    Matrix::new(data, data.len() / channels, channels)
}

/// `y = x wᵀ`, or `dx = dy w`.
pub(super) fn run(
    conv: &Conv2d,
    direction: Direction,
    source: &[f32],
    weights: &[f32],
    result: &mut [f32],
) -> Result<(), Error> {
    let [source_channels, _] = conv.shape.channels(direction);
    let w = matrix(weights, conv.shape.in_channels)?;
    let w = match direction {
        Direction::Forward => w.transposed(),
        Direction::InputGradient => w,
    };
    gemm_on(conv.isa, matrix(source, source_channels)?, w, result, false)
}

/// Whether there are weights enough for every thread to compute the gradients of some.
pub(super) fn shares_weights(shape: &ConvShape) -> bool {
    shape.weight_len() >= 128 * 128
}

/// `dw = dyᵀ x`.
pub(super) fn weight_gradient(
    conv: &Conv2d,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
) -> Result<(), Error> {
    let (x, dy) = (matrix(x, conv.shape.in_channels)?, matrix(dy, conv.shape.out_channels)?);
    gemm_on(conv.isa, dy.transposed(), x, dw, false)
}
