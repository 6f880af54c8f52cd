//! Maximum and average pooling, with gradients.
//!
//! ```text
//! max:      y[p] = max over the elements q of window p of x[q]    dx[q] = sum of dy[p] over p with argmax q
//! average:  y[p] = (sum over those elements of x[q]) / T          dx[q] = (sum of dy[p] over p that contain q) / T
//! ```
//!
//! As in PyTorch, the argmax of a window is its first: where several elements share the largest
//! value, the one with the smallest row, then column, gets the whole gradient. A NaN counts as
//! largest, the last one if there are several. The forward pass writes down the argmax in one byte
//! for each output, so the backward pass needs neither input nor output.
//!
//! The average counts padding as zeros (T is the size of the window everywhere), PyTorch's default.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod launches;
mod maxima;
mod shape;

use crate::error::{Error, check_length};
use crate::layout::Layout;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
pub(crate) use maxima::{gather, maxima};
use rayon::prelude::*;
pub use shape::PoolShape;

/// Pooling of one shape and layout.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    shape: PoolShape,
    isa: Isa,
    /// How the tensor is cut: into blocks that are pooled alike, each `[position][plane]`, where a
    /// plane is one channel of one image. In HWNC all planes are in one block, in NCHW each plane
    /// is a block of its own.
    blocks: usize,
    planes: usize,
}

impl Pool {
    /// Checks the shape.
    pub fn new(shape: PoolShape, layout: Layout) -> Result<Self, Error> {
        shape.check()?;
        let all = shape.batch * shape.channels;
        let (blocks, planes) = match layout {
            Layout::Hwnc => (1, all),
            Layout::Nchw => (all, 1),
        };
        Ok(Pool { shape, isa: Isa::current(), blocks, planes })
    }

    /// The same on another instruction set (the baseline if the processor lacks it).
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
        let row = self.output_row();
        let rows = y.par_chunks_mut(row).zip(argmax.par_chunks_mut(row));
        rows.enumerate().for_each(|(index, (y, argmax))| {
            let (x, row) = self.input_of(x, index);
            dispatch_to(self.isa, MaxForward { pool: self, x, row, y, argmax });
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
        y.par_chunks_mut(self.output_row()).enumerate().for_each(|(index, y)| {
            let (x, row) = self.input_of(x, index);
            dispatch_to(self.isa, AverageForward { pool: self, x, row, y });
        });
        Ok(())
    }

    /// The gradient of the average with respect to the input.
    pub fn average_backward(&self, dy: &[f32], dx: &mut [f32]) -> Result<(), Error> {
        self.backward(dy, dx, None)
    }

    /// Each input gathers from the windows that contain it: from those whose maximum it is, or, for
    /// the average, from all.
    fn backward(&self, dy: &[f32], dx: &mut [f32], argmax: Option<&[u8]>) -> Result<(), Error> {
        self.check(dx.len(), dy.len())?;
        let row = (self.shape.input[1] * self.planes).max(1);
        let block = self.shape.output_len() / self.blocks.max(1);
        dx.par_chunks_mut(row).enumerate().for_each(|(index, dx)| {
            let (number, row) = (index / self.shape.input[0], index % self.shape.input[0]);
            let range = number * block..(number + 1) * block;
            let argmax = argmax.map(|argmax| &argmax[range.clone()]);
            dispatch_to(self.isa, Backward { pool: self, argmax, dy: &dy[range], row, dx });
        });
        Ok(())
    }

    /// Elements of an image row of the output, over all planes of a block; 1 for an empty tensor,
    /// which cannot be cut into rows of nothing.
    fn output_row(&self) -> usize {
        (self.shape.output()[1] * self.planes).max(1)
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
        let (shape, planes) = (&self.pool.shape, self.pool.planes);
        let mut elements = Vec::with_capacity(shape.window_len());
        let windows = self.y.chunks_exact_mut(planes).zip(self.argmax.chunks_exact_mut(planes));
        for (col, (y, argmax)) in windows.enumerate() {
            shape.window([self.row, col], &mut elements);
            let rows = elements
                .iter()
                .map(|&(number, position)| (number as u8, &self.x[position * planes..][..planes]));
            maxima(rows, y, argmax);
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
        let (shape, planes) = (&self.pool.shape, self.pool.planes);
        let scale = 1.0 / shape.window_len() as f32;
        let mut elements = Vec::with_capacity(shape.window_len());
        for (col, y) in self.y.chunks_exact_mut(planes).enumerate() {
            shape.window([self.row, col], &mut elements);
            y.fill(0.0);
            for &(_, position) in &elements {
                for (y, x) in y.iter_mut().zip(&self.x[position * planes..]) {
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
        let (shape, planes) = (&self.pool.shape, self.pool.planes);
        let scale = 1.0 / shape.window_len() as f32;
        let mut windows = Vec::with_capacity(shape.window_len());
        for (col, dx) in self.dx.chunks_exact_mut(planes).enumerate() {
            shape.windows_of([self.row, col], &mut windows);
            dx.fill(0.0);
            for &(number, position) in &windows {
                let dy = &self.dy[position * planes..][..planes];
                match self.argmax {
                    Some(argmax) => {
                        let argmax = &argmax[position * planes..][..planes];
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
