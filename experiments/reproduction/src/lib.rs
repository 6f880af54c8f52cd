//! Writes the tables of the documentation from the raw results of the experiments.
//!
//! A document marks where a table goes and what it shows; see [`blocks`]. The kinds of tables:
//!
//! | in the mark | what it shows |
//! |---|---|
//! | `csv FILE` | the rows of a CSV file |
//! | `spread FILE COLUMN COLUMN=DIGITS ..` | some of its columns; numbers rounded, and beside them their deviation (`COLUMN_deviation`) where there is one |

pub mod blocks;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A document with its tables as the results have them.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where it is.
    pub path: PathBuf,
    /// What it says now.
    pub before: String,
    /// What it says with its tables made anew.
    pub after: String,
}

impl Document {
    /// Whether its tables are as the results have them.
    pub fn is_current(&self) -> bool {
        self.before == self.after
    }
}

/// The documents of the project at `root` that hold tables: its README and everything under docs.
pub fn documents(root: &Path) -> Result<Vec<Document>> {
    let mut paths = vec![root.join("README.md")];
    collect_markdown(&root.join("docs"), &mut paths)?;
    let mut documents = Vec::new();
    for path in paths {
        let before =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let after = blocks::fill(&before, |mark| sources::table(root, mark))
            .with_context(|| path.display().to_string())?;
        documents.push(Document { path, before, after });
    }
    Ok(documents)
}

fn collect_markdown(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.sort();
    for path in found {
        if path.is_dir() {
            collect_markdown(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    Ok(())
}
