//! The micro-kernel of Goto's GEMM: a tile of C held in registers while the depth of the product
//! runs through it.
//!
//! ```text
//! C[i][j] (+)= sum over segments s, over k:  A[s + i * a_row + k * a_step] * B[s + k * b_step + j]
//! ```
//!
//! A tile is `rows x cols`: 6 x 16 with AVX2 (12 of 16 registers accumulate, 2 hold B, 1 an element
//! of A), 12 x 32 with AVX-512 (24 of 32), 6 x 8 with the baseline's four lanes. The rows of B are
//! contiguous and as long as the tile is wide (packed and padded), A has two strides, so that it is
//! read in place as rows or as columns. The segments make one product of several: the taps of a
//! convolution are one long sum that never leaves the registers.
//!
//! Each element of C is one chain of fused multiply-adds in the order of the segments. So a result
//! does not depend on how rows were grouped into tiles, and not on the number of threads.

// Small matrices of registers: the indices are those of the formulas.
#![allow(clippy::needless_range_loop)]

use crate::simd::{Isa, Kernel, Simd, Vector, dispatch_to, prefetch_line};

/// Where the operands of the product that follows are, as far as that is known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Next {
    /// A, if its elements lie together. Without it, it is the rows of A below the tile's own that
    /// are asked for.
    pub(crate) a: Option<*const f32>,
    /// B.
    pub(crate) b: Option<*const f32>,
}

/// The operands of one tile.
pub(crate) struct Product<'a> {
    /// Where A and B begin in each segment, as offsets from `a` and `b`.
    pub(crate) segments: &'a [(usize, usize)],
    /// Length of the sum in each segment.
    pub(crate) depth: usize,
    pub(crate) a: *const f32,
    /// From one row of A to the next.
    pub(crate) a_row: usize,
    /// From one `k` to the next in A.
    pub(crate) a_step: usize,
    pub(crate) b: *const f32,
    /// From one `k` to the next in B.
    pub(crate) b_step: usize,
    /// What the product after this one will read, brought into the cache meanwhile.
    pub(crate) next: Next,
    pub(crate) c: *mut f32,
    /// From one row of C to the next.
    pub(crate) c_row: usize,
    /// Columns of C that exist; those of B beyond them are padding.
    pub(crate) cols: usize,
    /// Whether to add to C or to overwrite it.
    pub(crate) accumulate: bool,
}

/// The micro-kernel of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct MicroKernel {
    isa: Isa,
    /// Rows of a whole tile.
    pub(crate) rows: usize,
    /// Columns of a tile: the width of a packed panel of B.
    pub(crate) cols: usize,
    /// Rows of A in a packed panel: a multiple of a tile's rows, and of a register's lanes.
    pub(crate) panel_rows: usize,
}

impl MicroKernel {
    /// The micro-kernel for `isa`, or the baseline's where the processor does not have it.
    pub(crate) fn of(isa: Isa) -> MicroKernel {
        struct Sizes(Isa);
        impl Kernel for Sizes {
            type Output = MicroKernel;
            #[inline(always)]
            fn run<S: Simd>(self) -> MicroKernel {
                let rows = tile_rows::<S>();
                let panel_rows = (1..).map(|tiles| tiles * rows);
                MicroKernel {
                    isa: self.0,
                    rows,
                    cols: TILE_REGISTERS * S::LANES,
                    panel_rows: panel_rows.into_iter().find(|n| n % S::LANES == 0).unwrap_or(rows),
                }
            }
        }
        dispatch_to(isa, Sizes(isa))
    }

    /// Computes `rows` rows of C, tile by tile.
    ///
    /// # Safety
    /// For every segment, every row below `rows` and every `k` below the depth, A is readable where
    /// the formula above reads it and B for a whole tile's columns; C is writable (readable if
    /// accumulating) for `cols` columns of each row, and no other thread touches those.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, rows: usize, product: &Product) {
        debug_assert!(product.cols <= self.cols);
        dispatch_to(self.isa, Tiles { rows, product });
    }
}

