//! What the weight gradients of the direct and of Winograd's convolution share: sums of outer
//! products.
//!
//! ```text
//! sum[p][o][i] = sum over rows r of  a[p][r][o] * b[p][r][i]
//! ```
//!
//! Each tap, or each point of Winograd's algorithm, is one such product p. A row is one image at
//! one position (or one tile), `a` comes from the output gradient and `b` from the input. Both are
//! packed into panels of channels, so that the sum over rows reads memory front to back.
//!
//! The rows come in chunks that fit the cache. Two halves of the chunks are summed independently,
//! so that threads seldom wait for each other, and within a chunk the threads divide the (o, i)
//! plane among them. The halves depend on the number of chunks alone and every sum has a fixed
//! order, so the result does not depend on the number of threads.

use crate::gemm::micro_kernel::{MicroKernel, Next, Product};
use crate::parallel::{ByTask, Shared};
use crate::scratch::Scratch;
use rayon::prelude::*;

/// Packed rows of both operands.
pub(super) struct Chunk {
    /// The output gradient, in panels of [`MicroKernel::a_panel`] channels.
    pub(super) a: Scratch,
    /// Rows of a panel of `a`.
    pub(super) a_rows: usize,
    /// The input, in panels of NR channels.
    pub(super) b: Scratch,
    /// Rows of a panel of `b`.
    pub(super) b_rows: usize,
    pub(super) products: Vec<Segments>,
}

/// The rows that one product sums over.
pub(super) struct Segments {
    /// Where the segments begin in the first panels of `a` and `b`.
    pub(super) starts: Vec<(usize, usize)>,
    /// Rows of each segment.
    pub(super) rows: usize,
}

/// The sums of all products, in blocks of the (o, i) plane.
pub(super) struct Sums {
    kernel: MicroKernel,
    products: usize,
    outputs: usize,
    inputs: usize,
    block_rows: usize,
}

/// Parts of the chunks that are summed independently. Each has its own sums, which in the end are
/// added, so more parts would cost more than they save: within a part, a chunk still has tasks for
/// several threads.
const PARTS: usize = 2;

/// The number of chunks, rounded up so that both parts have as many.
pub(super) fn balanced(chunks: usize) -> usize {
    match chunks {
        1 => 1,
        _ => chunks.next_multiple_of(PARTS),
    }
}

/// A block of sums, `[product][row][NR]`: its rows are output channels, its columns input channels.
#[derive(Clone, Copy)]
pub(super) struct Block {
    output: usize,
    pub(super) rows: usize,
    input: usize,
    cols: usize,
    /// From one row to the next.
    pub(super) row_stride: usize,
    /// From one product to the next.
    pub(super) product_stride: usize,
}

impl Block {
    /// Writes the sums where the weights `(outputs, inputs, products)` have them.
    pub(super) fn store(&self, sums: &[f32], products: usize, inputs: usize, dw: Shared) {
        for row in 0..self.rows {
            let at = ((self.output + row) * inputs + self.input) * products;
            let to = dw.at(at, self.cols * products);
            // SAFETY: `at` checked the range, and blocks have no weight in common.
            let to = unsafe { std::slice::from_raw_parts_mut(to, self.cols * products) };
            for (col, to) in to.chunks_exact_mut(products).enumerate() {
                for (product, to) in to.iter_mut().enumerate() {
                    *to = sums[product * self.product_stride + row * self.row_stride + col];
                }
            }
        }
    }
}

impl Sums {
    pub(super) fn new(kernel: MicroKernel, products: usize, outputs: usize, inputs: usize) -> Self {
        let MicroKernel { mr, nr, a_panel, .. } = kernel;
        // Wide blocks read the panels of `b` less often; narrow ones make tasks enough for every
        // thread.
        let block_rows = [2 * a_panel, a_panel]
            .into_iter()
            .find(|rows| inputs.div_ceil(nr) * outputs.div_ceil(*rows) >= 8)
            .unwrap_or(mr);
        Sums { kernel, products, outputs, inputs, block_rows }
    }

    /// Panels of `b`.
    fn panels(&self) -> usize {
        self.inputs.div_ceil(self.kernel.nr)
    }

    /// Number of blocks.
    fn blocks(&self) -> usize {
        self.panels() * self.outputs.div_ceil(self.block_rows)
    }

