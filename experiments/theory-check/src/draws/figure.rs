//! What it means that all inputs share one draw, in three panels.

use plot::{Axis, Color, Dash, Figure, Panel, Series, linspace};

use super::Draws;
use super::shared::{Average, Shared};

/// Correlation against cosine, the variance left in averages, and the noise of single inputs.
///
/// A colour is the same kind of input in every panel; grey is additive noise.
pub fn figure(layers: &[Shared], source: &str, draws: &Draws) -> Figure {
    let colors = [Color::BLUE, Color::VERMILION, Color::GREEN];
    let label = |layer: &Shared| format!("{}, D = {}", layer.name, layer.dim);
    let mut correlation = Panel::new("(A) Noise at two inputs")
        .x(Axis::linear("cosine of the angle between them").range(-1.0, 1.0))
        .y(Axis::linear("correlation of the noise").range(-1.0, 1.0))
        .series(Series::diagonal("the cosine itself").color(Color::INK).dash(Dash::Dotted));
    let mut averages = Panel::new("(B) Averages over positions")
        .x(Axis::log("positions averaged"))
        .y(Axis::log("variance left / σ_{eff}²"));
    let mut sizes = Panel::new("(C) Noise at single inputs")
        .x(Axis::linear("share of the inputs (%)").range(0.0, 100.0))
        .y(Axis::log("variance / σ_{eff}²"));
    for (layer, color) in layers.iter().zip(colors) {
        let label = label(layer);
        let (cosines, measured): (Vec<f64>, Vec<f64>) =
            layer.pairs.iter().map(|pair| (pair.cosine, pair.measured)).unzip();
        correlation = correlation.series(Series::points(&label, cosines, measured).color(color));
        if !layer.averages.is_empty() {
            let all = |pick: &dyn Fn(&Average) -> f64| -> Vec<f64> {
                layer.averages.iter().map(pick).collect()
            };
            averages = averages.series(
                Series::line_points(
                    &label,
                    all(&|a| a.positions as f64),
                    all(&|a| a.measured.value),
                )
                .errors(all(&|a| 2.0 * a.measured.error))
                .dash(Dash::Solid)
                .color(color),
            );
        }
        let shares = linspace(0.0, 100.0, layer.variances.len());
        sizes = sizes
            .series(Series::line(&label, shares, &layer.variances).color(color).dash(Dash::Solid));
    }
    let positions: Vec<f64> = layers[0].averages.iter().map(|a| a.positions as f64).collect();
    let independent: Vec<f64> = positions.iter().map(|n| 1.0 / n).collect();
    Figure::new("One weight draw for all inputs, and the additive noise that stands for it")
        .subtitle(format!(
            "{source}; {} draws of one unit at σ_{{eff}} = {}; bars are two standard errors",
            draws.draws, draws.sigma
        ))
        .columns(3)
        .panel(correlation.horizontal("additive noise", 0.0))
        .panel(
            averages.series(
                Series::line("additive noise", positions, independent)
                    .color(Color::GREY)
                    .dash(Dash::Dashed),
            ),
        )
        .panel(sizes.horizontal("additive noise", 1.0))
}
