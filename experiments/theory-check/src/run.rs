//! The whole check: measure, judge, draw, report.

use std::path::Path;

use anyhow::Result;
use lab::{Checks, Csv, OutDir, ProgressBar, Report, Section, say};
use vmf_core::Sphere;

use crate::curves::{COLUMNS, Curves, Settings};
use crate::{claims, figure};

/// A small dimension, which strains the formulas, and those of VGG16's first and last layers.
const ERROR_DIMS: [usize; 5] = [3, 27, 100, 576, 4608];

/// Checks the claims at each of `dims`, prints the tables, writes the files to `out`, and returns
/// the checks of our own statements.
pub fn run(dims: &[usize], settings: &Settings, out: &Path) -> Result<Checks> {
    let out = OutDir::create(out)?;
    let progress = ProgressBar::new("Monte Carlo", (dims.len() * settings.points) as u64);
    let curves = dims
        .iter()
        .map(|&dim| Curves::measure(dim, settings, &progress))
        .collect::<Result<Vec<_>>>()?;
    progress.finish();

    let mut csv = Csv::new(COLUMNS);
    let mut all = Checks::new();
    let mut report =
        Report::new("Precise Bayesian Neural Networks: the theory, checked").subtitle(format!(
            "Monte Carlo with {} pairs of directions at each of {} concentrations, seed {}",
            settings.samples, settings.points, settings.seed
        ));
    for curves in &curves {
        let dim = curves.sphere.dim();
        curves.write_rows(&mut csv)?;
        let figure = figure::validation(curves, settings.samples);
        out.save_figure(&figure, &format!("theory-d{dim}"))?;
        let (claims, checks) = claims::judge(curves);
        say!("\nThe paper's claims at D = {dim}\n")?;
        let table = claims.table()?;
        table.print()?;
        out.write(format!("claims-d{dim}.csv"), table.csv())?;
        say!("\nWhat we state at D = {dim}\n")?;
        checks.table()?.print()?;
        report = report.section(
            Section::new(format!("D = {dim}"))
                .figure(&figure, "Lines are formulas; points are measurements that use none of them.")?
                .heading("The paper's claims")
                .paragraph(
                    "An approximation holds if it is within 2 % of the exact value where the paper says it applies, and \
                     with a correction if a formula of the same form is.",
                )
                .table(&table)
                .heading("What we state")
                .table(&checks.table()?),
        );
        for check in checks.iter() {
            all.add(format!("D = {dim}: {}", check.statement), &check.measured, check.passed);
        }
    }
    let spheres = ERROR_DIMS.map(Sphere::new).into_iter().collect::<Result<Vec<_>, _>>()?;
    let errors = figure::errors(&spheres);
    out.save_figure(&errors, "errors")?;
    report = report.section(Section::new("Across dimensions").figure(
        &errors,
        "Relative errors of the closed forms over the whole range of concentrations.",
    )?);
    csv.save(&out, "theory.csv")?;
    let path = report.save(&out, "report.html")?;
    say!("\n{}; the report is {}", all.summary(), path.display())?;
    Ok(all)
}
