//! Philox 4x32-10: ten rounds of multiply and exclusive-or that turn a counter into random words.

/// The two multipliers of the round, and the two Weyl increments of the key (Salmon et al. 2011, table 2).
const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
const LOW: u64 = 0xFFFF_FFFF;

/// Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3* (2011).
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
    // Words live in 64-bit lanes whose upper halves may hold anything: the product of two lower halves is
    // one vector instruction, its high word one shift, and its low word needs no instruction at all.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that Random123 distributes (`kat_vectors`, lines "philox4x32 10").
    #[test]
    fn random123_known_answers() {
        let ones = u32::MAX;
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8],
            ),
            (
                [ones; 4],
                [ones; 2],
                [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
            ),
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