/// Registers in a row of a tile.
const TILE_REGISTERS: usize = 2;

/// Rows of a whole tile: as many as there are registers for, beside those that hold the operands.
#[inline(always)]
const fn tile_rows<S: Simd>() -> usize {
    match S::REGISTERS {
        32 => 12,
        _ => 6,
    }
}

/// The work of [`MicroKernel::run`], which alone makes one and whose caller promises that the
/// operands may be read and written.
struct Tiles<'a, 'b> {
    rows: usize,
    product: &'a Product<'b>,
}

impl Kernel for Tiles<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: the contract of `MicroKernel::run`.
        unsafe {
            match tile_rows::<S>() {
                12 => tiles::<S, 12, TILE_REGISTERS>(self.rows, self.product),
                _ => tiles::<S, 6, TILE_REGISTERS>(self.rows, self.product),
            }
        }
    }
}

/// All rows: whole tiles, then one of the rows that remain.
///
/// # Safety
/// As [`MicroKernel::run`].
#[inline(always)]
unsafe fn tiles<S: Simd, const ROWS: usize, const REGS: usize>(rows: usize, p: &Product) {
    // SAFETY: the caller's contract, for rows below `rows`.
    unsafe {
        let count = rows.div_ceil(ROWS);
        let requests = |first| Requests::new::<ROWS>(first / ROWS, count, REGS * S::LANES, p);
        let mut first = 0;
        while first + ROWS <= rows {
            tile::<S, ROWS, REGS>(first, requests(first), p);
            first += ROWS;
        }
        let requests = requests(first);
        match rows - first {
            0 => {}
            1 => tile::<S, 1, REGS>(first, requests, p),
            2 => tile::<S, 2, REGS>(first, requests, p),
            3 => tile::<S, 3, REGS>(first, requests, p),
            4 => tile::<S, 4, REGS>(first, requests, p),
            5 => tile::<S, 5, REGS>(first, requests, p),
            6 if ROWS > 6 => tile::<S, 6, REGS>(first, requests, p),
            7 if ROWS > 6 => tile::<S, 7, REGS>(first, requests, p),
            8 if ROWS > 6 => tile::<S, 8, REGS>(first, requests, p),
            9 if ROWS > 6 => tile::<S, 9, REGS>(first, requests, p),
            10 if ROWS > 6 => tile::<S, 10, REGS>(first, requests, p),
            _ if ROWS > 6 => tile::<S, 11, REGS>(first, requests, p),
            _ => unreachable!("fewer rows remain than a tile has"),
        }
    }
}

/// Elements of a cache line; also the steps of the sum between two requests.
const LINE: usize = 16;

/// Requests for the operands that come next, each for as many lines of A as a tile reads in as many
/// steps, and for so many of B that all tiles of a product together ask for all of it.
struct Requests {
    a: *const f32,
    /// From one line of a request to the next, and from one request to the next.
    a_lines: [usize; 2],
    b: *const f32,
    /// Lines of B in a request.
    b_lines: usize,
}

impl Requests {
    /// Those of tile `number` of `count`, which has `ROWS` rows, as far as they exist, and `cols`
    /// columns.
    #[inline(always)]
    fn new<const ROWS: usize>(number: usize, count: usize, cols: usize, p: &Product) -> Self {
        // Sixteen steps read as many lines of B as it has columns.
        let (b, b_lines) = match p.next.b {
            Some(b) => (b, cols.div_ceil(count)),
            None => (p.b, 0),
        };
        let sent = number * p.segments.len() * p.depth.div_ceil(LINE);
        Requests {
            a: p.next.a.unwrap_or(p.a).wrapping_add(sent * ROWS * LINE),
            a_lines: match p.next.a {
                Some(_) => [LINE, ROWS * LINE],
                None => [p.a_row, LINE],
            },
            b: b.wrapping_add(sent * b_lines * LINE),
            b_lines,
        }
    }

