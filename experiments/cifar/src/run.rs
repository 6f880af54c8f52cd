//! The folder of a run: config.json, metrics.jsonl, and the last, the previous and the best
//! checkpoint.
//!
//! Each file is written under a temporary name and then renamed, so that a program that is killed
//! at any moment leaves complete files. A lock, which the system releases when its holder dies,
//! keeps two programs from writing to the same run.
//!
//! metrics.jsonl is not a `lab::Journal`: it has no line of settings, which are in config.json; it is
//! cut back to the checkpoint on resume; and a torn line in it is an error, because it is replaced
//! as a whole. A journal with three options more would be longer than the lines here.

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::limits;
use crate::lock::Lock;
use crate::settings::{Config, RUN_VERSION};

/// The file with all settings.
pub const CONFIG: &str = "config.json";
/// The file with one line per epoch.
pub const METRICS: &str = "metrics.jsonl";
/// The latest checkpoint.
pub const LAST: &str = "last.safetensors";
/// The checkpoint before the latest, in case that one is lost.
pub const PREVIOUS: &str = "previous.safetensors";
/// The checkpoint with the lowest negative log-likelihood on the images that are held out, or on
/// training images if there are none.
pub const BEST: &str = "best.safetensors";
const LOCK: &str = ".lock";

/// The folder of a run, locked for writing.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    lock: RefCell<Lock>,
}

/// Scores of a network on a set of images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Share of images whose most probable class is the true one.
    pub accuracy: f64,
    /// Mean negative log-likelihood in nats.
    pub nll: f64,
    /// Expected calibration error with 15 bins.
    pub ece: f64,
}

/// sigma_eff of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSigma {
    /// The name of the layer.
    pub layer: String,
    /// Its sigma_eff.
    pub sigma_eff: f64,
}

/// The record of an epoch, which is a line of metrics.jsonl.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of finished epochs.
    pub epoch: u64,
    /// Number of steps taken.
    pub step: u64,
    /// Mean negative log-likelihood over the batches of the epoch while they were trained on.
    pub running_nll: f64,
    /// Accuracy over the batches of the epoch while they were trained on.
    pub running_accuracy: f64,
    /// Scores on as many training images as statistics are measured on. These and the following
    /// scores are of one deterministic pass: of the expected pass if the network has noise.
    pub train: Scores,
    /// Scores on the images that are held out; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Scores>,
    /// Scores on the test images.
    pub test: Scores,
    /// KL of the whole posterior in nats; absent without noise.
    pub kl: Option<f64>,
    /// The weight of the KL at the end of the epoch.
    pub beta: f64,
    /// The learning rate of the weights at the end of the epoch.
    pub lr: f64,
    /// sigma_eff of each layer in order; empty without noise.
    pub sigma_eff: Vec<LayerSigma>,
    /// Seconds that the epoch took, with its evaluation. If training was interrupted within the
    /// epoch, only the part after the interruption is counted.
    pub seconds: f64,
}

impl Run {
    /// Locks a folder for a new run. The folder must not hold a run.
    pub fn reserve(folder: &Path) -> Result<Self> {
        let run = Self::lock(folder)?;
        match run.first_file() {
            None => Ok(run),
            Some(CONFIG) => bail!(
                "{0} holds a run already: continue it with `cifar train --resume {0}`, or name another folder with --out",
                folder.display()
            ),
            Some(file) => bail!(
                "{} holds {file} of a run whose {CONFIG} is missing, and a new run would overwrite it: name another folder with --out",
                folder.display()
            ),
        }
    }

