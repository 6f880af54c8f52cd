//! The points of a landscape, measured one after the other and kept, so that it can be stopped at
//! any of them.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lab::{Entries, Journal, OutDir};
use serde::{Deserialize, Serialize};

use super::family::{Directions, Family};
use super::probe::Probe;
use super::shape::Surface;
use crate::interrupt;

/// The journal of the points.
const POINTS: &str = "points.jsonl";

/// What decides the value of every point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// The layer.
    pub(super) layer: String,
    /// Points along each coordinate.
    pub(super) points: usize,
    /// Training images that the loss is measured on.
    pub(super) images: usize,
    /// Images that are normalized together.
    pub(super) batch: usize,
    /// The seed of images and directions.
    pub(super) seed: u64,
    /// The data set.
    pub(super) data: String,
    /// The SHA-256 of the trained network.
    pub(super) network: String,
}

impl Settings {
    /// What differs between a landscape that was begun and this one, in words.
    fn difference(&self, begun: &Self) -> Option<String> {
        let text = |settings: &Self| {
            [
                ("--layer", settings.layer.clone()),
                ("--points", settings.points.to_string()),
                ("--images", settings.images.to_string()),
                ("--seed", settings.seed.to_string()),
            ]
        };
        let pairs = text(begun).into_iter().zip(text(self));
        let mut flags = pairs.filter(|(begun, now)| begun != now);
        if let Some(((name, begun), (_, now))) = flags.next() {
            return Some(format!("{name} {begun} instead of {now}"));
        }
        if begun.network != self.network {
            return Some("other weights: the network has been trained since".into());
        }
        (begun != self).then(|| "other images".into())
    }
}

/// A point that was measured: a line of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    family: Family,
    /// Its place in [`Family::points`].
    place: usize,
    /// In single precision, whose decimal form reads back to the very same number. None if it is
    /// not finite.
    loss: Option<f32>,
}

/// The journal of a landscape, with the points it holds.
pub(super) struct Measured {
    journal: Journal,
    /// All points that have a direction and so a loss.
    points: Vec<(Family, usize, [f64; 2])>,
    losses: HashMap<(Family, usize), Option<f32>>,
    settings: Settings,
}

impl Measured {
    /// Goes on with the landscape in a folder, or begins one. One that was begun with other
    /// settings is refused, unless a fresh one is asked for; its points are then kept beside
    /// the new ones.
    pub(super) fn open(out: &OutDir, settings: Settings, fresh: bool) -> Result<Self> {
        let path = out.file(POINTS);
        let (journal, measured) = if fresh {
            (Journal::create(&path, &settings)?, Vec::new())
        } else {
            ensure_fits(&path, &settings)?;
            Journal::resume::<Settings, Point>(&path, &settings)?
        };
        let points = Family::ALL.into_iter().flat_map(|family| {
            let points = family.points(settings.points).into_iter().enumerate();
            points
                .filter(move |(_, point)| family.angle(*point).is_some())
                .map(move |(place, point)| (family, place, point))
        });
        Ok(Self {
            journal,
            points: points.collect(),
            losses: measured
                .into_iter()
                .map(|point| ((point.family, point.place), point.loss))
                .collect(),
            settings,
        })
    }

    /// Points there are to measure in all.
    pub(super) fn total(&self) -> usize {
        self.points.len()
    }

    /// Points that are still to be measured.
    pub(super) fn left(&self) -> usize {
        self.todo().len()
    }

    fn todo(&self) -> Vec<(Family, usize, [f64; 2])> {
        let points = self.points.iter().copied();
        let is_open = |(family, place, _): &_| !self.losses.contains_key(&(*family, *place));
        points.filter(is_open).collect()
    }

    /// Measures what is left. Says whether all of it was, or it was asked to stop.
    pub(super) fn go_on(&mut self, probe: &Probe, directions: &Directions) -> Result<bool> {
        let bar = lab::ProgressBar::new("landscape", self.total() as u64);
        bar.advance((self.total() - self.left()) as u64);
        for (family, place, point) in self.todo() {
            if interrupt::asked() {
                return Ok(false);
            }
            let loss = probe.loss(Some(directions.weight(family, point)?))?;
            let loss = loss.is_finite().then_some(loss);
            self.journal.append(&Point { family, place, loss })?;
            self.losses.insert((family, place), loss);
            bar.advance(1);
        }
        Ok(true)
    }

    /// The losses of a family.
    pub(super) fn surface(&self, family: Family) -> Surface {
        let points = self.settings.points;
        let loss = |place| self.losses.get(&(family, place)).copied().flatten();
        Surface {
            family,
            points,
            values: (0..points * points).map(|place| loss(place).map(f64::from)).collect(),
        }
    }
}

fn ensure_fits(path: &Path, settings: &Settings) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let Entries { settings: begun, .. } = match Journal::read::<Settings, Point>(path) {
        Ok(entries) => entries,
        // A journal of a process that was killed at its first line is begun again.
        Err(lab::Error::Journal { .. }) if is_empty(path) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if let Some(difference) = settings.difference(&begun) {
        bail!(
            "{} was begun with {difference}; --fresh starts over and keeps what is there under another name",
            path.display()
        );
    }
    Ok(())
}

/// Whether a file holds no whole line.
fn is_empty(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| !bytes.contains(&b'\n'))
}

/// The loss of the trained network, and the time that a point takes.
pub(super) fn middle(probe: &Probe) -> Result<(f32, Duration)> {
    // The first pass also pays for memory and, on a GPU, for compilation; the others may be
    // disturbed.
    let loss = probe.loss(None)?;
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        probe.loss(None)?;
        fastest = fastest.min(begin.elapsed());
    }
    Ok((loss, fastest))
}
