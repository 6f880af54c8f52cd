//! The paper's figure "Validation of theoretical components", and the errors of the approximations.

use plot::{Axis, Color, Dash, Figure, Panel, Series, logspace};
use vmf_core::Sphere;

use crate::curves::{Curves, Point};
use crate::monte_carlo::Estimate;

/// The four panels of the paper's figure at one dimension.
///
/// A colour means the same in every panel: blue is exact, vermilion the paper's formula, orange our
/// closed form, green and purple are limits, black is measured.
pub fn validation(curves: &Curves, samples: u32) -> Figure {
    let kappa = &curves.grid;
    let line = |label: &str, formula: fn(&Sphere, f64) -> f64| {
        Series::line(label, kappa, curves.line(formula))
    };
    let exact = |label: &str, formula| line(label, formula).color(Color::BLUE).stroke_width(4.0);
    let paper =
        |label: &str, formula| line(label, formula).color(Color::VERMILION).dash(Dash::Dashed);
    let limit = |label: &str, low: f64, high: f64, formula: fn(&Sphere, f64) -> f64| {
        Series::line(label, kappa, within(low, high, curves.line(formula))).dash(Dash::Dotted)
    };
    let measured: Vec<f64> = curves.points.iter().map(|p| p.kappa).collect();
    let sampled = |pick: fn(&Point) -> Estimate| {
        let (values, errors): (Vec<f64>, Vec<f64>) =
            curves.points.iter().map(|p| (pick(p).value, 2.0 * pick(p).error)).unzip();
        Series::points("Monte Carlo", &measured, values).errors(errors).color(Color::INK)
    };
    let integrated: Vec<f64> = curves.points.iter().map(|p| p.kl).collect();

    let x = || Axis::log("concentration κ");
    let kl = curves.line(Sphere::kl);
    let printed = curves.line(Sphere::kl_with_printed_sign);
    let low = 0.5 * kl.iter().copied().fold(f64::INFINITY, f64::min);
    let high = 2.0 * kl.iter().chain(&printed).copied().fold(0.0, f64::max);

    Figure::new(format!("Validation of theoretical components at D = {}", curves.sphere.dim()))
        .subtitle(format!(
            "Monte Carlo: {samples} pairs of directions at a point, each with an isotropic input; bars are two standard \
             errors"
        ))
        .columns(2)
        .panel(
            Panel::new("(A) Activation variance")
                .x(x())
                .y(Axis::linear("variance of w·x, σ_{u}²").range(0.0, 1.05))
                .series(exact("exact, 1 − A²", Sphere::one_minus_a2))
                .series(paper("paper, D/(κ+D)", Sphere::sigma_u2_paper))
                .series(
                    line("ours, 2/(1+√(1+4(κ/D)²))", Sphere::sigma_u2_closed)
                        .color(Color::ORANGE)
                        .dash(Dash::Dotted),
                )
                .series(sampled(|p| p.measured.sigma_u2)),
        )
        .panel(
            Panel::new("(B) Mean resultant length")
                .x(x())
                .y(Axis::linear("A_{D}(κ)").range(0.0, 1.05))
                .series(exact("exact, Bessel ratio", Sphere::mean_resultant_length))
                .series(
                    limit("small κ, as printed", 0.0, 1.05, Sphere::mean_resultant_length_broad_printed)
                        .color(Color::VERMILION)
                        .dash(Dash::Dashed),
                )
                .series(limit("small κ, corrected", 0.0, 1.05, Sphere::mean_resultant_length_broad).color(Color::PURPLE))
                .series(limit("large κ", 0.0, 1.05, Sphere::mean_resultant_length_tight).color(Color::GREEN))
                .series(sampled(|p| p.measured.a)),
        )
        .panel(
            Panel::new("(C) Effective noise behind normalization")
                .x(x())
                .y(Axis::log("σ_{eff}"))
                .series(exact("exact, √(1−A²)/A", Sphere::sigma_eff))
                .series(paper("paper, √(D/(κ+D))/A", Sphere::sigma_eff_paper))
                .series(sampled(|p| p.measured.sigma_eff)),
        )
        .panel(
            Panel::new("(D) KL from the uniform prior")
                .x(x())
                .y(Axis::log("KL (nats)").range(low, high))
                .series(exact("exact", Sphere::kl))
                .series(
                    line("KL_{approx}(σ_{eff}, D)", |s, k| s.kl_approx(s.sigma_eff(k)))
                        .color(Color::ORANGE)
                        .dash(Dash::Dotted),
                )
                .series(limit("broad, κ²/2D", low, high, Sphere::kl_broad).color(Color::PURPLE))
                .series(limit("tight, (D−1)/2 log κ + c", low, high, Sphere::kl_tight).color(Color::GREEN))
                .series(
                    limit("with the paper's sign", low, high, Sphere::kl_with_printed_sign)
                        .color(Color::VERMILION)
                        .dash(Dash::Dashed),
                )
                .series(Series::points("quadrature", &measured, integrated).color(Color::INK)),
        )
}

/// Relative errors of the approximations over `kappa / D`, for several dimensions.
pub fn errors(spheres: &[Sphere]) -> Figure {
    let ratio = logspace(1e-3, 1e3, 300);
    let panel = |title: &str,
                 approximate: fn(&Sphere, f64) -> f64,
                 exact: fn(&Sphere, f64) -> f64| {
        let panel = Panel::new(title)
            .x(Axis::log("κ/D"))
            .y(Axis::linear("relative error (%)"))
            .horizontal("", 0.0);
        spheres.iter().fold(panel, |panel, sphere| {
            let error =
                |kappa: f64| 100.0 * (approximate(sphere, kappa) / exact(sphere, kappa) - 1.0);
            let errors: Vec<f64> = ratio.iter().map(|r| error(r * sphere.dim() as f64)).collect();
            panel.line(format!("D = {}", sphere.dim()), &ratio, errors)
        })
    };
    Figure::new("How far the closed forms are from the exact values")
        .columns(3)
        .panel(panel(
            "(A) Paper's interpolant of σ_{u}²",
            Sphere::sigma_u2_paper,
            Sphere::one_minus_a2,
        ))
        .panel(panel(
            "(B) Our interpolant of σ_{u}²",
            Sphere::sigma_u2_closed,
            Sphere::one_minus_a2,
        ))
        .panel(panel(
            "(C) KL_{approx} at the exact σ_{eff}",
            |s, k| s.kl_approx(s.sigma_eff(k)),
            Sphere::kl,
        ))
}

/// Replaces values outside the axis by NaN, which is not drawn.
fn within(low: f64, high: f64, values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|v| if (low..=high).contains(&v) { v } else { f64::NAN }).collect()
}
