//! Writes a comparison to a folder: figures, report, CSV and JSON.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lab::{OutDir, Report, Section, Table};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::group::Group;
use super::{Comparison, figure, sweep, tables};
use crate::evaluation::results::{Measured, Way};

/// The version of comparison.json.
const VERSION: u64 = 1;

/// Writes all files and returns the path of the report.
pub(super) fn write(comparison: &Comparison, folder: &Path) -> Result<PathBuf> {
    let out = OutDir::create(folder)?;
    let figure = figure::figure(comparison);
    out.save_figure(&figure, "comparison")?;
    tables::csv(comparison)?.save(&out, "comparison.csv")?;
    let json = serde_json::to_string_pretty(&document(comparison))? + "\n";
    out.write("comparison.json", json)?;
    let mut report = Report::new(format!("Networks compared on {}", comparison.data))
        .subtitle(subtitle(comparison))
        .section(
            Section::new("Scores")
                .paragraph(sentence(comparison))
                .table(&tables::scores(comparison)?)
                .paragraph(
                    "Noise off: one pass, with normalization statistics that were measured with noise off. Monte Carlo: the \
                     mean of the probabilities of several noisy passes, for networks that have noise.",
                ),
        )
        .section(Section::new("Training and calibration").figure(&figure, caption(comparison))?);
    if let Some(curve) = sweep::figure(comparison) {
        out.save_figure(&curve, "beta")?;
        let caption =
            "Scores of the trained networks over beta; bars are one standard deviation over seeds.";
        report = report.section(Section::new("The weight of the KL").figure(&curve, caption)?);
    }
    let report = report
        .section(
            Section::new("Temperature scaling")
                .paragraph(
                    "A single number, fitted to images that are left out of the scores, improves the calibration of any network. \
                     This is the baseline that a Bayesian network has to beat.",
                )
                .table(&tables::tempered(comparison)?),
        )
        .section(Section::new("Runs").table(&runs(comparison)?));
    Ok(report.save(&out, "report.html")?)
}

fn subtitle(comparison: &Comparison) -> String {
    let runs: usize = comparison.groups.iter().map(|group| group.members.len()).sum();
    format!("{}, {runs} {}", comparison.network(), if runs == 1 { "run" } else { "runs" })
}

/// The main result of the table as one sentence.
fn sentence(comparison: &Comparison) -> String {
    let baseline = &comparison.groups[comparison.baseline];
    let rivals = comparison.groups.iter().enumerate();
    let rivals = rivals.filter(|(number, _)| *number != comparison.baseline);
    let best = rivals
        .filter_map(|(_, group)| Some((comparison.ece_ratio(group, Way::Mean)?, group)))
        .filter(|(ratio, _)| ratio.is_finite())
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((ratio, group)) = best else {
        return "A comparison needs a second configuration; the scores of this one are below."
            .into();
    };
    let mean = |group: &Group, number: fn(&Measured) -> f64| {
        group.spread(Way::Mean, number).map_or(f64::NAN, |spread| spread.mean)
    };
    format!(
        "Without noise at prediction, {} has a calibration error of {:.4} against {:.4} of the baseline {} ({}), at an accuracy of \
         {:.4} against {:.4} and a negative log-likelihood of {:.4} against {:.4}.",
        group.label,
        mean(group, |measured| measured.all.ece),
        mean(baseline, |measured| measured.all.ece),
        baseline.label,
        if ratio >= 1.0 {
            format!("{ratio:.2} times smaller")
        } else {
            format!("{:.2} times larger", 1.0 / ratio)
        },
        mean(group, |measured| measured.all.accuracy),
        mean(baseline, |measured| measured.all.accuracy),
        mean(group, |measured| measured.all.nll),
        mean(baseline, |measured| measured.all.nll),
    )
}

fn caption(comparison: &Comparison) -> String {
    let mut text = String::from(
        "Test accuracy, negative log-likelihood and expected calibration error (15 bins) after each epoch, noise off; \
         accuracy against confidence of the last network.",
    );
    if comparison.groups.iter().any(|group| !group.profile().is_empty()) {
        text += " σ_{eff} is the standard deviation of the learned noise, relative to a normalized activation of variance 1.";
    }
    text
}

fn runs(comparison: &Comparison) -> Result<Table> {
    let mut table = Table::new(["network", "run", "seed", "epochs", "accuracy", "NLL", "ECE"]);
    for group in &comparison.groups {
        for member in &group.members {
            let scores = member.evaluation.way(Way::Mean).map(|measured| &measured.all);
            let number = |value: Option<f64>| {
                value.map_or("–".into(), |value| format!("{value:.4}").into())
            };
            table.row([
                group.label.as_str().into(),
                format!("{}", member.folder.display()).into(),
                member.config.settings.seed.into(),
                member.epoch.into(),
                number(scores.map(|scores| scores.accuracy)),
                number(scores.map(|scores| scores.nll)),
                number(scores.map(|scores| scores.ece)),
            ])?;
        }
    }
    Ok((2..7).fold(table, |table, column| table.align(column, lab::Align::Right)))
}

/// comparison.json: every number of the tables, and those of each run behind them.
fn document(comparison: &Comparison) -> Value {
    json!({
        "version": VERSION,
        "data": comparison.data,
        "protocol": comparison.protocol,
        "baseline": comparison.groups[comparison.baseline].label,
        "groups": comparison.groups.iter().map(|group| describe(comparison, group)).collect::<Vec<_>>(),
    })
}

fn describe(comparison: &Comparison, group: &Group) -> Value {
    let runs = group.members.iter().map(|member| {
        json!({
            "folder": member.folder.display().to_string(),
            "seed": member.config.settings.seed,
            "epoch": member.epoch,
        })
    });
    let ways = tables::WAYS.into_iter().filter_map(|way| {
        group.spread(way, |_| 0.0)?;
        let spreads = |scores: &[tables::Score]| {
            let named = scores
                .iter()
                .map(|(name, number)| (name.to_string(), to_value(&group.spread(way, number))));
            Value::Object(named.collect::<Map<_, _>>())
        };
        Some(json!({
            "way": way,
            "scores": spreads(&tables::SCORES),
            "tempered": spreads(&tables::TEMPERED),
            "ece_ratio": comparison.ece_ratio(group, way),
        }))
    });
    json!({
        "label": group.label,
        "settings": group.settings,
        "epochs": group.epochs(),
        "runs": runs.collect::<Vec<_>>(),
        "ways": ways.collect::<Vec<_>>(),
        "sigma_eff": group.profile(),
    })
}

fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
