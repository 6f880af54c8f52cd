//! What the fuzz targets share.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file that holds these bytes, for functions that read files. It is in memory where the system
/// has a file system there, and each process has its own.
///
/// # Panics
/// If it cannot be written.
pub fn file(bytes: &[u8]) -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        folder.join(format!("vmf-fuzz-{}", std::process::id()))
    });
    std::fs::write(path, bytes).expect("the file can be written");
    path
}
