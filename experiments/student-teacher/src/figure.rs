//! The paper's figure "Student-teacher recovery", the exact posterior beside its approximations,
//! and the nonlinear teacher.

use plot::{Axis, Color, Dash, Figure, Legend, Marker, Panel, Series, logspace};
use vmf_core::{Sphere, expected_cosine};

use crate::claims::{kind, overconfidence};
use crate::closed_form;
use crate::nonlinear;
use crate::results::{Estimate, Results};
use crate::settings::{Gain, Point, Variable};
use crate::student::Learned;
use crate::tasks::{Compared, EXACT};

/// Cosine and A over each sweep, and sigma_eff below them.
///
/// A colour means the same in every panel: blue is the student with a learned gain, vermilion the
/// one with gain 1, black the cosine to the teacher.
pub fn recovery(results: &Results) -> Figure {
    let mut figure = Figure::new("Student-teacher recovery")
        .subtitle(format!(
            "Points: {}, bars are two standard errors; lines: closed forms, nothing fitted. Held where not swept: {}; \
             β = {}",
            students(results.settings.seeds),
            results.settings.base,
            results.settings.beta
        ))
        .columns(3);
    for (letter, variable) in ["A", "B", "C"].iter().zip(Variable::ALL) {
        figure = figure.panel(directions(results, variable, letter));
    }
    for (letter, variable) in ["D", "E", "F"].iter().zip(Variable::ALL) {
        figure = figure.panel(noise_scales(results, variable, letter));
    }
    figure
}

fn directions(results: &Results, variable: Variable, letter: &str) -> Panel {
    let title = match variable {
        Variable::Noise => "Direction, by noise",
        Variable::Dim => "Direction, by dimension",
        Variable::Samples => "Direction, by sample size",
    };
    let (grid, fine) = grid(results, variable);
    let least_squares: Vec<f64> =
        fine.iter().map(|p| closed_form::least_squares_cosine(p).unwrap_or(f64::NAN)).collect();
    let mut panel = Panel::new(format!("({letter}) {title}"))
        .x(Axis::log(variable.name()))
        .y(Axis::linear("cosine to the teacher, A").include(1.0))
        .series(
            Series::line("cosine of least squares, closed form", &grid, least_squares)
                .color(Color::GREY)
                .dash(Dash::Dotted),
        );
    for &gain in &results.settings.gains {
        let predicted: Vec<f64> =
            fine.iter().map(|p| expected_cosine(results.predicted_sigma(p, gain))).collect();
        panel = panel.series(closed_form_line(gain, &grid, predicted)).series(measured(
            results,
            variable,
            gain,
            |l| expected_cosine(l.sigma),
        ));
    }
    // Both kinds of student have the same direction; the first is shown.
    if let Some(&gain) = results.settings.gains.first() {
        let (xs, ys, errors) = estimates(results, variable, gain, |learned| learned.cosine);
        panel = panel.series(
            Series::points("cosine to the teacher", xs, ys)
                .errors(errors)
                .color(Color::INK)
                .marker(Marker::Diamond),
        );
    }
    panel
}

fn noise_scales(results: &Results, variable: Variable, letter: &str) -> Panel {
    let title = match variable {
        Variable::Noise => "σ_{eff}, by noise",
        Variable::Dim => "σ_{eff}, by dimension",
        Variable::Samples => "σ_{eff}, by sample size",
    };
    let (grid, fine) = grid(results, variable);
    let mut panel = Panel::new(format!("({letter}) {title}"))
        .x(Axis::log(variable.name()))
        .y(Axis::log("learned σ_{eff}"));
    for &gain in &results.settings.gains {
        let predicted: Vec<f64> =
            fine.iter().map(|point| results.predicted_sigma(point, gain)).collect();
        panel = panel.series(closed_form_line(gain, &grid, predicted)).series(measured(
            results,
            variable,
            gain,
            |l| l.sigma,
        ));
    }
    panel
}

