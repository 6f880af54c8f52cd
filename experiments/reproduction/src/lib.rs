//! Writes the tables of the documentation from the raw results of the experiments.
//!
//! A document marks where a table goes and what it shows; see [`blocks`]. The kinds of tables are:
//!
//! | in the mark | what it shows |
//! |---|---|
//! | `csv FILE` | the rows of a CSV file |
//! | `spread FILE COLUMN COLUMN=DIGITS ..` | some of its columns; numbers rounded, followed by their deviation if the file has a `COLUMN_deviation` |
//! | `landscapes FILE ..` | a row for each `landscape.json` |

pub mod blocks;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A document before and after its tables are rewritten.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file.
    pub path: PathBuf,
    /// The text of the file.
    pub before: String,
    /// The text with every table made from the results.
    pub after: String,
}

impl Document {
    /// Whether the tables agree with the results.
    pub fn is_current(&self) -> bool {
        self.before == self.after
    }
}

/// The README of the project at `root`, and every Markdown file under its docs.
pub fn documents(root: &Path) -> Result<Vec<Document>> {
    let mut paths = vec![root.join("README.md")];
    collect_markdown(&root.join("docs"), &mut paths)?;
    let mut documents = Vec::new();
    for path in paths {
        let before = read_text(&path)?;
        let after = blocks::fill(&before, |mark| sources::table(root, mark))
            .with_context(|| path.display().to_string())?;
        documents.push(Document { path, before, after });
    }
    Ok(documents)
}

fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(lab::read_file(path)?)
        .with_context(|| format!("{} is not text", path.display()))
}

fn collect_markdown(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let found = entries.map(|entry| {
        let entry = entry?;
        // Links to folders are not followed: they may lead around in a circle.
        Ok((entry.path(), entry.file_type()?.is_dir()))
    });
    let mut found = found.collect::<Result<Vec<_>>>()?;
    found.sort();
    for (path, is_dir) in found {
        if is_dir {
            collect_markdown(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    Ok(())
}
