//! A journal of results: a file that grows by a line with each, so that a run that is stopped loses
//! none.
//!
//! The file is JSON lines. The first says what the run is (its settings), each other line is a
//! result. A process that is killed leaves at most a part of a line at the end, which is cut off
//! when the journal is opened again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// A journal that is open for more results; shared between threads by reference.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<File>,
}

/// What a journal holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Entries<S, R> {
    /// The settings of the run.
    pub settings: S,
    /// The results so far, in the order they came.
    pub results: Vec<R>,
}

impl Journal {
    /// Starts a journal. One that is there already is kept beside it, under its name with `.old`.
    pub fn create(path: impl Into<PathBuf>, settings: &impl Serialize) -> Result<Self> {
        let path = path.into();
        if path.exists() {
            let mut old = path.clone().into_os_string();
            old.push(".old");
            fs::rename(&path, old).map_err(|source| io("rename", &path, source))?;
        }
        let file = File::create(&path).map_err(|source| io("create", &path, source))?;
        let journal = Self { path, file: Mutex::new(file) };
        journal.append(settings)?;
        Ok(journal)
    }

    /// Opens a journal to go on with it, or starts one if there is none. One with other settings is
    /// refused.
    pub fn resume<S, R>(path: impl Into<PathBuf>, settings: &S) -> Result<(Self, Vec<R>)>
    where
        S: Serialize + DeserializeOwned + PartialEq,
        R: DeserializeOwned,
    {
        let path = path.into();
        let text = match fs::read(&path) {
            Ok(bytes) => whole_lines(&path, bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(io("read", &path, source)),
        };
        if text.is_empty() {
            return Ok((Self::create(path, settings)?, Vec::new()));
        }
        let entries: Entries<S, R> = parse(&path, &text)?;
        if entries.settings != *settings {
            return Err(Error::Journal {
                path,
                reason: "it was started with other settings; give the same ones, or another folder"
                    .into(),
            });
        }
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(|source| io("open", &path, source))?;
        file.set_len(text.len() as u64).map_err(|source| io("shorten", &path, source))?;
        let file = Mutex::new(file);
        Ok((Self { path, file }, entries.results))
    }

    /// Adds a result. It is on the disk when this returns.
    pub fn append(&self, result: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(result).map_err(|error| Error::Journal {
            path: self.path.clone(),
            reason: format!("a result cannot be written as JSON: {error}"),
        })?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|source| io("write to", &self.path, source))
    }

    /// Reads a journal, which another process may be writing.
    pub fn read<S: DeserializeOwned, R: DeserializeOwned>(
        path: impl AsRef<Path>,
    ) -> Result<Entries<S, R>> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| io("read", path, source))?;
        parse(path, &whole_lines(path, bytes)?)
    }
}

/// The text up to its last line break.
fn whole_lines(path: &Path, mut bytes: Vec<u8>) -> Result<String> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    bytes.truncate(end);
    String::from_utf8(bytes)
        .map_err(|_| Error::Journal { path: path.to_owned(), reason: "it is not text".into() })
}

fn parse<S: DeserializeOwned, R: DeserializeOwned>(
    path: &Path,
    text: &str,
) -> Result<Entries<S, R>> {
    let mut lines = text.lines().enumerate();
    let wrong = |line: usize, error: serde_json::Error| Error::Journal {
        path: path.to_owned(),
        reason: format!("line {} is not what this program writes: {error}", line + 1),
    };
    let Some((first, settings)) = lines.next() else {
        return Err(Error::Journal { path: path.to_owned(), reason: "it is empty".into() });
    };
    let settings = serde_json::from_str(settings).map_err(|error| wrong(first, error))?;
    let results = lines
        .map(|(i, line)| serde_json::from_str(line).map_err(|error| wrong(i, error)))
        .collect::<Result<_>>()?;
    Ok(Entries { settings, results })
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source }
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
}
