//! A journal of results: a file that grows by a line per result, so that a stopped run loses none.
//!
//! The file is JSON lines. The first line holds the settings of the run, every other line a result.
//! A process that is killed leaves at most a part of a line at the end, which is cut off when the
//! journal is opened again.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::files::{failed, open_regular, read_file};

/// A journal that is open for more results. Threads share it by reference.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<File>,
}

/// The contents of a journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Entries<S, R> {
    /// The settings of the run.
    pub settings: S,
    /// The results so far, in the order they came.
    pub results: Vec<R>,
}

impl Journal {
    /// Starts a journal. If one is there already, it is renamed: `.old` is added to its name.
    pub fn create(path: impl Into<PathBuf>, settings: &impl Serialize) -> Result<Self> {
        let path = path.into();
        if path.symlink_metadata().is_ok() {
            let mut old = path.clone().into_os_string();
            old.push(".old");
            fs::rename(&path, old).map_err(|source| failed("rename", &path, source))?;
        }
        // A new file: nothing is truncated, and no link is followed.
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.map_err(|source| failed("create", &path, source))?;
        let journal = Self { path, file: Mutex::new(file) };
        journal.append(settings)?;
        Ok(journal)
    }

    /// Opens a journal to continue it, or starts one if there is none. A journal with other
    /// settings is refused, and so is a link, which could lead to somebody else's file.
    pub fn resume<S, R>(path: impl Into<PathBuf>, settings: &S) -> Result<(Self, Vec<R>)>
    where
        S: Serialize + DeserializeOwned + PartialEq,
        R: DeserializeOwned,
    {
        let path = path.into();
        if path.is_symlink() {
            return Err(unusable(&path, "it is a symbolic link"));
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true);
        // The flags close the gap between the check above and this call.
        #[cfg(unix)]
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let mut bytes = Vec::new();
        let file = match open_regular(&options, &path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(failed("open", &path, source)),
            Ok(mut file) => {
                file.read_to_end(&mut bytes).map_err(|source| failed("read", &path, source))?;
                Some(file)
            }
        };
        let text = whole_lines(&path, bytes)?;
        let Some(file) = file.filter(|_| !text.is_empty()) else {
            return Ok((Self::create(path, settings)?, Vec::new()));
        };
        let entries: Entries<S, R> = parse(&path, &text)?;
        if entries.settings != *settings {
            let reason =
                "it was started with other settings; give the same ones, or another folder";
            return Err(unusable(&path, reason));
        }
        file.set_len(text.len() as u64).map_err(|source| failed("shorten", &path, source))?;
        Ok((Self { path, file: Mutex::new(file) }, entries.results))
    }

    /// Adds a result, which is on the disk when this returns.
    pub fn append(&self, result: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(result).map_err(|error| {
            unusable(&self.path, &format!("a result cannot be written as JSON: {error}"))
        })?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|source| failed("write to", &self.path, source))
    }

    /// Reads a journal. Another process may be writing to it.
    pub fn read<S: DeserializeOwned, R: DeserializeOwned>(
        path: impl AsRef<Path>,
    ) -> Result<Entries<S, R>> {
        let path = path.as_ref();
        parse(path, &whole_lines(path, read_file(path)?)?)
    }
}

/// The text up to its last line break.
fn whole_lines(path: &Path, mut bytes: Vec<u8>) -> Result<String> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    bytes.truncate(end);
    String::from_utf8(bytes).map_err(|_| unusable(path, "it is not text"))
}

fn parse<S: DeserializeOwned, R: DeserializeOwned>(
    path: &Path,
    text: &str,
) -> Result<Entries<S, R>> {
    let wrong = |line: usize, error: serde_json::Error| {
        unusable(path, &format!("line {} is not what this program writes: {error}", line + 1))
    };
    let mut lines = text.lines().enumerate();
    let (first, settings) = lines.next().ok_or_else(|| unusable(path, "it is empty"))?;
    let settings = serde_json::from_str(settings).map_err(|error| wrong(first, error))?;
    let results = lines
        .map(|(i, line)| serde_json::from_str(line).map_err(|error| wrong(i, error)))
        .collect::<Result<_>>()?;
    Ok(Entries { settings, results })
}

fn unusable(path: &Path, reason: &str) -> Error {
    Error::Journal { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let values = [0.5, -3.0, 1e100, 0.1];
        let journal = Journal::create(&path, &"settings").unwrap();
        for value in values {
            journal.append(&value).unwrap();
        }
        let entries: Entries<String, f64> = Journal::read(&path).unwrap();
        assert_eq!(entries.settings, "settings");
        assert_eq!(entries.results, values);
    }

    #[test]
    fn a_torn_line_is_cut_off_and_the_rest_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        fs::write(&path, "\"s\"\n1\n2\n12").unwrap();
        let settings = String::from("s");
        let (journal, results): (_, Vec<u32>) = Journal::resume(&path, &settings).unwrap();
        assert_eq!(results, [1, 2]);
        journal.append(&3).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "\"s\"\n1\n2\n3\n");
    }

    #[test]
    fn other_settings_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        Journal::create(&path, &1).unwrap();
        let error = Journal::resume::<i32, i32>(&path, &2).unwrap_err();
        assert!(error.to_string().contains("other settings"), "{error}");
        fs::write(&path, "1\n2\nthree\n").unwrap();
        let error = Journal::read::<i32, i32>(&path).unwrap_err();
        assert!(error.to_string().contains("line 3"), "{error}");
    }

    #[test]
    fn a_journal_that_was_there_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        Journal::create(&path, &1).unwrap().append(&5).unwrap();
        Journal::create(&path, &2).unwrap();
        let old = fs::read_to_string(folder.path().join("results.jsonl.old")).unwrap();
        assert_eq!(old, "1\n5\n");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_pipes_are_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("other"), folder.path().join("results.jsonl"));
        fs::write(&target, "1\n5\n").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let error = Journal::resume::<i32, i32>(&link, &1).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        Journal::create(&link, &2).unwrap();
        assert!(!link.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "1\n5\n");
        // A link to nothing would be followed by a plain create.
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink(folder.path().join("absent"), &dangling).unwrap();
        Journal::create(&dangling, &3).unwrap();
        assert!(!folder.path().join("absent").exists());

        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = Journal::resume::<i32, i32>(&pipe, &1).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        let error = Journal::read::<i32, i32>(&pipe).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
