//! Measures the points of a landscape one after the other. Each point is appended to a journal, so
//! that a landscape can be stopped at any point and continued later.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::{Entries, Journal, OutDir};
use serde::{Deserialize, Serialize};

use super::family::{Directions, Family};
use super::probe::Probe;
use super::shape::Surface;
use crate::interrupt;
use crate::limits;

/// The journal of the points.
const POINTS: &str = "points.jsonl";

/// Everything that the value of a point depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The name of the layer.
    pub layer: String,
    /// Number of points along each coordinate.
    pub points: usize,
    /// Number of training images that the loss is measured on.
    pub images: usize,
    /// Number of images per batch, which are normalized together.
    pub batch: usize,
    /// Seed of the choice of images and of the random directions.
    pub seed: u64,
    /// The name of the data set.
    pub data: String,
    /// The SHA-256 of the trained network.
    pub network: String,
}

impl Settings {
    /// Describes what differs between these settings and those of a landscape that was begun.
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

/// A measured point, which is a line of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    family: Family,
    /// Its index in [`Family::points`].
    place: usize,
    /// The loss, or `None` if it is not finite. JSON keeps an f32 exactly.
    loss: Option<f32>,
}

/// The journal of a landscape, and the points that it holds.
pub struct Measured {
    journal: Journal,
    /// All points that have a direction, and hence a loss.
    points: Vec<(Family, usize, [f64; 2])>,
    losses: HashMap<(Family, usize), Option<f32>>,
    settings: Settings,
}

impl Measured {
    /// Continues the landscape in a folder, or begins one. A landscape with other settings is
    /// refused, unless `fresh` asks to start over; its journal is then kept under another name.
    pub fn open(out: &OutDir, settings: Settings, fresh: bool) -> Result<Self> {
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

    /// Number of points in all.
    pub fn total(&self) -> usize {
        self.points.len()
    }

    /// Number of points that are still to be measured.
    pub fn left(&self) -> usize {
        self.todo().len()
    }

    fn todo(&self) -> Vec<(Family, usize, [f64; 2])> {
        let points = self.points.iter().copied();
        let is_open = |(family, place, _): &_| !self.losses.contains_key(&(*family, *place));
        points.filter(is_open).collect()
    }

    /// Measures the points that are left. Returns whether all points have been measured, which is
    /// not the case if the program was interrupted.
    pub fn go_on(&mut self, probe: &Probe, directions: &Directions) -> Result<bool> {
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
    pub fn surface(&self, family: Family) -> Surface {
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
    limits::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let Entries { settings: begun, .. } = match Journal::read::<Settings, Point>(path) {
        Ok(entries) => entries,
        // A process that was killed while it wrote the first line has left nothing to continue.
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

/// Whether a file has no complete line.
fn is_empty(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| !bytes.contains(&b'\n'))
}

/// The loss of the trained network, and the time that one point takes.
pub fn middle(probe: &Probe) -> Result<(f32, Duration)> {
    // The first pass also allocates memory and, on a GPU, compiles kernels. The fastest of the
    // others is taken, because other programs may slow some of them down.
    let loss = probe.loss(None)?;
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        probe.loss(None)?;
        fastest = fastest.min(begin.elapsed());
    }
    Ok((loss, fastest))
}
