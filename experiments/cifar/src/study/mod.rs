//! A study: a list of trainings and evaluations from a file, done in any order and on several
//! machines, and the tables and figures made of them.
//!
//! The file is JSON:
//!
//! ```json
//! {
//!   "out": "runs/study/example",
//!   "preset": "quick",
//!   "common": { "epochs": 2 },
//!   "runs": [
//!     { "name": "map", "seeds": [0, 1], "settings": { "method": "map" } },
//!     { "name": "vmf", "seeds": [0, 1], "settings": { "method": "vmf" } }
//!   ],
//!   "ensembles": [{ "name": "2 x map", "of": "map" }],
//!   "baseline": "map"
//! }
//! ```
//!
//! Settings are those of `config.json`: first the preset's, then those that the method was
//! published with, then `common`, then those of the run.

mod figures;
mod tables;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::commands::{evidence, train};
use crate::evaluation::Options;
use crate::evaluation::evidence::{Evidence, Extent};
use crate::limits;
use crate::run::{self, CONFIG};
use crate::settings::{Flags, Machine, Preset, Settings};
use crate::terminal;

/// The list of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// The folder of all runs, and of the tables and figures.
    pub out: PathBuf,
    /// The settings to begin with.
    pub preset: Preset,
    /// Settings of all runs.
    #[serde(default)]
    pub common: Map<String, Value>,
    /// What is trained.
    pub runs: Vec<Entry>,
    /// What is made of finished runs.
    #[serde(default)]
    pub ensembles: Vec<Ensemble>,
    /// The entry that costs are relative to.
    pub baseline: String,
    /// Number of Monte Carlo samples.
    #[serde(default = "samples")]
    pub samples: u32,
    /// Number of images per corruption and severity, and per foreign set.
    #[serde(default = "foreign_images")]
    pub foreign_images: usize,
}

fn samples() -> u32 {
    8
}

fn foreign_images() -> usize {
    1000
}

/// Runs that differ in their seed only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name, in tables and of its folders.
    pub name: String,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Settings of its own.
    #[serde(default)]
    pub settings: Map<String, Value>,
}

/// The runs of an entry as one prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ensemble {
    /// Its name, in tables and of its folder.
    pub name: String,
    /// The name of the entry.
    pub of: String,
}

/// One training.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The folder of the run.
    pub folder: PathBuf,
    /// Its settings.
    pub settings: Settings,
}

/// A row of the tables: a name, and the evidence about each of its runs.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name.
    pub name: String,
    /// Whether its members are ensembles.
    pub is_ensemble: bool,
    /// The evidence about each seed, or about the ensemble.
    pub members: Vec<Evidence>,
    /// Seconds of training of each seed, or of all members together.
    pub seconds: Vec<f64>,
}

