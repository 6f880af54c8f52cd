//! Vector registers as values, for the kernels whose speed hangs on which numbers stay in
//! registers.
//!
//! Loops over slices are left to LLVM (see [`crate::simd`]). A register tile or a 6x6 Winograd
//! transform is not such a loop: it wants a fixed number of accumulators that never touch memory,
//! so it is written over this trait and instantiated with the register type of each instruction
//! set.

use crate::simd::Isa;

/// One vector register of `f32`.
///
/// Values come only from [`splat`](Vector::splat), [`load`](Vector::load) and their like, which are
/// unsafe because the processor must have the instruction set; whoever holds a value may therefore
/// calculate with it safely.
pub(crate) trait Vector: Copy {
    /// `f32` lanes in the register.
    const LANES: usize;

    /// As many values as registers make a cache line.
    type Parts<T: Copy>: AsRef<[T]> + AsMut<[T]>;

    /// The same value for each part of a line.
    fn parts<T: Copy>(value: T) -> Self::Parts<T>;

    /// Every lane `x`.
    ///
    /// # Safety
    /// The processor has this type's instruction set.
    unsafe fn splat(x: f32) -> Self;

    /// Reads `LANES` numbers from `p`, of any alignment.
    ///
    /// # Safety
    /// As [`splat`](Vector::splat), and `p` is readable for `LANES` numbers.
    unsafe fn load(p: *const f32) -> Self;

    /// Writes `LANES` numbers to `p`, of any alignment.
    ///
    /// # Safety
    /// `p` is writable for `LANES` numbers.
    unsafe fn store(self, p: *mut f32);

    /// `self + other`.
    fn add(self, other: Self) -> Self;

    /// `self - other`.
    fn sub(self, other: Self) -> Self;

    /// `self * factor + term`, fused where the hardware fuses.
    fn mul_add(self, factor: Self, term: Self) -> Self;

    /// Transposes eight rows of eight numbers: number j of row i, at `from + i * row + j`, goes to
    /// `to[j] + i`.
    ///
    /// # Safety
    /// As [`splat`](Vector::splat); every address is readable, or writable, and the two do not
    /// overlap.
    #[inline(always)]
    unsafe fn transpose8(from: *const f32, row: usize, to: [*mut f32; 8]) {
        for (j, to) in to.into_iter().enumerate() {
            for i in 0..8 {
                // SAFETY: the caller's contract.
                unsafe { *to.add(i) = *from.add(i * row + j) };
            }
        }
    }

    /// Reads the first `count <= LANES` numbers, zeros after them.
    ///
    /// # Safety
    /// As [`load`](Vector::load), for `count` numbers only.
    #[inline(always)]
    unsafe fn load_first(p: *const f32, count: usize) -> Self {
        // SAFETY: the caller's contract; the copy is as long as the longest register.
        unsafe {
            if count >= Self::LANES {
                return Self::load(p);
            }
            let mut lanes = [0.0f32; MAX_LANES];
            for (i, lane) in lanes[..count].iter_mut().enumerate() {
                *lane = *p.add(i);
            }
            Self::load(lanes.as_ptr())
        }
    }

    /// Writes the first `count <= LANES` numbers.
    ///
    /// # Safety
    /// As [`store`](Vector::store), for `count` numbers only.
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, count: usize) {
        // SAFETY: the caller's contract; the copy is as long as the longest register.
        unsafe {
            if count >= Self::LANES {
                return self.store(p);
            }
            let mut lanes = [0.0f32; MAX_LANES];
            self.store(lanes.as_mut_ptr());
            for (i, lane) in lanes[..count].iter().enumerate() {
                *p.add(i) = *lane;
            }
        }
    }
}

/// Lanes of the longest register.
const MAX_LANES: usize = 16;

/// A computation over one register type, as [`Kernel`](crate::simd::Kernel) is one over an
/// instruction set.
pub(crate) trait VectorKernel {
    /// What it returns.
    type Output;

    /// The computation; `#[inline(always)]` like [`Kernel::run`](crate::simd::Kernel::run).
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// Runs a kernel with the register type of `isa`, or of the baseline where the processor does not
/// have it.
pub(crate) fn dispatch_vector<K: VectorKernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: each function is called only on a processor that has its instruction set.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if isa.is_available() => x86::run_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if isa.is_available() => x86::run_avx2(kernel),
            _ => kernel.run::<Quad>(),
        }
    }
}

/// Four lanes in plain Rust, which every target's baseline holds in one register.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Quad([f32; 4]);

impl Quad {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let (a, b) = (self.0, other.0);
        Quad([f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])])
    }
}

impl Vector for Quad {
    const LANES: usize = 4;
    type Parts<T: Copy> = [T; 4];

