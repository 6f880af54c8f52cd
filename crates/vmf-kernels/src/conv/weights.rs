//! Weights in the order in which the micro-kernel reads them.

use super::shape::ConvShape;
use crate::scratch::Scratch;

/// Which product the weights take part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `y = x * w`: the sum runs over input channels.
    Forward,
    /// `dx = dy * w` transposed and turned around: the sum runs over output channels.
    InputGradient,
}

/// The product of one group of channels: `depth` channels are summed into `cols`.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub(super) role: Role,
    /// Channels summed over, in one group.
    pub(super) depth: usize,
    /// Channels of the result, in one group.
    pub(super) cols: usize,
    pub(super) taps: usize,
    /// Columns of a panel.
    pub(super) width: usize,
}

/// Channels of a column that are packed at a time.
const BLOCK: usize = 32;

impl Panels {
    pub(super) fn new(shape: &ConvShape, role: Role, width: usize) -> Self {
        let (inputs, outputs) = (shape.group_inputs(), shape.group_outputs());
        let (depth, cols) = match role {
            Role::Forward => (inputs, outputs),
            Role::InputGradient => (outputs, inputs),
        };
        Panels {
            role,
            depth,
            cols,
            taps: shape.taps(),
            width,
        }
    }

    /// Panels in one group.
    pub(super) fn count(&self) -> usize {
        self.cols.div_ceil(self.width)
    }

    /// Elements of one panel, `[tap][depth][width]`.
    pub(super) fn len(&self) -> usize {
        self.taps * self.depth * self.width
    }

    /// Fills one panel from the group's weights, `(outputs, inputs, taps)`; columns past the last are zero.
    ///
    /// Taps keep their numbers in both roles: who computes the input gradient looks up, for a tap, the output that
    /// sees the input through it.
    pub(super) fn pack(&self, weights: &[f32], panel: usize, to: &mut [f32]) {
        let (first, width, taps) = (panel * self.width, self.width, self.taps);
        let cols = width.min(self.cols - first);
        if cols < width {
            to.fill(0.0);
        }
        match self.role {
            Role::Forward => {
                let row = self.depth * taps;
                let columns = &weights[first * row..][..cols * row];
                // By blocks of a column, copied side by side first: whole cache lines are read, and columns that are a
                // large power of two apart do not drive each other out of the cache.
                let stride = BLOCK * taps + 1;
                let mut block_of_columns = Scratch::take(cols * stride);
                for block in (0..self.depth).step_by(BLOCK) {
                    let steps = BLOCK.min(self.depth - block);
                    for (to, column) in block_of_columns
                        .chunks_exact_mut(stride)
                        .zip(columns.chunks_exact(row))
                    {
                        to[..steps * taps].copy_from_slice(&column[block * taps..][..steps * taps]);
                    }
                    for k in 0..steps {
                        for tap in 0..taps {
                            let from = &block_of_columns[k * taps + tap..];
                            let to = &mut to[(tap * self.depth + block + k) * width..][..cols];
                            gather(from, stride, to);
                        }
                    }
                }
            }
            Role::InputGradient => {
                for k in 0..self.depth {
                    let from = &weights[(k * self.cols + first) * taps..][..cols * taps];
                    for tap in 0..taps {
                        let to = &mut to[(tap * self.depth + k) * width..][..cols];
                        gather(&from[tap..], taps, to);
                    }
                }
            }
        }
    }
}

/// `to[j] = from[j * stride]`, eight at a time with one check of the bounds: the loop that packing spends its time in.
#[inline(always)]
fn gather(from: &[f32], stride: usize, to: &mut [f32]) {
    let (eights, rest) = to.as_chunks_mut::<8>();
    let done = 8 * eights.len();
    for (eight, to) in eights.iter_mut().enumerate() {
        let from = &from[8 * eight * stride..][..7 * stride + 1];
        // SAFETY: `j` is at most 7, and the slice is `7 * stride + 1` long.
        *to = std::array::from_fn(|j| unsafe { *from.get_unchecked(j * stride) });
    }
    for (j, to) in rest.iter_mut().enumerate() {
        *to = from[(done + j) * stride];
    }
}
