//! The folder an experiment writes to, and files that are either whole or absent.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A folder that exists and takes an experiment's results.
#[derive(Debug, Clone)]
pub struct OutDir {
    path: PathBuf,
}

impl OutDir {
    /// Opens the folder and creates it, with its parents, if it is not there.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(|source| Error::Io {
            action: "create the folder",
            path: path.clone(),
            source,
        })?;
        Ok(Self { path })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A folder inside this one.
    pub fn subfolder(&self, name: impl AsRef<Path>) -> Result<Self> {
        Self::create(self.path.join(name))
    }

    /// Writes a file atomically and returns its path.
    pub fn write(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.file(name);
        write_atomic(&path, contents)?;
        Ok(path)
    }

    /// Writes `name.svg` and `name.png` (two pixels per unit) and returns their paths.
    pub fn save_figure(&self, figure: &plot::Figure, name: &str) -> Result<[PathBuf; 2]> {
        let (svg, png) = (figure.svg()?, figure.png(2.0)?);
        Ok([self.write(format!("{name}.svg"), svg)?, self.write(format!("{name}.png"), png)?])
    }
}

impl AsRef<Path> for OutDir {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Writes a file so that a reader sees the old contents or the new ones, never a part.
///
/// The contents go to a temporary file in the same folder, are synced to the disk and renamed over
/// the target. If anything fails the temporary file is removed and the target is as it was.
pub fn write_atomic(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let path = path.as_ref();
    let fail = |source: io::Error| Error::Io { action: "write", path: path.to_owned(), source };
    let name = path.file_name().ok_or_else(|| fail(io::Error::other("the path names no file")))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(
        ".{}-{}.tmp",
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed)
    ));
    let temporary = path.with_file_name(temporary);

    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(contents.as_ref())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if let Err(source) = written {
        // Best effort: the write's own error is the one to report.
        let _ = fs::remove_file(&temporary);
        return Err(fail(source));
    }
    sync_folder_of(path);
    Ok(())
}

/// Makes the rename itself durable. Not every file system can; the contents are safe either way.
fn sync_folder_of(path: &Path) {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_write_replaces_the_file_and_leaves_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let out = OutDir::create(temp.path().join("a/b")).unwrap();
        out.write("data.csv", "old").unwrap();
        let path = out.write("data.csv", "new").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "new");
        assert_eq!(names_in(out.path()), ["data.csv"]);
    }

    #[test]
    fn a_failed_write_leaves_no_partial_file_and_names_the_path() {
        let temp = tempfile::tempdir().unwrap();
        // The target is a folder that is not empty: the rename cannot succeed.
        let target = temp.path().join("taken");
        fs::create_dir_all(target.join("inside")).unwrap();
        let error = write_atomic(&target, "text").unwrap_err().to_string();
        assert!(error.contains(&target.display().to_string()), "{error}");
        assert_eq!(names_in(temp.path()), ["taken"]);
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        let error = OutDir::create(file.join("sub")).unwrap_err().to_string();
        assert!(error.contains("create the folder"), "{error}");
        assert!(error.contains("file/sub"), "{error}");
    }
}
