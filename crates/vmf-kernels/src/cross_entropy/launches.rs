//! Which CUDA kernels a cross-entropy launches. The tests execute the same launches on the CPU.

use crate::bn_noise::launches::{Argument, BLOCK, Launch, Storage, Words, storage_name};

/// Addresses in device memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pointers {
    /// (rows, classes).
    pub logits: u64,
    /// One `u32` for each row.
    pub labels: u64,
    /// The gradient of the mean loss, as the logits.
    pub gradient: u64,
    /// Scratch memory, two floats for each row.
    pub rows: u64,
    /// The mean loss, and the number of right predictions: two floats.
    pub results: u64,
}

/// Reads logits and labels, writes the gradient and the results.
pub fn cross_entropy(
    [rows, classes]: [u32; 2],
    smoothing: f32,
    storage: Storage,
    at: &Pointers,
) -> [Launch; 2] {
    let of = Argument::Words(Words::new([rows, classes, smoothing.to_bits()]));
    let right = at.rows + 4 * u64::from(rows);
    let call = |kernel: String, grid: u32, pointers: &[u64]| Launch {
        kernel,
        grid,
        arguments: pointers.iter().map(|&at| Argument::Pointer(at)).chain([of]).collect(),
    };
    let each = [at.logits, at.labels, at.gradient, at.rows, right];
    [
        call(storage_name("cross_entropy_rows", storage), rows.div_ceil(BLOCK / 32), &each),
        call("cross_entropy_mean".into(), 1, &[at.rows, right, at.results]),
    ]
}
