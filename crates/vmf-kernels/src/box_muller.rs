//! The transform of Box and Muller (1958), which makes two standard normals of two random words.
//!
//! ```text
//! u1 = ((first word >> 8) + 1) / 2^24 in (0, 1],      u2 = (second word >> 8) / 2^24 in [0, 1)
//! radius = sqrt(-2 ln u1),    angle = 2 pi u2,        normals: radius cos(angle), radius sin(angle)
//! ```
//! The module depends on neither [`noise`](crate::noise) nor [`Real`](crate::Real), which both
//! depend on it: every number type that kernels compute in has the transform.

use crate::simd::Simd;

/// Bits of a word that are dropped: an `f32` holds the other 24 exactly.
const UNUSED_BITS: u32 = 8;

/// A number type that normals can be computed in.
///
/// The transform has two halves, for two loops: in a short loop the processor overlaps more
/// elements. The square root has a long latency, so it is in the half with more other work.
pub trait BoxMuller: Sized {
    /// The square of the radius, `-2 ln u1`.
    fn squared_radius<S: Simd>(word: u32) -> Self;

    /// `(radius cos(angle), radius sin(angle))` with `angle = 2 pi u2`.
    fn turn<S: Simd>(squared_radius: Self, word: u32) -> (Self, Self);
}

impl BoxMuller for f64 {
    #[inline(always)]
    fn squared_radius<S: Simd>(word: u32) -> f64 {
        squared_radius_f64(word)
    }

    #[inline(always)]
    fn turn<S: Simd>(squared_radius: f64, word: u32) -> (f64, f64) {
        turn_f64(squared_radius, word)
    }
}

impl BoxMuller for f32 {
    #[inline(always)]
    fn squared_radius<S: Simd>(word: u32) -> f32 {
        minus_two_ln::<S>(word)
    }

    #[inline(always)]
    fn turn<S: Simd>(squared_radius: f32, word: u32) -> (f32, f32) {
        let (negative, sin, cos) = sin_cos::<S>(word);
        let radius = f32::from_bits(squared_radius.sqrt().to_bits() ^ negative);
        (radius * cos, radius * sin)
    }
}

/// Both normals in double precision: the reference that the fast path is tested against.
pub(crate) fn box_muller_f64(radius_word: u32, angle_word: u32) -> (f64, f64) {
    turn_f64(squared_radius_f64(radius_word), angle_word)
}

fn squared_radius_f64(word: u32) -> f64 {
    let u1 = f64::from((word >> UNUSED_BITS) + 1) / f64::from(1 << 24);
    -2.0 * u1.ln()
}

fn turn_f64(squared_radius: f64, word: u32) -> (f64, f64) {
    let radius = squared_radius.sqrt();
    let u2 = f64::from(word >> UNUSED_BITS) / f64::from(1 << 24);
    let (sin, cos) = (std::f64::consts::TAU * u2).sin_cos();
    (radius * cos, radius * sin)
}

/// `-2 ln u1`, in straight-line code that vectorizes: no branch, no call.
///
/// The polynomials here and below have the least maximum error; `tests/golden/polynomials.py` finds
/// them.
///
/// `u1 = 2^e m` with m in [sqrt(1/2), sqrt(2)), and `ln u1 = e ln 2 + ln(1 + f)` with f = m - 1,
/// exact. Where u1 is close to 1, e = 0 and the result is accurate relative to its own size, which
/// the square root then needs.
#[inline(always)]
fn minus_two_ln<S: Simd>(radius_word: u32) -> f32 {
    /// P in `-2 ln(1 + f) = -2 f + f^2 + f^3 P(f)`; relative error 3e-8.
    const P: [f32; 7] = [
        -6.666_782e-1,
        5.000_267_4e-1,
        -3.992_612_8e-1,
        3.315_517e-1,
        -2.982_953_5e-1,
        2.853_497_3e-1,
        -1.740_087_3e-1,
    ];
    const SQRT_HALF: i32 = 0x3f35_04f3;
    const MANTISSA: i32 = 0x007f_ffff;
    // u1 is this integer over 2^24; the division is a subtraction from the exponent, done below.
    let integer = ((radius_word >> UNUSED_BITS) as i32 + 1) as f32;
    let above = integer.to_bits() as i32 - (SQRT_HALF + (24 << 23));
    let exponent = (above >> 23) as f32;
    let f = f32::from_bits(((above & MANTISSA) + SQRT_HALF) as u32) - 1.0;

    let f2 = f * f;
    let tail = S::mul_add(f2 * f, polynomial::<S, 7>(f, f2, P), f2);
    let minus_two_ln_m = S::mul_add(f, -2.0, tail);
    S::mul_add(exponent, -2.0 * std::f32::consts::LN_2, minus_two_ln_m)
}

