//! What the tests of several kernels share: seeded numbers, comparison, thread pools.

/// SplitMix64: short, seeded, and unrelated to the generator under test.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// About standard normal: the sum of four uniforms, scaled.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|i| ((bits >> (16 * i)) & 0xFFFF) as f32 / 65536.0 - 0.5).sum();
        sum * 3f32.sqrt()
    }

    pub(crate) fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}

/// Asserts that every element is within `tolerance` of the reference, relative to the reference's
/// largest.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    let scale = expected.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(f) - e).abs() / scale;
        assert!(
            error <= tolerance,
            "{what}: element {i} is {f}, expected {e}; error {error:.2e} of {scale:.2e}"
        );
    }
}

/// Runs `f` in a pool of `threads`.
pub(crate) fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}
