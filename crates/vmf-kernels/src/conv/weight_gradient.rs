//! What the weight gradients of the direct and of Winograd's convolution share: sums of outer
//! products.
//!
//! ```text
//! sum[point][o][i] = sum over rows r of  a[point][r][o] * b[point][r][i]
//! ```
//!
//! A row is one image at one position (or one tile), a point one tap (or one of the 36 Winograd
//! products), `a` comes from the output gradient, `b` from the input. Both are packed into panels
//! of channels, so that the sum over rows reads memory front to back. The rows come in chunks that
//! fit the cache. A few parts of the chunks are summed independently, so that threads seldom wait
//! for each other, and within a chunk threads divide the (o, i) plane among them. Which parts there
//! are depends on the number of chunks alone, and all sums are in order, so that the result does
//! not depend on the number of threads.

use crate::gemm::tile::{MicroKernel, Next, Product};
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use rayon::prelude::*;

/// Rows of packed operands.
pub(super) struct Chunk<'a> {
    /// The output gradient, in panels of [`MicroKernel::panel_rows`] channels.
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

/// The sums of one (o, i) plane, in blocks `[point][row of the block][tile width]`.
pub(super) struct Sums {
    kernel: MicroKernel,
    points: usize,
    outputs: usize,
    inputs: usize,
    block_rows: usize,
}

/// Parts of the chunks that are summed independently. Each has its own sums, which in the end are
/// added, so that more of them would cost more than they spare: a part's chunks still have tasks
/// for several threads.
const PARTS: usize = 2;

/// As many chunks as asked for, or one more so that both parts have as many.
pub(super) fn balanced(chunks: usize) -> usize {
    match chunks {
        1 => 1,
        _ => chunks.next_multiple_of(PARTS),
    }
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
    pub(super) fn new(kernel: MicroKernel, points: usize, outputs: usize, inputs: usize) -> Self {
        let width = kernel.panel_rows;
        // Wide blocks read the panels of `b` less often; narrow ones make tasks enough for every
        // thread.
        let panels = inputs.div_ceil(kernel.cols);
        let block_rows = [2 * width, width]
            .into_iter()
            .find(|rows| panels * outputs.div_ceil(*rows) >= 8)
            .unwrap_or(kernel.rows);
        Sums { kernel, points, outputs, inputs, block_rows }
    }

    fn panels(&self) -> usize {
        self.inputs.div_ceil(self.kernel.cols)
    }

    fn count(&self) -> usize {
        self.panels() * self.outputs.div_ceil(self.block_rows)
    }

    /// From one point to the next; the extra cache line keeps points out of each other's sets of
    /// the cache.
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

    /// Sums over all chunks, of which `pack` prepares one and hands it on, and hands each block of
    /// sums to `finish`.
    pub(super) fn run(
        &self,
        chunks: usize,
        pack: impl Fn(usize, &mut dyn FnMut(&Chunk)) + Sync,
        finish: impl Fn(Block, &[f32]) + Sync,
    ) {
        let len = self.block_len();
        let all_blocks = || (0..self.count()).into_par_iter().by_task();
        if chunks == 1 {
            // No sum has to be kept: each block is finished while in cache.
            pack(0, &mut |chunk| {
                all_blocks().for_each(|index| {
                    let (block, mut sums) = (self.block(index), Scratch::take(len));
                    self.multiply(chunk, &block, &mut sums, false);
                    finish(block, &sums);
                });
            });
            return;
        }
        let mut sums = Scratch::take(PARTS * self.count() * len);
        sums.par_chunks_mut(self.count() * len).by_task().enumerate().for_each(|(part, sums)| {
            let first = part * chunks / PARTS;
            for number in first..(part + 1) * chunks / PARTS {
                pack(number, &mut |chunk| {
                    sums.par_chunks_mut(len).by_task().enumerate().for_each(|(index, sums)| {
                        self.multiply(chunk, &self.block(index), sums, number > first);
                    });
                });
            }
        });
        let sums: &[f32] = &sums;
        all_blocks().for_each(|index| {
            let mut total = Scratch::take(len);
            let mut of_parts = sums.chunks_exact(len).skip(index).step_by(self.count());
            total.copy_from_slice(of_parts.next().unwrap_or_default());
            for part in of_parts {
                total.iter_mut().zip(part).for_each(|(total, sum)| *total += sum);
            }
            finish(self.block(index), &total);
        });
    }

    fn multiply(&self, chunk: &Chunk, block: &Block, sums: &mut [f32], accumulate: bool) {
        let width = self.kernel.panel_rows;
        let b_panel = block.input * chunk.b_rows;
        let a_panel = |row: usize| (block.output + row) / width * width * chunk.a_rows;
        for (point, (segments, depth)) in chunk.points.iter().enumerate() {
            let following = chunk.points.get(point + 1).unwrap_or(&chunk.points[point]);
            let mut row = 0;
            while row < block.rows {
                let within = (block.output + row) % width;
                let rows = (width - within).min(block.rows - row);
                // The block's next panel of A at this point, or the first at the point that
                // follows.
                let (next_row, next_point) = match row + rows < block.rows {
                    true => (row + rows, segments),
                    false => (0, &following.0),
                };
                let next = Next {
                    a: next_point.first().map(|&(a, _)| chunk.a[a_panel(next_row) + a..].as_ptr()),
                    b: following.0.first().map(|&(_, b)| chunk.b[b_panel + b..].as_ptr()),
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
                // SAFETY: segments lie within the chunk's panels (whoever packed it says so), and a
                // block holds `block_rows` rows of the tile's width at every point.
                unsafe { self.kernel.run(rows, &product) };
                row += rows;
            }
        }
    }
}
