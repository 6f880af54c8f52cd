//! The settings of a run, and which of them make sense.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The difficulty of a student's task: how noisy, how wide, and how much data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The standard deviation of the observation noise, `s`.
    pub noise: f64,
    /// Input dimension, `D`.
    pub dim: usize,
    /// Size of the training set, `N`.
    pub samples: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s = {}, D = {}, N = {}", self.noise, self.dim, self.samples)
    }
}

/// Whether the student may scale its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gain {
    /// A gain that is learned.
    Learned,
    /// The gain 1.
    Fixed,
}

/// The variable of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// Observation noise.
    Noise,
    /// Input dimension.
    Dim,
    /// Sample size.
    Samples,
}

impl Variable {
    /// All of them, in the order of the figure.
    pub const ALL: [Self; 3] = [Self::Noise, Self::Dim, Self::Samples];

    /// Its value at a point.
    pub fn of(self, point: &Point) -> f64 {
        match self {
            Self::Noise => point.noise,
            Self::Dim => point.dim as f64,
            Self::Samples => point.samples as f64,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noise => "observation noise s",
            Self::Dim => "input dimension D",
            Self::Samples => "sample size N",
        }
    }
}

/// More students would not fit in the list of tasks, nor in a lifetime.
const MOST_SEEDS: u64 = 10_000;
/// Noise and beta up to this keep their squares within single precision.
const LARGEST: f64 = 1e6;

/// The settings of a run. Two runs with equal settings have equal results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The sweep of the observation noise.
    pub noise: Vec<f64>,
    /// The sweep of the input dimension.
    pub dims: Vec<usize>,
    /// The sweep of the sample size.
    pub samples: Vec<usize>,
    /// The point that stays fixed while one variable is swept.
    pub base: Point,
    /// The number of students at each point.
    pub seeds: u64,
    /// The kinds of student.
    pub gains: Vec<Gain>,
    /// The weight of the KL; 1 is the evidence lower bound.
    pub beta: f64,
    /// The number of Adam steps for each student.
    pub steps: u32,
    /// Adam's first learning rate. That of the noise parameter is twice as large.
    pub lr: f64,
    /// Whether to go beyond the sweeps, to the exact posterior and the nonlinear teacher.
    pub beyond: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            noise: vec![0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0],
            dims: vec![10, 20, 50, 100, 150, 200, 300],
            samples: vec![300, 500, 1000, 2000, 4000, 8000],
            base: Point { noise: 1.0, dim: 100, samples: 1000 },
            seeds: 5,
            gains: vec![Gain::Learned, Gain::Fixed],
            beta: 1.0,
            steps: 1500,
            lr: 1e-2,
            beyond: true,
        }
    }
}

impl Settings {
    /// The points of one sweep, in the order of its variable.
    pub fn sweep(&self, variable: Variable) -> Vec<Point> {
        let base = self.base;
        let mut points: Vec<Point> = match variable {
            Variable::Noise => self.noise.iter().map(|&noise| Point { noise, ..base }).collect(),
            Variable::Dim => self.dims.iter().map(|&dim| Point { dim, ..base }).collect(),
            Variable::Samples => {
                self.samples.iter().map(|&samples| Point { samples, ..base }).collect()
            }
        };
        points.sort_by(|a, b| variable.of(a).total_cmp(&variable.of(b)));
        points.dedup();
        points
    }

    /// Refuses settings that make no sense, and says what is allowed.
    pub fn check(&self) -> Result<()> {
        for (option, empty, example) in [
            ("--noise", self.noise.is_empty(), "0.5,1,2"),
            ("--dims", self.dims.is_empty(), "10,100"),
            ("--samples", self.samples.is_empty(), "500,1000"),
        ] {
            ensure!(!empty, "{option}: a sweep needs at least one value, such as {example}");
        }
        for variable in Variable::ALL {
            for point in self.sweep(variable) {
                check_point(&point)?;
            }
        }
        ensure!(
            (1..=MOST_SEEDS).contains(&self.seeds),
            "--seeds {}: each point needs at least one student, and has at most {MOST_SEEDS}",
            self.seeds
        );
        ensure!(!self.gains.is_empty(), "--gain: choose learned, fixed or both");
        ensure!(
            self.beta > 0.0 && self.beta <= LARGEST,
            "--beta {}: it must be positive, and at most {LARGEST:e}; without a KL, nothing keeps sigma_eff from 0",
            self.beta
        );
        ensure!(self.steps >= 1, "--steps {}: at least one step", self.steps);
        ensure!(self.lr > 0.0 && self.lr <= 1.0, "--lr {}: it must lie in (0, 1]", self.lr);
        Ok(())
    }
}