/// `sin` and `cos` of `2 pi u2`, except for their common sign, which is returned first, as the sign
/// bit of a float.
///
/// The word, as a signed integer, is the angle in units of 2 pi / 2^32. Doubled, it wraps around at
/// every half turn, which leaves an angle x in [-pi/2, pi/2) up to half turns. A half turn changes
/// the sign of both functions. Whether there is one is the exclusive-or of the two upper bits of
/// the word. None of this rounds.
#[inline(always)]
fn sin_cos<S: Simd>(angle_word: u32) -> (u32, f32, f32) {
    /// P in `sin x = x + x^3 P(x^2)`; error 5e-9.
    const SIN: [f32; 4] = [-1.666_665_7e-1, 8.333_017e-3, -1.980_661_5e-4, 2.600_054_8e-6];
    /// P in `cos x = 1 + x^2 P(x^2)`; error 5e-8.
    const COS: [f32; 4] = [-4.999_993e-1, 4.166_399e-2, -1.385_592_7e-3, 2.319_438_7e-5];
    const HALF_TURN: f32 = (std::f64::consts::PI / (1u64 << 32) as f64) as f32;
    let doubled = (angle_word >> UNUSED_BITS) << (UNUSED_BITS + 1);
    let negative = (angle_word ^ doubled) & (1 << 31);
    let x = doubled as i32 as f32 * HALF_TURN;

    let x2 = x * x;
    let x4 = x2 * x2;
    let sin = S::mul_add(x * x2, polynomial::<S, 4>(x2, x4, SIN), x);
    let cos = S::mul_add(x2, polynomial::<S, 4>(x2, x4, COS), 1.0);
    (negative, sin, cos)
}

/// A polynomial in x, lowest power first. Its even and its odd part are evaluated by Horner's rule
/// in x^2, side by side: one long chain would make the processor wait.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(x: f32, x2: f32, coefficients: [f32; N]) -> f32 {
    let mut parts = [0.0; 2];
    for power in (0..N).rev() {
        let part = &mut parts[power % 2];
        *part = S::mul_add(*part, x2, coefficients[power]);
    }
    S::mul_add(parts[1], x, parts[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch_to};

    #[inline(always)]
    fn box_muller<S: Simd>(radius_word: u32, angle_word: u32) -> (f32, f32) {
        f32::turn::<S>(f32::squared_radius::<S>(radius_word), angle_word)
    }

    /// The largest difference to double precision over pairs of words.
    struct WorstError<I>(I);

    impl<I: Iterator<Item = (u32, u32)>> Kernel for WorstError<I> {
        type Output = f64;

        #[inline(always)]
        fn run<S: Simd>(self) -> f64 {
            let mut worst = 0.0;
            for (radius_word, angle_word) in self.0 {
                let (cos, sin) = box_muller::<S>(radius_word, angle_word);
                let (cos_f64, sin_f64) = box_muller_f64(radius_word, angle_word);
                let error = (f64::from(cos) - cos_f64).abs();
                worst = error.max((f64::from(sin) - sin_f64).abs()).max(worst);
            }
            worst
        }
    }

    #[test]
    fn single_precision_is_within_two_millionths_of_double() {
        let ends = |i: u32| [i << 8, u32::MAX - (i << 8)];
        let extremes =
            (0..4096).flat_map(move |i| ends(i).map(|word| (word, i.wrapping_mul(0x9e37_79b9))));
        // 2^20 pairs that spread over both axes.
        let spread = (0..1u32 << 20).map(|i| (i << 12 | i >> 8, i.wrapping_mul(0x9e37_79b9)));
        for isa in Isa::available() {
            let worst = dispatch_to(isa, WorstError(extremes.clone()))
                .max(dispatch_to(isa, WorstError(spread.clone())));
            assert!(worst < 2e-6, "{isa:?}: {worst:e}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_finite() {
        for isa in Isa::available() {
            struct Ends;
            impl Kernel for Ends {
                type Output = [(f32, f32); 2];
                #[inline(always)]
                fn run<S: Simd>(self) -> [(f32, f32); 2] {
                    [box_muller::<S>(0, 0), box_muller::<S>(u32::MAX, 0)]
                }
            }
            let [largest, smallest] = dispatch_to(isa, Ends);
            assert!((largest.0 - 5.768_108).abs() < 2e-6 && largest.1 == 0.0);
            assert_eq!(smallest.0.abs(), 0.0, "u1 = 1 has radius 0");
        }
    }
}
