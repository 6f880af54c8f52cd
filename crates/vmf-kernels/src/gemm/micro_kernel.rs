//! The micro-kernel of Goto's GEMM: a tile of C, `MR x NR`, that stays in registers while the whole
//! sum runs through it.
//!
//! ```text
//! C[i][j] (+)= sum over segments s, over k < kc of  A_s[i][k] * B_s[k][j]
//! ```
//!
//! With AVX2 a tile is 6 x 16: 12 of 16 registers accumulate, 2 hold a row of B, 1 an element of A.
//! With AVX-512 it is 12 x 32 (24 of 32 registers accumulate), with the baseline's four lanes 6 x
//! 8. A matrix C of so few columns that they fit one register has tiles of half the width. B is packed
//! in panels, rows of NR numbers; A has two strides, so that it can be read in place
//! or from a panel. The segments make one sum of several: the taps of a convolution are one long
//! sum that never leaves the registers.
//!
//! Each element of C is one chain of fused multiply-adds in the order of the segments. A result
//! therefore depends neither on how rows are grouped into tiles nor on the number of threads.

// Small matrices of registers: the indices are those of the formulas.
#![allow(clippy::needless_range_loop)]

use crate::simd::{Isa, Kernel, Simd, Vector, dispatch_to, prefetch_line};

/// The operands of one product, which has at most NR columns.
pub(crate) struct Product<'a> {
    /// Rows of A and C.
    pub(crate) rows: usize,
    /// Columns of C. Those of B beyond them are padding.
    pub(crate) cols: usize,
    /// Where A and B begin in each segment of the sum, as offsets from `a` and `b`.
    pub(crate) segments: &'a [(usize, usize)],
    /// Steps of the sum in each segment.
    pub(crate) kc: usize,
    pub(crate) a: *const f32,
    /// From one row of A to the next.
    pub(crate) a_row_stride: usize,
    /// From one step of the sum to the next in A.
    pub(crate) a_k_stride: usize,
    /// Rows of NR numbers, one for each step of the sum.
    pub(crate) b: *const f32,
    /// What to prefetch meanwhile.
    pub(crate) next: Next,
    pub(crate) c: *mut f32,
    /// From one row of C to the next.
    pub(crate) c_stride: usize,
    /// Whether to add to C or to overwrite it.
    pub(crate) accumulate: bool,
}

/// The operands of the product that follows, as far as they are known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Next {
    /// A, if it is packed. Otherwise the rows of A below the tile's own are prefetched.
    pub(crate) a: Option<*const f32>,
    pub(crate) b: Option<*const f32>,
}

/// The micro-kernel of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct MicroKernel {
    isa: Isa,
    /// Rows of a tile.
    pub(crate) mr: usize,
    /// Columns of a tile: the width of a packed panel of B.
    pub(crate) nr: usize,
    /// Rows of a packed panel of A: a multiple of MR for whole tiles, and of the lanes, so that
    /// packing it transposes whole registers.
    pub(crate) a_panel: usize,
}

impl MicroKernel {
    /// The micro-kernel for `isa`, or the baseline's where the processor does not have it, for
    /// matrices C of this many columns.
    pub(crate) fn for_columns(isa: Isa, columns: usize) -> MicroKernel {
        struct Sizes(Isa, usize);
        impl Kernel for Sizes {
            type Output = MicroKernel;
            #[inline(always)]
            fn run<S: Simd>(self) -> MicroKernel {
                let mr = mr::<S>();
                // The least common multiple of MR and LANES, which is a power of two.
                let a_panel = S::LANES * (mr >> mr.trailing_zeros());
                let registers = if self.1 <= S::LANES { 1 } else { REGISTERS };
                MicroKernel { isa: self.0, mr, nr: registers * S::LANES, a_panel }
            }
        }
        dispatch_to(isa, Sizes(isa, columns))
    }

