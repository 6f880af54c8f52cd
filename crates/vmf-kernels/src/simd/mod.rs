//! One source, several instruction sets: how a kernel is compiled for each and chosen at run time.
//!
//! A kernel is a type that implements [`Kernel`]. Its `run` is ordinary Rust over slices and small
//! arrays, marked `#[inline(always)]`; [`dispatch`] inlines it into a function that is compiled
//! with AVX-512, with AVX2 and FMA, or with the target's baseline, and LLVM vectorizes the same
//! loops for each. A kernel whose speed depends on which numbers stay in registers, such as the
//! micro-kernel of the matrix product, handles registers itself: they are values of the type
//! [`Simd::F32`].
//!
//! The choice is made once per process: the best set the processor has, or the one named by the
//! environment variable `VMF_ISA` (`avx512`, `avx2` or `portable`), which is how the tests reach
//! every path.

mod vector;

use crate::error::Error;
use std::fmt;
use std::sync::OnceLock;
pub use vector::Vector;
pub(crate) use vector::{load_first, store_first};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// 512-bit vectors: AVX-512 F, VL, BW and DQ.
    Avx512,
    /// 256-bit vectors: AVX2 with fused multiply-add.
    Avx2,
    /// The baseline of the target: SSE2 on x86-64, NEON on aarch64.
    Portable,
}

impl Isa {
    /// Every instruction set that this processor can execute, best first.
    pub fn available() -> Vec<Isa> {
        [Isa::Avx512, Isa::Avx2, Isa::Portable]
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// Whether this processor can execute it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && Isa::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            Isa::Portable => true,
        }
    }

    /// The instruction set in use: the best available, unless `VMF_ISA` names another available
    /// one.
    pub fn current() -> Isa {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| match Isa::requested() {
            Ok(Some(isa)) => isa,
            _ => Isa::available()[0],
        })
    }

    /// The instruction set that `VMF_ISA` names, if it is set; an error if there is no such set or
    /// this processor does not have it. Kernels ignore such a mistake and use the best set they
    /// can, so a program that wants to tell its user asks here.
    pub fn requested() -> Result<Option<Isa>, Error> {
        match std::env::var_os("VMF_ISA") {
            None => Ok(None),
            Some(name) => Isa::named(&name.to_string_lossy()).map(Some),
        }
    }

    fn named(name: &str) -> Result<Isa, Error> {
        let isa = match name {
            "avx512" => Some(Isa::Avx512),
            "avx2" => Some(Isa::Avx2),
            "portable" => Some(Isa::Portable),
            _ => None,
        };
        isa.filter(|isa| isa.is_available()).ok_or_else(|| Error::Value {
            name: "VMF_ISA",
            value: name.into(),
            requirement: "avx512, avx2 or portable, and one that this processor has",
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Isa::Avx512 => "AVX-512",
            Isa::Avx2 => "AVX2",
            Isa::Portable => "the baseline",
        })
    }
}

/// Prefetches the cache line at `p`, which need not be a valid address, into the second-level
/// cache.
///
/// From the first level it would often be evicted before it is read: what kernels prefetch lies
/// large powers of two apart, in few of its sets.
#[inline(always)]
pub(crate) fn prefetch_line<T>(p: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing, and every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    let _ = p;
}

/// Prefetches all cache lines of `data`.
#[inline(always)]
pub(crate) fn prefetch<T>(data: &[T]) {
    const LINE: usize = 64;
    for at in (0..data.len()).step_by(LINE / size_of::<T>()) {
        prefetch_line(&data[at]);
    }
}

