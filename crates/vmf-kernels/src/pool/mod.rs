//! Maximum and average pooling, with gradients.
//!
//! A window's maximum is its first, as in PyTorch: where several elements share the largest value,
//! the one with the smallest row, then column, gets the whole gradient; a NaN counts as largest,
//! the last one if there are several. The forward pass notes which element of the window it was, in
//! one byte an output; the backward pass needs neither input nor output.
//!
//! ```text
//! max:      y[p] = max over taps t of x[source(p, t)]          dx[q] = sum of dy[p] over p whose maximum is q
//! average:  y[p] = (sum over taps t of x[source(p, t)]) / T    dx[q] = (sum of dy[p] over p that see q) / T
//! ```
//!
//! The average counts padding as zeros (T is the size of the window everywhere), PyTorch's default.

mod lanes;
mod shape;

use crate::error::{Error, check_length};
use crate::layout::Layout;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use lanes::select;
pub(crate) use lanes::{chosen, maxima};
use rayon::prelude::*;
pub use shape::PoolShape;

/// Pooling of one shape and layout.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    shape: PoolShape,
    isa: Isa,
    /// How the tensor is cut: blocks that are pooled alike, each `[position][lane]`. In HWNC all
    /// images and channels are the lanes of one block, in NCHW each image and channel is a
    /// block of one lane.
    blocks: usize,
    lanes: usize,
}

impl Pool {
    /// Checks the shape.
    pub fn new(shape: PoolShape, layout: Layout) -> Result<Self, Error> {
        shape.check()?;
        let planes = shape.batch * shape.channels;
        let (blocks, lanes) = match layout {
            Layout::Hwnc => (1, planes),
            Layout::Nchw => (planes, 1),
        };
        Ok(Pool { shape, isa: Isa::current(), blocks, lanes })
    }

    /// On another instruction set (the baseline if the processor lacks it).
    pub fn with_isa(self, isa: Isa) -> Self {
        Pool { isa, ..self }
    }

    /// The shape it was made for.
    pub fn shape(&self) -> &PoolShape {
        &self.shape
    }

    /// The maximum of each window, and which element of the window it is.
    pub fn max_forward(&self, x: &[f32], y: &mut [f32], argmax: &mut [u8]) -> Result<(), Error> {
        self.check(x.len(), y.len())?;
        check_length("argmax", argmax.len(), self.shape.output_len())?;
        let row = (self.shape.output()[1] * self.lanes).max(1);
        y.par_chunks_mut(row).zip(argmax.par_chunks_mut(row)).enumerate().for_each(
            |(index, (y, argmax))| {
                let (x, row) = self.input_of(x, index);
                let kernel = MaxForward { pool: self, x, row, y, argmax };
                dispatch_to(self.isa, kernel);
            },
        );
        Ok(())
    }

    /// The maximum of each window, where no gradient will be asked for.
    pub fn max(&self, x: &[f32], y: &mut [f32]) -> Result<(), Error> {
        self.check(x.len(), y.len())?;
        let row = (self.shape.output()[1] * self.lanes).max(1);
        y.par_chunks_mut(row).enumerate().for_each(|(index, y)| {
            let (x, row) = self.input_of(x, index);
            let kernel = Max { pool: self, x, row, y };
            dispatch_to(self.isa, kernel);
        });
        Ok(())
    }

    /// The gradient with respect to the input, from the `argmax` that
    /// [`max_forward`](Pool::max_forward) wrote.
    pub fn max_backward(&self, argmax: &[u8], dy: &[f32], dx: &mut [f32]) -> Result<(), Error> {
        check_length("argmax", argmax.len(), self.shape.output_len())?;
        self.backward(dy, dx, Some(argmax))
    }

    /// The average of each window.
    pub fn average_forward(&self, x: &[f32], y: &mut [f32]) -> Result<(), Error> {
        self.check(x.len(), y.len())?;
        let row = (self.shape.output()[1] * self.lanes).max(1);
        y.par_chunks_mut(row).enumerate().for_each(|(index, y)| {
            let (x, row) = self.input_of(x, index);
            dispatch_to(self.isa, AverageForward { pool: self, x, row, y });
        });
        Ok(())
    }

    /// The gradient of the average by the input.
    pub fn average_backward(&self, dy: &[f32], dx: &mut [f32]) -> Result<(), Error> {
        self.backward(dy, dx, None)
    }

