//! What the weight gradients of the direct and of Winograd's convolution share: sums of outer products.
//!
//! ```text
//! sum[point][o][i] = sum over rows r of  a[point][r][o] * b[point][r][i]
//! ```
//!
//! A row is one image at one position (or one tile), a point one tap (or one of the 36 Winograd products), `a` comes
//! from the output gradient, `b` from the input. Both are packed into panels of channels, so that the sum over rows
//! reads memory front to back. The rows come in chunks that fit the cache; the chunks are summed in order whatever
//! the number of threads, which divide the (o, i) plane among them.

use crate::gemm::tile::{MicroKernel, Next, Product};
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use rayon::prelude::*;

/// Rows of packed operands.
pub(super) struct Chunk<'a> {
    /// The output gradient, in panels of [`a_width`] channels.
    pub(super) a: &'a [f32],
    /// Rows of a panel of `a`.
    pub(super) a_rows: usize,
    /// The input, in panels of the tile's width.
    pub(super) b: &'a [f32],
    /// Rows of a panel of `b`.
    pub(super) b_rows: usize,
    /// For each point, where its segments begin in `a` and `b`, and how many rows each has.
    pub(super) points: &'a [(Vec<(usize, usize)>, usize)],
}

/// Width of a panel of `a`: whole registers can be stored into it, and whole tiles of rows read from it.
pub(super) fn a_width(kernel: MicroKernel) -> usize {
    let (rows, lanes) = (kernel.rows, kernel.lanes);
    (1..)
        .map(|n| n * rows)
        .find(|width| width % lanes == 0)
        .unwrap_or(rows * lanes)
}

/// The sums of one (o, i) plane, kept in blocks `[point][row of the block][tile width]`.
pub(super) struct Sums {
    kernel: MicroKernel,
    points: usize,
    outputs: usize,
    inputs: usize,
    block_rows: usize,
    blocks: Option<Scratch>,
}

/// Which output channels (rows) and input channels (columns) a block of sums is of.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) output: usize,
    pub(super) rows: usize,
    pub(super) input: usize,
    pub(super) cols: usize,
    /// From one row of the block to the next.
    pub(super) stride: usize,
    /// From one point to the next.
    pub(super) point: usize,
}

impl Sums {
    /// For `chunks` chunks: with one, no sum has to be kept between calls, and a block is finished while in cache.
    pub(super) fn new(
        kernel: MicroKernel,
        points: usize,
        outputs: usize,
        inputs: usize,
        chunks: usize,
    ) -> Self {
        let width = a_width(kernel);
        // Wide blocks read the panels of `b` less often; narrow ones make tasks enough for every thread.
        let panels = inputs.div_ceil(kernel.cols);
        let block_rows = [2 * width, width]
            .into_iter()
            .find(|rows| panels * outputs.div_ceil(*rows) >= 8)
            .unwrap_or(kernel.rows);
        let mut sums = Sums {
            kernel,
            points,
            outputs,
            inputs,
            block_rows,
            blocks: None,
        };
        if chunks > 1 {
            sums.blocks = Some(Scratch::take(sums.count() * sums.block_len()));
        }
        sums
    }

    fn panels(&self) -> usize {
        self.inputs.div_ceil(self.kernel.cols)
    }

    fn count(&self) -> usize {
        self.panels() * self.outputs.div_ceil(self.block_rows)
    }

    /// From one point to the next; the extra cache line keeps points out of each other's sets of the cache.
    fn point_stride(&self) -> usize {
        self.block_rows * self.kernel.cols + 16
    }

    fn block_len(&self) -> usize {
        self.points * self.point_stride()
    }

    fn block(&self, index: usize) -> Block {
        let output = index / self.panels() * self.block_rows;
        let input = index % self.panels() * self.kernel.cols;
        Block {
            output,
            rows: self.block_rows.min(self.outputs - output),
            input,
            cols: self.kernel.cols.min(self.inputs - input),
            stride: self.kernel.cols,
            point: self.point_stride(),
        }
    }

    /// Adds a chunk (the `first` overwrites what the blocks held), and hands each block to `finish` after the `last`.
    pub(super) fn add(
        &mut self,
        chunk: &Chunk,
        first: bool,
        last: bool,
        finish: impl Fn(Block, &[f32]) + Sync,
    ) {
        let mut kept = self.blocks.take();
        let len = self.block_len();
        let one_block = |index: usize, sums: &mut [f32]| {
            let block = self.block(index);
            self.multiply(chunk, &block, sums, !first);
            if last {
                finish(block, sums);
            }
        };
        match &mut kept {
            Some(blocks) => blocks
                .par_chunks_mut(len)
                .by_task()
                .enumerate()
                .for_each(|(index, sums)| one_block(index, sums)),
            None => (0..self.count())
                .into_par_iter()
                .by_task()
                .for_each(|index| one_block(index, &mut Scratch::take(len))),
        }
        self.blocks = kept;
    }

    fn multiply(&self, chunk: &Chunk, block: &Block, sums: &mut [f32], accumulate: bool) {
        let width = a_width(self.kernel);
        let b_panel = block.input * chunk.b_rows;
        let a_panel = |row: usize| (block.output + row) / width * width * chunk.a_rows;
        for (point, (segments, depth)) in chunk.points.iter().enumerate() {
            let following = chunk.points.get(point + 1).unwrap_or(&chunk.points[point]);
            let mut row = 0;
            while row < block.rows {
                let within = (block.output + row) % width;
                let rows = (width - within).min(block.rows - row);
                // The block's next panel of A at this point, or the first at the point that follows.
                let (next_row, next_point) = match row + rows < block.rows {
                    true => (row + rows, segments),
                    false => (0, &following.0),
                };
                let next = Next {
                    a: next_point
                        .first()
                        .map(|&(a, _)| chunk.a[a_panel(next_row) + a..].as_ptr()),
                    b: following
                        .0
                        .first()
                        .map(|&(_, b)| chunk.b[b_panel + b..].as_ptr()),
                };
                let product = Product {
                    segments,
                    depth: *depth,
                    a: chunk.a[a_panel(row) + within..].as_ptr(),
                    a_row: 1,
                    a_step: width,
                    b: chunk.b[b_panel..].as_ptr(),
                    b_step: self.kernel.cols,
                    next,
                    c: sums[point * block.point + row * block.stride..].as_mut_ptr(),
                    c_row: block.stride,
                    cols: self.kernel.cols,
                    accumulate,
                };
                // SAFETY: segments lie within the chunk's panels (whoever packed it says so), and a block holds
                // `block_rows` rows of the tile's width at every point.
                unsafe { self.kernel.run(rows, &product) };
                row += rows;
            }
        }
    }
}
