//! Every channel convolved by itself: no product of matrices, only multiplications channel by
//! channel.
//!
//! In the layout `[position][image][channel]` all channels of a position go through the same tap,
//! so the loops over channels are plain vector loops.

use super::shape::ConvShape;
use super::weights::Role;
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// `result = source * weights`, in the sense of `role`.
pub(super) fn run(
    isa: Isa,
    shape: &ConvShape,
    role: Role,
    source: &[f32],
    weights: &[f32],
    result: &mut [f32],
) {
    let (channels, taps) = (shape.in_channels, shape.taps());
    let by_tap = transpose(weights, channels, taps);
    let ([_, width], [_, source_width]) = match role {
        Role::Forward => (shape.output(), shape.input),
        Role::InputGradient => (shape.input, shape.output()),
    };
    let len = (shape.batch * channels).max(1);
    result.par_chunks_mut(len).by_task().enumerate().for_each(|(position, to)| {
        to.fill(0.0);
        let at = [position / width, position % width];
        for (tap, weights) in by_tap.chunks_exact(channels).enumerate() {
            let tap = [tap / shape.kernel[1], tap % shape.kernel[1]];
            let from = match role {
                Role::Forward => shape.source(at, tap),
                Role::InputGradient => shape.target(at, tap),
            };
            if let Some([y, x]) = from {
                let from = &source[(y * source_width + x) * len..][..len];
                dispatch_to(isa, Scale { from, weights, to });
            }
        }
    });
}

/// `dw[c][t] = sum over outputs p, images n of dy[p][n][c] * x[source(p, t)][n][c]`.
///
/// Each output row is summed by itself, in single precision over few terms, and the rows in double
/// precision.
pub(super) fn weight_gradient(
    isa: Isa,
    shape: &ConvShape,
    input: &[f32],
    gradient: &[f32],
    dw: &mut [f32],
) {
    let (channels, taps) = (shape.in_channels, shape.taps());
    let len = shape.batch * channels;
    let [height, width] = shape.output();
    let of_tap = |tap: usize| {
        let tap = [tap / shape.kernel[1], tap % shape.kernel[1]];
        let mut total = vec![0f64; channels];
        let mut sums = vec![0f32; channels];
        for y in 0..height {
            sums.fill(0.0);
            for x in 0..width {
                if let Some([sy, sx]) = shape.source([y, x], tap) {
                    let a = &gradient[(y * width + x) * len..][..len];
                    let b = &input[(sy * shape.input[1] + sx) * len..][..len];
                    let sums = &mut sums;
                    dispatch_to(isa, Correlate { a, b, sums });
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

/// `(channels, taps)` to `(taps, channels)`.
fn transpose(weights: &[f32], channels: usize, taps: usize) -> Vec<f32> {
    (0..taps * channels).map(|i| weights[i % channels * taps + i / channels]).collect()
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
