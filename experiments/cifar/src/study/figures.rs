//! The figures of a study.

use plot::{Axis, Figure, Legend, Panel, Series};

use super::Row;
use super::tables::{at_severity, prediction, shown, spread};
use crate::data::corruption::SEVERITIES;
use crate::evaluation::results::Way;
use crate::run::Scores;

/// Accuracy, likelihood and calibration error over the severity of corruptions.
pub(super) fn shift(rows: &[Row]) -> Figure {
    let panel = |title: &str, quantity: &str, score: fn(&Scores) -> f64| {
        let severity = Axis::linear("severity").integers();
        let mut panel = Panel::new(title).x(severity).y(Axis::linear(quantity));
        for (row, way, title) in shown(rows) {
            let points = (0..=SEVERITIES).filter_map(|severity| {
                let spread = spread(row, way, |shown| at_severity(shown, severity, score))?;
                Some((severity as f64, spread.mean, spread.deviation.unwrap_or(0.0)))
            });
            let points: Vec<_> = points.collect();
            let each = |pick: fn(&(f64, f64, f64)) -> f64| -> Vec<f64> {
                points.iter().map(pick).collect()
            };
            let mut series = Series::line_points(title, each(|p| p.0), each(|p| p.1));
            if row.members.len() > 1 {
                series = series.errors(each(|p| p.2));
            }
            panel = panel.series(series);
        }
        panel
    };
    Figure::new("Corrupted test images")
        .subtitle("means over all corruptions; severity 0 are the clean images")
        .legend(Legend::Below)
        .columns(3)
        .panel(panel("(A) Accuracy", "accuracy", |scores| scores.accuracy))
        .panel(panel("(B) Likelihood", "NLL (nats)", |scores| scores.nll))
        .panel(panel("(C) Calibration error", "ECE", |scores| scores.ece))
}

/// Likelihood over the cost of a prediction, relative to one pass of the baseline.
pub(super) fn cost(rows: &[Row], baseline: &str) -> Figure {
    let base = rows.iter().find(|row| row.name == baseline && !row.is_ensemble);
    let base = base.and_then(|row| prediction(row, Way::Mean));
    let mut panel = Panel::new("")
        .x(Axis::log("cost of a prediction, in passes of the baseline"))
        .y(Axis::linear("test NLL (nats)"));
    for (row, way, title) in shown(rows) {
        let nll = spread(row, way, |shown| Some(shown.measured.all.nll));
        let cost = prediction(row, way).zip(base).map(|(own, base)| own / base);
        if let (Some(nll), Some(cost)) = (nll, cost) {
            panel = panel.series(Series::points(title, [cost], [nll.mean]));
        }
    }
    Figure::new("Cost and quality").legend(Legend::Below).panel(panel)
}
