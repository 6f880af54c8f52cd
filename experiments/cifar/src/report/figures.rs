//! The figures of a report.

use plot::{Axis, Color, Dash, Figure, Heatmap, Legend, Marker, Panel, ReliabilityBin, Series};
use vmf_candle::posterior::Summary;

use crate::evaluation::results::{Quality, Tempered};
use crate::run::{Record, Scores};

/// Curves of up to this many epochs have markers: a line through a single epoch would be invisible.
const MARKED_EPOCHS: usize = 12;

/// Scores and sigma_eff of each layer after each epoch.
pub(super) fn training(records: &[Record]) -> Figure {
    let mut figure = Figure::new("")
        .columns(2)
        .aspect(0.62)
        .panel(curves(records, "(A) Likelihood", "NLL (nats)", |scores| scores.nll))
        .panel(curves(records, "(B) Accuracy", "accuracy", |scores| scores.accuracy))
        .panel(curves(records, "(C) Calibration", "ECE", |scores| scores.ece));
    let layers = records.iter().map(|record| record.sigma_eff.len()).min();
    let layers = layers.unwrap_or(0);
    if layers > 1 && records.len() > 1 {
        figure = figure.panel(noise_in_training(records, layers));
    }
    figure
}

fn curves(records: &[Record], title: &str, quantity: &str, score: fn(&Scores) -> f64) -> Panel {
    let epochs = epochs(records);
    let curve = |label: &str, scores: fn(&Record) -> &Scores| {
        let values: Vec<f64> = records.iter().map(|record| score(scores(record))).collect();
        if epochs.len() <= MARKED_EPOCHS {
            Series::line_points(label, &epochs, values)
        } else {
            Series::line(label, &epochs, values)
        }
    };
    Panel::new(title)
        .x(Axis::linear("epoch").integers())
        .y(Axis::linear(quantity))
        .series(curve("test", |record| &record.test))
        .series(curve("training", |record| &record.train))
}

fn epochs(records: &[Record]) -> Vec<f64> {
    records.iter().map(|record| record.epoch as f64).collect()
}

fn noise_in_training(records: &[Record], layers: usize) -> Panel {
    let numbers: Vec<f64> = (1..=layers).map(|layer| layer as f64).collect();
    let row = |layer: usize| records.iter().map(move |record| record.sigma_eff[layer].sigma_eff);
    let values: Vec<f64> = (0..layers).flat_map(row).collect();
    Panel::new("(D) Noise")
        .x(Axis::linear("epoch").integers())
        .y(Axis::linear("layer, first to last").integers())
        .heatmap(Heatmap::new(Axis::log("σ_{eff}"), epochs(records), numbers, values))
}

/// Reliability diagrams of each way to predict, before and after temperature scaling.
pub(super) fn reliability<'a>(ways: impl Iterator<Item = (String, &'a Tempered)>) -> Figure {
    let panel = |title: &str, note: String, quality: &Quality| {
        let total: usize = quality.bins.iter().map(|bin| bin.count).sum();
        let bins: Vec<ReliabilityBin> = quality
            .bins
            .iter()
            .map(|bin| ReliabilityBin {
                low: bin.lower,
                high: bin.upper,
                confidence: bin.confidence,
                accuracy: bin.accuracy,
                share: bin.count as f64 / total as f64,
            })
            .collect();
        let note = format!("{note}, ECE {:.4}", quality.ece);
        Panel::reliability(title, &bins).note(note)
    };
    ways.fold(Figure::new("").columns(4).legend(Legend::Below), |figure, (way, tempered)| {
        let temperature = format!("T = {:.3}", tempered.temperature);
        figure.panel(panel(&way, "T = 1".into(), &tempered.before)).panel(panel(
            &way,
            temperature,
            &tempered.after,
        ))
    })
}

/// sigma_eff of each layer, and the expected cosine between a sampled and the mean direction.
pub(super) fn noise(summary: &Summary) -> Figure {
    let layers: Vec<f64> = (1..=summary.layers().len()).map(|layer| layer as f64).collect();
    let sigmas: Vec<f64> = summary.iter().map(|layer| layer.sigma_eff()).collect();
    let cosines: Vec<f64> = summary.iter().map(|layer| layer.expected_cosine).collect();
    let panel = |title: &str, axis: Axis, values: &[f64]| {
        let series = Series::line_points(title, &layers, values);
        Panel::new(title)
            .x(Axis::linear("layer, from first to last").integers())
            .y(axis)
            .series(series.color(Color::BLUE).dash(Dash::Solid).marker(Marker::Circle))
    };
    Figure::new("")
        .columns(2)
        .aspect(0.62)
        .legend(Legend::Hidden)
        .panel(panel("Noise", Axis::log("σ_{eff}"), &sigmas))
        .panel(panel("Expected cosine", Axis::linear("A").range(0.0, 1.05), &cosines))
}
