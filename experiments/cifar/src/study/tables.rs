//! The tables of a study: means over seeds with their standard deviations, the best in bold.

use anyhow::Result;
use lab::{Align, Cell, Table};

use super::Row;
use crate::comparison::group::Spread;
use crate::data::corruption::SEVERITIES;
use crate::evaluation::evidence::{Evidence, Shown};
use crate::evaluation::results::Way;
use crate::evaluation::tables::name as way_name;
use crate::run::Scores;

/// The ways to predict that are shown.
pub(super) const WAYS: [Way; 3] = [Way::Mean, Way::Expected, Way::MonteCarlo];

/// A column: its title, the number of a way to predict, digits, and whether a higher number is
/// better.
struct Column {
    title: &'static str,
    number: fn(&Shown) -> Option<f64>,
    digits: usize,
    higher: bool,
}

/// Each row in each way in which it can predict.
pub(super) fn shown(rows: &[Row]) -> impl Iterator<Item = (&Row, Way, String)> {
    rows.iter().flat_map(|row| {
        let has = |way: &Way| row.members.iter().all(|member| member.way(*way).is_some());
        let ways = WAYS.into_iter().filter(has);
        ways.map(move |way| (row, way, title(row, way)))
    })
}

fn title(row: &Row, way: Way) -> String {
    match row.members.first() {
        Some(member) => format!("{}, {}", row.name, way_name(way, &member.protocol)),
        None => row.name.clone(),
    }
}

/// The spread of a number over the members of a row.
pub(super) fn spread(
    row: &Row,
    way: Way,
    number: impl Fn(&Shown) -> Option<f64>,
) -> Option<Spread> {
    Spread::of(row.members.iter().filter_map(|member| number(member.way(way)?)))
}

fn text(spread: &Spread, digits: usize) -> String {
    match spread.deviation {
        Some(deviation) => format!("{:.digits$} ± {deviation:.digits$}", spread.mean),
        None => format!("{:.digits$}", spread.mean),
    }
}