    /// A file in the folder that a new run would overwrite.
    fn first_file(&self) -> Option<&'static str> {
        let files = [CONFIG, LAST, PREVIOUS, BEST].into_iter();
        // A process that was killed when it began its run has left an empty file of records.
        let has_records = self.file(METRICS).metadata().is_ok_and(|metrics| metrics.len() > 0);
        let mut files = files.filter(|file| self.file(file).symlink_metadata().is_ok());
        files.next().or(has_records.then_some(METRICS))
    }

    /// Like [`reserve`](Self::reserve), but returns `None` if the folder holds a run or is in use.
    pub fn reserve_free(folder: &Path) -> Result<Option<Self>> {
        let run = try_hold(folder)?.map(|lock| Self::new(folder, lock));
        Ok(run.filter(|run| run.first_file().is_none()))
    }

    /// Begins the run. From then on it can be resumed.
    pub fn begin(&self, config: &Config) -> Result<()> {
        let text = serde_json::to_string_pretty(config)? + "\n";
        self.write_metrics(&[])?;
        Ok(lab::write_atomic(self.file(CONFIG), text)?)
    }

    /// Opens a run to continue it.
    pub fn open(folder: &Path) -> Result<(Self, Config)> {
        if !folder.join(CONFIG).is_file() {
            bail!("{} holds no run: it has no {CONFIG}", folder.display());
        }
        let run = Self::lock(folder)?;
        let config = read_config(&run.file(CONFIG))?;
        Ok((run, config))
    }

    fn lock(folder: &Path) -> Result<Self> {
        let lock = hold(folder, "wait for it, or name another folder with --out")?;
        Ok(Self::new(folder, lock))
    }

    fn new(folder: &Path, lock: Lock) -> Self {
        let run = Self { folder: folder.into(), lock: RefCell::new(lock) };
        run.remove_leftovers();
        run
    }

    /// Makes sure that this process still holds the lock, before each write. If the file of the
    /// lock was removed, the lock is taken again, unless another process has taken it
    /// meanwhile.
    fn keep_lock(&self) -> Result<()> {
        let mut lock = self.lock.borrow_mut();
        if !lock.is_in_place() {
            let path = self.file(LOCK);
            let again = Lock::try_take(&path).with_context(|| cannot_lock(&path))?;
            *lock = again.with_context(|| {
                format!(
                    "{} was removed, and another process writes to {} now: this one stops without saving",
                    path.display(),
                    self.folder.display()
                )
            })?;
        }
        Ok(())
    }

    /// Removes the temporary files of a process that was killed, and no others: the folder may be
    /// one that a person keeps other files in.
    fn remove_leftovers(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in entries {
            if entry.file_name().to_str().is_some_and(is_leftover) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of the latest checkpoint.
    pub fn last(&self) -> PathBuf {
        self.file(LAST)
    }

    /// The path of the checkpoint with the lowest negative log-likelihood on the test images.
    pub fn best(&self) -> PathBuf {
        self.file(BEST)
    }

    /// The checkpoint to continue from, or `None` if the run was killed before its first one.
    ///
    /// If there are records or other checkpoints, a missing checkpoint is an error. Training would
    /// otherwise begin anew, and overwrite the results of the run.
    pub fn checkpoint(&self) -> Result<Option<PathBuf>> {
        let last = self.last();
        if last.is_file() {
            return Ok(Some(last));
        }
        let epochs = read_records(&self.folder)?.len();
        let state = match last.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => "is a link to a file that does not exist",
            Ok(_) => "is not a regular file",
            Err(_) if epochs == 0 && self.other_checkpoints().is_empty() => return Ok(None),
            Err(_) => "is missing",
        };
        bail!(
            "{} {state}, but the run has records of {epochs} epochs. {}",
            last.display(),
            self.ways_out()
        )
    }

    fn other_checkpoints(&self) -> Vec<&'static str> {
        [PREVIOUS, BEST].into_iter().filter(|name| self.file(name).is_file()).collect()
    }

    /// What a person can do if the latest checkpoint cannot be used.
    pub fn ways_out(&self) -> String {
        let folder = self.folder.display();
        let (sound, damaged): (Vec<&str>, Vec<&str>) = self
            .other_checkpoints()
            .into_iter()
            .partition(|name| checkpoint::is_sound(&self.file(name)));
        let mut text = String::new();
        for name in damaged {
            text += &format!("{name} cannot be used either. ");
        }
        if sound.is_empty() {
            return text
                + &format!(
                    "There is no other checkpoint; `cifar train --config {folder}/{CONFIG} --out ANOTHER` begins again"
                );
        }
        let described = sound.into_iter().map(|name| match name {
            PREVIOUS => "previous.safetensors (the checkpoint before, which is sound)",
            _ => "best.safetensors (the best epoch, which is sound)",
        });
        let described: Vec<&str> = described.collect();
        text + &format!(
            "To go back to an earlier state, copy {} in {folder} to {LAST}",
            described.join(" or ")
        )
    }

    /// Replaces the latest checkpoint by what `save` writes to its path, and keeps the one before.
    pub fn save_last(&self, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.keep_lock()?;
        // Best effort: not every file system has hard links.
        let _ = self.keep_previous();
        self.explained(save(&self.last()))
    }

    /// A process that takes the lock over while this one is saving clears its temporary file away.
    /// The reason to give is then the lock.
    fn explained(&self, saved: Result<()>) -> Result<()> {
        saved.or_else(|error| self.keep_lock().and(Err(error)))
    }

    /// Gives the latest checkpoint a second name, under which it stays when it is replaced.
    fn keep_previous(&self) -> std::io::Result<()> {
        let temporary = self.file(&format!(".{PREVIOUS}.{}-0.tmp", std::process::id()));
        fs::hard_link(self.last(), &temporary)?;
        let renamed = fs::rename(&temporary, self.file(PREVIOUS));
        // If both names are of the same file already, the rename leaves the temporary one.
        let _ = fs::remove_file(&temporary);
        renamed
    }

    /// Replaces the best checkpoint by what `save` writes to its path.
    pub fn save_best(&self, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.keep_lock()?;
        self.explained(save(&self.best()))
    }

    /// Removes the records after the first `epochs` epochs, which will be trained again.
    pub fn forget_after(&self, epochs: u64) -> Result<()> {
        let kept =
            read_records(&self.folder)?.iter().filter(|record| record.epoch <= epochs).count();
        // The lines are copied, not parsed and written again, so that every digit stays as it was.
        let text = read_metrics(&self.folder)?;
        let lines: Vec<&str> = text.lines().take(kept).collect();
        self.write_metrics(&lines)
    }

    /// Adds the record of an epoch.
    pub fn append(&self, record: &Record) -> Result<()> {
        let line = serde_json::to_string(record)?;
        let text = read_metrics(&self.folder)?;
        let lines: Vec<&str> = text.lines().chain([line.as_str()]).collect();
        self.write_metrics(&lines)
    }

    fn write_metrics(&self, lines: &[&str]) -> Result<()> {
        self.keep_lock()?;
        let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
        Ok(lab::write_atomic(self.file(METRICS), text)?)
    }
}

