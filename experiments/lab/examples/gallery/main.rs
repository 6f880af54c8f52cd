//! Writes one of every kind of figure, and a report that shows them all.
//!
//! `cargo run -p lab --example gallery [FOLDER]` (default `target/gallery`).

use lab::{Cell, Checks, Claims, OutDir, Picture, Progress, Report, Section, Table, Verdict};

mod figures;

fn main() -> lab::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or("target/gallery".into());
    let out = OutDir::create(folder)?;
    let figures = [
        (
            "curves",
            figures::curves(),
            "Lines, points with error bars, log axes and a legend for each panel.",
        ),
        (
            "sweeps",
            figures::sweeps(),
            "Error bars over seeds, bands, and one legend for all panels.",
        ),
        (
            "training",
            figures::training(),
            "Epochs, named layers, side-by-side bars and reliability diagrams in one figure.",
        ),
        (
            "landscape",
            figures::landscape(),
            "Heat maps with contour lines and colour bars; the right one is centred on zero.",
        ),
        ("beside", figures::beside(), "A single panel with its legend beside it."),
        (
            "edge-cases",
            figures::edge_cases(),
            "Gaps, values outside the range, tiny and huge numbers, no data.",
        ),
    ];
    let mut section = Section::new("Figures");
    let progress = Progress::new("drawing", figures.len() as u64);
    for (name, figure, caption) in &figures {
        progress.message(*name);
        figure.save(&out, name)?;
        section = section.figure(figure, caption)?;
        progress.advance(1);
    }
    progress.finish();
    let (claims, checks) = findings();
    claims.table()?.print();
    println!();
    checks.table()?.print();
    println!("{}", checks.summary());

    let mut table = Table::new(["D", "κ", "exact", "error"]).caption("Numbers keep to the right.");
    for dim in [27usize, 100, 576, 4608] {
        table.row([
            dim.into(),
            Cell::number(dim as f64 * 0.7, 4),
            (1.0 / dim as f64).into(),
            Cell::number(1e-13 * dim as f64, 2),
        ])?;
    }
    let path = Report::new("Gallery")
        .subtitle("Every kind of figure and table, to look at.")
        .section(
            Section::new("Findings")
                .paragraph("Each claim is a row. Made by `cargo run -p lab --example gallery`.")
                .table(&claims.table()?)
                .table(&checks.table()?),
        )
        .section(section)
        .section(Section::new("Numbers").table(&table))
        .section(pictures()?)
        .section(
            Section::new("Settings")
                .key_values([("seed", "0"), ("draws", "10^{6}"), ("dimension", "100")])
                .preformatted("cargo run -p lab --example gallery"),
        )
        .save(&out, "report.html")?;
    println!("report: {}", path.display());
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