/// A table of columns. The best number of each is bold, among single networks and among ensembles.
/// `costs` are further columns, with a cell for each row and way.
fn table(
    rows: &[Row],
    columns: &[Column],
    costs: &[(&'static str, Vec<Cell>)],
    caption: &str,
) -> Result<Table> {
    let titles = columns.iter().map(|column| column.title);
    let titles = titles.chain(costs.iter().map(|(title, _)| *title));
    let mut table = Table::new(["method"].into_iter().chain(titles)).caption(caption);
    for column in 1..=columns.len() + costs.len() {
        table = table.align(column, Align::Right);
    }
    let best = |column: &Column, is_ensemble: bool| -> Option<f64> {
        let same = shown(rows).filter(|(row, ..)| row.is_ensemble == is_ensemble);
        let means = same.filter_map(|(row, way, _)| Some(spread(row, way, column.number)?.mean));
        means.reduce(|a, b| if column.higher { a.max(b) } else { a.min(b) })
    };
    for (place, (row, way, title)) in shown(rows).enumerate() {
        let cells = columns.iter().map(|column| match spread(row, way, column.number) {
            Some(spread) => {
                let text = text(&spread, column.digits);
                let is_best = best(column, row.is_ensemble) == Some(spread.mean);
                Cell::from(if is_best { format!("**{text}**") } else { text })
            }
            None => "–".into(),
        });
        let costs = costs.iter().map(|(_, cells)| cells[place].clone());
        table.row([Cell::from(title)].into_iter().chain(cells).chain(costs))?;
    }
    Ok(table)
}

/// Accuracy, likelihood and calibration, with and without a temperature, and what they cost.
pub(super) fn main(rows: &[Row], baseline: &str) -> Result<Table> {
    let columns = [
        column("accuracy", 4, true, |shown| Some(shown.measured.all.accuracy)),
        column("NLL", 4, false, |shown| Some(shown.measured.all.nll)),
        column("Brier", 4, false, |shown| Some(shown.measured.all.brier)),
        column("ECE", 4, false, |shown| Some(shown.measured.all.ece)),
        column("adaptive ECE", 4, false, |shown| Some(shown.measured.all.adaptive_ece)),
        column("classwise ECE", 4, false, |shown| Some(shown.measured.all.classwise_ece)),
        column("NLL at T", 4, false, |shown| Some(shown.measured.tempered.after.nll)),
        column("ECE at T", 4, false, |shown| Some(shown.measured.tempered.after.ece)),
    ];
    let caption = "Test images. T is a temperature, fitted to other images. Times are relative.";
    table(rows, &columns, &costs(rows, baseline), caption)
}

/// What training and prediction cost, relative to the baseline with noise off.
fn costs(rows: &[Row], baseline: &str) -> [(&'static str, Vec<Cell>); 2] {
    let base = rows.iter().find(|row| row.name == baseline && !row.is_ensemble);
    let training = |row: &Row| Some(Spread::of(row.seconds.iter().copied())?.mean);
    let cells = |cost: &dyn Fn(&Row, Way) -> Option<f64>| -> Vec<Cell> {
        let base = base.and_then(|row| cost(row, Way::Mean));
        let ratio = |(row, way, _): (&Row, Way, String)| {
            let ratio = cost(row, way).zip(base).map(|(own, base)| own / base);
            ratio.filter(|r| r.is_finite()).map_or("–".into(), |r| format!("{r:.2}")).into()
        };
        shown(rows).map(ratio).collect()
    };
    [("training time", cells(&|row, _| training(row))), ("prediction time", cells(&prediction))]
}

/// Mean seconds of the prediction of the test images.
pub(super) fn prediction(row: &Row, way: Way) -> Option<f64> {
    Some(spread(row, way, |shown| Some(shown.seconds))?.mean)
}

fn column(
    title: &'static str,
    digits: usize,
    higher: bool,
    number: fn(&Shown) -> Option<f64>,
) -> Column {
    Column { title, number, digits, higher }
}

/// Abstaining, sets of classes, and the labels of people.
pub(super) fn decisions(rows: &[Row]) -> Result<Table> {
    fn size(shown: &Shown, name: &str) -> Option<f64> {
        Some(shown.sets.iter().find(|sets| sets.name == name)?.mean_size)
    }
    let columns = [
        column("AURC", 4, false, |shown| Some(shown.aurc)),
        column("coverage at 1 % risk", 3, true, |shown| Some(shown.coverage_at_1)),
        column("coverage at 5 % risk", 3, true, |shown| Some(shown.coverage_at_5)),
        column("THR size", 3, false, |shown| size(shown, "THR")),
        column("APS size", 3, false, |shown| size(shown, "APS")),
        column("RAPS size", 3, false, |shown| size(shown, "RAPS")),
        column("THR coverage", 3, true, |shown| Some(shown.sets.first()?.coverage)),
        column("cross-entropy to people", 4, false, |shown| shown.human),
    ];
    table(
        rows,
        &columns,
        &[],
        "Sets of classes hold the true one with probability 0.9; smaller is better.",
    )
}

/// The mean of a score over all corruptions of a severity; 0 are the clean images.
pub(super) fn at_severity(
    shown: &Shown,
    severity: usize,
    score: fn(&Scores) -> f64,
) -> Option<f64> {
    if severity == 0 {
        let all = &shown.measured.all;
        return Some(score(&Scores { accuracy: all.accuracy, nll: all.nll, ece: all.ece }));
    }
    let values = shown.shifted.iter().filter(|shifted| shifted.severity == severity);
    Some(Spread::of(values.map(|shifted| score(&shifted.scores)))?.mean)
}

/// Accuracy, NLL and ECE over the severity of corruptions.
pub(super) fn shift(rows: &[Row]) -> Result<Table> {
    let header = ["method", "score", "clean"].into_iter().map(String::from);
    let severities = (1..=SEVERITIES).map(|severity| format!("severity {severity}"));
    let mut table = Table::new(header.chain(severities))
        .caption("Corrupted test images, means over all corruptions.");
    type Score = (&'static str, fn(&Scores) -> f64);
    let scores: [Score; 3] = [("accuracy", |s| s.accuracy), ("NLL", |s| s.nll), ("ECE", |s| s.ece)];
    for (row, way, title) in shown(rows) {
        for (name, score) in scores {
            let cells = (0..=SEVERITIES).map(|severity| {
                let spread = spread(row, way, |shown| at_severity(shown, severity, score));
                Cell::from(spread.map_or("–".into(), |spread| text(&spread, 4)))
            });
            let first = [Cell::from(title.as_str()), name.into()];
            table.row(first.into_iter().chain(cells))?;
        }
    }
    Ok(table)
}

/// How well foreign images are told from test images: AUROC, AUPR and FPR at 95 % TPR.
pub(super) fn foreign(rows: &[Row]) -> Result<Table> {
    let mut sets: Vec<String> = Vec::new();
    for told in all(rows).flat_map(|member| &member.ways).flat_map(|shown| &shown.foreign) {
        if !sets.contains(&told.images) {
            sets.push(told.images.clone());
        }
    }
    let header = ["method".to_owned(), "score".to_owned()].into_iter().chain(sets.clone());
    let mut table = Table::new(header)
        .caption("Foreign images against test images: AUROC / AUPR / FPR at 95 % TPR.");
    for (row, way, title) in shown(rows) {
        for score in ["entropy", "mutual information", "maximum probability", "energy"] {
            let cell = |set: &String| {
                let number = |pick: fn(&crate::evaluation::evidence::Told) -> f64| {
                    spread(row, way, |shown| {
                        let mut told = shown.foreign.iter();
                        told.find(|t| t.images == *set && t.score == score).map(pick)
                    })
                };
                let numbers = [number(|t| t.auroc), number(|t| t.aupr), number(|t| t.fpr95)];
                let numbers: Option<Vec<String>> =
                    numbers.iter().map(|n| Some(format!("{:.3}", n.as_ref()?.mean))).collect();
                numbers.map(|numbers| numbers.join(" / "))
            };
            let cells: Vec<Option<String>> = sets.iter().map(cell).collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let first = [Cell::from(title.as_str()), score.into()];
            let cells = cells.into_iter().map(|cell| Cell::from(cell.unwrap_or("–".into())));
            table.row(first.into_iter().chain(cells))?;
        }
    }
    Ok(table)
}

fn all(rows: &[Row]) -> impl Iterator<Item = &Evidence> {
    rows.iter().flat_map(|row| &row.members)
}

/// What was not measured, once each.
pub(super) fn left_out(rows: &[Row]) -> Vec<&String> {
    let mut lines: Vec<&String> = all(rows).flat_map(|member| &member.left_out).collect();
    lines.sort();
    lines.dedup();
    lines
}
