//! Writes a report with one of everything in it.
//!
//! `cargo run -p lab --example report [FOLDER]` (default `target/report`).

use lab::{Cell, Checks, Claims, OutDir, Picture, Report, Section, Table, Verdict};
use plot::{Axis, Figure, Panel, logspace};

fn main() -> lab::Result<()> {
    let out = OutDir::create(std::env::args_os().nth(1).unwrap_or("target/report".into()))?;
    let kappa = logspace(1e-1, 1e4, 200);
    let variance: Vec<f64> = kappa.iter().map(|k| 100.0 / (100.0 + k)).collect();
    let figure = Figure::new("One curve").panel(
        Panel::new("(A) Activation variance")
            .x(Axis::log("concentration κ"))
            .y(Axis::log("variance σ_{u}^{2}"))
            .line("D/(κ + D)", &kappa, &variance),
    );
    out.save_figure(&figure, "figure")?;
    let (claims, checks) = findings();
    claims.table()?.print()?;
    lab::say!()?;
    checks.table()?.print()?;
    lab::say!("{}", checks.summary())?;

    let mut table = Table::new(["D", "κ", "exact", "error"]).caption("Numbers keep to the right.");
    for dim in [27usize, 100, 576, 4608] {
        table.row([
            dim.into(),
            Cell::number(dim as f64 * 0.7, 4),
            (1.0 / dim as f64).into(),
            Cell::number(1e-13 * dim as f64, 2),
        ])?;
    }
    let path = Report::new("One of everything")
        .subtitle("What a report can hold, to look at.")
        .section(
            Section::new("Findings")
                .paragraph("Each claim is a row. Made by `cargo run -p lab --example report`.")
                .table(&claims.table()?)
                .table(&checks.table()?),
        )
        .section(Section::new("Figure").figure(&figure, "A figure with its caption.")?)
        .section(Section::new("Numbers").table(&table))
        .section(pictures()?)
        .section(
            Section::new("Settings")
                .key_values([("seed", "0"), ("draws", "10^{6}"), ("dimension", "100")])
                .preformatted("cargo run -p lab --example report"),
        )
        .save(&out, "report.html")?;
    lab::say!("report: {}", path.display())?;
    Ok(())
}

/// Pictures as a data set has them: small, with a caption each.
fn pictures() -> lab::Result<Section> {
    let images: Vec<Vec<u8>> = (0..8u32)
        .map(|k| {
            (0..32 * 32u32)
                .flat_map(|i| {
                    let (x, y) = (i % 32, i / 32);
                    [(x * 8) as u8, (y * 8) as u8, ((x * k) ^ (y * 3)) as u8]
                })
                .collect()
        })
        .collect();
    let pictures: Vec<Picture<'_>> = images
        .iter()
        .map(|rgb| Picture { width: 32, height: 32, rgb, caption: "cat, 0.97\nis a dog" })
        .collect();
    Section::new("Most confidently wrong").pictures(&pictures)
}

fn findings() -> (Claims, Checks) {
    let mut claims = Claims::new();
    claims.add(
        "The exact KL subtracts the log area of the sphere",
        "24.135 with the sign put right, 197.41 as printed",
        "κ = 100, D = 100",
        Verdict::HoldsWithCorrection,
    );
    claims.add(
        "D/(κ + D) has a small relative error",
        "up to −19.8 % against 1 − A^{2}",
        "κ = 0.7 D",
        Verdict::DoesNotHold,
    );
    claims.add("KL_{approx} is close to the exact KL", "within 0.14 %", "D = 100", Verdict::Holds);
    let mut checks = Checks::new();
    checks.add("A = 1/√(1 + σ_{eff}^{2}) for every D", "largest difference 2×10^{−16}", true);
    checks.add("κ ≈ D √(1 + σ^{2})/σ^{2} within 1/(D − 1)", "1.0 % at D = 100", true);
    (claims, checks)
}