    /// Addresses past the end of the operands do no harm.
    #[inline(always)]
    fn send<const ROWS: usize>(&mut self) {
        let [line, request] = self.a_lines;
        for i in 0..ROWS {
            prefetch_line(self.a.wrapping_add(i * line));
        }
        self.a = self.a.wrapping_add(request);
        for _ in 0..self.b_lines {
            prefetch_line(self.b);
            self.b = self.b.wrapping_add(LINE);
        }
    }
}

/// One tile of `ROWS` rows, from row `first`, and `REGS` registers of columns.
///
/// # Safety
/// As [`tiles`].
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const REGS: usize>(
    first: usize,
    mut requests: Requests,
    p: &Product,
) {
    // SAFETY: the caller's contract covers every address formed; the last steps only move past the
    // end. `whole` has rows of `WIDEST`, which `store` checks to be enough.
    unsafe {
        let mut sums = [[S::F32::splat(0.0); REGS]; ROWS];
        for &(a, b) in p.segments {
            let (mut a, mut b) = (p.a.add(a + first * p.a_row), p.b.add(b));
            if p.next.a.is_none() {
                requests.a = a.wrapping_add(ROWS * p.a_row);
            }
            let mut left = p.depth;
            while left > 0 {
                let steps = left.min(LINE);
                left -= steps;
                requests.send::<ROWS>();
                for _ in 0..steps {
                    let mut row_of_b = [S::F32::splat(0.0); REGS];
                    for j in 0..REGS {
                        row_of_b[j] = S::F32::load(b.add(j * S::LANES));
                    }
                    for i in 0..ROWS {
                        let x = S::F32::splat(*a.add(i * p.a_row));
                        for j in 0..REGS {
                            sums[i][j] = x.mul_add(row_of_b[j], sums[i][j]);
                        }
                    }
                    a = a.wrapping_add(p.a_step);
                    b = b.wrapping_add(p.b_step);
                }
            }
        }
        let c = p.c.add(first * p.c_row);
        if p.cols == REGS * S::LANES {
            store::<S, ROWS, REGS>(&sums, c, p.c_row, p.accumulate);
        } else {
            let mut whole = [[0.0f32; WIDEST]; ROWS];
            store::<S, ROWS, REGS>(&sums, whole.as_mut_ptr().cast(), WIDEST, false);
            for i in 0..ROWS {
                for (j, sum) in whole[i][..p.cols].iter().enumerate() {
                    let to = c.add(i * p.c_row + j);
                    *to = if p.accumulate { *to + sum } else { *sum };
                }
            }
        }
    }
}

/// Columns of the widest tile.
const WIDEST: usize = 32;

/// Writes, or adds, a whole tile to rows that are `row` apart.
///
/// The loops do as little as they can: LLVM keeps the sums in registers only if it unrolls all
/// loops over them early, and it leaves loops alone that would grow too long. With the sums in
/// memory the kernel takes more than twice the time.
///
/// # Safety
/// Every row of `to` is writable, readable if accumulating.
#[inline(always)]
unsafe fn store<S: Simd, const ROWS: usize, const REGS: usize>(
    sums: &[[S::F32; REGS]; ROWS],
    to: *mut f32,
    row: usize,
    accumulate: bool,
) {
    const { assert!(REGS * S::LANES <= WIDEST) };
    // SAFETY: the caller's contract.
    unsafe {
        if accumulate {
            for i in 0..ROWS {
                for j in 0..REGS {
                    let to = to.add(i * row + j * S::LANES);
                    (sums[i][j] + S::F32::load(to)).store(to);
                }
            }
        } else {
            for i in 0..ROWS {
                for j in 0..REGS {
                    sums[i][j].store(to.add(i * row + j * S::LANES));
                }
            }
        }
    }
}
