//! The paper's figure: accuracy, likelihood, calibration and noise of each configuration.

use plot::{Axis, Figure, Legend, Panel, Series};

use super::Comparison;
use super::group::{Group, Spread};
use crate::evaluation::results::{Bin, Way};
use crate::run::Record;

/// A bin with fewer predictions than this is left out: its accuracy would be mostly chance.
const SMALLEST_BIN: usize = 10;
/// Curves of up to this many epochs have markers: a line through a single epoch would be invisible.
const MARKED_EPOCHS: usize = 12;
/// Panels with more groups than this draw no bands: too many overlapping bands cannot be told
/// apart.
const BANDS: usize = 2;

/// Six panels, or four if no network has noise.
pub(super) fn figure(comparison: &Comparison) -> Figure {
    let groups = &comparison.groups;
    let runs: usize = groups.iter().map(|group| group.members.len()).sum();
    let mut figure = Figure::new(format!("{} on {}", comparison.network(), comparison.data))
        .subtitle(subtitle(comparison, runs))
        .legend(Legend::Below)
        .columns(3)
        .panel(over_epochs(groups, "(A) Accuracy", "test accuracy", |record| record.test.accuracy))
        .panel(over_epochs(groups, "(B) Likelihood", "test NLL (nats)", |record| record.test.nll))
        .panel(calibration(groups))
        .panel(
            over_epochs(groups, "(D) Calibration error", "test ECE", |record| record.test.ece)
                .y(Axis::linear("test ECE").include(0.0)),
        );
    if groups.iter().any(|group| !group.profile().is_empty()) {
        figure = figure.panel(dynamics(groups)).panel(profile(groups));
    } else {
        figure = figure.columns(2);
    }
    figure
}

fn subtitle(comparison: &Comparison, runs: usize) -> String {
    let mut text = format!("one pass, {} test images", comparison.protocol.test_images);
    if runs > comparison.groups.len() {
        text += "; lines are means over seeds, bands and bars one standard deviation";
    }
    text
}

/// A number after each epoch: the mean over seeds, with a band of one standard deviation.
fn over_epochs(
    groups: &[Group],
    title: &str,
    quantity: &str,
    number: impl Fn(&Record) -> f64,
) -> Panel {
    let mut panel = Panel::new(title).x(Axis::linear("epoch").integers()).y(Axis::linear(quantity));
    for group in groups {
        let points = group.over_epochs(|record| Some(number(record)));
        panel = add(panel, &group.label, &points);
    }
    panel
}

fn add(mut panel: Panel, label: &str, points: &[(f64, Spread)]) -> Panel {
    let xs: Vec<f64> = points.iter().map(|(epoch, _)| *epoch).collect();
    let means: Vec<f64> = points.iter().map(|(_, spread)| spread.mean).collect();
    let deviations: Vec<f64> =
        points.iter().map(|(_, spread)| spread.deviation.unwrap_or(0.0)).collect();
    if deviations.iter().any(|deviation| *deviation > 0.0) {
        let shifted = |sign: f64| -> Vec<f64> {
            let pairs = means.iter().zip(&deviations);
            pairs.map(|(mean, deviation)| mean + sign * deviation).collect()
        };
        panel = panel.band(label, &xs, shifted(-1.0), shifted(1.0));
    }
    panel.series(if xs.len() <= MARKED_EPOCHS {
        Series::line_points(label, &xs, &means)
    } else {
        Series::line(label, &xs, &means)
    })
}

/// Accuracy against confidence, over the test images of all seeds.
fn calibration(groups: &[Group]) -> Panel {
    let mut panel = Panel::new("(C) Calibration")
        .note(format!("bins of at least {SMALLEST_BIN} predictions"))
        .x(Axis::linear("confidence").range(0.0, 1.0))
        .y(Axis::linear("accuracy").range(0.0, 1.0));
    for group in groups {
        let bins: Vec<Bin> =
            pooled(group).into_iter().filter(|bin| bin.count >= SMALLEST_BIN).collect();
        let confidence: Vec<f64> = bins.iter().map(|bin| bin.confidence).collect();
        let accuracy: Vec<f64> = bins.iter().map(|bin| bin.accuracy).collect();
        panel = panel.series(Series::line_points(&group.label, confidence, accuracy));
    }
    panel.diagonal("calibrated")
}