/// Whether a file is named like a temporary file of a run: `.last.safetensors.1234-0.tmp`, or
/// `.config.json.2dApxQ.tmp`.
fn is_leftover(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
    let Some((file, suffix)) = inner.and_then(|inner| inner.rsplit_once('.')) else {
        return false;
    };
    let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    suffix.bytes().all(is_ours) && [CONFIG, METRICS, LAST, PREVIOUS, BEST].contains(&file)
}

/// Locks a folder, which is created if it does not exist. If another process holds the lock, the
/// error names `remedy`.
pub fn hold(folder: &Path, remedy: &str) -> Result<Lock> {
    try_hold(folder)?
        .with_context(|| format!("{} is in use by another process: {remedy}", folder.display()))
}

/// Like [`hold`], but returns `None` if another process holds the lock.
fn try_hold(folder: &Path) -> Result<Option<Lock>> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let path = folder.join(LOCK);
    Lock::try_take(&path).with_context(|| cannot_lock(&path))
}

fn cannot_lock(path: &Path) -> String {
    format!("cannot lock {}", path.display())
}

/// Reads a config.json.
pub fn read_config(path: &Path) -> Result<Config> {
    let text = limits::read_text(path, limits::CONFIG)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let damaged = || format!("{} is not the configuration of a run", path.display());
    // The version is checked first, because another version may have other fields.
    #[derive(Deserialize)]
    struct Header {
        version: u64,
    }
    let header: Header = serde_json::from_str(&text).with_context(damaged)?;
    ensure!(
        header.version == RUN_VERSION,
        "{} is of version {}, and this program reads version {RUN_VERSION}",
        path.display(),
        header.version
    );
    let config: Config = serde_json::from_str(&text).with_context(damaged)?;
    config.check().with_context(|| format!("{} cannot be used", path.display()))?;
    Ok(config)
}

/// Reads the records of a run.
pub fn read_records(folder: &Path) -> Result<Vec<Record>> {
    let path = folder.join(METRICS);
    let text = read_metrics(folder)?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| {
            format!("line {} of {} is damaged: remove it or restore it", number + 1, path.display())
        })
    };
    text.lines().enumerate().map(line).collect()
}