/// The exact posterior beside three approximations to it.
pub fn exact(results: &Results) -> Figure {
    let noise: Vec<f64> = EXACT.iter().map(|point| point.noise).collect();
    let estimates = |value: &dyn Fn(&Point, &Compared) -> f64| -> (Vec<f64>, Vec<f64>) {
        EXACT
            .iter()
            .map(|point| {
                let compared = results.exact(point);
                bar(compared.iter().map(|compared| value(point, compared)))
            })
            .unzip()
    };
    let panel = |title: &str, label: &str| {
        Panel::new(title).x(Axis::log("observation noise s")).y(Axis::linear(label))
    };
    let resultant = panel("(A) Mean resultant length", "|E w|");
    let resultant = METHODS.iter().fold(resultant, |panel, method| {
        let (values, errors) = estimates(&|_, c| (method.claimed)(c));
        panel.series(method.series(&noise, values).errors(errors))
    });
    let kappa = panel("(B) Concentration over the exact one", "κ / κ_{exact}");
    let kappa = METHODS[1..].iter().fold(kappa, |panel, method| {
        let (values, errors) = estimates(&|point, c| concentration_ratio(point, c, method));
        panel.series(method.series(&noise, values).errors(errors))
    });
    let kappa = kappa
        .horizontal("", 1.0)
        .horizontal("N/(N−D−1), the tight limit", overconfidence(&EXACT[0]));
    let surprise = panel("(C) Claimed less reached", "claimed − reached cosine");
    let surprise = METHODS.iter().fold(surprise, |panel, method| {
        let (values, errors) = estimates(&|_, c| (method.claimed)(c) - (method.reached)(c));
        panel.series(method.series(&noise, values).errors(errors))
    });
    Figure::new("The exact posterior of the direction, and approximations to it")
        .subtitle(format!(
            "D = {}, N = {}, {} teachers a point, bars are two standard errors. Exact: geodesic slice sampling of the \
             Fisher-Bingham posterior",
            EXACT[0].dim, EXACT[0].samples, results.settings.seeds
        ))
        .columns(3)
        .legend(Legend::Below)
        .panel(resultant)
        .panel(kappa)
        .panel(surprise.horizontal("", 0.0))
}

/// A posterior of the direction, exact or approximate.
pub struct Method {
    /// Its name.
    pub label: &'static str,
    color: Color,
    marker: Marker,
    /// The mean resultant length, which is the cosine to the teacher that it expects.
    pub claimed: fn(&Compared) -> f64,
    /// The cosine to the teacher that it reaches.
    pub reached: fn(&Compared) -> f64,
}

/// The exact posterior, then its approximations.
pub static METHODS: [Method; 4] = [
    Method {
        label: "exact posterior",
        color: Color::INK,
        marker: Marker::Diamond,
        claimed: |c| c.exact.resultant,
        reached: |c| c.exact.cosine,
    },
    Method {
        label: "student, learned gain",
        color: Color::BLUE,
        marker: Marker::Circle,
        claimed: |c| expected_cosine(c.learned.sigma),
        reached: |c| c.learned.cosine,
    },
    Method {
        label: "student, gain 1",
        color: Color::VERMILION,
        marker: Marker::Square,
        claimed: |c| expected_cosine(c.fixed.sigma),
        reached: |c| c.fixed.cosine,
    },
    Method {
        label: "mean-field Gaussian",
        color: Color::GREEN,
        marker: Marker::Triangle,
        claimed: |c| c.mean_field.resultant,
        reached: |c| c.mean_field.cosine,
    },
];

impl Method {
    fn series(&self, xs: &[f64], ys: Vec<f64>) -> Series {
        Series::line_points(self.label, xs, ys).color(self.color).marker(self.marker)
    }
}

/// The concentration that corresponds to a method's resultant length, over the exact posterior's.
pub fn concentration_ratio(point: &Point, compared: &Compared, method: &Method) -> f64 {
    let Ok(sphere) = Sphere::new(point.dim) else {
        return f64::NAN;
    };
    let kappa = |resultant: f64| sphere.kappa_from_mean_resultant_length(resultant);
    kappa((method.claimed)(compared)) / kappa(compared.exact.resultant)
}

