//! What a landscape shows: a figure, its numbers in a table, and the files.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lab::{Align, significant};
use lab::{Cell, Csv, Field, OutDir, Table};
use plot::{Axis, Color, Figure, Heatmap, Legend, Panel, Series};

use super::Findings;
use super::family::Family;
use super::measure::Measured;
use super::shape::Surface;
use crate::train::duration;

/// Contour lines of a panel.
const CONTOURS: usize = 8;

/// The first line: what is measured and how long it takes.
pub(super) fn beginning(
    measured: &Measured,
    layer: &str,
    [images, batch]: [usize; 2],
    time: Duration,
) {
    let left = measured.left();
    let all = measured.total();
    let begun = if left < all {
        format!("{} of {all} points are there; ", all - left)
    } else {
        String::new()
    };
    println!(
        "the loss around {layer}: {begun}{left} points of {images} training images in batches of {batch}, about {}",
        duration(time.mul_f64(left as f64))
    );
}

/// The last line of a landscape that was asked to stop.
pub(super) fn stopped(measured: &Measured, folder: &Path) {
    println!(
        "stopped with {} of {} points in {}; the same command goes on",
        measured.total() - measured.left(),
        measured.total(),
        folder.display()
    );
}

/// Writes figure, data and numbers to the folder, and prints the numbers.
pub(super) fn write(
    findings: &Findings,
    surfaces: &[Surface],
    name: &str,
    out: &OutDir,
) -> Result<()> {
    for surface in surfaces {
        let file = format!("landscape-{}.csv", surface.family.name().to_lowercase());
        csv(findings, surface)?.save(out, &file)?;
    }
    out.write("landscape.json", serde_json::to_string_pretty(findings)? + "\n")?;
    let [svg, _] = out.save_figure(&figure(findings, surfaces, name), "landscape")?;
    print_posterior(findings);
    table(findings)?.print()?;
    println!("the figure is {}", svg.display());
    Ok(())
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
            "{} training images in batches of {}, normalized by their own statistics, without noise; {} epochs",
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
        // One range of colours for all that are losses.
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

fn print_posterior(findings: &Findings) {
    println!("the trained network has a loss of {:.4} nats on these images", findings.loss);
    let Some(claimed) = findings.posterior else {
        return;
    };
    println!(
        "sigma_eff = {:.4} of {} units with {} inputs is kappa = {:.1}{}",
        claimed.sigma_eff,
        findings.units,
        findings.dim,
        claimed.kappa,
        match claimed.slope {
            Some(_) => "",
            None => "; the KL did not count, so that it says nothing about the loss",
        }
    );
}

/// The numbers for a person.
pub(super) fn table(findings: &Findings) -> Result<Table> {
    let agreements = Family::ALL.map(|family| findings.agreement(family));
    let mut table = Table::new(["loss against κ (1 − cos θ)", "1D", "2D"])
        .align(1, Align::Right)
        .align(2, Align::Right);
    let mut row = |name: &str, values: [Cell; 2]| {
        let [one, two] = values;
        table.row([name.into(), one, two])
    };
    row("correlation", agreements.map(|agreement| Cell::number(agreement.correlation, 4)))?;
    row("fitted κ (nats an image)", agreements.map(|agreement| Cell::number(agreement.kappa, 4)))?;
    if let Some(slope) = findings.posterior.and_then(|claimed| claimed.slope) {
        row("the posterior’s β M κ / N", [Cell::number(slope, 4), Cell::number(slope, 4)])?;
    }
    row("fitted loss at θ = 0", agreements.map(|agreement| Cell::number(agreement.offset, 4)))?;
    row(
        "what the fit leaves (rms)",
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
