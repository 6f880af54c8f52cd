//! Weights in the order in which the micro-kernel reads them.

use super::shape::ConvShape;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use crate::transpose::transpose;

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
/// Rows between one that is packed and one that is asked for.
const AHEAD: usize = 4;

impl Panels {
    pub(super) fn new(shape: &ConvShape, role: Role, width: usize) -> Self {
        let (inputs, outputs) = (shape.group_inputs(), shape.group_outputs());
        let (depth, cols) = match role {
            Role::Forward => (inputs, outputs),
            Role::InputGradient => (outputs, inputs),
        };
        Panels { role, depth, cols, taps: shape.taps(), width }
    }

    /// Panels in one group.
    pub(super) fn count(&self) -> usize {
        self.cols.div_ceil(self.width)
    }

    /// Elements of one panel, `[tap][depth][width]`.
    pub(super) fn len(&self) -> usize {
        self.taps * self.depth * self.width
    }

    /// Fills one panel from the group's weights, `(outputs, inputs, taps)`; columns past the last
    /// are zero.
    ///
    /// Taps keep their numbers in both roles: who computes the input gradient looks up, for a tap,
    /// the output that sees the input through it.
    pub(super) fn pack(&self, isa: Isa, weights: &[f32], panel: usize, to: &mut [f32]) {
        if self.width > self.cols - panel * self.width {
            to.fill(0.0);
        }
        let pack = Pack { panels: *self, weights, first: panel * self.width, to };
        dispatch_to(isa, pack);
    }
}

struct Pack<'a> {
    panels: Panels,
    weights: &'a [f32],
    /// The panel's first column.
    first: usize,
    to: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.panels.role {
            Role::Forward => self.columns::<S>(),
            Role::InputGradient => self.rows::<S>(),
        }
    }
}

impl Pack<'_> {
    /// Columns of the panel that exist.
    fn cols(&self) -> usize {
        self.panels.width.min(self.panels.cols - self.first)
    }

    /// Where the taps of `steps` channels go, from the first channel's place on.
    fn places(&self, steps: usize) -> Vec<usize> {
        let Panels { depth, taps, width, .. } = self.panels;
        (0..steps * taps).map(|j| (j % taps * depth + j / taps) * width).collect()
    }

    /// Each column is a stretch of memory, `[depth][tap]`.
    #[inline(always)]
    fn columns<S: Simd>(self) {
        let Panels { depth, taps, width, .. } = self.panels;
        let cols = self.cols();
        let columns = &self.weights[self.first * depth * taps..][..cols * depth * taps];
        let places = self.places(BLOCK.min(depth));
        // By blocks of a column, so that the lines written to stay in cache.
        for block in (0..depth).step_by(BLOCK) {
            let len = BLOCK.min(depth - block) * taps;
            let (from, to) = (&columns[block * taps..], &mut self.to[block * width..]);
            transpose::<S>(from, depth * taps, cols, &places[..len], to, BLOCK * taps);
        }
    }

    /// The columns of one channel lie together, `[depth][column][tap]`.
    #[inline(always)]
    fn rows<S: Simd>(self) {
        let Panels { depth, taps, width, .. } = self.panels;
        let cols = self.cols();
        let places = self.places(1);
        for k in 0..depth {
            let from = &self.weights[(k * self.panels.cols + self.first) * taps..][..cols * taps];
            let ahead = AHEAD * self.panels.cols * taps;
            transpose::<S>(from, taps, cols, &places, &mut self.to[k * width..], ahead);
        }
    }
}
