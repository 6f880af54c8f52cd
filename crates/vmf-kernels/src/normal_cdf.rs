//! The normal distribution function for expected activations, in straight-line code that
//! vectorizes: no branch, no call, no table look-up.
//!
//! An expected ReLU is `E relu(m + s z) = s g(m / s)` with `g(t) = t Phi(t) + phi(t)`. Its
//! derivatives are `Phi` and `phi`, and with its variance and `Phi` one has the maximum of two
//! Gaussians as well (`vmf_core::expected` has the equations). All of them follow from integrals
//! over the upper tail of a standard normal `z` beyond `u = |t|`:
//!
//! ```text
//! phi(u),   Q(u) = P(z > u),   h(u) = E (z - u)+,   e(u) = E ((z - u)+)^2
//!
//!          for t <= 0          for t > 0
//! Phi(t) = Q(u)                1 - Q(u)
//! g(t)   = h(u)                t + h(u)
//! V(t)   = e(u) - h(u)^2       1 - e(u) - 2 u h(u) - h(u)^2        the variance of relu(t + z)
//! ```
//!
//! Each integral falls like a Gaussian, and so does the fourth power of a polynomial of low degree:
//! `f(u) = P(u)^4` needs nine coefficients and two products in single precision, fewer operations
//! than an exponential followed by a polynomial. `tests/golden/normal_cdf.py` finds the
//! polynomials.
//!
//! Largest absolute errors over all arguments, those of `g` relative to `g` where it exceeds one:
//!
//! | | `phi` | `Phi` | `g` | `V` |
//! |---|---|---|---|---|
//! | `f32` | 3e-7 | 4e-7 | 3e-7 | 5e-7 |
//! | `f64` | 1e-15 | 1e-15 | 1e-15 | 2e-15 |

use crate::element::Real;
use crate::simd::Simd;

/// The functions of an expected ReLU at `t = m / s`, in units of `s`.
///
/// Arguments that are NaN give NaN; infinite ones give the limits.
pub trait NormalCdf: Real {
    /// The density, `phi(t)`: the derivative of the mean of `relu(m + s z)` with respect to `s`.
    fn pdf<S: Simd>(self) -> Self;

    /// The distribution function, `Phi(t)`: the derivative of that mean with respect to `m`.
    fn cdf<S: Simd>(self) -> Self;

    /// `g(t) = E relu(t + z) = t Phi(t) + phi(t)`.
    fn relu_mean<S: Simd>(self) -> Self;

    /// `V(t) = Var relu(t + z)`, never negative. Beside [`relu_mean`](Self::relu_mean) it costs one
    /// polynomial more: what they share is computed once.
    fn relu_variance<S: Simd>(self) -> Self;
}

macro_rules! normal_cdf {
    (
        $real:ty, end: $end:literal, squarings: $squarings:literal,
        phi: $phi:expr, q: $q:expr, h: $h:expr, e: $e:expr,
    ) => {
        impl NormalCdf for $real {
            #[inline(always)]
            fn pdf<S: Simd>(self) -> Self {
                let u = distance(self, $end);
                power::<_, $squarings>(polynomial::<_, S, _>(u * u, $phi))
            }

            #[inline(always)]
            fn cdf<S: Simd>(self) -> Self {
                let q = power::<_, $squarings>(polynomial::<_, S, _>(distance(self, $end), $q));
                if self > 0.0 { 1.0 - q } else { q }
            }

            #[inline(always)]
            fn relu_mean<S: Simd>(self) -> Self {
                let h = power::<_, $squarings>(polynomial::<_, S, _>(distance(self, $end), $h));
                if self > 0.0 { self + h } else { h }
            }

            #[inline(always)]
            fn relu_variance<S: Simd>(self) -> Self {
                let u = distance(self, $end);
                let h = power::<_, $squarings>(polynomial::<_, S, _>(u, $h));
                let e = power::<_, $squarings>(polynomial::<_, S, _>(u, $e));
                let v = if self > 0.0 { 1.0 - (e + (u + u) * h) } else { e } - h * h;
                if v < 0.0 { 0.0 } else { v }
            }
        }
    };
}

