//! The number types of the kernels: those that tensors are stored in, and those that kernels
//! compute in.

use crate::box_muller::BoxMuller;
use crate::simd::Simd;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A type that a tensor can be stored in: `f32`, `f64`, `f16` or `bf16`.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The type that kernels compute in: this type, or `f32` for the two half precisions.
    type Real: Real;

    /// The value in the type that kernels compute in.
    fn to_real(self) -> Self::Real;

    /// A computed value, rounded to this type.
    fn from_real(value: Self::Real) -> Self;
}

/// A type that kernels compute in: `f32` or `f64`.
pub trait Real:
    Element<Real = Self>
    + BoxMuller
    + PartialOrd
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
{
    /// Zero.
    const ZERO: Self;

    /// Negative infinity.
    const NEG_INFINITY: Self;

    /// The nearest representable number.
    fn from_f64(value: f64) -> Self;

    /// The same number in double precision.
    fn to_f64(self) -> f64;

    /// `self * factor + summand`, fused where that is fast.
    fn mul_add<S: Simd>(self, factor: Self, summand: Self) -> Self;
}

macro_rules! real {
    ($type:ty, $mul_add:ident) => {
        impl Element for $type {
            type Real = $type;

            #[inline(always)]
            fn to_real(self) -> $type {
                self
            }

            #[inline(always)]
            fn from_real(value: $type) -> $type {
                value
            }
        }

        impl Real for $type {
            const ZERO: $type = 0.0;
            const NEG_INFINITY: $type = <$type>::NEG_INFINITY;

            #[inline(always)]
            fn from_f64(value: f64) -> $type {
                value as $type
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn mul_add<S: Simd>(self, factor: $type, summand: $type) -> $type {
                S::$mul_add(self, factor, summand)
            }
        }
    };
}
real!(f32, mul_add);
real!(f64, mul_add_f64);

macro_rules! half_precision {
    ($type:ty) => {
        impl Element for $type {
            type Real = f32;

            #[inline(always)]
            fn to_real(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn from_real(value: f32) -> $type {
                <$type>::from_f32(value)
            }
        }
    };
}
half_precision!(f16);
half_precision!(bf16);