    #[inline(always)]
    fn parts<T: Copy>(value: T) -> [T; 4] {
        [value; 4]
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Quad([x; 4])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract; the read does not assume alignment.
        Quad(unsafe { p.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's contract; the write does not assume alignment.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        if cfg!(target_arch = "aarch64") {
            let (a, b, c) = (self.0, factor.0, term.0);
            Quad(std::array::from_fn(|i| a[i].mul_add(b[i], c[i])))
        } else {
            // Without a fused instruction `mul_add` is a call into libm per lane.
            self.zip(factor, |a, b| a * b).add(term)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Vector, VectorKernel};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    pub(super) fn run_avx512<K: VectorKernel>(kernel: K) -> K::Output {
        // SAFETY: the features are enabled here.
        unsafe { kernel.run::<__m512>() }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: VectorKernel>(kernel: K) -> K::Output {
        // SAFETY: the features are enabled here.
        unsafe { kernel.run::<__m256>() }
    }

    /// [`Vector::transpose8`] in three rounds: pairs of rows, pairs of pairs, then the halves of
    /// the registers.
    ///
    /// # Safety
    /// As there, and the processor has AVX.
    #[inline(always)]
    unsafe fn transpose8(from: *const f32, row: usize, to: [*mut f32; 8]) {
        // SAFETY: the caller's contract.
        unsafe {
            let rows: [__m256; 8] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * row)));
            let mut pairs = rows;
            for i in (0..8).step_by(2) {
                pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
                pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
            }
            let mut fours = pairs;
            for i in [0, 1, 4, 5] {
                // Of rows 0 to 3, and of rows 4 to 7: columns 0 and 4, 1 and 5 (from i), 2 and 6, 3
                // and 7 (from i + 1).
                let column = i / 4 * 4 + i % 4 * 2;
                fours[column] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
                fours[column + 1] = _mm256_shuffle_ps::<0xee>(pairs[i], pairs[i + 2]);
            }
            for j in 0..4 {
                let (upper, lower) = (fours[j], fours[j + 4]);
                _mm256_storeu_ps(to[j], _mm256_permute2f128_ps::<0x20>(upper, lower));
                _mm256_storeu_ps(to[j + 4], _mm256_permute2f128_ps::<0x31>(upper, lower));
            }
        }
    }

    macro_rules! register {
        ($type:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $fma:ident) => {
            impl Vector for $type {
                const LANES: usize = $lanes;
                type Parts<T: Copy> = [T; 16 / $lanes];

                #[inline(always)]
                fn parts<T: Copy>(value: T) -> Self::Parts<T> {
                    [value; 16 / $lanes]
                }

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: the caller's contract.
                    unsafe { $splat(x) }
                }

                #[inline(always)]
                unsafe fn load(p: *const f32) -> Self {
                    // SAFETY: the caller's contract.
                    unsafe { $load(p) }
                }

                #[inline(always)]
                unsafe fn store(self, p: *mut f32) {
                    // SAFETY: the caller's contract.
                    unsafe { $store(p, self) }
                }

                #[inline(always)]
                unsafe fn transpose8(from: *const f32, row: usize, to: [*mut f32; 8]) {
                    // SAFETY: the caller's contract; whoever has these registers has AVX.
                    unsafe { transpose8(from, row, to) }
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: a value exists, so the instruction set was detected.
                    unsafe { $add(self, other) }
                }

                #[inline(always)]
                fn sub(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $sub(self, other) }
                }

                #[inline(always)]
                fn mul_add(self, factor: Self, term: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $fma(self, factor, term) }
                }
            }
        };
    }
    register!(
        __m256,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_sub_ps,
        _mm256_fmadd_ps
    );
    register!(
        __m512,
        16,
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

    struct Arithmetic<'a>(&'a mut [f32]);
    impl VectorKernel for Arithmetic<'_> {
        type Output = usize;
        #[inline(always)]
        unsafe fn run<V: Vector>(self) -> usize {
            // SAFETY: the slice holds at least one register and three numbers.
            unsafe {
                let p = self.0.as_mut_ptr();
                let x = V::load(p);
                x.mul_add(V::splat(2.0), V::splat(1.0)).add(x).sub(V::splat(0.5)).store(p);
                V::load_first(p, 3).store_first(p.add(V::LANES), 3);
            }
            V::LANES
        }
    }

    struct Transpose<'a>(&'a [f32], &'a mut [f32]);
    impl VectorKernel for Transpose<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            assert!(self.0.len() >= 7 * 9 + 8 && self.1.len() >= 7 * 11 + 8);
            let to = self.1.as_mut_ptr();
            // SAFETY: rows nine apart and columns eleven apart are inside the slices.
            unsafe { V::transpose8(self.0.as_ptr(), 9, std::array::from_fn(|j| to.add(j * 11))) };
        }
    }

    #[test]
    fn every_register_type_transposes_alike() {
        let from: Vec<f32> = (0..71).map(|i| i as f32).collect();
        for isa in Isa::available() {
            let mut to = vec![-1.0; 85];
            dispatch_vector(isa, Transpose(&from, &mut to));
            for (place, &value) in to.iter().enumerate() {
                let (j, i) = (place / 11, place % 11);
                let expected = if i < 8 { (9 * i + j) as f32 } else { -1.0 };
                assert_eq!(value, expected, "{isa:?} {i} {j}");
            }
        }
    }

    #[test]
    fn every_register_type_calculates_alike() {
        for isa in Isa::available() {
            let mut data: Vec<f32> = (0..32).map(|i| i as f32).collect();
            let lanes = dispatch_vector(isa, Arithmetic(&mut data));
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
