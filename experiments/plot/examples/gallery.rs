//! Writes one figure of every kind, with made-up data, as SVG and PNG.
//!
//! `cargo run -p plot --example gallery [FOLDER]` (default `target/gallery`).

use std::path::PathBuf;

use plot::{
    Axis, Color, Dash, Figure, Heatmap, Legend, Panel, ReliabilityBin, Series, linspace, logspace,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).unwrap_or("target/gallery".into()));
    std::fs::create_dir_all(&folder)?;
    for (name, figure) in [
        ("curves", curves()),
        ("training", training()),
        ("landscape", landscape()),
        ("edge-cases", edge_cases()),
    ] {
        std::fs::write(folder.join(format!("{name}.svg")), figure.svg()?)?;
        std::fs::write(folder.join(format!("{name}.png")), figure.png(2.0)?)?;
    }
    Ok(())
}

/// Four panels with different labels, each with its own legend.
fn curves() -> Figure {
    let dim = 100.0;
    let kappa = logspace(1e-1, 1e4, 200);
    let map =
        |f: fn(f64) -> f64, xs: &[f64]| -> Vec<f64> { xs.iter().map(|x| f(x / 100.0)).collect() };
    let closed = |t: f64| 2.0 / (1.0 + (1.0 + 4.0 * t * t).sqrt());
    let paper = |t: f64| 1.0 / (1.0 + t);
    let ratio = |t: f64| 2.0 * t / (1.0 + (1.0 + 4.0 * t * t).sqrt());
    let draws = logspace(1e-1, 1e4, 16);
    let measured: Vec<f64> = map(closed, &draws)
        .iter()
        .enumerate()
        .map(|(i, v)| v * (1.0 + 0.04 * (1.7 * i as f64).sin()))
        .collect();
    let errors: Vec<f64> = measured.iter().map(|v| 0.06 * v).collect();
    let sigma: Vec<f64> = kappa.iter().map(|k| closed(k / dim).sqrt() / ratio(k / dim)).collect();
    let kl: Vec<f64> = sigma.iter().map(|s| 49.5 * (1.0 + 100.0 / 99.0 / (s * s)).ln()).collect();
    let wide: Vec<f64> = kappa.iter().map(|k| k * k / (2.0 * dim)).collect();
    let tight: Vec<f64> = kappa.iter().map(|k| 49.5 * (k / dim).ln()).collect();
    Figure::new("Validation of theoretical components")
        .subtitle("D = 100; 10^{6} draws per point; bars are 95 % confidence intervals")
        .panel(
            Panel::new("(A) Activation variance")
                .x(Axis::log("concentration κ"))
                .y(Axis::log("variance σ_{u}^{2}"))
                .line("exact", &kappa, map(closed, &kappa))
                .line("paper’s interpolant", &kappa, map(paper, &kappa))
                .series(
                    Series::points("Monte Carlo", &draws, &measured)
                        .errors(&errors)
                        .color(Color::INK),
                ),
        )
        .panel(
            Panel::new("(B) Mean resultant length A_{D}(κ)")
                .x(Axis::log("concentration κ"))
                .y(Axis::linear("A_{D}"))
                .line("Bessel ratio", &kappa, map(ratio, &kappa))
                .series(
                    Series::points("Monte Carlo", &draws, map(ratio, &draws)).color(Color::INK),
                ),
        )
        .panel(
            Panel::new("(C) Alignment of σ_{eff}")
                .note("the dashed line is perfect agreement")
                .x(Axis::log("σ_{eff}, exact"))
                .y(Axis::log("σ_{eff}, Monte Carlo"))
                .diagonal("y = x")
                .points(
                    "D = 100",
                    sigma[..160].iter().step_by(12).copied().collect::<Vec<_>>(),
                    sigma[..160].iter().step_by(12).map(|s| s * 1.02).collect::<Vec<_>>(),
                ),
        )
        .panel(
            Panel::new("(D) KL from the uniform prior")
                .x(Axis::log("concentration κ"))
                .y(Axis::log("KL (nats)").range(1e-4, 2e3))
                .line("exact", &kappa, &kl)
                .line("KL_{approx}", &kappa, kl.iter().map(|v| v * 1.15).collect::<Vec<_>>())
                .line("κ → 0: κ^{2}/2D", &kappa, &wide)
                .line("κ → ∞", &kappa, &tight)
                .series(
                    Series::line(
                        "the paper’s sign",
                        &kappa,
                        kl.iter().map(|v| v + 173.0).collect::<Vec<_>>(),
                    )
                    .dash(Dash::Dotted),
                ),
        )
}

