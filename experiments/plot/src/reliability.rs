//! The reliability diagram: is a network right as often as its confidence says?

use crate::axis::Axis;
use crate::color::Color;
use crate::panel::Panel;
use crate::series::Series;

/// A bin of predictions of similar confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReliabilityBin {
    /// The lowest confidence of the bin.
    pub low: f64,
    /// The highest confidence of the bin.
    pub high: f64,
    /// The mean confidence of its predictions.
    pub confidence: f64,
    /// The share of them that are right.
    pub accuracy: f64,
    /// The share of all predictions that fall into it. An empty bin is not drawn.
    pub share: f64,
}

impl Panel {
    /// A reliability diagram: accuracy as bars, the gap to the confidence as hatched bars, and the
    /// line of a calibrated network.
    pub fn reliability(title: impl Into<String>, bins: &[ReliabilityBin]) -> Self {
        let bins: Vec<&ReliabilityBin> = bins.iter().filter(|bin| bin.share > 0.0).collect();
        let mut panel = Panel::new(title)
            .x(Axis::linear("confidence").range(0.0, 1.0))
            .y(Axis::linear("accuracy").range(0.0, 1.0))
            .square();
        // Bins of equal mass differ in width, but a series has one width: each width gets a series.
        let column = |bins: &[&ReliabilityBin], f: fn(&ReliabilityBin) -> f64| -> Vec<f64> {
            bins.iter().map(|bin| f(bin)).collect()
        };
        for same_width in bins.chunk_by(|a, b| (width(a) - width(b)).abs() < 1e-9) {
            let center = column(same_width, |bin| (bin.low + bin.high) / 2.0);
            let accuracy = column(same_width, |bin| bin.accuracy);
            let confidence = column(same_width, |bin| bin.confidence);
            let (zero, width) = (vec![0.0; center.len()], width(same_width[0]));
            panel = panel
                .series(
                    Series::bars("accuracy", &center, (&zero, &accuracy), width, false)
                        .color(Color::BLUE),
                )
                .series(
                    Series::bars(
                        "gap to confidence",
                        &center,
                        (&accuracy, &confidence),
                        width,
                        true,
                    )
                    .color(Color::VERMILION),
                );
        }
        panel.diagonal("calibrated")
    }
}

fn width(bin: &ReliabilityBin) -> f64 {
    bin.high - bin.low
}
