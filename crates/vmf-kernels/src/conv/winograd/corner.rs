//! The transforms for an image of 2x2, of which every output is next to a corner.
//!
//! Along one axis the padded convolution of a pair is a Toeplitz matrix, and three products are
//! enough for it where the definition has four:
//!
//! ```text
//! y0 = w1 x0 + w2 x1 = w1 (x0 + x1) + (w2 - w1) x1              | 1  0 |        | 1 -1  0 |
//! y1 = w0 x0 + w1 x1 = w1 (x0 + x1) + (w0 - w1) x0        B^T = | 1  1 |    G = | 0  1  0 |    A^T = | 0  1  1 |
//!                                                               | 0  1 |        | 0 -1  1 |          | 1  1  0 |
//! ```
//!
//! Along both axes it is 9 products where the taps inside the image would take 16, and nothing is
//! scaled, so hardly a digit is lost. The functions are those of [`transform`](super::transform).

use crate::simd::Vector;

/// `B^T x`: two inputs to three points.
#[inline(always)]
pub(super) fn input<V: Vector>(x: [V; 2]) -> [V; 3] {
    [x[0], x[0] + x[1], x[1]]
}

/// `A^T m`: three points to two outputs.
#[inline(always)]
pub(super) fn output<V: Vector>(m: [V; 3]) -> [V; 2] {
    [m[1] + m[2], m[1] + m[0]]
}

/// `A g`: two output gradients to three points.
#[inline(always)]
pub(super) fn output_gradient<V: Vector>(g: [V; 2]) -> [V; 3] {
    [g[1], g[0] + g[1], g[0]]
}

/// `G w`: three weights to three points.
#[inline(always)]
pub(super) fn weights<V: Vector>(w: [V; 3]) -> [V; 3] {
    [w[0] - w[1], w[1], w[2] - w[1]]
}

/// `G^T u`: three points to three weight gradients.
#[inline(always)]
pub(super) fn weight_gradient<V: Vector>(u: [V; 3]) -> [V; 3] {
    [u[0], u[1] - (u[0] + u[2]), u[2]]
}