/// The curves of a training run with bands and one legend, and calibration.
fn training() -> Figure {
    let epochs = linspace(1.0, 15.0, 15);
    let curve = |start: f64, end: f64, rate: f64| -> Vec<f64> {
        epochs.iter().map(|e| end + (start - end) * (-rate * e).exp()).collect()
    };
    let bins: Vec<ReliabilityBin> = (2..15)
        .map(|i| {
            let (low, high) = (f64::from(i) / 15.0, f64::from(i + 1) / 15.0);
            let confidence = (low + high) / 2.0 + 0.005;
            let accuracy = confidence - 0.6 * confidence * (1.1 - confidence);
            ReliabilityBin { low, high, confidence, accuracy, share: 1.0 / 13.0 }
        })
        .collect();
    Figure::new("A run and its baseline")
        .legend(Legend::Below)
        .columns(3)
        .panel(
            Panel::new("(A) Test accuracy")
                .x(Axis::linear("epoch").integers())
                .y(Axis::linear("accuracy (%)"))
                .line("vMF", &epochs, curve(40.0, 80.3, 0.4))
                .band("vMF", &epochs, curve(38.0, 79.0, 0.4), curve(42.0, 81.5, 0.4))
                .line("no KL", &epochs, curve(45.0, 77.1, 0.5)),
        )
        .panel(
            Panel::new("(B) Negative log likelihood")
                .x(Axis::linear("epoch").integers())
                .y(Axis::linear("NLL (nats)"))
                .series(Series::line_points("vMF", &epochs, curve(1.6, 0.648, 0.4)))
                .series(Series::line_points("no KL", &epochs, curve(1.5, 0.946, 0.5))),
        )
        .panel(Panel::reliability("(C) Calibration", &bins))
}

/// Heat maps with contour lines: the loss around a trained layer, and its theory.
fn landscape() -> Figure {
    let grid = linspace(-1.5, 1.5, 51);
    let sample = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        grid.iter().flat_map(|b| grid.iter().map(move |a| f(*a, *b))).collect()
    };
    let theory = |a: f64, b: f64| 12.0 * (1.0 - 1.0 / (1.0 + a * a + b * b).sqrt());
    let measured = |a: f64, b: f64| theory(1.1 * a + 0.1 * b, b - 0.1) + 0.15 * (3.0 * a + b).sin();
    let panel = |title: &str| {
        Panel::new(title)
            .x(Axis::linear("a, along r_{1}"))
            .y(Axis::linear("b, along r_{2}"))
            .square()
    };
    Figure::new("Loss landscape around features.0")
        .subtitle("w′ = w + a r_{1} + b r_{2}; 51 × 51 points, 512 images")
        .panel(
            panel("(A) Measured loss")
                .heatmap(
                    Heatmap::new(Axis::linear("loss (nats)"), &grid, &grid, sample(&measured))
                        .contours(7),
                )
                .series(Series::points("trained weights", [0.0], [0.0]).color(Color::VERMILION)),
        )
        .panel(panel("(B) κ (1 − cos θ)").heatmap(
            Heatmap::new(Axis::linear("κ (1 − cos θ)"), &grid, &grid, sample(&theory)).contours(7),
        ))
}

/// Gaps, poles, large and small numbers, a single point.
fn edge_cases() -> Figure {
    let xs = linspace(-3.0, 3.0, 241);
    let gap: Vec<f64> =
        xs.iter().map(|x| if x.abs() < 0.4 { f64::NAN } else { x.sin() / x }).collect();
    let pole: Vec<f64> = xs.iter().map(|x| 1.0 / x).collect();
    let steps = linspace(0.0, 2e7, 30);
    Figure::new("Edge cases <&> \"quotes\"")
        .columns(3)
        .legend(Legend::PerPanel)
        .panel(
            Panel::new("(A) Gaps and poles")
                .x(Axis::linear("x"))
                .y(Axis::linear("f(x)").range(-2.0, 2.0))
                .line("sin(x)/x with a gap", &xs, &gap)
                .line("1/x leaves the frame", &xs, &pole)
                .line("nothing finite", [0.0, 1.0], [f64::NAN, f64::INFINITY]),
        )
        .panel(
            Panel::new(
                "(B) Large and small numbers, with a title long enough to need a second line",
            )
            .x(Axis::linear("steps"))
            .y(Axis::linear("rate"))
            .line(
                "rate",
                &steps,
                steps.iter().map(|s| 3e-6 + s * 1e-13).collect::<Vec<_>>(),
            ),
        )
        .panel(
            Panel::new("(C) One value")
                .x(Axis::linear("epoch").integers())
                .y(Axis::log("loss"))
                .points("a single point", [3.0], [0.5])
                .horizontal("chance", 2.303),
        )
}