/// What a kernel knows at compile time about the instruction set that it is compiled for.
///
/// Only [`dispatch_to`] can name the types that implement this trait, and it does so after it has
/// detected their instructions. Code that is generic over `S: Simd` therefore runs only on a
/// processor that has them, and needs no `unsafe` to compute with registers.
pub trait Simd: sealed::Sealed + Copy + Send + Sync + 'static {
    /// `f32` lanes of a vector register.
    const LANES: usize;

    /// Vector registers that kernels may count on.
    const REGISTERS: usize;

    /// A vector register: `LANES` numbers.
    type F32: Vector;

    /// `a * b + c`, fused where the hardware fuses, in two roundings where a fused product would be
    /// a slow call.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;

    /// The same in double precision.
    fn mul_add_f64(a: f64, b: f64, c: f64) -> f64;
}

mod sealed {
    pub trait Sealed {}
}

/// A computation that [`dispatch`] compiles for every instruction set.
pub trait Kernel {
    /// What it returns.
    type Output;

    /// The computation. Implementations must be `#[inline(always)]`, and so must every function
    /// they call in their inner loops: only inlined code is compiled for the chosen instruction
    /// set.
    fn run<S: Simd>(self) -> Self::Output;
}

/// Runs a kernel compiled for [`Isa::current`].
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    dispatch_to(Isa::current(), kernel)
}

/// Runs a kernel compiled for `isa`, or for the baseline where the processor does not have it.
#[inline]
pub fn dispatch_to<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the features that the function enables were detected on this processor.
        Isa::Avx512 if isa.is_available() => unsafe { x86::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 if isa.is_available() => unsafe { x86::run_avx2(kernel) },
        _ => kernel.run::<Portable>(),
    }
}

/// The baseline of the target.
#[derive(Clone, Copy)]
struct Portable;

impl sealed::Sealed for Portable {}

impl Simd for Portable {
    const LANES: usize = 4;
    const REGISTERS: usize = 16;
    type F32 = vector::F32x4;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    #[inline(always)]
    fn mul_add_f64(a: f64, b: f64, c: f64) -> f64 {
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::vector::{F32x8, F32x16};
    use super::{Kernel, Simd, sealed::Sealed};

    #[derive(Clone, Copy)]
    struct Avx512;
    #[derive(Clone, Copy)]
    struct Avx2;

    macro_rules! fused {
        ($isa:ty, $lanes:literal, $registers:literal, $vector:ty) => {
            impl Sealed for $isa {}

            impl Simd for $isa {
                const LANES: usize = $lanes;
                const REGISTERS: usize = $registers;
                type F32 = $vector;

                #[inline(always)]
                fn mul_add(a: f32, b: f32, c: f32) -> f32 {
                    a.mul_add(b, c)
                }

                #[inline(always)]
                fn mul_add_f64(a: f64, b: f64, c: f64) -> f64 {
                    a.mul_add(b, c)
                }
            }
        };
    }
    fused!(Avx512, 16, 32, F32x16);
    fused!(Avx2, 8, 16, F32x8);

    /// Runs a kernel that is compiled for AVX-512.
    ///
    /// # Safety
    /// The processor must have these features.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }

    /// Runs a kernel that is compiled for AVX2.
    ///
    /// # Safety
    /// The processor must have these features.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lanes;
    impl Kernel for Lanes {
        type Output = (usize, f32);
        #[inline(always)]
        fn run<S: Simd>(self) -> (usize, f32) {
            (S::LANES, S::mul_add(2.0, 3.0, 4.0))
        }
    }

    #[test]
    fn sets_have_names() {
        assert_eq!(Isa::named("portable").unwrap(), Isa::Portable);
        assert_eq!(Isa::named("avx2").is_ok(), Isa::Avx2.is_available());
        let error = Isa::named("avx51").unwrap_err().to_string();
        assert!(error.contains("VMF_ISA") && error.contains("avx51"), "{error}");
    }

    #[test]
    fn every_available_set_runs() {
        for isa in Isa::available() {
            let (lanes, value) = dispatch_to(isa, Lanes);
            let expected = match isa {
                Isa::Avx512 => 16,
                Isa::Avx2 => 8,
                Isa::Portable => 4,
            };
            assert_eq!((lanes, value), (expected, 10.0), "{isa:?}");
        }
    }
}
