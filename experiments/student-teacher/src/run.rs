//! A whole run: teach, judge, draw and report; and the same from the results of its parts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lab::{Cell, Checks, Entries, Journal, OutDir, Report, Section, Table, say, significant};
use vmf_core::expected_cosine;

use crate::results::{Estimate, Results};
use crate::settings::{Gain, Point, Settings, Variable};
use crate::student::Learned;
use crate::tasks::{self, Done, EXACT, Execution};
use crate::{claims, figure, nonlinear};

/// Does all tasks, prints the verdicts, writes figures, data and report to `out`, and returns the
/// checks of our own statements.
///
/// A part of a run only writes its results, for [`merge`], and returns no checks.
pub fn run(settings: &Settings, out: &Path, execution: &Execution) -> Result<Checks> {
    settings.check()?;
    let out = OutDir::create(out)?;
    let (done, path) = tasks::execute(settings, &out, execution)?;
    let Some(shard) = execution.shard else {
        return report(&Results::new(settings.clone(), done)?, &out);
    };
    say!(
        "part {shard} is done, {} results in {}; when all parts are: student-teacher merge {}",
        done.len(),
        path.display(),
        out.path().display()
    )?;
    Ok(Checks::new())
}

/// Joins the results of parts and reports on them as [`run`] does. A folder stands for all result
/// files in it.
pub fn merge(sources: &[PathBuf], out: &Path) -> Result<Checks> {
    let mut files = Vec::new();
    for source in sources {
        if source.is_dir() {
            files.extend(result_files(source)?);
        } else {
            files.push(source.clone());
        }
    }
    let mut joined: Option<(Settings, PathBuf)> = None;
    let mut done: Vec<Done> = Vec::new();
    for file in files {
        let Entries { settings, results } = Journal::read::<Settings, Done>(&file)?;
        match &joined {
            None => joined = Some((settings, file)),
            Some((first, path)) => ensure!(
                *first == settings,
                "{} and {} come from runs with different settings",
                path.display(),
                file.display()
            ),
        }
        done.extend(results);
    }
    let Some((settings, _)) = joined else {
        bail!("nothing to merge: name result files, or the folder that holds them");
    };
    settings.check()?;
    report(&Results::new(settings, done)?, &OutDir::create(out)?)
}

fn result_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("results") && name.ends_with(".jsonl") {
            files.push(path);
        }
    }
    ensure!(!files.is_empty(), "{} holds no results (files results*.jsonl)", folder.display());
    files.sort();
    Ok(files)
}

fn report(results: &Results, out: &OutDir) -> Result<Checks> {
    let settings = &results.settings;
    let (claims, checks) = claims::judge(results);
    say!("\nThe paper's claims\n")?;
    let (claims, statements) = (claims.table()?, checks.table()?);
    claims.print()?;
    say!("\nWhat we state\n")?;
    statements.print()?;
    out.write("claims.csv", claims.csv())?;
    out.write("checks.csv", statements.csv())?;

    let recovery = figure::recovery(results);
    out.save_figure(&recovery, "student-teacher")?;
    results.csv()?.save(out, "students.csv")?;
    let mut report = Report::new("Precise Bayesian Neural Networks: student and teacher")
        .subtitle(format!(
            "{} steps of Adam from a learning rate of {}, {} per point, β = {}",
            settings.steps,
            settings.lr,
            match settings.seeds {
                1 => "one seed".into(),
                n => format!("{n} seeds"),
            },
            settings.beta
        ))
        .section(
            Section::new("Does σ_{eff} reflect how hard the task is?")
                .paragraph(
                    "A linear teacher with a unit-norm direction answers Gaussian inputs with observation noise s. A student, \
                     one von Mises-Fisher unit y = g (BN(w·x) + σ_{eff} z) with z ~ N(0, 1), minimizes NLL + β KL/N.",
                )
                .figure(
                    &recovery,
                    "Top: how close the student comes to the teacher, and how close it thinks it is. Bottom: its noise, and \
                     the closed form of the stationary point.",
                )?
                .heading("The paper's claims")
                .table(&claims)
                .heading("What we state")
                .table(&statements),
        );
    let mut numbers = Section::new("The sweeps in numbers")
        .paragraph("Mean ± standard error over seeds; in brackets the closed form.");
    for variable in Variable::ALL {
        numbers = numbers
            .heading(format!("By {}", variable.name()))
            .table(&sweep_table(results, variable)?);
    }
    report = report.section(numbers);
    if settings.beyond {
        report = beyond(results, out, report)?;
    }
    let path = report.save(out, "report.html")?;
    say!("\n{}; the report is {}", checks.summary(), path.display())?;
    Ok(checks)
}