normal_cdf! {
    f32, end: 5.6, squarings: 2,
    phi: [
        7.947_444_3e-1, -9.934_272_6e-2, 6.208_337_4e-3, -2.583_282_8e-4, 7.977_526e-6,
        -1.866_138_9e-7, 3.003_192_4e-9, -2.405_848e-11,
    ],
    q: [
        8.408_963_7e-1, -1.677_332_7e-1, -5.020_218_7e-2, 4.660_601_3e-3, 3.782_202_3e-3,
        -2.626_381_9e-5, -3.106_641_5e-4, 5.901_121_8e-5, -3.443_585_2e-6,
    ],
    h: [
        7.947_445e-1, -2.490_163_4e-1, -1.769_295_9e-2, 7.826_107e-3, 1.737_315_6e-3,
        -2.284_908e-4, -1.468_775_7e-4, 3.524_041_7e-5, -2.308_244_3e-6,
    ],
    e: [
        8.408_964e-1, -3.354_694_8e-1, 9.477_796e-3, 8.812_367e-3, 5.511_294e-4,
        -3.211_186_6e-4, -5.848_234_3e-5, 2.238_596_4e-5, -1.711_672e-6,
    ],
}

normal_cdf! {
    f64, end: 8.5, squarings: 3,
    phi: [
        8.914_844_211_989_01e-1, -5.571_777_632_493_131e-2, 1.741_180_510_154_100_5e-3,
        -3.627_459_396_153_922e-5, 5.667_905_306_454_007e-7, -7.084_881_631_382_756_5e-9,
        7.380_084_984_081_225e-11, -6.589_360_668_325_307e-13, 5.147_926_021_616_339e-15,
        -3.574_840_070_170_104e-17, 2.233_583_368_538_937_3e-19, -1.265_975_650_676_855e-21,
        6.496_397_758_484_89e-24, -2.916_589_888_268_556_3e-26, 1.018_883_722_983_593e-28,
        -1.999_103_073_643_269_8e-31,
    ],
    q: [
        9.170_040_432_046_712e-1, -9.145_792_103_335_162e-2, -3.192_562_763_065_923e-2,
        -6.776_165_219_304_957e-4, 1.511_735_751_662_261_5e-3, 2.813_548_053_907_532_6e-5,
        -5.635_794_796_200_253e-5, 5.261_692_029_682_419_4e-6, 8.212_781_154_975_555e-7,
        -4.144_800_113_156_41e-7, 8.551_646_971_810_035e-8, 3.980_623_802_722_078e-9,
        -9.862_274_782_322_963e-9, 4.004_924_390_327_198e-9, -1.031_338_164_343_827e-9,
        1.941_483_171_598_792_5e-10, -2.763_753_707_518_616_3e-11,
        2.964_765_831_534_949_5e-12, -2.331_267_195_647_247_5e-13,
        1.269_822_159_870_847_3e-14, -4.281_875_821_765_708e-16, 6.730_615_379_232_862e-18,
    ],
    h: [
        8.914_844_211_989_01e-1, -1.396_637_535_356_376_5e-1, -2.086_334_226_493_576e-2,
        1.115_268_059_739_586_5e-3, 9.253_633_463_065_025e-4, 1.019_148_829_977_376e-5,
        -3.180_958_503_028_727_6e-5, 4.616_144_697_455_596e-7, 9.236_384_443_751_926e-7,
        -1.098_927_917_031_204_3e-7, -1.335_852_677_751_211_8e-8,
        6.350_364_886_130_062_4e-9, -4.429_382_771_697_749_7e-10,
        -3.865_891_972_025_507_6e-10, 1.799_288_850_561_929e-10, -4.451_959_298_841_232e-11,
        7.491_304_930_611_833e-12, -9.028_925_195_545_868e-13, 7.757_195_748_252_074e-14,
        -4.540_323_188_521_25e-15, 1.627_730_164_242_910_3e-16,
        -2.700_592_196_206_052_3e-18,
    ],
    e: [
        9.170_040_432_046_712e-1, -1.829_158_420_667_031_4e-1, -1.307_700_512_176_453_7e-2,
        2.200_561_228_293_119_4e-3, 6.438_034_615_544_444e-4, -2.014_825_956_787_276e-5,
        -2.042_049_254_043_996_7e-5, 2.738_586_128_375_904e-7, 5.530_328_491_609_663e-7,
        -3.061_355_864_404_373e-8, -1.205_473_900_359_633_7e-8, 1.819_136_283_423_705e-9,
        2.777_705_940_262_565_6e-10, -1.620_325_486_581_286_6e-10,
        3.338_433_102_488_537e-11, -3.390_536_520_808_365e-12, -2.675_554_561_796_556_4e-14,
        6.325_920_149_273_842e-14, -9.970_362_758_322_538e-15, 8.234_015_960_312_117e-16,
        -3.743_325_081_040_562_6e-17, 7.437_507_382_291_927e-19,
    ],
}