    /// Computes all rows of a product, tile by tile.
    ///
    /// # Safety
    /// For every segment, row and step of the sum, A is readable at its strides and B for NR
    /// numbers; C is writable (readable if accumulating) for all columns of each row, and no other
    /// thread touches those.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, product: &Product) {
        debug_assert!(product.cols <= self.nr);
        dispatch_to(self.isa, Tiles(product, self.nr));
    }
}

/// Registers in a row of a tile, NR = `REGISTERS * LANES`, unless one is enough.
const REGISTERS: usize = 2;

/// MR: as many rows as there are registers for, beside those that hold operands.
#[inline(always)]
const fn mr<S: Simd>() -> usize {
    match S::REGISTERS {
        32 => 12,
        _ => 6,
    }
}

/// The work of [`MicroKernel::run`], whose contract makes it safe to run, with NR.
struct Tiles<'a>(&'a Product<'a>, usize);

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: only `MicroKernel::run` makes one, and passes its contract on.
        unsafe {
            match (mr::<S>(), self.1 == S::LANES) {
                (12, false) => tiles::<S, 12, REGISTERS>(self.0),
                (12, true) => tiles::<S, 12, 1>(self.0),
                (_, false) => tiles::<S, 6, REGISTERS>(self.0),
                (_, true) => tiles::<S, 6, 1>(self.0),
            }
        }
    }
}

/// All rows: whole tiles, then one of the rows that remain.
///
/// # Safety
/// As [`MicroKernel::run`].
#[inline(always)]
unsafe fn tiles<S: Simd, const MR: usize, const R: usize>(p: &Product) {
    // SAFETY: the caller's contract, for rows below `p.rows`.
    unsafe {
        let count = p.rows.div_ceil(MR);
        let prefetch = |first| Prefetch::new::<MR>(first / MR, count, R * S::LANES, p);
        let mut first = 0;
        while first + MR <= p.rows {
            tile::<S, MR, R>(first, prefetch(first), p);
            first += MR;
        }
        let prefetch = prefetch(first);
        match p.rows - first {
            0 => {}
            1 => tile::<S, 1, R>(first, prefetch, p),
            2 => tile::<S, 2, R>(first, prefetch, p),
            3 => tile::<S, 3, R>(first, prefetch, p),
            4 => tile::<S, 4, R>(first, prefetch, p),
            5 => tile::<S, 5, R>(first, prefetch, p),
            6 if MR > 6 => tile::<S, 6, R>(first, prefetch, p),
            7 if MR > 6 => tile::<S, 7, R>(first, prefetch, p),
            8 if MR > 6 => tile::<S, 8, R>(first, prefetch, p),
            9 if MR > 6 => tile::<S, 9, R>(first, prefetch, p),
            10 if MR > 6 => tile::<S, 10, R>(first, prefetch, p),
            _ if MR > 6 => tile::<S, 11, R>(first, prefetch, p),
            _ => unreachable!("fewer rows remain than a tile has"),
        }
    }
}

/// `f32` numbers of a cache line; also the steps of the sum from one prefetch to the next.
const LINE: usize = 16;

/// Prefetches the next operands while a tile is computed. Every [`LINE`] steps it prefetches as
/// many lines of A as the tile reads in these steps, and the tile's share of the lines of B.
struct Prefetch {
    a: *const f32,
    /// From one line of A to the next, and from the lines of one prefetch to those of the next.
    a_strides: [usize; 2],
    b: *const f32,
    b_lines: usize,
}

impl Prefetch {
    /// For tile `number` of `count` in a product, `MR x nr`.
    #[inline(always)]
    fn new<const MR: usize>(number: usize, count: usize, nr: usize, p: &Product) -> Self {
        // LINE steps read as many lines of B as it has columns.
        let (b, b_lines) = match p.next.b {
            Some(b) => (b, nr.div_ceil(count)),
            None => (p.b, 0),
        };
        let done = number * p.segments.len() * p.kc.div_ceil(LINE);
        Prefetch {
            a: p.next.a.unwrap_or(p.a).wrapping_add(done * MR * LINE),
            a_strides: match p.next.a {
                Some(_) => [LINE, MR * LINE],
                None => [p.a_row_stride, LINE],
            },
            b: b.wrapping_add(done * b_lines * LINE),
            b_lines,
        }
    }

