//! The transforms of Winograd's F(4x4, 3x3), from Lavin and Gray, *Fast Algorithms for
//! Convolutional Neural Networks* (2016), with the interpolation points 0, ±1, ±2 and infinity.
//!
//! ```text
//!       | 4  0 -5  0  1  0 |          |  1/4    0     0  |
//!       | 0 -4 -4  1  1  0 |          | -1/6  -1/6  -1/6 |          | 1  1  1  1  1  0 |
//! B^T = | 0  4 -4 -1  1  0 |      G = | -1/6   1/6  -1/6 |    A^T = | 0  1 -1  2 -2  0 |
//!       | 0 -2 -1  2  1  0 |          | 1/24  1/12   1/6 |          | 0  1  1  4  4  0 |
//!       | 0  2 -1 -2  1  0 |          | 1/24 -1/12   1/6 |          | 0  1 -1  8 -8  1 |
//!       | 0  4  0 -5  0  1 |          |   0     0     1  |
//! ```
//!
//! A tile of output is `A^T [ (G w G^T) . (B^T x B) ] A`, where `.` multiplies the 36 points and
//! sums over channels. Its gradient with respect to the weights is `G^T [ (A dy A^T) . (B^T x B) ]
//! G`. Each function below is one matrix applied to a vector of registers; [`transform_tile`]
//! applies it to both sides of a tile.

use crate::simd::{Simd, Vector};
use std::mem::MaybeUninit;

/// `B^T d`: six inputs to six points.
#[inline(always)]
pub(super) fn input<V: Vector>(d: [V; 6], c: Constants<V>) -> [V; 6] {
    let even = c.minus_four.mul_add(d[2], d[4]);
    let odd = c.minus_four.mul_add(d[1], d[3]);
    let even2 = d[4] - d[2];
    let odd2 = d[3] - d[1];
    let odd2 = odd2 + odd2;
    [
        c.four.mul_add(d[0], c.minus_five.mul_add(d[2], d[4])),
        even + odd,
        even - odd,
        even2 + odd2,
        even2 - odd2,
        c.four.mul_add(d[1], c.minus_five.mul_add(d[3], d[5])),
    ]
}

/// `A^T m`: six points to four outputs.
#[inline(always)]
pub(super) fn output<V: Vector>(m: [V; 6], c: Constants<V>) -> [V; 4] {
    let (sum1, difference1) = (m[1] + m[2], m[1] - m[2]);
    let (sum2, difference2) = (m[3] + m[4], m[3] - m[4]);
    [
        m[0] + (sum1 + sum2),
        c.two.mul_add(difference2, difference1),
        c.four.mul_add(sum2, sum1),
        c.eight.mul_add(difference2, difference1) + m[5],
    ]
}

/// `A g`: four output gradients to six points.
#[inline(always)]
pub(super) fn output_gradient<V: Vector>(g: [V; 4], c: Constants<V>) -> [V; 6] {
    let (even, odd) = (g[0] + g[2], g[1] + g[3]);
    let even2 = c.four.mul_add(g[2], g[0]);
    let odd2 = c.eight.mul_add(g[3], g[1] + g[1]);
    [g[0], even + odd, even - odd, even2 + odd2, even2 - odd2, g[3]]
}

/// `G w`: three weights to six points.
#[inline(always)]
pub(super) fn weights<V: Vector>(w: [V; 3], c: Constants<V>) -> [V; 6] {
    let even = c.sixth.mul_add(w[0] + w[2], c.zero);
    let odd = c.sixth.mul_add(w[1], c.zero);
    let even2 = c.sixth.mul_add(w[2], c.twenty_fourth.mul_add(w[0], c.zero));
    let odd2 = c.twelfth.mul_add(w[1], c.zero);
    [
        c.quarter.mul_add(w[0], c.zero),
        c.zero - (even + odd),
        odd - even,
        even2 + odd2,
        even2 - odd2,
        w[2],
    ]
}

/// `G^T u`: six points to three weight gradients.
#[inline(always)]
pub(super) fn weight_gradient<V: Vector>(u: [V; 6], c: Constants<V>) -> [V; 3] {
    let (sum1, difference1) = (u[1] + u[2], u[2] - u[1]);
    let (sum2, difference2) = (u[3] + u[4], u[3] - u[4]);
    let first = c.twenty_fourth.mul_add(sum2, c.quarter.mul_add(u[0], c.zero));
    [
        first - c.sixth.mul_add(sum1, c.zero),
        c.twelfth.mul_add(difference2, c.sixth.mul_add(difference1, c.zero)),
        c.sixth.mul_add(sum2 - sum1, u[5]),
    ]
}

/// Registers side by side, at most: the baseline's four lanes make a cache line of four.
const MAX_REGISTERS: usize = 4;

/// Applies `matrix` to the columns, then to the rows, of a square tile. Each of its elements is as
/// many `registers` as fit a cache line, or one: `load(i, j, register)` reads them, and
/// `store(i, j, register, x)` writes those of the result.
///
/// `matrix` must not be passed by reference: calls through a reference to a closure are inlined too
/// late to be compiled for the instruction set.
#[inline(always)]
pub(super) fn transform_tile<S: Simd, const FROM: usize, const TO: usize>(
    registers: usize,
    matrix: impl Fn([S::F32; FROM]) -> [S::F32; TO],
    load: impl Fn(usize, usize, usize) -> S::F32,
    store: impl Fn(usize, usize, usize, S::F32),
) {
    // Not initialized: clearing it costs as much as a quarter of the arithmetic.
    let mut columns = [MaybeUninit::<[[S::F32; FROM]; TO]>::uninit(); MAX_REGISTERS];
    let columns = &mut columns[..registers];
    for j in 0..FROM {
        for (register, columns) in columns.iter_mut().enumerate() {
            let mut column = [S::F32::splat(0.0); FROM];
            for i in 0..FROM {
                column[i] = load(i, j, register);
            }
            let column = matrix(column);
            for i in 0..TO {
                // SAFETY: inside the array, and a plain value replaces no other.
                unsafe { (*columns.as_mut_ptr())[i][j] = column[i] };
            }
        }
    }
    for i in 0..TO {
        for (register, columns) in columns.iter().enumerate() {
            // SAFETY: every column was written above.
            let row = matrix(unsafe { columns.assume_init_ref() }[i]);
            for j in 0..TO {
                store(i, j, register, row[j]);
            }
        }
    }
}

/// The entries of the matrices, each in every lane.
#[derive(Clone, Copy)]
pub(super) struct Constants<V> {
    zero: V,
    two: V,
    four: V,
    eight: V,
    minus_four: V,
    minus_five: V,
    quarter: V,
    sixth: V,
    twelfth: V,
    twenty_fourth: V,
}

impl<V: Vector> Constants<V> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Constants {
            zero: V::splat(0.0),
            two: V::splat(2.0),
            four: V::splat(4.0),
            eight: V::splat(8.0),
            minus_four: V::splat(-4.0),
            minus_five: V::splat(-5.0),
            quarter: V::splat(0.25),
            sixth: V::splat(1.0 / 6.0),
            twelfth: V::splat(1.0 / 12.0),
            twenty_fourth: V::splat(1.0 / 24.0),
        }
    }
}
