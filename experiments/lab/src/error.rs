//! What can go wrong when results are reported.

use std::path::PathBuf;

/// The result of reporting something.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong when results are reported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A figure that cannot be drawn.
    #[error(transparent)]
    Plot(#[from] plot::Error),
    /// A table row with too many or too few cells.
    #[error("a row of {found} cells does not fit a table of {expected} columns")]
    Row {
        /// The number of cells given.
        found: usize,
        /// The number of columns.
        expected: usize,
    },
    /// Pixels that do not form a picture.
    #[error("a picture of {width} x {height} RGB pixels needs {} bytes, but {found} were given", width * height * 3)]
    Pixels {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// The number of bytes given.
        found: usize,
    },
    /// A journal that cannot be continued or read.
    #[error("the journal {} cannot be used: {reason}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Standard output could not be written to.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[source] std::io::Error),
    /// A file or folder that could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}
