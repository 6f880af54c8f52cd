//! The interface of whatever executes the kernels.

use vmf_kernels::bn_noise::launches::{Launch, Storage, kernels, source};

/// Executes launches on memory of its own.
pub trait Machine {
    /// Copies bytes into device memory and returns their address, a multiple of 16.
    fn upload(&mut self, bytes: &[u8]) -> u64;

    /// Copies bytes from device memory.
    fn download(&self, address: u64, bytes: usize) -> Vec<u8>;

    /// Frees all memory.
    fn clear(&mut self);

    /// Runs a launch; `order` is the order in which the threads take turns.
    fn launch(&mut self, launch: &Launch, order: u32) -> Result<(), String>;
}

/// A source to compile: the library's kernels for one storage, and the kernels that return the
/// noise itself.
#[derive(Clone, Debug)]
pub struct Program {
    /// The CUDA source.
    pub source: String,
    /// The kernels in it.
    pub kernels: Vec<String>,
}

impl Program {
    /// The kernels of a storage.
    pub fn new(storage: Storage) -> Self {
        let mut kernels = kernels(storage);
        kernels.extend(["philox_words".into(), "noise_normals".into()]);
        Self { source: source(storage) + include_str!("noise_kernels.cu"), kernels }
    }
}