    /// From one product to the next in a block. The extra cache line keeps products out of each
    /// other's sets of the cache.
    fn product_stride(&self) -> usize {
        self.block_rows * self.kernel.nr + 16
    }

    fn block_len(&self) -> usize {
        self.products * self.product_stride()
    }

    fn block(&self, index: usize) -> Block {
        let nr = self.kernel.nr;
        let output = index / self.panels() * self.block_rows;
        let input = index % self.panels() * nr;
        Block {
            output,
            rows: self.block_rows.min(self.outputs - output),
            input,
            cols: nr.min(self.inputs - input),
            row_stride: nr,
            product_stride: self.product_stride(),
        }
    }

    /// Sums over all chunks, each of which `pack` prepares, and hands each block to `finish`.
    pub(super) fn run(
        &self,
        chunks: usize,
        pack: impl Fn(usize) -> Chunk + Sync,
        finish: impl Fn(Block, &[f32]) + Sync,
    ) {
        let len = self.block_len();
        let all_blocks = || (0..self.blocks()).into_par_iter().by_task();
        if chunks == 1 {
            // Nothing is added to these sums, so each block is finished while it is in cache.
            let chunk = pack(0);
            all_blocks().for_each(|index| {
                let (block, mut sums) = (self.block(index), Scratch::take(len));
                self.multiply(&chunk, &block, &mut sums, false);
                finish(block, &sums);
            });
            return;
        }
        let mut sums = Scratch::take(PARTS * self.blocks() * len);
        sums.par_chunks_mut(self.blocks() * len).by_task().enumerate().for_each(|(part, sums)| {
            let first = part * chunks / PARTS;
            for number in first..(part + 1) * chunks / PARTS {
                let chunk = pack(number);
                sums.par_chunks_mut(len).by_task().enumerate().for_each(|(index, sums)| {
                    self.multiply(&chunk, &self.block(index), sums, number > first);
                });
            }
        });
        let sums: &[f32] = &sums;
        all_blocks().for_each(|index| {
            let mut total = Scratch::take(len);
            let mut of_parts = sums.chunks_exact(len).skip(index).step_by(self.blocks());
            total.copy_from_slice(of_parts.next().unwrap_or_default());
            for part in of_parts {
                total.iter_mut().zip(part).for_each(|(total, sum)| *total += sum);
            }
            finish(self.block(index), &total);
        });
    }

    fn multiply(&self, chunk: &Chunk, block: &Block, sums: &mut [f32], accumulate: bool) {
        let MicroKernel { nr, a_panel, .. } = self.kernel;
        let b_panel = block.input * chunk.b_rows;
        let panel_of_a = |row: usize| (block.output + row) / a_panel * a_panel * chunk.a_rows;
        for (product, segments) in chunk.products.iter().enumerate() {
            let following = chunk.products.get(product + 1).unwrap_or(segments);
            let mut row = 0;
            while row < block.rows {
                let within = (block.output + row) % a_panel;
                let rows = (a_panel - within).min(block.rows - row);
                // The block's next panel of A in this product, or the first in the one that
                // follows.
                let (next_row, next) = match row + rows < block.rows {
                    true => (row + rows, segments),
                    false => (0, following),
                };
                let next_a = next.starts.first();
                let next_b = following.starts.first();
                let product = Product {
                    rows,
                    cols: nr,
                    segments: &segments.starts,
                    kc: segments.rows,
                    a: chunk.a[panel_of_a(row) + within..].as_ptr(),
                    a_row_stride: 1,
                    a_k_stride: a_panel,
                    b: chunk.b[b_panel..].as_ptr(),
                    next: Next {
                        a: next_a.map(|&(a, _)| chunk.a[panel_of_a(next_row) + a..].as_ptr()),
                        b: next_b.map(|&(_, b)| chunk.b[b_panel + b..].as_ptr()),
                    },
                    c: sums[product * block.product_stride + row * block.row_stride..].as_mut_ptr(),
                    c_stride: block.row_stride,
                    accumulate,
                };
                // SAFETY: the segments lie within the panels of the chunk, by its construction, and
                // a block holds `block_rows` rows of NR columns for every product.
                unsafe { self.kernel.run(&product) };
                row += rows;
            }
        }
    }
}
