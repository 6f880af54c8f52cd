//! One run as one HTML page.

mod figures;
mod images;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lab::{Report, Section, Table};
use serde_json::Value;
use vmf_candle::posterior::{Summary, Thresholds};

use crate::data::Dataset;
use crate::evaluation::results::{Evaluation, Way};
use crate::evaluation::{Options, tables};
use crate::limits;
use crate::trained::Trained;

/// The file in the run's folder that the report is written to by default.
const REPORT: &str = "report.html";
/// The folder of the loss landscapes in a run's folder.
const LANDSCAPE: &str = "landscape";

/// Writes the report of a run to `out`, by default into the run's folder, and returns its path. The
/// network is evaluated first if its folder holds no evaluation.
pub fn write(run: &Path, out: Option<&Path>, options: &Options) -> Result<PathBuf> {
    let trained = options.open(run)?;
    let set = options.dataset(&trained)?;
    let evaluation = options.evaluation(&trained, &set)?;
    let path = out.map_or_else(|| run.join(REPORT), Path::to_path_buf);
    lab::write_atomic(&path, report(&trained, &set, &evaluation)?.html())?;
    Ok(path)
}

fn report(trained: &Trained, set: &Dataset, evaluation: &Evaluation) -> Result<Report> {
    let settings = &trained.config.settings;
    let mut report = Report::new(format!("{} on {}", trained.name(), set.name))
        .subtitle(format!(
            "{} of width {}, `--method {}`, {} of {} epochs on {} images",
            settings.model,
            settings.width,
            settings.method.name(),
            trained.epoch,
            settings.epochs,
            set.train.len()
        ))
        .section(scores(trained, evaluation)?);
    if !trained.records.is_empty() {
        report = report.section(Section::new("Training").figure(
            &figures::training(&trained.records),
            "After each epoch, with noise off. Training scores are on the images that the normalization statistics are measured on.",
        )?);
    }
    report = report.section(calibration(evaluation)?);
    if settings.method.is_noisy() {
        report = report.section(noise(&trained.summary()?)?);
    }
    report = report.section(images::section(set, evaluation)?);
    let landscapes = landscapes(&trained.folder)?;
    if !landscapes.is_empty() {
        report = report.section(landscape(&landscapes));
    }
    Ok(report.section(configuration(trained)?))
}

fn scores(trained: &Trained, evaluation: &Evaluation) -> Result<Section> {
    let mut numbers = Vec::new();
    if let Some(mean) = evaluation.way(Way::Mean) {
        numbers.extend([
            ("Test accuracy", format!("{:.2} %", 100.0 * mean.all.accuracy)),
            ("Negative log-likelihood", format!("{:.4} nats", mean.all.nll)),
            ("Expected calibration error", format!("{:.4}", mean.all.ece)),
        ]);
    }
    if let Some(monte_carlo) = evaluation.way(Way::MonteCarlo) {
        let name = "Calibration error, Monte Carlo";
        numbers.push((name, format!("{:.4}", monte_carlo.all.ece)));
    }
    Ok(Section::new("Scores")
        .key_values(numbers)
        .table(&tables::scores(evaluation)?)
        .table(&tables::tempered(evaluation)?)
        .paragraph(tables::explanation(trained.config.settings.method)))
}

fn calibration(evaluation: &Evaluation) -> Result<Section> {
    let protocol = &evaluation.protocol;
    let ways = [Way::Mean, Way::Expected, Way::MonteCarlo].into_iter().filter_map(|way| {
        let measured = evaluation.way(way)?;
        Some((tables::name(way, protocol), &measured.tempered))
    });
    Ok(Section::new("Calibration")
        .paragraph(format!(
            "Is the network right as often as it says? Each way to predict is shown without temperature scaling (T = 1) and with a \
             temperature T: {}.",
            protocol.fit_in_words()
        ))
        .figure(&figures::reliability(ways), "")?)
}

fn noise(summary: &Summary) -> Result<Section> {
    let header = ["layer", "D", "M", "σ_{eff}", "κ", "A", "KL (nats)"];
    let mut table = Table::new(header).caption(
        "D: inputs of a unit; M: units; κ: concentration of the von Mises-Fisher posterior; A: expected cosine between a sampled \
         and the mean direction.",
    );
    for layer in summary {
        table.row([
            layer.name.as_str().into(),
            layer.dim.into(),
            layer.units.into(),
            layer.sigma_eff().into(),
            layer.kappa.into(),
            layer.expected_cosine.into(),
            layer.kl.into(),
        ])?;
    }
    let mut section = Section::new("Noise")
        .paragraph(
            "The posterior over the directions of a layer's weights is one number: σ_{eff}, the standard deviation of the noise \
             added to its normalized activations.",
        )
        .figure(&figures::noise(summary), "")?;
    let collapse = summary.collapse(&Thresholds::default());
    if !collapse.is_none() {
        section = section.paragraph(format!("Warning: {collapse}"));
    }
    Ok(section.table(&table))
}

/// The figures of the run's loss landscapes, with the names of their files.
fn landscapes(folder: &Path) -> Result<Vec<(String, String)>> {
    let folder = folder.join(LANDSCAPE);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "svg"))
        .collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let svg = limits::read_text(&path, limits::FIGURE)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok((name, svg))
    };
    files.into_iter().map(read).collect()
}

fn landscape(drawings: &[(String, String)]) -> Section {
    let section = Section::new("Loss landscape");
    drawings.iter().fold(section, |section, (name, svg)| section.drawing(svg, name, ""))
}

fn configuration(trained: &Trained) -> Result<Section> {
    let Value::Object(settings) = serde_json::to_value(&trained.config.settings)? else {
        return Ok(Section::new("Configuration"));
    };
    let pairs = settings.iter().map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.replace('_', " "), value)
    });
    let folder = trained.folder.display();
    Ok(Section::new("Configuration")
        .key_values(pairs)
        .paragraph("The same network, from its configuration, and its scores:")
        .preformatted(format!(
            "cifar train --config {folder}/config.json --out another\ncifar eval another"
        )))
}
