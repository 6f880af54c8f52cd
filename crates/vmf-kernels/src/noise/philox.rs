//! Philox 4x32-10: ten rounds of multiply and exclusive-or that turn a counter into random words.

use crate::simd::Simd;

/// The two multipliers of the round, and the two Weyl increments of the key (Salmon et al. 2011,
/// table 2).
const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
const LOW: u64 = 0xFFFF_FFFF;

/// Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3*
/// (2011).
///
/// With hi and lo the halves of a 64-bit product, one round is
/// ```text
/// (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0,  lo(M1 c2),  hi(M0 c0) ^ c3 ^ k1,  lo(M0 c0))
/// (k0, k1)         <- (k0 + W0, k1 + W1)
/// ```
/// For a fixed key it is a bijection of the 2^128 counters, and it passes TestU01's BigCrush.
///
/// ```
/// // the third known answer of Random123: the digits of pi
/// let counter = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
/// assert_eq!(
///     vmf_kernels::noise::philox4x32_10(counter, [0xa4093822, 0x299f31d0]),
///     [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
/// );
/// ```
#[inline(always)]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    // Words are in 64-bit lanes whose upper halves may hold anything. The product of two lower
    // halves is then one vector instruction, its high word one shift, and its low word no
    // instruction.
    let [mut c0, mut c1, mut c2, mut c3] = counter.map(u64::from);
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = (c0 & LOW) * MULTIPLIERS[0];
        let p1 = (c2 & LOW) * MULTIPLIERS[1];
        c0 = (p1 >> 32) ^ c1 ^ u64::from(k0);
        c2 = (p0 >> 32) ^ c3 ^ u64::from(k1);
        (c1, c3) = (p1, p0);
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0 as u32, c1 as u32, c2 as u32, c3 as u32]
}

/// The words of many blocks that differ in the first word of the counter.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// The counter of the first block.
    pub(super) counter: [u32; 4],
    /// What is added, wrapping, to the first word of a counter for the next one.
    pub(super) stride: u32,
    pub(super) key: [u32; 2],
}

impl Blocks {
    /// Writes word w of block i to `to[w][i]`. The four slices have the same length.
    #[inline(always)]
    pub(super) fn words<S: Simd>(self, to: [&mut [u32]; 4]) {
        #[cfg(target_arch = "x86_64")]
        if S::LANES == 8 && to[0].len().is_multiple_of(8) {
            // SAFETY: a kernel with eight lanes is one for AVX2, and runs only where that was
            // detected.
            unsafe { x86::words(self, to) };
            return;
        }
        let [first, stream, step, sample] = self.counter;
        let count = to[0].len();
        let [w0, w1, w2, w3] = to.map(|words| &mut words[..count]);
        for i in 0..count {
            let block = first.wrapping_add(self.stride.wrapping_mul(i as u32));
            let counter = [block, stream, step, sample];
            [w0[i], w1[i], w2[i], w3[i]] = philox4x32_10(counter, self.key);
        }
    }
}

/// The loop above by hand: in a larger function LLVM does not vectorize it. It computes two times
/// four blocks at once, because each round has to wait for the one before.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Blocks, MULTIPLIERS, ROUNDS, WEYL};
    use std::arch::x86_64::*;

    /// Four words, each in the lower half of a 64-bit lane.
    type Four = __m256i;

    /// The words of consecutive blocks, eight blocks at a time.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) fn words(blocks: Blocks, to: [&mut [u32]; 4]) {
        let splat = |x: u32| _mm256_set1_epi64x(i64::from(x));
        let [first, stream, step, sample] = blocks.counter.map(splat);
        let [m0, m1] = MULTIPLIERS.map(|m| _mm256_set1_epi64x(m as i64));
        let mut keys = [[splat(0); 2]; ROUNDS];
        let [mut k0, mut k1] = blocks.key;
        for key in &mut keys {
            *key = [k0, k1].map(splat);
            (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
        }
        let stride = splat(blocks.stride);
        let lanes = _mm256_set_epi64x(3, 2, 1, 0);
        let mut block = _mm256_add_epi64(first, _mm256_mul_epu32(stride, lanes));
        let four_on = _mm256_slli_epi64::<2>(stride);

        let [to0, to1, to2, to3] = to;
        let (to0, to1) = (to0.as_chunks_mut().0, to1.as_chunks_mut().0);
        let (to2, to3) = (to2.as_chunks_mut().0, to3.as_chunks_mut().0);
        for (((to0, to1), to2), to3) in to0.iter_mut().zip(to1).zip(to2).zip(to3) {
            let next = _mm256_add_epi64(block, four_on);
            let mut c = [block, next].map(|block| [block, stream, step, sample]);
            block = _mm256_add_epi64(next, four_on);
            for &[k0, k1] in &keys {
                for [c0, c1, c2, c3] in &mut c {
                    let (p0, p1) = (_mm256_mul_epu32(*c0, m0), _mm256_mul_epu32(*c2, m1));
                    let (hi0, hi1) = (_mm256_srli_epi64::<32>(p0), _mm256_srli_epi64::<32>(p1));
                    *c0 = _mm256_xor_si256(hi1, _mm256_xor_si256(*c1, k0));
                    *c2 = _mm256_xor_si256(hi0, _mm256_xor_si256(*c3, k1));
                    (*c1, *c3) = (p1, p0);
                }
            }
            *to0 = lower_halves(c[0][0], c[1][0]);
            *to1 = lower_halves(c[0][1], c[1][1]);
            *to2 = lower_halves(c[0][2], c[1][2]);
            *to3 = lower_halves(c[0][3], c[1][3]);
        }
    }

    /// The lower halves of eight lanes, in order.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    fn lower_halves(a: Four, b: Four) -> [u32; 8] {
        let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        let mixed = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
        let words = _mm256_castpd_si256(_mm256_permute4x64_pd::<0b11_01_10_00>(mixed));
        // SAFETY: both are 32 bytes, and any bits are words.
        unsafe { std::mem::transmute(words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch_to};

    /// Many blocks at once are the same as one by one, on every instruction set, also where the
    /// counter wraps around.
    #[test]
    fn blocks_are_those_of_single_counters() {
        struct Words<'a>(Blocks, [&'a mut [u32]; 4]);
        impl Kernel for Words<'_> {
            type Output = ();
            #[inline(always)]
            fn run<S: Simd>(self) {
                self.0.words::<S>(self.1);
            }
        }
        let (key, rest) = ([0x1234_5678, 0xfedc_ba98], [7, u32::MAX, 0x8000_0001]);
        for isa in Isa::available() {
            for (first, stride) in [(0, 1), (u32::MAX - 5, 1), (17, 256), (u32::MAX, u32::MAX)] {
                for count in [0, 1, 8, 16, 19, 64] {
                    let blocks =
                        Blocks { counter: [first, rest[0], rest[1], rest[2]], stride, key };
                    let mut words = [const { [0; 64] }; 4];
                    let to = words.each_mut().map(|words| &mut words[..count]);
                    dispatch_to(isa, Words(blocks, to));
                    for lane in 0..count {
                        let block = first.wrapping_add(stride.wrapping_mul(lane as u32));
                        let expected = philox4x32_10([block, rest[0], rest[1], rest[2]], key);
                        let found = words.map(|words| words[lane]);
                        assert_eq!(found, expected, "{isa:?} {first} {stride} {lane}");
                    }
                }
            }
        }
    }

    /// The known answers that Random123 distributes (`kat_vectors`, lines "philox4x32 10").
    #[test]
    fn random123_known_answers() {
        let ones = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([ones; 4], [ones; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected, "{counter:x?}");
        }
    }
}
