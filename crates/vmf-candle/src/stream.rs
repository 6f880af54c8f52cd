//! Which noise a layer draws: a stream number made from the layer's name.
//!
//! A stream must not depend on the order in which layers are built, or two programs that build the
//! same model differently would draw different noise. It is therefore a hash of the layer's path,
//! the 32-bit FNV-1a, which is fixed by its specification (unlike the standard library's hasher)
//! and needs no code of others.

/// The noise stream of the layer at `path`.
///
/// 32 bits are few enough to collide, about once in a million models of a hundred layers. The
/// [`Posterior`](crate::Posterior) sees all layers of a model, and refuses a collision with both
/// names.
pub fn stream_of(path: &str) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    path.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of the FNV authors (draft-eastlake-fnv, appendix C).
    #[test]
    fn is_fnv_1a() {
        assert_eq!(stream_of(""), 0x811c_9dc5);
        assert_eq!(stream_of("a"), 0xe40c_292c);
        assert_eq!(stream_of("foobar"), 0xbf9c_f968);
    }
}
