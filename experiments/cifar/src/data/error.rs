//! Errors of data sets. Each message says what to do.

use std::path::PathBuf;

/// The result of reading or fetching a data set.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A file has the wrong contents and is not used.
    #[error("{} is not used: {reason}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A file is missing.
    #[error("{} is missing from {}; {remedy}", name, folder.display())]
    Missing {
        /// The file.
        name: String,
        /// Where it should be.
        folder: PathBuf,
        /// What to do.
        remedy: &'static str,
    },

    /// No source has the data.
    #[error(
        "CIFAR-10 could not be fetched:\n{}\nGive the folder that holds the binary files with --data-dir DIR, \
         or train on generated images with --data synthetic",
        attempts.iter().map(|attempt| format!("  - {attempt}")).collect::<Vec<_>>().join("\n")
    )]
    Unreachable {
        /// The error of each source.
        attempts: Vec<String>,
    },

    /// A source cannot be reached.
    #[error("{0}")]
    Unavailable(String),

    /// The contents of a source are not CIFAR-10.
    #[error("its contents are not CIFAR-10: {0}")]
    Foreign(String),

    /// A setting does not suit the data set.
    #[error("{0}")]
    Setting(String),
}

impl Error {
    /// Returns a function that adds the action and the path to an error of the system.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
