//! How far off deterministic passes are, layer by layer, in three panels.

use plot::{Axis, Color, Dash, Figure, Panel, Series};

use super::{Row, Settings};

/// The error of means in both networks, and that of deviations.
pub fn figure(names: &[&str; 2], networks: &[Vec<Row>; 2], settings: &Settings) -> Figure {
    let passes = f64::from(settings.passes);
    let layers: Vec<f64> = (1..=networks[0].len()).map(|layer| layer as f64).collect();
    let axis = || Axis::linear("layer").range(0.5, layers.len() as f64 + 0.5);
    let grades = [("noise off", Color::GREY), ("fixed", Color::BLUE), ("full", Color::VERMILION)];
    let mut figure = Figure::new("One deterministic pass in place of many noisy ones")
        .subtitle(format!(
            "in front of the activations of a random network, σ_{{eff}} = {}; brute force: {} noisy passes",
            settings.sigma, settings.passes
        ))
        .columns(3);
    for ((name, rows), letter) in names.iter().zip(networks).zip(["A", "B"]) {
        let mut panel = Panel::new(format!("({letter}) Means, {name}"))
            .x(axis())
            .y(Axis::log("off by, in deviations").range(1e-3, 1.0));
        for (grade, (label, color)) in grades.into_iter().enumerate() {
            let off: Vec<f64> = rows.iter().map(|row| row.mean_off[grade]).collect();
            panel = panel
                .series(Series::line_points(label, &layers, off).color(color).dash(Dash::Solid));
        }
        figure = figure.panel(panel.horizontal("brute force itself", 1.0 / passes.sqrt()));
    }
    let mut panel =
        Panel::new("(C) Deviations").x(axis()).y(Axis::log("relative error (%)").range(0.1, 100.0));
    for ((name, rows), dash) in names.iter().zip(networks).zip([Dash::Solid, Dash::Dashed]) {
        for (grade, (label, color)) in grades[1..].iter().enumerate() {
            let off: Vec<f64> = rows.iter().map(|row| 100.0 * row.deviation_off[grade]).collect();
            let label = format!("{label}, {name}");
            panel = panel.series(Series::line_points(label, &layers, off).color(*color).dash(dash));
        }
    }
    figure.panel(panel.horizontal("brute force itself", 100.0 / (2.0 * passes).sqrt()))
}