/// The text of metrics.jsonl, which is empty if the file does not exist.
pub fn read_metrics(folder: &Path) -> Result<String> {
    let path = folder.join(METRICS);
    match limits::read_text(&path, limits::RECORDS) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic;
    use crate::settings::{Machine, Preset};

    fn begin(folder: &Path) -> Result<Run> {
        let run = Run::reserve(folder)?;
        run.begin(&config())?;
        Ok(run)
    }

    fn config() -> Config {
        let set = synthetic::generate(&synthetic::Config::default()).unwrap();
        Config {
            version: RUN_VERSION,
            settings: Preset::Quick.settings(),
            machine: Machine { threads: Some(2), ..Machine::default() },
            interface: set.interface(),
        }
    }

    fn record(epoch: u64) -> Record {
        let scores = Scores { accuracy: 0.1 + 0.2, nll: 1.0 / 3.0, ece: 1e-17 };
        Record {
            epoch,
            step: 10 * epoch,
            running_nll: 2.3,
            running_accuracy: 0.1,
            train: scores,
            held_out: Some(scores),
            test: scores,
            kl: None,
            beta: 0.0,
            lr: 1e-3,
            sigma_eff: vec![],
            seconds: 1.0,
        }
    }

    #[test]
    fn a_run_is_held_by_one_and_begun_once() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("a/run");
        let run = begin(&folder).unwrap();
        let in_use = Run::open(&folder).unwrap_err().to_string();
        assert!(in_use.contains("in use"), "{in_use}");
        assert!(Run::reserve_free(&folder).unwrap().is_none());
        drop(run);
        assert!(Run::reserve_free(&folder).unwrap().is_none());
        // A folder in which no run began, such as one with a mistake in its settings, is free.
        let begun_by_nobody = temp.path().join("free");
        for _ in 0..2 {
            assert!(Run::reserve_free(&begun_by_nobody).unwrap().is_some());
        }
        let taken = begin(&folder).unwrap_err().to_string();
        assert!(taken.contains("--resume"), "{taken}");
        let (stored, written) = (Run::open(&folder).unwrap().1, config());
        assert_eq!(stored.settings, written.settings);
        assert_eq!(stored.machine, written.machine);
        assert!(stored.interface.fits(&written.interface));
        let none = Run::open(temp.path()).unwrap_err().to_string();
        assert!(none.contains("holds no run"), "{none}");
    }

    #[test]
    fn a_run_whose_lock_was_removed_has_one_writer_still() {
        let temp = tempfile::tempdir().unwrap();
        let first = begin(temp.path()).unwrap();
        fs::remove_file(temp.path().join(LOCK)).unwrap();
        let (second, _) = Run::open(temp.path()).unwrap();
        let refused = first.append(&record(1)).unwrap_err().to_string();
        assert!(refused.contains("another process"), "{refused}");
        for save in [Run::save_last, Run::save_best] {
            assert!(save(&first, |_: &Path| panic!("nothing may be written")).is_err());
        }
        second.append(&record(1)).unwrap();
        drop(second);
        // Without another process, the lock is taken again.
        fs::remove_file(temp.path().join(LOCK)).unwrap();
        first.append(&record(2)).unwrap();
        assert!(Run::open(temp.path()).unwrap_err().to_string().contains("in use"));
        assert_eq!(read_records(temp.path()).unwrap().len(), 2);
    }

    #[test]
    fn the_checkpoint_before_the_latest_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let run = begin(temp.path()).unwrap();
        let save = |text: &str| run.save_last(|path| Ok(lab::write_atomic(path, text)?)).unwrap();
        let read = |name: &str| fs::read_to_string(temp.path().join(name)).ok();
        save("first");
        assert_eq!((read(LAST).as_deref(), read(PREVIOUS)), (Some("first"), None));
        for (before, text) in [("first", "second"), ("second", "third")] {
            save(text);
            assert_eq!(read(LAST).as_deref(), Some(text));
            assert_eq!(read(PREVIOUS).as_deref(), Some(before));
        }
        // A save that fails after the second name was given changes nothing.
        assert!(run.save_last(|_| bail!("the disk is full")).is_err());
        assert!(run.save_last(|_| bail!("the disk is full")).is_err());
        assert_eq!((read(LAST), read(PREVIOUS)), (Some("third".into()), Some("third".into())));
        save("fourth");
        assert_eq!(read(PREVIOUS).as_deref(), Some("third"));
        let names = fs::read_dir(temp.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(names.into_iter().all(|name| !name.ends_with(".tmp")));
    }

    #[test]
    fn a_run_that_lost_its_checkpoint_is_neither_continued_nor_begun_again() {
        let temp = tempfile::tempdir().unwrap();
        let run = begin(temp.path()).unwrap();
        assert_eq!(run.checkpoint().unwrap(), None);
        run.append(&record(1)).unwrap();
        let refused = || run.checkpoint().unwrap_err().to_string();
        assert!(refused().contains("last.safetensors is missing"), "{}", refused());
        assert!(refused().contains("records of 1 epochs"), "{}", refused());
        assert!(refused().contains("--config"), "{}", refused());
        fs::write(temp.path().join(BEST), "best").unwrap();
        assert!(refused().contains("best.safetensors cannot be used either"), "{}", refused());
        fs::write(temp.path().join(PREVIOUS), "previous").unwrap();
        assert!(refused().contains("previous.safetensors cannot be used"), "{}", refused());
        let (vars, posterior) = (candle_nn::VarMap::new(), vmf_candle::Posterior::new());
        vmf_candle::Checkpoint::capture(&vars, &posterior, None, Default::default())
            .and_then(|checkpoint| checkpoint.save(temp.path().join(PREVIOUS)))
            .unwrap();
        assert!(refused().contains("copy previous.safetensors"), "{}", refused());
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("nowhere", temp.path().join(LAST)).unwrap();
            assert!(refused().contains("is a link to a file that does not exist"), "{}", refused());
            fs::remove_file(temp.path().join(LAST)).unwrap();
        }
        fs::write(temp.path().join(LAST), "last").unwrap();
        assert_eq!(run.checkpoint().unwrap(), Some(run.last()));
        drop(run);

        // Without its configuration, the folder still holds what a new run would overwrite.
        fs::remove_file(temp.path().join(CONFIG)).unwrap();
        for file in [LAST, PREVIOUS, BEST, METRICS] {
            let refused = Run::reserve(temp.path()).unwrap_err().to_string();
            assert!(refused.contains(file), "{file}: {refused}");
            assert!(Run::reserve_free(temp.path()).unwrap().is_none());
            fs::remove_file(temp.path().join(file)).unwrap();
        }
        assert!(Run::reserve(temp.path()).is_ok());
    }

    #[test]
    fn records_are_kept_as_written_and_can_be_taken_back() {
        let temp = tempfile::tempdir().unwrap();
        let run = begin(temp.path()).unwrap();
        assert!(read_records(temp.path()).unwrap().is_empty());
        run.append(&record(1)).unwrap();
        let first = read_metrics(run.folder()).unwrap();
        for epoch in 2..=3 {
            run.append(&record(epoch)).unwrap();
        }
        let epochs = |run: &Run| -> Vec<u64> {
            let records = read_records(run.folder()).unwrap();
            records.iter().map(|record| record.epoch).collect()
        };
        assert_eq!(epochs(&run), [1, 2, 3]);
        run.forget_after(1).unwrap();
        assert_eq!(epochs(&run), [1]);
        assert_eq!(read_metrics(run.folder()).unwrap(), first);
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        drop(begin(temp.path()).unwrap());
        let names = [".last.safetensors.77-0.tmp", ".metrics.jsonl.2dApxQ.tmp", ".notes.tmp"];
        let [leftover, also, other] = names.map(|name| temp.path().join(name));
        for file in [&leftover, &also, &other] {
            fs::write(file, "half").unwrap();
        }
        Run::open(temp.path()).unwrap();
        assert!(!leftover.exists() && !also.exists() && other.exists());
        // Killed before it had a configuration.
        let young = temp.path().join("young");
        fs::create_dir(&young).unwrap();
        let leftover = young.join(".config.json.77-1.tmp");
        fs::write(&leftover, "half").unwrap();
        Run::reserve(&young).unwrap();
        assert!(!leftover.exists());
    }
}
