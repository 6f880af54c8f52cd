//! Files that are either whole or absent, and the folder an experiment writes them to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// An existing folder for the results of an experiment.
#[derive(Debug, Clone)]
pub struct OutDir {
    path: PathBuf,
}

impl OutDir {
    /// Opens the folder, and creates it with its parents if it does not exist.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(|source| failed("create the folder", &path, source))?;
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
/// the target. If anything fails, the temporary file is removed and the target stays as it was.
pub fn write_atomic(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
    let path = path.as_ref();
    let write = || -> io::Result<()> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // The name tells whose it is, in case the program is killed and cannot remove it.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let prefix = format!(".{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        // The permissions of any new file, narrowed by the umask; the default is for secrets.
        #[cfg(unix)]
        builder.permissions(fs::Permissions::from_mode(0o666));
        let mut file = builder.tempfile_in(folder)?;
        file.write_all(contents.as_ref())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        sync_folder(folder);
        Ok(())
    };
    write().map_err(|source| failed("write", path, source))
}

/// Makes the names in a folder survive a power cut: a rename is durable once its folder is synced.
///
/// Some file systems cannot do that. The contents of files are safe there all the same, so that it
/// is no error.
pub fn sync_folder(folder: impl AsRef<Path>) {
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// Opens a regular file for reading.
///
/// Anything else is refused at once. Opening a named pipe would otherwise block for as long as
/// nobody writes to it.
pub fn open_file(path: impl AsRef<Path>) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK);
    open_regular(&options, path.as_ref()).map_err(|source| failed("read", path.as_ref(), source))
}

/// Reads a regular file; see [`open_file`].
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_file(&path)?.read_to_end(&mut bytes);
    read.map_err(|source| failed("read", path.as_ref(), source))?;
    Ok(bytes)
}

pub(crate) fn open_regular(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

pub(crate) fn failed(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source }
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

    #[cfg(unix)]
    #[test]
    fn a_written_file_has_the_permissions_of_any_new_file() {
        let temp = tempfile::tempdir().unwrap();
        let (ours, plain) = (temp.path().join("ours"), temp.path().join("plain"));
        write_atomic(&ours, "text").unwrap();
        fs::write(&plain, "text").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn a_figure_is_saved_as_two_files_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let out = OutDir::create(temp.path()).unwrap();
        let panel = plot::Panel::new("(A)").line("l", [0.0, 1.0], [0.0, 1.0]);
        let paths = out.save_figure(&plot::Figure::new("F").panel(panel), "figure").unwrap();
        assert_eq!(names_in(temp.path()), ["figure.png", "figure.svg"]);
        assert!(paths[0].ends_with("figure.svg") && paths[1].ends_with("figure.png"));
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

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let temp = tempfile::tempdir().unwrap();
        let pipe = temp.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), temp.path()] {
            let error = read_file(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
        fs::write(temp.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", temp.path().join("link")).unwrap();
        assert_eq!(read_file(temp.path().join("link")).unwrap(), b"text");
    }
}
