//! Draws a landscape: its figure, the table of its numbers, and its CSV files.

use std::path::PathBuf;

use anyhow::Result;
use lab::{Align, significant};
use lab::{Cell, Csv, Field, OutDir, Table};
use plot::{Axis, Color, Figure, Heatmap, Legend, Panel, Series};

use super::Findings;
use super::family::Family;
use super::shape::Surface;

/// Number of contour lines in a panel.
const CONTOURS: usize = 8;

/// Writes figure, data and numbers to the folder, and returns the path of the figure.
pub fn write(
    findings: &Findings,
    surfaces: &[Surface],
    name: &str,
    out: &OutDir,
) -> Result<PathBuf> {
    for surface in surfaces {
        let file = format!("landscape-{}.csv", surface.family.name().to_lowercase());
        csv(findings, surface)?.save(out, &file)?;
    }
    out.write("landscape.json", serde_json::to_string_pretty(findings)? + "\n")?;
    let [svg, _] = out.save_figure(&figure(findings, surfaces, name), "landscape")?;
    Ok(svg)
}

fn csv(findings: &Findings, surface: &Surface) -> Result<Csv> {
    let family = surface.family;
    let [first, second] = family.coordinates();
    let columns = ["loss", "angle", "fitted", "posterior", "expected"];
    let mut csv = Csv::new([first, second].into_iter().chain(columns));
    let agreement = findings.agreement(family);
    for (point, loss) in family.points(surface.points).into_iter().zip(&surface.values) {
        let turn = family.turn(point);
        let field = |value: Option<f64>| value.map_or("".into(), Field::from);
        let kappa = findings.posterior.map(|claimed| claimed.kappa);
        let slope = findings.posterior.and_then(|claimed| claimed.slope);
        csv.row([
            point[0].into(),
            point[1].into(),
            field(*loss),
            field(family.angle(point)),
            field(turn.map(|turn| agreement.offset + agreement.kappa * turn)),
            field(turn.zip(kappa).map(|(turn, kappa)| kappa * turn)),
            field(turn.zip(slope).map(|(turn, slope)| findings.loss + slope * turn)),
        ])?;
    }
    Ok(csv)
}

fn figure(findings: &Findings, surfaces: &[Surface], name: &str) -> Figure {
    let columns = if findings.posterior.is_some() { 3 } else { 2 };
    let mut figure = Figure::new(format!("Loss around {} of {name}", findings.layer))
        .subtitle(format!(
            "{} training images in batches of {}, batch statistics, noise off; {} epochs",
            findings.images, findings.batch, findings.epoch
        ))
        .columns(columns)
        .legend(Legend::Below);
    let mut letters = 'A'..='Z';
    let mut letter = || letters.next().unwrap_or('Z');
    for surface in surfaces {
        let family = surface.family;
        let agreement = findings.agreement(family);
        let analytic = |kappa, offset| Surface::analytic(family, surface.points, kappa, offset);
        let fitted = analytic(agreement.kappa, agreement.offset);
        let claimed = findings.posterior.map(|claimed| match claimed.slope {
            Some(slope) => (analytic(slope, findings.loss), claimed),
            None => (analytic(claimed.kappa, 0.0), claimed),
        });
        // All panels that show a loss share one range of colours.
        let mut losses = [surface.or_nan(), fitted.or_nan()].concat();
        if let Some((expected, claimed)) = &claimed
            && claimed.slope.is_some()
        {
            losses.extend(expected.or_nan());
        }
        let low = losses.iter().copied().fold(f64::INFINITY, f64::min);
        let high = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let colors = || {
            let axis = Axis::linear("loss (nats)");
            if low < high { axis.range(low, high) } else { axis }
        };
        figure = figure
            .panel(
                panel(format!("({}) Measured, {}", letter(), family.name()), family)
                    .note(formula(family))
                    .heatmap(heatmap(surface, colors())),
            )
            .panel(
                panel(format!("({}) Fitted κ (1 − cos θ)", letter()), family)
                    .note(format!(
                        "κ = {}; correlation {}",
                        significant(agreement.kappa, 3),
                        significant(agreement.correlation, 3)
                    ))
                    .heatmap(heatmap(&fitted, colors())),
            );
        if let Some((expected, claimed)) = claimed {
            let kappa = significant(claimed.kappa, 3);
            let (title, note, axis) = match claimed.slope {
                Some(slope) => (
                    "Posterior’s βMκ/N (1 − cos θ)",
                    format!("κ = {kappa}, βMκ/N = {}", significant(slope, 3)),
                    colors(),
                ),
                None => (
                    "Posterior’s κ (1 − cos θ)",
                    format!("κ = {kappa} from σ_{{eff}}"),
                    Axis::linear("κ (1 − cos θ)"),
                ),
            };
            figure = figure.panel(
                panel(format!("({}) {title}", letter()), family)
                    .note(note)
                    .heatmap(heatmap(&expected, axis)),
            );
        }
    }
    figure
}

fn panel(title: String, family: Family) -> Panel {
    let [first, second] = family.coordinates();
    Panel::new(title)
        .x(Axis::linear(first))
        .y(Axis::linear(second))
        .square()
        .series(trained(family))
}

fn formula(family: Family) -> &'static str {
    match family {
        Family::OneDirection => "w′ = y w + x r",
        Family::TwoDirections => "w′ = w + a r_{1} + b r_{2}",
    }
}

fn heatmap(surface: &Surface, colors: Axis) -> Heatmap {
    let [xs, ys] = surface.family.grids(surface.points);
    Heatmap::new(colors, xs, ys, surface.or_nan()).contours(CONTOURS)
}

fn trained(family: Family) -> Series {
    let at = match family {
        Family::OneDirection => 1.0,
        Family::TwoDirections => 0.0,
    };
    Series::points("trained weights", [0.0], [at]).color(Color::VERMILION)
}

/// The numbers as a table, for people.
pub fn table(findings: &Findings) -> Result<Table> {
    let agreements = Family::ALL.map(|family| findings.agreement(family));
    let mut table = Table::new(["loss against κ (1 − cos θ)", "1D", "2D"])
        .align(1, Align::Right)
        .align(2, Align::Right);
    let mut row = |name: &str, values: [Cell; 2]| {
        let [one, two] = values;
        table.row([name.into(), one, two])
    };
    row("correlation", agreements.map(|agreement| Cell::number(agreement.correlation, 4)))?;
    row("fitted κ (nats per image)", agreements.map(|agreement| Cell::number(agreement.kappa, 4)))?;
    if let Some(slope) = findings.posterior.and_then(|claimed| claimed.slope) {
        row("the posterior’s β M κ / N", [Cell::number(slope, 4), Cell::number(slope, 4)])?;
    }
    row("fitted loss at θ = 0", agreements.map(|agreement| Cell::number(agreement.offset, 4)))?;
    row(
        "residual of the fit (rms)",
        agreements.map(|agreement| Cell::number(agreement.residual, 3)),
    )?;
    let [one, two] = agreements.map(|agreement| Cell::number(agreement.explained, 4));
    row("variance explained by the angle alone", [one, "".into()])?;
    row("variance explained by the radius alone", ["".into(), two])?;
    for set in &findings.two_directions.level_sets {
        let mut text =
            format!("{} ± {} %", significant(set.radius, 3), significant(100.0 * set.spread, 2));
        if set.reached < 1.0 {
            text += &format!(", in {:.0} % of directions", 100.0 * set.reached);
        }
        let name = format!("radius at {:.0} % of the rise", 100.0 * set.rise);
        row(&name, ["".into(), text.into()])?;
    }
    Ok(table)
}
