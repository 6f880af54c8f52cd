//! Every channel convolved by itself: no product of matrices, only multiplications channel by
//! channel.
//!
//! In the layout `[position][image][channel]` all channels of a position go through the same tap,
//! so the loops over channels are plain vector loops.

use super::Conv2d;
use super::shape::Direction;
use crate::gemm::Matrix;
use crate::gemm::pack::pack;
use crate::parallel::ByTask;
use crate::simd::{Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// `y = x * w`, or `dx = dy * w`.
pub(super) fn run(
    conv: &Conv2d,
    direction: Direction,
    source: &[f32],
    weights: &[f32],
    result: &mut [f32],
) {
    let shape = &conv.shape;
    let (channels, taps) = (shape.in_channels, shape.taps());
    let by_tap = pack(conv.isa, &[Matrix::with_taps(weights, channels, 1, taps)], channels);
    let by_tap: &[f32] = &by_tap;
    let len = (shape.batch * channels).max(1);
    result.par_chunks_mut(len).by_task().enumerate().for_each(|(position, to)| {
        to.fill(0.0);
        for (tap, from) in shape.terms(direction, position) {
            let (from, weights) = (&source[from * len..][..len], &by_tap[tap * channels..]);
            dispatch_to(conv.isa, Scale { from, weights: &weights[..channels], to });
        }
    });
}

/// `dw[c][t] = sum over outputs p, images n of dy[p][n][c] * x[source(p, t)][n][c]`.
///
/// Each output row is summed by itself, in single precision over few terms, and the rows in double
/// precision.
pub(super) fn weight_gradient(conv: &Conv2d, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let shape = &conv.shape;
    let (channels, taps) = (shape.in_channels, shape.taps());
    let len = shape.batch * channels;
    let [height, width] = shape.output();
    let of_tap = |tap: usize| {
        let mut total = vec![0f64; channels];
        let mut sums = vec![0f32; channels];
        for row in 0..height {
            sums.fill(0.0);
            for col in 0..width {
                if let Some([from_row, from_col]) = shape.source([row, col], tap) {
                    let a = &dy[(row * width + col) * len..][..len];
                    let b = &x[(from_row * shape.input[1] + from_col) * len..][..len];
                    dispatch_to(conv.isa, Correlate { a, b, sums: &mut sums });
                }
            }
            for (total, sum) in total.iter_mut().zip(&sums) {
                *total += f64::from(*sum);
            }
        }
        total
    };
    let by_tap: Vec<Vec<f64>> = (0..taps).into_par_iter().by_task().map(of_tap).collect();
    for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
        for (dw, of_tap) in dw.iter_mut().zip(&by_tap) {
            *dw = of_tap[channel] as f32;
        }
    }
}

/// `to[n][c] += from[n][c] * weights[c]`.
struct Scale<'a> {
    from: &'a [f32],
    weights: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let channels = self.weights.len();
        for (to, from) in self.to.chunks_exact_mut(channels).zip(self.from.chunks_exact(channels)) {
            for ((to, from), w) in to.iter_mut().zip(from).zip(self.weights) {
                *to = S::mul_add(*from, *w, *to);
            }
        }
    }
}

/// `sums[c] += sum over n of a[n][c] * b[n][c]`.
struct Correlate<'a> {
    a: &'a [f32],
    b: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for Correlate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let channels = self.sums.len();
        for (a, b) in self.a.chunks_exact(channels).zip(self.b.chunks_exact(channels)) {
            for ((sum, a), b) in self.sums.iter_mut().zip(a).zip(b) {
                *sum = S::mul_add(*a, *b, *sum);
            }
        }
    }
}
