//! Vector registers as values, for the kernels whose speed depends on which numbers stay in
//! registers.
//!
//! Loops over slices are left to LLVM (see [`crate::simd`]). A tile of a matrix product or a 6x6
//! Winograd transform is not such a loop: it needs a fixed number of accumulators that never touch
//! memory, so it is written with these types.

use super::Simd;
use std::ops::{Add, Sub};

/// A vector register of `f32`, with lane-wise arithmetic.
///
/// Reading and writing memory is unsafe because it goes through pointers of any alignment.
pub trait Vector: Copy + Add<Output = Self> + Sub<Output = Self> {
    /// Every lane `x`.
    fn splat(x: f32) -> Self;

    /// Reads a whole register from `p`, of any alignment.
    ///
    /// # Safety
    /// `p` is readable for [`Simd::LANES`] numbers.
    unsafe fn load(p: *const f32) -> Self;

    /// Writes the whole register to `p`, of any alignment.
    ///
    /// # Safety
    /// `p` is writable for [`Simd::LANES`] numbers.
    unsafe fn store(self, p: *mut f32);

    /// `self * factor + term`, fused where the hardware fuses.
    fn mul_add(self, factor: Self, term: Self) -> Self;
}

/// Lanes of the longest register.
const MAX_LANES: usize = 16;

/// Reads the first `count` numbers, or all lanes if `count` is larger, with zeros after them.
///
/// # Safety
/// `p` is readable for `min(count, LANES)` numbers.
#[inline(always)]
pub(crate) unsafe fn load_first<S: Simd>(p: *const f32, count: usize) -> S::F32 {
    // SAFETY: the caller's contract; the copy is as long as the longest register.
    unsafe {
        if count >= S::LANES {
            return S::F32::load(p);
        }
        let mut lanes = [0.0f32; MAX_LANES];
        for (i, lane) in lanes[..count].iter_mut().enumerate() {
            *lane = *p.add(i);
        }
        S::F32::load(lanes.as_ptr())
    }
}

/// Writes the first `count` numbers, or all lanes if `count` is larger.
///
/// # Safety
/// `p` is writable for `min(count, LANES)` numbers.
#[inline(always)]
pub(crate) unsafe fn store_first<S: Simd>(x: S::F32, p: *mut f32, count: usize) {
    // SAFETY: the caller's contract; the copy is as long as the longest register.
    unsafe {
        if count >= S::LANES {
            return x.store(p);
        }
        let mut lanes = [0.0f32; MAX_LANES];
        x.store(lanes.as_mut_ptr());
        for (i, lane) in lanes[..count].iter().enumerate() {
            *p.add(i) = *lane;
        }
    }
}

/// Four lanes in plain Rust, which every target's baseline holds in one register.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct F32x4([f32; 4]);

impl F32x4 {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let (a, b) = (self.0, other.0);
        F32x4([f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])])
    }
}

impl Add for F32x4 {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for F32x4 {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl Vector for F32x4 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        F32x4([x; 4])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the read does not assume alignment.
        F32x4(unsafe { p.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the write does not assume alignment.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        if cfg!(target_arch = "aarch64") {
            let (a, b, c) = (self.0, factor.0, term.0);
            F32x4(std::array::from_fn(|i| a[i].mul_add(b[i], c[i])))
        } else {
            // Without a fused instruction `mul_add` is a call into libm per lane.
            self.zip(factor, |a, b| a * b) + term
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{F32x8, F32x16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;
    use std::ops::{Add, Sub};

    // The intrinsics are unsafe because the processor must have them. Only `Simd` names these
    // types, and only where it was detected: see there.
    macro_rules! register {
        ($name:ident($type:ty), $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $fma:ident) => {
            #[derive(Clone, Copy)]
            #[repr(transparent)]
            pub(in crate::simd) struct $name($type);

            impl Add for $name {
                type Output = Self;

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: the instruction set was detected.
                    $name(unsafe { $add(self.0, other.0) })
                }
            }

            impl Sub for $name {
                type Output = Self;

                #[inline(always)]
                fn sub(self, other: Self) -> Self {
                    // SAFETY: as above.
                    $name(unsafe { $sub(self.0, other.0) })
                }
            }

            impl Vector for $name {
                #[inline(always)]
                fn splat(x: f32) -> Self {
                    // SAFETY: as above.
                    $name(unsafe { $splat(x) })
                }

                #[inline(always)]
                unsafe fn load(p: *const f32) -> Self {
                    // SAFETY: as above, and the caller's contract.
                    $name(unsafe { $load(p) })
                }

                #[inline(always)]
                unsafe fn store(self, p: *mut f32) {
                    // SAFETY: as above, and the caller's contract.
                    unsafe { $store(p, self.0) }
                }

                #[inline(always)]
                fn mul_add(self, factor: Self, term: Self) -> Self {
                    // SAFETY: as above.
                    $name(unsafe { $fma(self.0, factor.0, term.0) })
                }
            }
        };
    }
    register!(
        F32x8(__m256),
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_sub_ps,
        _mm256_fmadd_ps
    );
    register!(
        F32x16(__m512),
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_sub_ps,
        _mm512_fmadd_ps
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch_to};

    struct Arithmetic<'a>(&'a mut [f32]);
    impl Kernel for Arithmetic<'_> {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd>(self) -> usize {
            // SAFETY: the slice holds at least one register and three numbers.
            unsafe {
                let p = self.0.as_mut_ptr();
                let x = S::F32::load(p);
                let y = x.mul_add(S::F32::splat(2.0), S::F32::splat(1.0)) + x - S::F32::splat(0.5);
                y.store(p);
                store_first::<S>(load_first::<S>(p, 3), p.add(S::LANES), 3);
            }
            S::LANES
        }
    }

    #[test]
    fn every_register_type_calculates_alike() {
        for isa in Isa::available() {
            let mut data: Vec<f32> = (0..32).map(|i| i as f32).collect();
            let lanes = dispatch_to(isa, Arithmetic(&mut data));
            for (i, &value) in data.iter().enumerate() {
                let changed = |i: usize| 3.0 * i as f32 + 0.5;
                let expected = match i {
                    i if i < lanes => changed(i),
                    i if i < lanes + 3 => changed(i - lanes),
                    i => i as f32,
                };
                assert_eq!(value, expected, "{isa:?} lane {i}");
            }
        }
    }
}
