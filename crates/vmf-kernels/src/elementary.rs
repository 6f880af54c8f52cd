//! Elementary functions of the softmax and of smooth activations, in straight-line code that
//! vectorizes, and sums over rows.

use crate::element::Real;
use crate::normal_cdf::NormalCdf;
use crate::simd::Simd;

/// A number type that the softmax and smooth activations can be computed in.
pub trait Elementary: NormalCdf {
    /// `exp(x)` for x at most 0. In `f32` the relative error is below 2e-7, and results below 1e-38
    /// are 0. A NaN stays one.
    fn exp_negative<S: Simd>(self) -> Self;

    /// `1 / x`.
    fn reciprocal(self) -> Self;
}

impl Elementary for f64 {
    #[inline(always)]
    fn exp_negative<S: Simd>(self) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn reciprocal(self) -> f64 {
        1.0 / self
    }
}

impl Elementary for f32 {
    /// `exp(x) = 2^n exp(r)` with n the nearest integer to `x / ln 2`, and r the rest. The constants
    /// are those of Cephes: ln 2 in two parts, of which the first has few digits so that its
    /// product with n is exact, and P in `exp(r) = 1 + r + r^2 P(r)`.
    #[inline(always)]
    fn exp_negative<S: Simd>(self) -> f32 {
        /// Adding it rounds to an integer, which then is in the lowest bits.
        const ROUNDS: f32 = 12_582_912.0;
        const LN_2_HIGH: f32 = 0.693_359_4;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        const P: [f32; 6] =
            [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
        const SMALLEST: f32 = -87.3;
        let x = if self < SMALLEST { SMALLEST } else { self };
        let shifted = S::mul_add(x, std::f32::consts::LOG2_E, ROUNDS);
        let n = shifted - ROUNDS;
        let r = S::mul_add(-n, LN_2_LOW, S::mul_add(-n, LN_2_HIGH, x));
        let p = P[1..].iter().fold(P[0], |p, &c| S::mul_add(p, r, c));
        let mantissa = S::mul_add(p, r * r, r) + 1.0;
        let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUNDS.to_bits() as i32);
        let power = f32::from_bits((exponent.wrapping_add(127) << 23) as u32);
        if self < SMALLEST { 0.0 } else { mantissa * power }
    }

    #[inline(always)]
    fn reciprocal(self) -> f32 {
        1.0 / self
    }
}

/// Partial sums: as many as the widest vector register has lanes.
const PARTS: usize = 16;
/// Elements that are summed in the working precision before the sum goes to double precision.
const BLOCK: usize = 1024;

/// The sum of `f(a)` over a row.
#[inline(always)]
pub(crate) fn sum<T: Copy, R: Real>(a: &[T], f: impl Fn(T) -> R) -> f64 {
    let mut total = 0.0;
    for a in a.chunks(BLOCK) {
        let mut parts = [R::ZERO; PARTS];
        let (whole, rest) = a.as_chunks::<PARTS>();
        for a in whole {
            for (part, a) in parts.iter_mut().zip(a) {
                *part += f(*a);
            }
        }
        for (part, a) in parts.iter_mut().zip(rest) {
            *part += f(*a);
        }
        total += merge(parts);
    }
    total
}

/// The dot product of two rows.
#[inline(always)]
pub(crate) fn dot<R: Real, S: Simd>(a: &[R], b: &[R]) -> f64 {
    let mut total = 0.0;
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        let mut parts = [R::ZERO; PARTS];
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<PARTS>(), b.as_chunks::<PARTS>());
        for (a, b) in a.iter().zip(b) {
            for ((part, a), b) in parts.iter_mut().zip(a).zip(b) {
                *part = a.mul_add::<S>(*b, *part);
            }
        }
        for ((part, a), b) in parts.iter_mut().zip(a_rest).zip(b_rest) {
            *part = a.mul_add::<S>(*b, *part);
        }
        total += merge(parts);
    }
    total
}

#[inline(always)]
fn merge<R: Real>(mut parts: [R; PARTS]) -> f64 {
    let mut width = PARTS / 2;
    while width > 0 {
        for part in 0..width {
            let other = parts[part + width];
            parts[part] += other;
        }
        width /= 2;
    }
    parts[0].to_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch_to};

    struct Exponentials<'a>(&'a [f32]);

    impl Kernel for Exponentials<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self) -> Vec<f32> {
            self.0.iter().map(|x| x.exp_negative::<S>()).collect()
        }
    }

    #[test]
    fn exponentials_are_those_of_double_precision() {
        let xs: Vec<f32> = (0..200_000).map(|i| -(i as f32) * 4.36e-4).collect();
        for isa in Isa::available() {
            for (x, y) in xs.iter().zip(dispatch_to(isa, Exponentials(&xs))) {
                let error = f64::from(y) / f64::from(*x).exp() - 1.0;
                assert!(error.abs() < 2e-7, "{isa:?} exp({x}) = {y}: {error:e}");
            }
            let ends = [0.0, -0.0, -88.0, -1e30, f32::NEG_INFINITY, f32::NAN];
            let found = dispatch_to(isa, Exponentials(&ends));
            assert_eq!(found[..5], [1.0, 1.0, 0.0, 0.0, 0.0], "{isa:?}");
            assert!(found[5].is_nan());
        }
    }
}