/// A part of the trainings: `2/4` are the second, the sixth, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(index, count)| {
            Some((index.parse::<usize>().ok()?, count.parse::<usize>().ok()?))
        });
        match parts {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err("write it as i/n with i from 1 to n, such as 1/4".into()),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Shard {
    /// One of `count` parts, from 1.
    pub fn new(index: usize, count: usize) -> Self {
        Self { index, count }
    }

    fn holds(self, place: usize) -> bool {
        place % self.count == self.index - 1
    }
}

impl Study {
    /// Reads a study and checks all of it, before hours are spent on its first half.
    pub fn read(path: &Path) -> Result<Self> {
        let text = limits::read_text(path, limits::CONFIG)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let study: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a study", path.display()))?;
        study.check().with_context(|| format!("{} cannot be used", path.display()))?;
        Ok(study)
    }

    fn check(&self) -> Result<()> {
        let names = self.runs.iter().map(|entry| &entry.name);
        let mut names: Vec<_> = names.chain(self.ensembles.iter().map(|e| &e.name)).collect();
        let is_name = |name: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || " -_.".contains(c);
            !name.is_empty() && !name.starts_with('.') && name.chars().all(fits)
        };
        for name in &names {
            ensure!(
                is_name(name),
                "the name {name:?} is also that of a folder: use letters, digits, spaces, `-`, `_` and `.`"
            );
        }
        names.sort();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(twice.is_none(), "the name {:?} is given twice", twice.map_or("", |pair| pair[0]));
        for name in self.ensembles.iter().map(|ensemble| &ensemble.of).chain([&self.baseline]) {
            self.entry(name)?;
        }
        self.tasks().map(|_| ())
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        let found = self.runs.iter().find(|entry| entry.name == name);
        found.with_context(|| format!("{name:?} is not the name of an entry of `runs`"))
    }

    /// All trainings, in the order of the file.
    pub fn tasks(&self) -> Result<Vec<Task>> {
        let mut tasks = Vec::new();
        for entry in &self.runs {
            ensure!(!entry.seeds.is_empty(), "the entry {:?} has no seeds", entry.name);
            for &seed in &entry.seeds {
                let settings = self.settings(entry, seed);
                let settings = settings.with_context(|| format!("entry {:?}", entry.name))?;
                tasks.push(Task { folder: self.folder(&entry.name, seed), settings });
            }
        }
        Ok(tasks)
    }

    fn folder(&self, name: &str, seed: u64) -> PathBuf {
        self.out.join(format!("{name}-seed{seed}"))
    }

    fn settings(&self, entry: &Entry, seed: u64) -> Result<Settings> {
        let overlay = |settings: &Settings| -> Result<Settings> {
            let Value::Object(mut fields) = serde_json::to_value(settings)? else {
                anyhow::bail!("settings are no object")
            };
            fields.extend(self.common.clone());
            fields.extend(entry.settings.clone());
            fields.insert("seed".into(), seed.into());
            Ok(serde_json::from_value(Value::Object(fields))?)
        };
        let mut preset = self.preset.settings();
        // The method decides what it begins with, and the file has the last word.
        overlay(&preset)?.method.recipe(&mut preset);
        let settings = overlay(&preset)?;
        settings.check()?;
        Ok(settings)
    }

    /// Trains what is not trained yet: all of it, or one part. What was interrupted continues.
    pub fn train(&self, shard: Option<Shard>, machine: &Machine) -> Result<()> {
        for (place, task) in self.tasks()?.iter().enumerate() {
            if shard.is_some_and(|shard| !shard.holds(place)) || task.is_finished() {
                continue;
            }
            task.train(self.preset, machine)
                .with_context(|| format!("{} is not finished", task.folder.display()))?;
        }
        Ok(())
    }

    /// The trainings that are not finished.
    pub fn unfinished(&self) -> Result<Vec<Task>> {
        Ok(self.tasks()?.into_iter().filter(|task| !task.is_finished()).collect())
    }

    /// Evaluates all runs that are finished. Entries without any are left out.
    pub fn rows(&self, options: &Options, others: &Path) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for entry in &self.runs {
            let folders = entry.seeds.iter().map(|seed| self.folder(&entry.name, *seed));
            let folders: Vec<PathBuf> = folders.filter(|folder| is_finished(folder)).collect();
            if folders.is_empty() {
                continue;
            }
            let members = folders
                .iter()
                .map(|folder| self.evidence(std::slice::from_ref(folder), folder, options, others));
            let members = members.collect::<Result<_>>()?;
            let seconds: Vec<f64> = folders.iter().map(|folder| seconds(folder)).collect();
            for ensemble in self.ensembles.iter().filter(|ensemble| ensemble.of == entry.name) {
                if folders.len() < entry.seeds.len() {
                    continue;
                }
                let out = self.out.join(&ensemble.name);
                rows.push(Row {
                    name: ensemble.name.clone(),
                    is_ensemble: true,
                    members: vec![self.evidence(&folders, &out, options, others)?],
                    seconds: vec![seconds.iter().sum()],
                });
            }
            rows.push(Row { name: entry.name.clone(), is_ensemble: false, members, seconds });
        }
        // Single networks first.
        rows.sort_by_key(|row| row.is_ensemble);
        Ok(rows)
    }

    fn evidence(
        &self,
        runs: &[PathBuf],
        out: &Path,
        options: &Options,
        others: &Path,
    ) -> Result<Evidence> {
        evidence::evidence(&evidence::Args {
            runs: runs.to_vec(),
            out: Some(out.into()),
            others: others.into(),
            extent: Extent { foreign_images: self.foreign_images },
            options: Options { samples: self.samples, ..options.clone() },
        })
    }

    /// Writes tables and figures, and returns the main table for the terminal.
    pub fn write(&self, rows: &[Row]) -> Result<lab::Table> {
        let main = tables::main(rows, &self.baseline)?;
        let named = [
            ("main", main.clone()),
            ("decisions", tables::decisions(rows)?),
            ("shift", tables::shift(rows)?),
            ("foreign", tables::foreign(rows)?),
        ];
        let mut text = String::new();
        for (name, table) in named {
            lab::write_atomic(self.out.join(format!("{name}.csv")), table.csv())?;
            text += &format!("{}\n", table.markdown());
        }
        for line in tables::left_out(rows) {
            text += &format!("- Left out: {line}\n");
        }
        lab::write_atomic(self.out.join("tables.md"), text)?;
        for (name, figure) in
            [("shift", figures::shift(rows)), ("cost", figures::cost(rows, &self.baseline))]
        {
            lab::write_atomic(self.out.join(format!("{name}.svg")), figure.svg()?)?;
        }
        Ok(main)
    }
}