/// The student of a nonlinear teacher.
pub fn nonlinear(results: &Results) -> Figure {
    type Pick = fn(&nonlinear::Learned) -> f64;
    let series = |variable: Variable, label: &str, pick: Pick| {
        let (xs, (ys, errors)): (Vec<f64>, (Vec<f64>, Vec<f64>)) = nonlinear::sweep(variable)
            .iter()
            .map(|point| (variable.of(point), bar(results.nonlinear(point).iter().map(pick))))
            .unzip();
        Series::line_points(label, xs, ys).errors(errors)
    };
    let mut figure = Figure::new("A nonlinear teacher: two layers with normalization")
        .subtitle(format!(
            "{} hidden units, {} at a point, bars are two standard errors. Held where not swept: {}; β = {}",
            nonlinear::HIDDEN,
            students(results.settings.seeds),
            nonlinear::BASE,
            results.settings.beta
        ))
        .columns(3)
        .legend(Legend::Below);
    for (letter, variable) in ["A", "B", "C"].iter().zip(Variable::ALL) {
        figure = figure.panel(
            Panel::new(format!("({letter}) Learned σ_{{eff}}"))
                .x(Axis::log(variable.name()))
                .y(Axis::log("σ_{eff}"))
                .series(series(variable, "first layer", |l| l.sigmas[0]).color(Color::BLUE))
                .series(series(variable, "second layer", |l| l.sigmas[1]).color(Color::ORANGE)),
        );
    }
    for (letter, variable) in ["D", "E", "F"].iter().zip(Variable::ALL) {
        figure = figure.panel(
            Panel::new(format!("({letter}) Recovery on new inputs"))
                .x(Axis::log(variable.name()))
                .y(Axis::linear("explained variance").include(1.0))
                .series(series(variable, "explained variance", |l| l.explained).color(Color::INK)),
        );
    }
    figure
}

fn students(seeds: u64) -> String {
    match seeds {
        1 => "one student".into(),
        _ => format!("mean of {seeds} students"),
    }
}

/// A fine grid over a sweep: the values of its variable, and the points.
fn grid(results: &Results, variable: Variable) -> (Vec<f64>, Vec<Point>) {
    let points = results.settings.sweep(variable);
    let ends = [points.first(), points.last()].map(|p| p.map_or(1.0, |p| variable.of(p)));
    let mut fine: Vec<Point> = logspace(ends[0], ends[1], 100)
        .into_iter()
        .map(|value| {
            let whole = value.round() as usize;
            let base = results.settings.base;
            match variable {
                Variable::Noise => Point { noise: value, ..base },
                Variable::Dim => Point { dim: whole, ..base },
                Variable::Samples => Point { samples: whole, ..base },
            }
        })
        .collect();
    fine.dedup();
    (fine.iter().map(|p| variable.of(p)).collect(), fine)
}

fn measured(
    results: &Results,
    variable: Variable,
    gain: Gain,
    value: fn(&Learned) -> f64,
) -> Series {
    let marker = match gain {
        Gain::Learned => Marker::Circle,
        Gain::Fixed => Marker::Square,
    };
    let (xs, ys, errors) = estimates(results, variable, gain, value);
    Series::points(format!("student, {}", kind(gain)), xs, ys)
        .errors(errors)
        .color(color(gain))
        .marker(marker)
}

/// Positions, means and two standard errors over a sweep.
fn estimates(
    results: &Results,
    variable: Variable,
    gain: Gain,
    value: fn(&Learned) -> f64,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let points = results.settings.sweep(variable);
    let bars = points.iter().map(|point| bar(results.linear(point, gain).iter().map(value)));
    let (ys, errors) = bars.unzip();
    (points.iter().map(|point| variable.of(point)).collect(), ys, errors)
}

/// Mean and two standard errors.
fn bar(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let estimate = Estimate::of(&values.collect::<Vec<_>>());
    (estimate.mean, 2.0 * estimate.error)
}

fn closed_form_line(gain: Gain, xs: &[f64], ys: Vec<f64>) -> Series {
    let dash = match gain {
        Gain::Learned => Dash::Solid,
        Gain::Fixed => Dash::Dashed,
    };
    Series::line(format!("closed form, {}", kind(gain)), xs, ys).color(color(gain)).dash(dash)
}

fn color(gain: Gain) -> Color {
    match gain {
        Gain::Learned => Color::BLUE,
        Gain::Fixed => Color::VERMILION,
    }
}