fn check_point(point: &Point) -> Result<()> {
    ensure!(
        (1.0 / LARGEST..=LARGEST).contains(&point.noise),
        "observation noise {}: it must be positive, from {:e} to {LARGEST:e}, because the likelihood divides by its square",
        point.noise,
        1.0 / LARGEST
    );
    ensure!(point.dim >= 2, "D = {}: directions exist from dimension 2 on", point.dim);
    ensure!(
        point.samples >= 2,
        "N = {}: normalization over the sample needs at least 2 examples",
        point.samples
    );
    let numbers = point.dim.checked_mul(point.samples);
    ensure!(
        numbers.is_some_and(|count| count <= 1 << 27),
        "D = {} with N = {}: at most 2^27 input values are drawn, a gigabyte",
        point.dim,
        point.samples
    );
    Ok(())
}

/// A part of a run: the `index`-th of `count`, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Whether the task at this place of the list belongs to the part. Neighbouring tasks take
    /// about the same time, so they go to different parts.
    pub fn holds(&self, place: usize) -> bool {
        place % self.count == self.index - 1
    }

    /// The file name of the part's results.
    pub fn file_name(&self) -> String {
        format!("results-{}-of-{}.jsonl", self.index, self.count)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text
            .split_once('/')
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match parsed {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => bail!("write it as i/n with i from 1 to n, such as 1/4"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_sorted_and_holds_each_point_once() {
        let settings = Settings { dims: vec![20, 5, 20], ..Settings::default() };
        let dims: Vec<usize> = settings.sweep(Variable::Dim).iter().map(|p| p.dim).collect();
        assert_eq!(dims, [5, 20]);
    }

    #[test]
    fn bad_settings_are_refused_with_what_is_allowed() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(with(|s| s.noise = vec![]).contains("at least one value"));
        assert!(with(|s| s.noise = vec![1.0, -0.5]).contains("must be positive"));
        assert!(with(|s| s.noise = vec![f64::NAN]).contains("must be positive"));
        assert!(with(|s| s.dims = vec![1]).contains("from dimension 2"));
        assert!(with(|s| s.samples = vec![1]).contains("at least 2 examples"));
        assert!(with(|s| s.noise = vec![1e-300]).contains("from 1e-6 to 1e6"));
        assert!(with(|s| s.noise = vec![1e300]).contains("from 1e-6 to 1e6"));
        assert!(with(|s| s.dims = vec![usize::MAX]).contains("at most 2^27"));
        assert!(with(|s| s.seeds = u64::MAX).contains("at most 10000"));
        assert!(with(|s| s.beta = f64::MAX).contains("at most 1e6"));
        assert!(with(|s| s.seeds = 0).contains("at least one student"));
        assert!(with(|s| s.beta = 0.0).contains("must be positive"));
        assert!(with(|s| s.lr = 2.0).contains("(0, 1]"));
        assert!(with(|s| s.steps = 0).contains("at least one step"));
        Settings::default().check().unwrap();
    }

    #[test]
    fn shards_cover_everything_once() {
        let shards: Vec<Shard> = (1..=3).map(|i| format!("{i}/3").parse().unwrap()).collect();
        for place in 0..20 {
            assert_eq!(shards.iter().filter(|s| s.holds(place)).count(), 1);
        }
        for wrong in ["0/3", "4/3", "1", "a/b", "1/0", ""] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