    /// Each input gathers from the windows that see it: from those whose maximum it is, or from all
    /// for the average.
    fn backward(&self, dy: &[f32], dx: &mut [f32], argmax: Option<&[u8]>) -> Result<(), Error> {
        self.check(dx.len(), dy.len())?;
        let row = (self.shape.input[1] * self.lanes).max(1);
        let block = self.shape.output_len() / self.blocks.max(1);
        dx.par_chunks_mut(row).enumerate().for_each(|(index, dx)| {
            let (number, row) = (index / self.shape.input[0], index % self.shape.input[0]);
            let range = number * block..(number + 1) * block;
            let kernel = Backward {
                pool: self,
                argmax: argmax.map(|argmax| &argmax[range.clone()]),
                dy: &dy[range],
                row,
                dx,
            };
            dispatch_to(self.isa, kernel);
        });
        Ok(())
    }

    /// The block that output row `index` (counted over all blocks) reads, and the row's number in
    /// it.
    fn input_of<'a>(&self, x: &'a [f32], index: usize) -> (&'a [f32], usize) {
        let block = self.shape.input_len() / self.blocks;
        let rows = self.shape.output()[0];
        (&x[index / rows * block..][..block], index % rows)
    }

    fn check(&self, input: usize, output: usize) -> Result<(), Error> {
        check_length("input", input, self.shape.input_len())?;
        check_length("output", output, self.shape.output_len())
    }
}

struct MaxForward<'a> {
    pool: &'a Pool,
    x: &'a [f32],
    row: usize,
    y: &'a mut [f32],
    argmax: &'a mut [u8],
}

impl Kernel for MaxForward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (shape, lanes) = (&self.pool.shape, self.pool.lanes);
        let mut seen = Vec::with_capacity(shape.taps());
        for (col, (y, argmax)) in
            self.y.chunks_exact_mut(lanes).zip(self.argmax.chunks_exact_mut(lanes)).enumerate()
        {
            shape.window([self.row, col], &mut seen);
            let taps = seen
                .iter()
                .map(|&(number, position)| (number as u8, &self.x[position * lanes..][..lanes]));
            maxima(taps, y, argmax);
        }
    }
}

struct Max<'a> {
    pool: &'a Pool,
    x: &'a [f32],
    row: usize,
    y: &'a mut [f32],
}

impl Kernel for Max<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (shape, lanes) = (&self.pool.shape, self.pool.lanes);
        let mut seen = Vec::with_capacity(shape.taps());
        for (col, y) in self.y.chunks_exact_mut(lanes).enumerate() {
            shape.window([self.row, col], &mut seen);
            y.fill(f32::NEG_INFINITY);
            for &(_, position) in &seen {
                for (y, &x) in y.iter_mut().zip(&self.x[position * lanes..]) {
                    let larger = (x > *y) | x.is_nan();
                    *y = f32::from_bits(select(larger, x.to_bits(), y.to_bits()));
                }
            }
        }
    }
}

struct AverageForward<'a> {
    pool: &'a Pool,
    x: &'a [f32],
    row: usize,
    y: &'a mut [f32],
}

impl Kernel for AverageForward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (shape, lanes) = (&self.pool.shape, self.pool.lanes);
        let scale = 1.0 / shape.taps() as f32;
        let mut seen = Vec::with_capacity(shape.taps());
        for (col, y) in self.y.chunks_exact_mut(lanes).enumerate() {
            shape.window([self.row, col], &mut seen);
            y.fill(0.0);
            for &(_, position) in &seen {
                for (y, x) in y.iter_mut().zip(&self.x[position * lanes..]) {
                    *y += x;
                }
            }
            for y in y {
                *y *= scale;
            }
        }
    }
}

struct Backward<'a> {
    pool: &'a Pool,
    argmax: Option<&'a [u8]>,
    dy: &'a [f32],
    row: usize,
    dx: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (shape, lanes) = (&self.pool.shape, self.pool.lanes);
        let scale = 1.0 / shape.taps() as f32;
        let mut seeing = Vec::with_capacity(shape.taps());
        for (col, dx) in self.dx.chunks_exact_mut(lanes).enumerate() {
            shape.windows_of([self.row, col], &mut seeing);
            dx.fill(0.0);
            for &(number, position) in &seeing {
                let dy = &self.dy[position * lanes..][..lanes];
                match self.argmax {
                    Some(argmax) => {
                        let argmax = &argmax[position * lanes..][..lanes];
                        for ((dx, dy), argmax) in dx.iter_mut().zip(dy).zip(argmax) {
                            *dx += if u32::from(*argmax) == number { *dy } else { 0.0 };
                        }
                    }
                    None => {
                        for (dx, dy) in dx.iter_mut().zip(dy) {
                            *dx = S::mul_add(scale, *dy, *dx);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