impl Task {
    fn is_finished(&self) -> bool {
        is_finished(&self.folder)
    }

    fn train(&self, preset: Preset, machine: &Machine) -> Result<()> {
        let machine = machine.clone();
        if self.folder.join(CONFIG).is_file() {
            let stored = run::read_config(&self.folder.join(CONFIG))?.settings;
            ensure!(
                stored == self.settings,
                "{} holds a run with other settings than the study: move it away",
                self.folder.display()
            );
            terminal::say(format!("{}: continuing", self.folder.display()));
            let resume = Some(self.folder.clone());
            return train::run(&train::Args { resume, machine, ..Default::default() });
        }
        train::run(&train::Args {
            preset: Some(preset),
            out: Some(self.folder.clone()),
            flags: Flags::from(&self.settings),
            machine,
            ..Default::default()
        })
    }
}

/// Whether a folder holds a run with a record of its last epoch.
fn is_finished(folder: &Path) -> bool {
    let epochs = run::read_config(&folder.join(CONFIG)).map(|config| config.settings.epochs);
    let last = run::read_records(folder).ok().and_then(|records| Some(records.last()?.epoch));
    epochs.is_ok_and(|epochs| last == Some(epochs.into()))
}

/// How long a run was trained.
fn seconds(folder: &Path) -> f64 {
    let records = run::read_records(folder).unwrap_or_default();
    records.iter().map(|record| record.seconds).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Method;
    use serde_json::json;

    fn study(settings: Value) -> Result<Study> {
        let study: Study = serde_json::from_value(json!({
            "out": "out",
            "preset": "quick",
            "common": { "epochs": 3, "lr": 0.5 },
            "runs": [
                { "name": "a", "seeds": [0, 1], "settings": settings },
                { "name": "b", "seeds": [4], "settings": { "method": "ivon", "epochs": 2 } }
            ],
            "ensembles": [{ "name": "2 x a", "of": "a" }],
            "baseline": "a"
        }))?;
        study.check()?;
        Ok(study)
    }

    #[test]
    fn settings_come_from_preset_method_common_and_entry_in_this_order() {
        let tasks = study(json!({ "method": "swa", "width": 0.25 })).unwrap().tasks().unwrap();
        let folders: Vec<_> = tasks.iter().map(|task| task.folder.to_str().unwrap()).collect();
        assert_eq!(folders, ["out/a-seed0", "out/a-seed1", "out/b-seed4"]);
        let (a, b) = (&tasks[1].settings, &tasks[2].settings);
        assert_eq!((a.method, a.swa, a.width, a.epochs), (Method::Swa, 0.25, 0.25, 3));
        assert_eq!((b.method, b.epochs, b.lr, b.seed), (Method::Ivon, 2, 0.5, 4));
    }

    #[test]
    fn what_is_wrong_is_found_before_anything_is_trained() {
        let refused = |settings| format!("{:#}", study(settings).unwrap_err());
        assert!(refused(json!({ "metod": "map" })).contains("metod"));
        assert!(refused(json!({ "width": -1.0 })).contains("width"));
        assert!(refused(json!({ "method": "swag" })).contains("swag"));
    }

    #[test]
    fn shards_cover_every_training_once() {
        let shards: Vec<Shard> = (1..=3).map(|i| format!("{i}/3").parse().unwrap()).collect();
        for place in 0..10 {
            assert_eq!(shards.iter().filter(|shard| shard.holds(place)).count(), 1);
        }
        assert!(["0/3", "4/3", "1", "a/b"].iter().all(|wrong| wrong.parse::<Shard>().is_err()));
    }

    #[test]
    fn the_committed_studies_can_be_used() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("studies");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
        assert!(files.len() >= 3);
        for file in files {
            Study::read(&file).unwrap();
        }
    }
}
