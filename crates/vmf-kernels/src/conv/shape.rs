//! The geometry of a convolution: which input positions an output position sees, and through which
//! taps.

use crate::error::{Error, check_length};
use crate::gemm::Matrix;

/// Which activations a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The output, from the input.
    Forward,
    /// The gradient with respect to the input, from that with respect to the output.
    InputGradient,
}

/// The sizes of a two-dimensional convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Images in the batch.
    pub batch: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Step between outputs, in both directions.
    pub stride: usize,
    /// Zeros added on each side.
    pub padding: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Groups of channels convolved apart; it divides both channel counts.
    pub groups: usize,
}

impl ConvShape {
    /// A `kernel x kernel` convolution that keeps the image's size: stride 1, padding `kernel / 2`,
    /// one group.
    pub fn same(
        batch: usize,
        in_channels: usize,
        out_channels: usize,
        input: [usize; 2],
        kernel: usize,
    ) -> Self {
        ConvShape {
            batch,
            in_channels,
            out_channels,
            input,
            kernel: [kernel; 2],
            stride: 1,
            padding: kernel / 2,
            dilation: 1,
            groups: 1,
        }
    }

    /// Height and width of the output.
    pub fn output(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let seen = self.dilation * (self.kernel[axis] - 1) + 1;
            (self.input[axis] + 2 * self.padding - seen) / self.stride + 1
        })
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.input[0] * self.input[1] * self.batch * self.in_channels
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.output()[0] * self.output()[1] * self.batch * self.out_channels
    }

    /// Elements of the weights, `(out_channels, in_channels / groups, kernel, kernel)`.
    pub fn weight_len(&self) -> usize {
        self.out_channels * self.group_inputs() * self.taps()
    }

    /// Multiplications and additions of one pass, taps on the padding counted.
    pub fn flops(&self) -> f64 {
        let positions = (self.output()[0] * self.output()[1] * self.batch) as f64;
        2.0 * positions * self.weight_len() as f64
    }

    /// Taps of the kernel.
    pub(super) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Input channels of a group.
    pub(super) fn group_inputs(&self) -> usize {
        self.in_channels / self.groups
    }

    /// Output channels of a group.
    pub(super) fn group_outputs(&self) -> usize {
        self.out_channels / self.groups
    }

    /// Height and width of a tap's place in the kernel.
    fn offset(&self, tap: usize) -> [usize; 2] {
        [tap / self.kernel[1], tap % self.kernel[1]]
    }

    /// Where a tap of output `(y, x)` falls in the input, if not on the padding.
    #[inline]
    pub(super) fn source(&self, out: [usize; 2], tap: usize) -> Option<[usize; 2]> {
        let tap = self.offset(tap);
        let along = |axis: usize| {
            (out[axis] * self.stride + tap[axis] * self.dilation)
                .checked_sub(self.padding)
                .filter(|&at| at < self.input[axis])
        };
        Some([along(0)?, along(1)?])
    }

    /// The output that sees input `(y, x)` through a tap, if there is one: the inverse of `source`.
    #[inline]
    fn target(&self, input: [usize; 2], tap: usize) -> Option<[usize; 2]> {
        let (output, tap) = (self.output(), self.offset(tap));
        let along = |axis: usize| {
            (input[axis] + self.padding)
                .checked_sub(tap[axis] * self.dilation)
                .filter(|at| at % self.stride == 0)
                .map(|at| at / self.stride)
                .filter(|&at| at < output[axis])
        };
        Some([along(0)?, along(1)?])
    }

    /// Channels of the activations that are read and of those that are computed.
    pub(super) fn channels(&self, direction: Direction) -> [usize; 2] {
        match direction {
            Direction::Forward => [self.in_channels, self.out_channels],
            Direction::InputGradient => [self.out_channels, self.in_channels],
        }
    }

    /// The terms of the sum at `position` of the result: taps, and the positions of the source that
    /// are seen through them.
    pub(super) fn terms(
        &self,
        direction: Direction,
        position: usize,
    ) -> impl Iterator<Item = (usize, usize)> {
        let ([_, width], [_, source_width]) = match direction {
            Direction::Forward => (self.output(), self.input),
            Direction::InputGradient => (self.input, self.output()),
        };
        let at = [position / width, position % width];
        (0..self.taps()).filter_map(move |tap| {
            let [y, x] = match direction {
                Direction::Forward => self.source(at, tap)?,
                Direction::InputGradient => self.target(at, tap)?,
            };
            Some((tap, y * source_width + x))
        })
    }

    /// One group's weights as a matrix, channels of the result by channels of the source. Taps have
    /// the same numbers in both directions.
    pub(super) fn weight_matrix<'a>(
        &self,
        direction: Direction,
        weights: &'a [f32],
        group: usize,
    ) -> Matrix<'a> {
        let (outputs, inputs, taps) = (self.group_outputs(), self.group_inputs(), self.taps());
        let len = outputs * inputs * taps;
        let m = Matrix::with_taps(&weights[group * len..][..len], outputs, inputs, taps);
        match direction {
            Direction::Forward => m,
            Direction::InputGradient => m.transposed(),
        }
    }

    /// Whether a tap has so few channels that it is faster to gather all taps into one sum.
    pub(super) fn is_narrow(&self) -> bool {
        self.groups == 1 && self.in_channels < 8 && self.taps() > 1
    }

    /// Whether it is the 3x3 convolution that Winograd's algorithm computes.
    pub(super) fn is_plain_3x3(&self) -> bool {
        self.kernel == [3, 3]
            && (self.stride, self.padding, self.dilation, self.groups) == (1, 1, 1, 1)
    }

    /// Whether every position is multiplied by the same matrix, and by itself: a linear layer at
    /// each of them.
    pub(super) fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && (self.stride, self.padding, self.groups) == (1, 0, 1)
    }

    /// Whether every channel is convolved by itself.
    pub(super) fn is_depthwise(&self) -> bool {
        self.groups == self.in_channels && self.groups == self.out_channels
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let value =
            |name, value: String, requirement| Err(Error::Value { name, value, requirement });
        let sizes = [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("kernel height", self.kernel[0]),
            ("kernel width", self.kernel[1]),
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("groups", self.groups),
        ];
        for (name, size) in sizes {
            if size == 0 {
                return value(name, "0".into(), "at least 1");
            }
        }
        for (name, channels) in [sizes[0], sizes[1]] {
            if !channels.is_multiple_of(self.groups) {
                let found = format!("{channels} in {} groups", self.groups);
                return value(name, found, "a multiple of the groups");
            }
        }
        for axis in 0..2 {
            let seen =
                self.dilation.checked_mul(self.kernel[axis] - 1).and_then(|n| n.checked_add(1));
            let padded = self.padding.checked_mul(2).and_then(|n| n.checked_add(self.input[axis]));
            if seen.is_none() || padded.is_none() || seen > padded {
                let found = format!(
                    "{} (dilation {}) over {} elements with padding {}",
                    self.kernel[axis], self.dilation, self.input[axis], self.padding
                );
                return value("kernel", found, "no larger than the padded input");
            }
        }
        let elements = [
            self.input[0],
            self.input[1],
            self.batch,
            self.in_channels.max(self.out_channels),
            self.taps(),
        ];
        if elements.iter().try_fold(8usize, |product, &n| product.checked_mul(n.max(1))).is_none() {
            let found = format!("{self:?}");
            return value("shape", found, "small enough for its elements to be counted");
        }
        Ok(())
    }

    pub(super) fn check_input(&self, name: &'static str, len: usize) -> Result<(), Error> {
        check_length(name, len, self.input_len())
    }

    pub(super) fn check_output(&self, name: &'static str, len: usize) -> Result<(), Error> {
        check_length(name, len, self.output_len())
    }

    pub(super) fn check_weights(&self, name: &'static str, len: usize) -> Result<(), Error> {
        check_length(name, len, self.weight_len())
    }
}
