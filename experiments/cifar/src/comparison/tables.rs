//! The tables of a comparison, for people and as CSV.

use anyhow::Result;
use lab::{Align, Cell, Csv, Field, Table, Tone};

use super::Comparison;
use super::group::{Group, Spread};
use crate::evaluation::results::{Measured, Way};
use crate::evaluation::tables as evaluated;

/// The ways to predict that are compared: the best one without noise, and the one with noise.
pub(super) const WAYS: [Way; 3] = [Way::Mean, Way::Expected, Way::MonteCarlo];

/// A score with its name in files.
pub(super) type Score = (&'static str, fn(&Measured) -> f64);

/// The scores on all test images.
pub(super) const SCORES: [Score; 6] = [
    ("accuracy", |measured| measured.all.accuracy),
    ("nll", |measured| measured.all.nll),
    ("brier", |measured| measured.all.brier),
    ("ece", |measured| measured.all.ece),
    ("adaptive_ece", |measured| measured.all.adaptive_ece),
    ("classwise_ece", |measured| measured.all.classwise_ece),
];

/// The effect of temperature scaling, on images that the temperature was not fitted to.
pub(super) const TEMPERED: [Score; 5] = [
    ("temperature", |measured| measured.tempered.temperature),
    ("nll_before", |measured| measured.tempered.before.nll),
    ("nll_after", |measured| measured.tempered.after.nll),
    ("ece_before", |measured| measured.tempered.before.ece),
    ("ece_after", |measured| measured.tempered.after.ece),
];

impl Comparison {
    /// The ECE of the baseline without noise, divided by the ECE of this group.
    pub fn ece_ratio(&self, group: &Group, way: Way) -> Option<f64> {
        let ece = |group: &Group, way| group.spread(way, |measured| measured.all.ece);
        let baseline = ece(&self.groups[self.baseline], Way::Mean)?;
        Some(baseline.mean / ece(group, way)?.mean)
    }

    /// Each configuration with each way in which it can predict.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Group, Way)> {
        let can = |group: &Group, way| group.spread(way, |_| 0.0).is_some();
        let groups = self.groups.iter();
        groups.flat_map(move |group| {
            let ways = WAYS.into_iter().filter(move |way| can(group, *way));
            ways.map(move |way| (group, way))
        })
    }
}

/// `0.8031 ± 0.0040`, or the mean alone.
fn spread(spread: Option<Spread>, decimals: usize) -> Cell {
    match spread {
        None => "–".into(),
        Some(Spread { mean, deviation: None, .. }) => format!("{mean:.decimals$}").into(),
        Some(Spread { mean, deviation: Some(deviation), .. }) => {
            format!("{mean:.decimals$} ± {deviation:.decimals$}").into()
        }
    }
}

/// The main table: accuracy, likelihood, calibration, and the baseline's calibration error divided
/// by each network's.
pub fn scores(comparison: &Comparison) -> Result<Table> {
    let header =
        ["network", "prediction", "runs", "accuracy", "NLL", "Brier", "ECE", "baseline ECE / ECE"];
    let mut table = Table::new(header).caption(format!(
        "{}, {} test images. Mean ± standard deviation over runs that differ only in their seed. The baseline is {}, noise off.",
        comparison.data,
        comparison.protocol.test_images,
        comparison.groups[comparison.baseline].label
    ));
    for column in 2..header.len() {
        table = table.align(column, Align::Right);
    }
    for (group, way) in comparison.rows() {
        let score = |number: fn(&Measured) -> f64| spread(group.spread(way, number), 4);
        table.row([
            group.label.as_str().into(),
            evaluated::name(way, &comparison.protocol).into(),
            group.members.len().into(),
            score(|measured| measured.all.accuracy),
            score(|measured| measured.all.nll),
            score(|measured| measured.all.brier),
            score(|measured| measured.all.ece),
            ratio(comparison.ece_ratio(group, way)),
        ])?;
    }
    Ok(table)
}

fn ratio(ratio: Option<f64>) -> Cell {
    let Some(ratio) = ratio.filter(|ratio| ratio.is_finite()) else {
        return "–".into();
    };
    let cell = Cell::from(format!("{ratio:.2}"));
    match ratio {
        ratio if ratio >= 1.05 => cell.tone(Tone::Good),
        ratio if ratio <= 0.95 => cell.tone(Tone::Warning),
        _ => cell,
    }
}

/// The effect of temperature scaling on each configuration.
pub(super) fn tempered(comparison: &Comparison) -> Result<Table> {
    let header = ["network", "prediction", "T", "NLL at T = 1", "NLL", "ECE at T = 1", "ECE"];
    let mut table = Table::new(header).caption(format!("{}.", comparison.protocol.fit_in_words()));
    for column in 2..header.len() {
        table = table.align(column, Align::Right);
    }
    for (group, way) in comparison.rows() {
        let first: [Cell; 2] =
            [group.label.as_str().into(), evaluated::name(way, &comparison.protocol).into()];
        let numbers = TEMPERED.map(|(_, number)| spread(group.spread(way, number), 4));
        table.row(first.into_iter().chain(numbers))?;
    }
    Ok(table)
}

/// All scores, one row per configuration and way to predict.
pub(super) fn csv(comparison: &Comparison) -> Result<Csv> {
    let numbers = || SCORES.iter().chain(&TEMPERED);
    let mut header: Vec<String> = ["network", "prediction", "runs"].map(String::from).into();
    for (name, _) in numbers() {
        header.extend([name.to_string(), format!("{name}_deviation")]);
    }
    header.push("ece_ratio".into());
    let mut csv = Csv::new(header);
    let or_empty = |number: Option<f64>| number.map_or("".into(), Field::from);
    for (group, way) in comparison.rows() {
        let mut row: Vec<Field> =
            vec![group.label.as_str().into(), way_name(way).into(), group.members.len().into()];
        for (_, number) in numbers() {
            let spread = group.spread(way, number);
            row.push(or_empty(spread.as_ref().map(|spread| spread.mean)));
            row.push(or_empty(spread.and_then(|spread| spread.deviation)));
        }
        row.push(or_empty(comparison.ece_ratio(group, way)));
        csv.row(row)?;
    }
    Ok(csv)
}

/// The name of a way in files.
pub(super) fn way_name(way: Way) -> String {
    let name = serde_json::to_value(way).ok();
    name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}
