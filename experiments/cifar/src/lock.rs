//! Locks that keep two programs from writing to the same folder.
//!
//! A lock is a file in that folder. The system releases it when its holder ends, however that
//! happens. The folder may come from anywhere, so the file is opened without following a symbolic
//! link and without truncating what it names.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A lock that this process holds until it is dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes a lock, or returns `None` if another process holds it.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let lock = Self { file: open(path)?, path: path.into() };
            match lock.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Some network file systems have no locks. The program works without them.
                Err(TryLockError::Error(error)) => {
                    tracing::warn!("{} cannot be locked: {error}", path.display());
                    return Ok(Some(lock));
                }
            }
            // If the file was removed since it was opened, another process may lock its successor.
            if lock.is_in_place() {
                return Ok(Some(lock));
            }
        }
    }

    /// Takes a lock. If another process holds it, calls `waiting` and waits.
    pub fn take(path: &Path, waiting: impl FnOnce()) -> io::Result<Self> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        waiting();
        loop {
            let lock = Self { file: open(path)?, path: path.into() };
            lock.file.lock()?;
            if lock.is_in_place() {
                return Ok(lock);
            }
        }
    }

    /// Whether the file that is locked is still the one at its path. If it was removed or replaced,
    /// another process can take a lock of the same name.
    #[cfg(unix)]
    pub fn is_in_place(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let held = self.file.metadata().map(identity);
        let named = self.path.symlink_metadata().map(identity);
        matches!((held, named), (Ok(held), Ok(named)) if held == named)
    }

    /// Whether the file that is locked is still the one at its path. A file that is open cannot be
    /// removed on this system.
    #[cfg(not(unix))]
    pub fn is_in_place(&self) -> bool {
        self.path.exists()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Opening a FIFO must not block.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn one_process_holds_a_lock_and_the_next_gets_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(".lock");
        let lock = Lock::try_take(&path).unwrap().unwrap();
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(lock);
        assert!(Lock::try_take(&path).unwrap().is_some());
    }

    #[test]
    fn what_a_link_names_is_neither_locked_nor_truncated() {
        let temp = tempfile::tempdir().unwrap();
        let (path, precious) = (temp.path().join(".lock"), temp.path().join("precious"));
        fs::write(&precious, "keep").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        assert!(Lock::try_take(&path).is_err());
        assert!(Lock::take(&path, || {}).is_err());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "keep");
        // Nor is a lock file that has contents truncated.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "keep").unwrap();
        Lock::try_take(&path).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "keep");
    }

    #[test]
    fn a_lock_knows_that_its_file_was_removed_or_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(".lock");
        let first = Lock::try_take(&path).unwrap().unwrap();
        assert!(first.is_in_place());
        fs::remove_file(&path).unwrap();
        assert!(!first.is_in_place());
        let second = Lock::try_take(&path).unwrap().unwrap();
        assert!(second.is_in_place() && !first.is_in_place());
    }

    #[test]
    fn what_is_not_a_file_is_refused_without_waiting() {
        let temp = tempfile::tempdir().unwrap();
        let fifo = temp.path().join(".lock");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let error = Lock::try_take(&fifo).unwrap_err().to_string();
        assert!(error.contains("regular file"), "{error}");
    }
}