/// The sections on the exact posterior and the nonlinear teacher.
fn beyond(results: &Results, out: &OutDir, report: Report) -> Result<Report> {
    let exact = figure::exact(results);
    out.save_figure(&exact, "exact-posterior")?;
    let table = exact_table(results)?;
    say!("\nThe exact posterior\n")?;
    table.print()?;
    let nonlinear = figure::nonlinear(results);
    out.save_figure(&nonlinear, "nonlinear")?;
    Ok(report
        .section(
            Section::new("Against the exact posterior")
                .paragraph(
                    "The posterior of this problem is a Fisher-Bingham density on the sphere, and can be sampled. Its mean \
                     resultant length is, on average over teachers, the cosine that its mean direction reaches: an exact \
                     posterior knows what it knows. The variational students are more certain than that, by N/(N−D−1) in κ \
                     where posteriors are tight: the best von Mises-Fisher distribution averages precisions, the exact \
                     posterior's spread averages their inverses.",
                )
                .figure(&exact, "Mean-field Gaussian: independent Gaussians for free weights with the prior N(0, I/D), in closed form; their concentration is that of the normalized weights.")?
                .table(&table),
        )
        .section(
            Section::new("A nonlinear teacher")
                .paragraph("Teacher and student have two layers with normalization; no closed form is known.")
                .figure(&nonlinear, "Each layer's σ_{eff}, and how much of the teacher the student recovers.")?
                .table(&nonlinear_table(results)?),
        ))
}

fn sweep_table(results: &Results, variable: Variable) -> Result<Table> {
    let gains = &results.settings.gains;
    let mut header = vec![variable.name().to_owned(), "cosine".into()];
    for &gain in gains {
        header.push(format!("A, {}", claims::kind(gain)));
        header.push(format!("σ_{{eff}}, {}", claims::kind(gain)));
    }
    let mut table = Table::new(header);
    for point in results.settings.sweep(variable) {
        let cell = |gain: Gain, value: fn(&Learned) -> f64, predicted: Option<f64>| -> Cell {
            let students = results.linear(&point, gain);
            let values: Vec<f64> = students.iter().map(value).collect();
            let text = plus_minus(Estimate::of(&values));
            match predicted {
                Some(predicted) => format!("{text} ({})", significant(predicted, 4)).into(),
                None => text.into(),
            }
        };
        let mut row = vec![
            Cell::number(variable.of(&point), 4),
            cell(gains[0], |l| l.cosine, crate::closed_form::least_squares_cosine(&point)),
        ];
        for &gain in gains {
            let sigma = results.predicted_sigma(&point, gain);
            row.push(cell(gain, |l| expected_cosine(l.sigma), Some(expected_cosine(sigma))));
            row.push(cell(gain, |l| l.sigma, Some(sigma)));
        }
        table.row(row)?;
    }
    Ok(table)
}

fn exact_table(results: &Results) -> Result<Table> {
    let mut header = vec!["s".to_owned(), "R-hat".into(), "draws".into()];
    header.extend(figure::METHODS.iter().map(|m| format!("|E w|, {}", m.label)));
    header.extend(figure::METHODS[1..].iter().map(|m| format!("κ/κ_{{exact}}, {}", m.label)));
    let mut table = Table::new(header);
    for point in EXACT {
        let compared = results.exact(&point);
        let r_hat = compared.iter().map(|c| c.exact.r_hat).fold(0.0, f64::max);
        let draws = compared.iter().map(|c| c.exact.effective).fold(f64::INFINITY, f64::min);
        let mut row = vec![
            Cell::number(point.noise, 3),
            Cell::number(r_hat, 4),
            Cell::number(draws.floor(), 3),
        ];
        for method in &figure::METHODS {
            let values: Vec<f64> = compared.iter().map(method.claimed).collect();
            row.push(Cell::number(Estimate::of(&values).mean, 3));
        }
        for method in &figure::METHODS[1..] {
            let values: Vec<f64> =
                compared.iter().map(|c| figure::concentration_ratio(&point, c, method)).collect();
            row.push(plus_minus(Estimate::of(&values)).into());
        }
        table.row(row)?;
    }
    Ok(table)
}

fn nonlinear_table(results: &Results) -> Result<Table> {
    let mut table = Table::new([
        "s",
        "D",
        "N",
        "σ_{eff}, first layer",
        "σ_{eff}, second layer",
        "explained variance",
    ]);
    let mut points: Vec<Point> = Vec::new();
    for point in Variable::ALL.into_iter().flat_map(nonlinear::sweep) {
        if !points.contains(&point) {
            points.push(point);
        }
    }
    for point in points {
        let students = results.nonlinear(&point);
        let cell = |value: fn(&nonlinear::Learned) -> f64| -> Cell {
            plus_minus(Estimate::of(&students.iter().map(value).collect::<Vec<_>>())).into()
        };
        table.row([
            Cell::number(point.noise, 3),
            point.dim.into(),
            point.samples.into(),
            cell(|l| l.sigmas[0]),
            cell(|l| l.sigmas[1]),
            cell(|l| l.explained),
        ])?;
    }
    Ok(table)
}

/// A mean with its standard error.
fn plus_minus(estimate: Estimate) -> String {
    format!("{} ± {}", significant(estimate.mean, 3), significant(estimate.error, 1))
}
