//! Which noise a layer draws: a stream number made from the layer's name.
//!
//! A stream must not depend on the order in which layers are built, or two programs that build the
//! same model differently would draw different noise. It is therefore a hash of the layer's path,
//! the 32-bit FNV-1a. Unlike the standard library's hasher it is fixed by a specification.

/// The noise stream of the layer at `path`.
///
/// Two of a model's hundred layers collide about once in a million models. The
/// [`Posterior`](crate::posterior::Posterior) sees all layers of a model and refuses a collision,
/// naming both layers.
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
