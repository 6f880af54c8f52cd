//! The sizes of a pooling, and which inputs a window contains.

use crate::error::Error;

/// The sizes of a two-dimensional pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Images in the batch.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the window, at most 256 elements together.
    pub window: [usize; 2],
    /// Step between windows, in both directions.
    pub stride: usize,
    /// Elements added on each side, at most half of the window.
    pub padding: usize,
}

impl PoolShape {
    /// Square windows side by side, without padding: VGG16's pooling with `window` 2.
    pub fn tiling(batch: usize, channels: usize, input: [usize; 2], window: usize) -> Self {
        PoolShape { batch, channels, input, window: [window; 2], stride: window, padding: 0 }
    }

    /// Height and width of the output.
    pub fn output(&self) -> [usize; 2] {
        [0, 1]
            .map(|axis| (self.input[axis] + 2 * self.padding - self.window[axis]) / self.stride + 1)
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.input[0] * self.input[1] * self.batch * self.channels
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.output()[0] * self.output()[1] * self.batch * self.channels
    }

    /// Elements of a window.
    pub(super) fn window_len(&self) -> usize {
        self.window[0] * self.window[1]
    }

    /// The elements of the window at `out` that are inside the image: the number of each in the
    /// window, and its input position.
    pub(super) fn window(&self, out: [usize; 2], elements: &mut Vec<(u32, usize)>) {
        elements.clear();
        for number in 0..self.window_len() {
            let offset = [number / self.window[1], number % self.window[1]];
            let along = |axis: usize| {
                (out[axis] * self.stride + offset[axis])
                    .checked_sub(self.padding)
                    .filter(|&at| at < self.input[axis])
            };
            if let (Some(y), Some(x)) = (along(0), along(1)) {
                elements.push((number as u32, y * self.input[1] + x));
            }
        }
    }

    /// The input positions of the window at `out` that are inside the image.
    pub(crate) fn elements_of(&self, out: [usize; 2]) -> Vec<usize> {
        let mut elements = Vec::new();
        self.window(out, &mut elements);
        elements.into_iter().map(|(_, position)| position).collect()
    }

    /// The windows that contain `input`: the number that it has in each, and their output
    /// positions.
    pub(super) fn windows_of(&self, input: [usize; 2], windows: &mut Vec<(u32, usize)>) {
        let output = self.output();
        windows.clear();
        for number in 0..self.window_len() {
            let offset = [number / self.window[1], number % self.window[1]];
            let along = |axis: usize| {
                (input[axis] + self.padding)
                    .checked_sub(offset[axis])
                    .filter(|at| at.is_multiple_of(self.stride))
                    .map(|at| at / self.stride)
                    .filter(|&at| at < output[axis])
            };
            if let (Some(y), Some(x)) = (along(0), along(1)) {
                windows.push((number as u32, y * output[1] + x));
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let value =
            |name, value: String, requirement| Err(Error::Value { name, value, requirement });
        let [height, width] = self.window;
        let text = format!("{height}x{width}");
        if height == 0 || width == 0 || height.saturating_mul(width) > 256 {
            return value("window", text, "of 1 to 256 elements");
        }
        if self.stride == 0 {
            return value("stride", "0".into(), "at least 1");
        }
        if self.padding > height.min(width) / 2 {
            let found = self.padding.to_string();
            return value("padding", found, "at most half of the window");
        }
        if (0..2).any(|axis| self.window[axis] > self.input[axis] + 2 * self.padding) {
            return value("window", text, "no larger than the padded input");
        }
        let sizes = [self.input[0], self.input[1], self.batch, self.channels];
        if sizes.iter().try_fold(8usize, |product, &n| product.checked_mul(n.max(1))).is_none() {
            let found = format!("{sizes:?}");
            return value("shape", found, "small enough for its elements to be counted");
        }
        Ok(())
    }
}
