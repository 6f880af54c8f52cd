//! How the elements of a tensor of activations are arranged in memory.

use crate::error::Error;

/// Where an element of the logical tensor (N, C, H W) is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Images, then channels, then positions: element (n, c, p) is at `(n * C + c) * P + p`, with P
    /// = H W. This is the layout of Candle and PyTorch.
    Nchw,
    /// Positions, then images, then channels: element (n, c, p) is at `(p * N + n) * C + c`. Each
    /// position of a convolution is then a dense matrix product.
    Hwnc,
}

/// The sizes of a tensor of activations, and its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Images in the batch, N.
    pub batch: usize,
    /// Channels, C.
    pub channels: usize,
    /// Positions of an image, P = H W; 1 for the output of a linear layer.
    pub positions: usize,
    /// Where an element is in memory.
    pub layout: Layout,
}

impl Shape {
    /// A tensor in the layout of Candle and PyTorch.
    pub fn nchw(batch: usize, channels: usize, positions: usize) -> Self {
        Self { batch, channels, positions, layout: Layout::Nchw }
    }

    /// A tensor in the layout of the CPU convolution.
    pub fn hwnc(batch: usize, channels: usize, positions: usize) -> Self {
        Self { layout: Layout::Hwnc, ..Self::nchw(batch, channels, positions) }
    }

    /// Elements of the tensor, N C P.
    pub fn elements(&self) -> usize {
        self.batch * self.channels * self.positions
    }

    /// Elements that share a channel's statistics, m = N P.
    pub fn elements_per_channel(&self) -> usize {
        self.batch * self.positions
    }

    /// Where element (n, c, p) is in memory.
    pub fn offset(&self, image: usize, channel: usize, position: usize) -> usize {
        match self.layout {
            Layout::Nchw => (image * self.channels + channel) * self.positions + position,
            Layout::Hwnc => (position * self.batch + image) * self.channels + channel,
        }
    }

    /// Checks that no dimension is zero and that the elements can be counted.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let text = || {
            let Self { batch, channels, positions, .. } = self;
            format!("({batch}, {channels}, {positions})")
        };
        let elements = self
            .batch
            .checked_mul(self.channels)
            .and_then(|product| product.checked_mul(self.positions));
        match elements {
            None => Err(Error::Value {
                name: "shape",
                value: text(),
                requirement: "small enough for its elements to be counted",
            }),
            Some(0) => Err(Error::EmptyShape { shape: text() }),
            Some(_) => Ok(()),
        }
    }
}
