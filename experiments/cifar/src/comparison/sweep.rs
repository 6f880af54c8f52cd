//! Scores as a function of beta, the weight of the KL.

use plot::{Axis, Figure, Legend, Panel, Series};

use super::Comparison;
use super::group::{Group, Spread};
use super::tables::WAYS;
use crate::evaluation::results::{Measured, Way};
use crate::evaluation::tables as evaluated;
use crate::settings::{Method, Settings};

/// A curve needs at least this many values of beta.
const SHORTEST: usize = 3;

/// Accuracy, likelihood and calibration error over beta, if there are at least [`SHORTEST`]
/// configurations of `--method vmf` that differ only in beta.
pub(super) fn figure(comparison: &Comparison) -> Option<Figure> {
    let curve = longest_curve(&comparison.groups);
    if curve.len() < SHORTEST {
        return None;
    }
    let title = format!("The weight of the KL: {}", comparison.network());
    let subtitle = format!(
        "{}, {} test images, no temperature; dashed: without the KL, noise off",
        comparison.data, comparison.protocol.test_images
    );
    let panel = |title: &str, quantity: &str, number: fn(&Measured) -> f64| {
        let panel = Panel::new(title).x(Axis::log("beta")).y(Axis::linear(quantity));
        add_lines(panel, comparison, &curve, number)
    };
    let figure = Figure::new(title)
        .subtitle(subtitle)
        .legend(Legend::Below)
        .columns(3)
        .panel(panel("(A) Accuracy", "test accuracy", |measured| measured.all.accuracy))
        .panel(panel("(B) Likelihood", "test NLL (nats)", |measured| measured.all.nll))
        .panel(
            panel("(C) Calibration error", "test ECE", |measured| measured.all.ece)
                .y(Axis::linear("test ECE").include(0.0)),
        );
    Some(figure)
}

fn add_lines(
    mut panel: Panel,
    comparison: &Comparison,
    curve: &[&Group],
    number: fn(&Measured) -> f64,
) -> Panel {
    for way in WAYS {
        let point =
            |group: &&Group| Some((group.settings.beta.fixed()?, group.spread(way, number)?));
        let points: Vec<(f64, Spread)> = curve.iter().filter_map(point).collect();
        let betas: Vec<f64> = points.iter().map(|(beta, _)| *beta).collect();
        let means: Vec<f64> = points.iter().map(|(_, spread)| spread.mean).collect();
        let deviations: Vec<f64> =
            points.iter().map(|(_, spread)| spread.deviation.unwrap_or(0.0)).collect();
        let mut series =
            Series::line_points(evaluated::name(way, &comparison.protocol), betas, means);
        if deviations.iter().any(|deviation| *deviation > 0.0) {
            series = series.errors(deviations);
        }
        panel = panel.series(series);
    }
    let baseline = &comparison.groups[comparison.baseline];
    match baseline.spread(Way::Mean, number) {
        Some(spread) if baseline.settings.method != Method::Vmf => {
            panel.horizontal(&baseline.label, spread.mean)
        }
        _ => panel,
    }
}

/// The largest set of groups that differ only in beta, sorted by beta.
fn longest_curve(groups: &[Group]) -> Vec<&Group> {
    let same_but_beta = |a: &Settings, b: &Settings| {
        let beta = b.beta;
        let b = Settings { beta: a.beta, seed: a.seed, ..b.clone() };
        a.method == Method::Vmf
            && [a.beta, beta].iter().all(|beta| beta.fixed().is_some())
            && *a == b
    };
    let curve = |first: &Group| -> Vec<&Group> {
        let rest = groups.iter();
        rest.filter(|group| same_but_beta(&first.settings, &group.settings)).collect()
    };
    let fixed = |group: &Group| group.settings.beta.fixed().unwrap_or(0.0);
    let curves = groups.iter().map(curve);
    let mut longest = curves.max_by_key(Vec::len).unwrap_or_default();
    longest.sort_by(|a, b| fixed(a).total_cmp(&fixed(b)));
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beta::Beta;
    use crate::settings::Preset;

    fn group(beta: f64, method: Method, width: f64) -> Group {
        let beta = if beta > 0.0 { Beta::Fixed(beta) } else { Beta::Auto };
        let settings = Settings { beta, method, width, ..Preset::Quick.settings() };
        Group { label: String::new(), settings, members: Vec::new() }
    }

    #[test]
    fn the_curve_is_of_the_groups_that_differ_in_beta_alone() {
        let groups = [
            group(0.3, Method::Vmf, 0.25),
            group(0.1, Method::None, 0.25),
            group(0.0, Method::Vmf, 0.25),
            group(0.03, Method::Vmf, 0.25),
            group(0.1, Method::Vmf, 0.125),
            group(0.1, Method::Vmf, 0.25),
        ];
        let betas = |curve: Vec<&Group>| -> Vec<f64> {
            curve.iter().filter_map(|group| group.settings.beta.fixed()).collect()
        };
        assert_eq!(betas(longest_curve(&groups)), [0.03, 0.1, 0.3]);
        assert!(longest_curve(&[]).is_empty());
    }
}