/// The reliability bins of all runs of a group in one pass, as in the records of their epochs,
/// merged bin by bin.
pub(super) fn pooled(group: &Group) -> Vec<Bin> {
    let evaluations = group.members.iter().map(|member| &member.evaluation);
    let mut bins: Vec<Bin> = evaluations
        .filter_map(|evaluation| evaluation.way(Way::Expected).or(evaluation.way(Way::Mean)))
        .flat_map(|measured| measured.all.bins.iter().copied())
        .collect();
    bins.sort_by(|a, b| a.lower.total_cmp(&b.lower));
    let together = |same: &[Bin]| {
        let count: usize = same.iter().map(|bin| bin.count).sum();
        let mean = |number: fn(&Bin) -> f64| {
            let sum: f64 = same.iter().map(|bin| bin.count as f64 * number(bin)).sum();
            sum / count.max(1) as f64
        };
        Bin {
            count,
            confidence: mean(|bin| bin.confidence),
            accuracy: mean(|bin| bin.accuracy),
            ..same[0]
        }
    };
    let same_bin = |a: &Bin, b: &Bin| (a.lower - b.lower).abs() < 1e-9;
    bins.chunk_by(same_bin).map(together).collect()
}

/// sigma_eff after each epoch: the geometric mean over layers, with a band over all layers.
fn dynamics(groups: &[Group]) -> Panel {
    let noisy: Vec<&Group> = groups.iter().filter(|group| !group.profile().is_empty()).collect();
    let has_bands = noisy.len() <= BANDS;
    let mut panel = Panel::new("(E) Noise in training")
        .note(if has_bands { "mean over layers; band: all layers" } else { "mean over layers" })
        .x(Axis::linear("epoch").integers())
        .y(Axis::log("σ_{eff}"));
    for group in noisy {
        let curve = |number: fn(&[f64]) -> f64| {
            group.over_epochs(|record| {
                let sigmas: Vec<f64> = record.sigma_eff.iter().map(|s| s.sigma_eff).collect();
                (!sigmas.is_empty()).then(|| number(&sigmas))
            })
        };
        let points = |curve: &[(f64, Spread)]| -> (Vec<f64>, Vec<f64>) {
            curve.iter().map(|(epoch, spread)| (*epoch, spread.mean)).unzip()
        };
        let (epochs, means) = points(&curve(geometric_mean));
        if has_bands && epochs.len() > 1 {
            let (_, low) = points(&curve(|s| s.iter().copied().fold(f64::INFINITY, f64::min)));
            let (_, high) = points(&curve(|s| s.iter().copied().fold(0.0, f64::max)));
            panel = panel.band(&group.label, &epochs, low, high);
        }
        panel = panel.series(if epochs.len() <= MARKED_EPOCHS {
            Series::line_points(&group.label, &epochs, &means)
        } else {
            Series::line(&group.label, &epochs, &means)
        });
    }
    panel
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// sigma_eff of each layer of the trained networks.
fn profile(groups: &[Group]) -> Panel {
    let mut panel = Panel::new("(F) Noise of each layer")
        .x(Axis::linear("layer, from first to last").integers())
        .y(Axis::log("σ_{eff}"));
    for group in groups {
        let profile = group.profile();
        if profile.is_empty() {
            continue;
        }
        let layers: Vec<f64> = (1..=profile.len()).map(|layer| layer as f64).collect();
        let means: Vec<f64> = profile.iter().map(|spread| spread.mean).collect();
        let mut series = Series::line_points(&group.label, layers, means);
        if group.members.len() > 1 {
            let deviations: Vec<f64> = profile.iter().map(|s| s.deviation.unwrap_or(0.0)).collect();
            series = series.errors(deviations);
        }
        panel = panel.series(series);
    }
    panel
}
