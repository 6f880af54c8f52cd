//! What a disk would hold if the power were cut now.
//!
//! The contents of a file are on the disk once the file is synced, and a name is there once its
//! folder is. Both may be there earlier, so that there are several states to test.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::tracee::Call;

/// A change of names that is not on the disk, and how to take it back.
enum Change {
    Created(PathBuf),
    Removed { path: PathBuf, kept: PathBuf },
    Renamed { from: PathBuf, to: PathBuf, replaced: Replaced },
}

/// What a rename replaces.
enum Replaced {
    Nothing,
    File(PathBuf),
    Folder,
}

impl Change {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Created(path) | Self::Removed { path, .. } | Self::Renamed { to: path, .. } => {
                path.parent()
            }
        }
    }
}

pub(super) struct Disk {
    scratch: PathBuf,
    kept: usize,
    /// Files with data that is not synced, by device and inode, whatever their names are.
    dirty: HashMap<(u64, u64), File>,
    /// In the order in which they were made.
    changes: Vec<Change>,
}

impl Disk {
    pub(super) fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.into(), kept: 0, dirty: HashMap::new(), changes: Vec::new() }
    }

    /// Records what a call is about to do.
    pub(super) fn before(&mut self, call: &Call) {
        match call {
            Call::Open { path, creates: true } | Call::CreateFolder { path } => {
                if !path.exists() {
                    self.changes.push(Change::Created(path.clone()));
                }
            }
            Call::Open { .. } => {}
            Call::Write { file, .. } => {
                if let (Some(key), Ok(opened)) =
                    (key(file), OpenOptions::new().write(true).open(file))
                {
                    self.dirty.entry(key).or_insert(opened);
                }
            }
            Call::Sync { path, file } => {
                if path.is_dir() {
                    self.changes.retain(|change| change.folder() != Some(path));
                } else if let Some(key) = key(file) {
                    self.dirty.remove(&key);
                }
            }
            Call::Rename { from, to } if from.exists() => {
                let replaced = match fs::symlink_metadata(to) {
                    Ok(metadata) if metadata.is_dir() => Replaced::Folder,
                    Ok(_) => Replaced::File(self.keep(to)),
                    Err(_) => Replaced::Nothing,
                };
                let (from, to) = (from.clone(), to.clone());
                self.changes.push(Change::Renamed { from, to, replaced });
            }
            Call::Link { from, to } if from.exists() && !to.exists() => {
                self.changes.push(Change::Created(to.clone()));
            }
            Call::Remove { path } if path.is_file() => {
                let kept = self.keep(path);
                self.changes.push(Change::Removed { path: path.clone(), kept });
            }
            Call::Rename { .. } | Call::Link { .. } | Call::Remove { .. } => {}
        }
    }

    /// Gives a file that is about to lose its name another one.
    fn keep(&mut self, path: &Path) -> PathBuf {
        self.kept += 1;
        let kept = self.scratch.join(format!("kept-{}-{}", std::process::id(), self.kept));
        let _ = fs::remove_file(&kept);
        fs::hard_link(path, &kept).unwrap();
        kept
    }

    /// Leaves what is on the disk: data that was not synced is gone, and if `names` is set, so are
    /// the changes of names.
    pub(super) fn lose(mut self, names: bool) {
        for file in self.dirty.values() {
            file.set_len(0).unwrap();
        }
        while let Some(change) = self.changes.pop().filter(|_| names) {
            // The program has ended within the last of these, which may not have happened.
            let _ = match change {
                Change::Created(path) if path.is_dir() => fs::remove_dir_all(path),
                Change::Created(path) => fs::remove_file(path),
                Change::Removed { path, kept } => fs::rename(kept, path),
                Change::Renamed { from, to, replaced } => {
                    fs::rename(&to, from).and_then(|()| match replaced {
                        Replaced::Nothing => Ok(()),
                        Replaced::File(kept) => fs::rename(kept, to),
                        Replaced::Folder => fs::create_dir(to),
                    })
                }
            };
        }
    }
}

fn key(file: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(file).ok()?;
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}