/// `|t|`, at most `end`, beyond which every tail integral is zero to working precision.
#[inline(always)]
fn distance<R: Real>(t: R, end: R) -> R {
    let u = if t < R::ZERO { -t } else { t };
    // A NaN is not above the end, so it passes.
    if u > end { end } else { u }
}

/// `x^(2^SQUARINGS)`.
#[inline(always)]
fn power<R: Real, const SQUARINGS: usize>(x: R) -> R {
    (0..SQUARINGS).fold(x, |x, _| x * x)
}

/// A polynomial in x, lowest power first: its even and its odd part by Horner's rule in x^2, side
/// by side, because a processor would wait for one long chain.
#[inline(always)]
fn polynomial<R: Real, S: Simd, const N: usize>(x: R, coefficients: [R; N]) -> R {
    let x2 = x * x;
    let mut parts = [R::ZERO; 2];
    for power in (0..N).rev() {
        let part = &mut parts[power % 2];
        *part = part.mul_add::<S>(x2, coefficients[power]);
    }
    parts[1].mul_add::<S>(x, parts[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch_to};
    use vmf_core::expected::{Gaussian, normal, relu};

    /// The largest errors of `phi`, `Phi`, `g` and `V` over some arguments.
    struct WorstErrors<I>(I);

    impl<R: NormalCdf, I: Iterator<Item = R>> Kernel for WorstErrors<I> {
        type Output = [f64; 4];

        #[inline(always)]
        fn run<S: Simd>(self) -> [f64; 4] {
            let mut worst = [0.0; 4];
            for t in self.0 {
                let values =
                    [t.pdf::<S>(), t.cdf::<S>(), t.relu_mean::<S>(), t.relu_variance::<S>()]
                        .map(R::to_f64);
                let t = t.to_f64();
                let y = relu(Gaussian { mean: t, variance: 1.0 });
                let exact = [normal::pdf(t), normal::cdf(t), y.mean, y.variance];
                for (worst, (value, exact)) in worst.iter_mut().zip(values.into_iter().zip(exact)) {
                    // A mean beyond one is rounded to its own size, which is no error.
                    *worst = f64::max(*worst, (value - exact).abs() / exact.max(1.0));
                }
            }
            worst
        }
    }

    fn assert_errors<R: NormalCdf>(arguments: impl Iterator<Item = R> + Clone, bounds: [f64; 4]) {
        for isa in Isa::available() {
            let worst = dispatch_to(isa, WorstErrors(arguments.clone()));
            let within = |(worst, bound): (f64, f64)| worst < bound && worst > bound / 4.0;
            assert!(
                worst.into_iter().zip(bounds).all(within),
                "{isa:?}: {worst:?}, stated {bounds:?}"
            );
        }
    }

    #[test]
    fn single_precision_errs_as_stated() {
        // Every exponent with 64 mantissas, of both signs; then a fine grid where things happen.
        let everywhere =
            (0..255u32 << 6).map(|i| f32::from_bits(i << 17 | i.wrapping_mul(77) & 0x1_ffff));
        let grid = (0..1 << 19).map(|i| i as f32 * (7.0 / (1 << 19) as f32));
        let signed = everywhere.chain(grid).flat_map(|t| [t, -t]);
        assert_errors(signed, [3e-7, 4e-7, 3e-7, 5e-7]);
    }

    #[test]
    fn double_precision_errs_as_stated() {
        let everywhere = (0..2047u64 << 3).map(|i| f64::from_bits(i << 49 | i.wrapping_mul(77)));
        let grid = (0..1 << 15).map(|i| f64::from(i) * (10.0 / f64::from(1 << 15)));
        let signed = everywhere.chain(grid).flat_map(|t| [t, -t]);
        assert_errors(signed, [1e-15, 1e-15, 1e-15, 2e-15]);
    }

    #[test]
    fn infinite_arguments_give_limits_and_nan_gives_nan() {
        struct Ends;
        impl Kernel for Ends {
            type Output = ();
            #[inline(always)]
            fn run<S: Simd>(self) {
                let (below, above, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
                assert!(below.cdf::<S>() < 1e-7 && above.cdf::<S>() == 1.0);
                assert!(below.relu_mean::<S>() < 1e-7 && above.relu_mean::<S>() == f32::INFINITY);
                assert!(below.relu_variance::<S>() < 1e-7);
                assert!((above.relu_variance::<S>() - 1.0).abs() < 1e-7);
                assert!(nan.pdf::<S>().is_nan() && nan.cdf::<S>().is_nan());
                assert!(nan.relu_mean::<S>().is_nan() && nan.relu_variance::<S>().is_nan());
            }
        }
        Isa::available().into_iter().for_each(|isa| dispatch_to(isa, Ends));
    }
}
