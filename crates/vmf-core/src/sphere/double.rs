//! Double-double arithmetic: numbers as unevaluated sums of two doubles, some 30 digits.
//!
//! One place needs it, the normalizer of the density, where two numbers of size `D ln D` cancel.
//!
//! # Source
//! T. J. Dekker, *A floating-point technique for extending the available precision*, Numer. Math.
//! 18 (1971).

use std::ops::{Add, Div, Mul, Sub};

/// `hi + lo`, with `lo` at most half a unit in the last place of `hi`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Double {
    pub(crate) hi: f64,
    pub(crate) lo: f64,
}

/// `ln 2`.
const LN_2: Double = Double { hi: std::f64::consts::LN_2, lo: 2.319_046_813_846_299_6e-17 };

impl Double {
    /// The exact sum of two doubles (Knuth).
    pub(crate) fn sum(a: f64, b: f64) -> Self {
        let hi = a + b;
        let b_part = hi - a;
        Self { hi, lo: (a - (hi - b_part)) + (b - b_part) }
    }

    /// The exact product of two doubles.
    pub(crate) fn product(a: f64, b: f64) -> Self {
        let hi = a * b;
        Self { hi, lo: a.mul_add(b, -hi) }
    }

    /// Square root, by one step of Newton's iteration from the rounded root.
    pub(crate) fn sqrt(self) -> Self {
        let root = self.hi.sqrt();
        let rest = self - Self::product(root, root);
        Self::sum(root, rest.hi / (2.0 * root))
    }

    /// Natural logarithm of a positive number: `ln(2^e m) = e ln 2 + 2 artanh((m - 1) / (m + 1))`.
    pub(crate) fn ln(self) -> Self {
        let (mantissa, mut exponent) = libm::frexp(self.hi);
        if mantissa < std::f64::consts::FRAC_1_SQRT_2 {
            exponent -= 1;
        }
        let scale = libm::ldexp(1.0, -exponent);
        let m = Self { hi: self.hi * scale, lo: self.lo * scale };
        let z = (m - 1.0.into()) / (m + 1.0.into());
        let z2 = z * z;
        // sum_k z^(2k) / (2k + 1): z^2 < 0.03, so what follows the sixth term is below one part in
        // 10^9 and needs no second double.
        let tail = (6..18).rev().fold(0.0, |sum, k| sum * z2.hi + 1.0 / f64::from(2 * k + 1));
        let series = (0..6).rev().fold(Self::from(tail), |sum, k| {
            sum * z2 + Self::from(1.0) / f64::from(2 * k + 1).into()
        });
        LN_2 * f64::from(exponent).into() + z * series * 2.0.into()
    }
}

impl From<f64> for Double {
    fn from(hi: f64) -> Self {
        Self { hi, lo: 0.0 }
    }
}

impl Add for Double {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let (high, low) = (Self::sum(self.hi, other.hi), Self::sum(self.lo, other.lo));
        let first = Self::sum(high.hi, high.lo + low.hi);
        Self::sum(first.hi, first.lo + low.lo)
    }
}

impl Sub for Double {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + Self { hi: -other.hi, lo: -other.lo }
    }
}

impl Mul for Double {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let product = Self::product(self.hi, other.hi);
        Self::sum(product.hi, product.lo + (self.hi * other.lo + self.lo * other.hi))
    }
}

impl Div for Double {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let first = self.hi / other.hi;
        let rest = self - other * first.into();
        let second = rest.hi / other.hi;
        let rest = rest - other * second.into();
        Self::sum(first, second) + (rest.hi / other.hi).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mpmath at 50 digits: `mp.dps = 50; mp.log(mp.mpf(x))`, split into the nearest double and the
    /// rest.
    #[test]
    fn logarithm_has_twenty_five_digits() {
        for (x, hi, lo) in LOGARITHMS {
            let log = Double::from(x).ln();
            let error = (log.hi - hi) + (log.lo - lo);
            assert!(error.abs() < 1e-26 * hi.abs().max(1.0), "ln {x}: {log:?}, error {error:e}");
        }
    }

    const LOGARITHMS: [(f64, f64, f64); 5] = [
        (3.0, 1.0986122886681098, -9.07129723500153e-17),
        (0.7, -0.35667494393873245, 4.82556379937662e-18),
        (1234567.875, 14.026231568029926, 1.586985412263643e-16),
        (1e-08, -18.420680743952367, 1.757527539535928e-15),
        (6978103.851333799, 15.758287783297073, 1.0440390111959591e-16),
    ];

    #[test]
    fn square_root_squares_back() {
        for x in [2.0, 3e-7, 5e90, 1.0 + 1e-15] {
            let root = Double::from(x).sqrt();
            let rest = root * root - x.into();
            assert!(rest.hi.abs() < 1e-30 * x, "sqrt {x}: {rest:?}");
        }
    }
}