    /// Addresses past the end of the operands do no harm.
    #[inline(always)]
    fn advance<const MR: usize>(&mut self) {
        let [line, next] = self.a_strides;
        for i in 0..MR {
            prefetch_line(self.a.wrapping_add(i * line));
        }
        self.a = self.a.wrapping_add(next);
        for _ in 0..self.b_lines {
            prefetch_line(self.b);
            self.b = self.b.wrapping_add(LINE);
        }
    }
}

/// One tile of `MR` rows from row `first` on.
///
/// # Safety
/// As [`tiles`].
#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const R: usize>(
    first: usize,
    mut prefetch: Prefetch,
    p: &Product,
) {
    let nr = R * S::LANES;
    // SAFETY: the caller's contract covers every address that is read or written; the last steps
    // only move past the end. `whole` has rows of `MAX_NR`, which `store` checks to be enough.
    unsafe {
        let mut sums = [[S::F32::splat(0.0); R]; MR];
        for &(a, b) in p.segments {
            let (mut a, mut b) = (p.a.add(a + first * p.a_row_stride), p.b.add(b));
            if p.next.a.is_none() {
                prefetch.a = a.wrapping_add(MR * p.a_row_stride);
            }
            let mut left = p.kc;
            while left > 0 {
                let steps = left.min(LINE);
                left -= steps;
                prefetch.advance::<MR>();
                for _ in 0..steps {
                    let mut b_row = [S::F32::splat(0.0); R];
                    for j in 0..R {
                        b_row[j] = S::F32::load(b.add(j * S::LANES));
                    }
                    for i in 0..MR {
                        let x = S::F32::splat(*a.add(i * p.a_row_stride));
                        for j in 0..R {
                            sums[i][j] = x.mul_add(b_row[j], sums[i][j]);
                        }
                    }
                    a = a.wrapping_add(p.a_k_stride);
                    b = b.wrapping_add(nr);
                }
            }
        }
        let c = p.c.add(first * p.c_stride);
        if p.cols == nr {
            store::<S, MR, R>(&sums, c, p.c_stride, p.accumulate);
        } else {
            let mut whole = [[0.0f32; MAX_NR]; MR];
            store::<S, MR, R>(&sums, whole.as_mut_ptr().cast(), MAX_NR, false);
            for i in 0..MR {
                for (j, sum) in whole[i][..p.cols].iter().enumerate() {
                    let to = c.add(i * p.c_stride + j);
                    *to = if p.accumulate { *to + sum } else { *sum };
                }
            }
        }
    }
}

/// NR of the widest tile.
const MAX_NR: usize = 32;

/// Writes a whole tile to rows that are `stride` apart, or adds it to them.
///
/// The loops do as little as they can: LLVM keeps the sums in registers only if it unrolls all
/// loops over them early, and it leaves loops alone that would grow too long. With the sums in
/// memory the kernel takes more than twice the time.
///
/// # Safety
/// Every row of `to` is writable for NR numbers, and readable if accumulating.
#[inline(always)]
unsafe fn store<S: Simd, const MR: usize, const R: usize>(
    sums: &[[S::F32; R]; MR],
    to: *mut f32,
    stride: usize,
    accumulate: bool,
) {
    const { assert!(R * S::LANES <= MAX_NR) };
    // SAFETY: the caller's contract.
    unsafe {
        if accumulate {
            for i in 0..MR {
                for j in 0..R {
                    let to = to.add(i * stride + j * S::LANES);
                    (sums[i][j] + S::F32::load(to)).store(to);
                }
            }
        } else {
            for i in 0..MR {
                for j in 0..R {
                    sums[i][j].store(to.add(i * stride + j * S::LANES));
                }
            }
        }
    }
}
