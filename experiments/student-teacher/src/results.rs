//! The outcomes of a whole run, by point.

use std::collections::HashMap;

use anyhow::{Result, bail};
use lab::Csv;
use vmf_core::expected_cosine;

use crate::closed_form;
use crate::diagnostics::mean_and_variance;
use crate::nonlinear;
use crate::settings::{Gain, Point, Settings};
use crate::student::Learned;
use crate::tasks::{Compared, Done, Outcome, Task};

/// A mean over seeds with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// One standard error; zero for a single seed.
    pub error: f64,
}

impl Estimate {
    /// The mean of these values.
    pub fn of(values: &[f64]) -> Self {
        let (mean, variance) = mean_and_variance(values);
        Self { mean, error: (variance / values.len() as f64).sqrt() }
    }
}

/// The outcomes of a whole run.
#[derive(Clone, Debug)]
pub struct Results {
    /// The settings of the run.
    pub settings: Settings,
    done: Vec<Done>,
}

impl Results {
    /// Sorts outcomes by the list of tasks. Refuses an incomplete run, and results that contradict
    /// each other.
    pub fn new(settings: Settings, done: Vec<Done>) -> Result<Self> {
        let mut by_name: HashMap<String, Done> = HashMap::new();
        for done in done {
            let name = done.task.name();
            if let Some(other) = by_name.insert(name.clone(), done)
                && other != done
            {
                bail!("two different results for {name}: were they made by different versions?");
            }
        }
        let tasks = Task::list(&settings);
        let mut ordered = Vec::with_capacity(tasks.len());
        let mut missing = Vec::new();
        for task in &tasks {
            match by_name.get(&task.name()) {
                Some(done) => ordered.push(*done),
                None => missing.push(task.name()),
            }
        }
        if let Some(first) = missing.first() {
            bail!(
                "{} of {} results are missing, such as {first}: run the missing parts, or go on with a stopped one with --resume",
                missing.len(),
                tasks.len()
            );
        }
        Ok(Self { settings, done: ordered })
    }

    /// The linear students at a point, by seed.
    pub fn linear(&self, at: &Point, kind: Gain) -> Vec<Learned> {
        self.pick(|done| match (done.task, done.outcome) {
            (Task::Linear { point, gain, .. }, Outcome::Linear(learned))
                if point == *at && gain == kind =>
            {
                Some(learned)
            }
            _ => None,
        })
    }

    /// The comparisons with the exact posterior at a point, by seed.
    pub fn exact(&self, at: &Point) -> Vec<Compared> {
        self.pick(|done| match (done.task, done.outcome) {
            (Task::Exact { point, .. }, Outcome::Exact(compared)) if point == *at => Some(compared),
            _ => None,
        })
    }

    /// The students of the nonlinear teacher at a point, by seed.
    pub fn nonlinear(&self, at: &Point) -> Vec<nonlinear::Learned> {
        self.pick(|done| match (done.task, done.outcome) {
            (Task::Nonlinear { point, .. }, Outcome::Nonlinear(learned)) if point == *at => {
                Some(learned)
            }
            _ => None,
        })
    }

    fn pick<T>(&self, choose: impl Fn(&Done) -> Option<T>) -> Vec<T> {
        self.done.iter().filter_map(choose).collect()
    }

    /// sigma_eff in closed form at a point. With a learned gain it depends on the covariance with
    /// the targets; here that is the average of least squares.
    pub fn predicted_sigma(&self, point: &Point, gain: Gain) -> f64 {
        let beta = self.settings.beta;
        match gain {
            Gain::Fixed => closed_form::sigma_fixed_gain(point, beta),
            Gain::Learned => {
                let covariance = closed_form::expected_covariance(point);
                closed_form::sigma_learned_gain(point, beta, covariance)
            }
        }
    }

    /// sigma_eff in closed form for one student, with its own covariance.
    pub fn predicted_sigma_of(&self, point: &Point, gain: Gain, learned: &Learned) -> f64 {
        match gain {
            Gain::Fixed => self.predicted_sigma(point, gain),
            Gain::Learned => {
                closed_form::sigma_learned_gain(point, self.settings.beta, learned.covariance)
            }
        }
    }

    /// All linear students, a row each.
    pub fn csv(&self) -> Result<Csv> {
        let mut csv = Csv::new([
            "noise",
            "dim",
            "samples",
            "gain_kind",
            "seed",
            "cosine",
            "sigma_eff",
            "a",
            "gain",
            "covariance",
            "sigma_closed_form",
            "cosine_to_least_squares",
        ]);
        for done in &self.done {
            if let (Task::Linear { point, gain, seed }, Outcome::Linear(learned)) =
                (done.task, done.outcome)
            {
                let kind = match gain {
                    Gain::Learned => "learned",
                    Gain::Fixed => "fixed",
                };
                csv.row([
                    point.noise.into(),
                    point.dim.into(),
                    point.samples.into(),
                    kind.into(),
                    seed.into(),
                    learned.cosine.into(),
                    learned.sigma.into(),
                    expected_cosine(learned.sigma).into(),
                    learned.gain.into(),
                    learned.covariance.into(),
                    self.predicted_sigma_of(&point, gain, &learned).into(),
                    learned.stationary.into(),
                ])?;
            }
        }
        Ok(csv)
    }
}
