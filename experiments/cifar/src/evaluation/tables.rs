//! The tables of an evaluation, for people.

use anyhow::Result;
use lab::{Cell, Table};

use super::results::{Evaluation, Protocol, Quality, Way};
use crate::settings::Method;

/// The name of a way to predict, for people.
pub fn name(way: Way, protocol: &Protocol) -> String {
    match way {
        Way::Expected => "expected, one pass".into(),
        Way::Mean => "noise off".into(),
        Way::MeanAsTrained => "noise off, as trained".into(),
        Way::MonteCarlo => format!("Monte Carlo, {} samples", protocol.samples),
    }
}

/// Explains the names that [`name`] gives, for a network that was trained with `method`.
pub fn explanation(method: Method) -> String {
    let mut text = String::from(
        "Noise off: one pass, with normalization statistics that were measured with noise off. \
         As trained: the same pass with the running statistics that training collected under noise.",
    );
    const SAMPLES: &str = " Monte Carlo: the mean of the probabilities of several noisy passes. MI: the part of the entropy that \
         comes from not knowing the weights.";
    if method.is_noisy() {
        text += " Expected: one deterministic pass that hands on the expectation of every activation over the noise.";
    }
    if method.has_samples() {
        text += SAMPLES;
    } else {
        text += &format!(
            " This network was trained with `--method {}`, without noise: there is nothing to sample, so it has no Monte Carlo \
             prediction.",
            method.name()
        );
    }
    text
}

const SCORES: [&str; 8] =
    ["accuracy", "NLL", "Brier", "ECE", "adaptive", "classwise", "entropy", "MI"];

fn cells(quality: &Quality) -> [Cell; 8] {
    let number = |value: f64| Cell::from(format!("{value:.4}"));
    [
        number(quality.accuracy),
        number(quality.nll),
        number(quality.brier),
        number(quality.ece),
        number(quality.adaptive_ece),
        number(quality.classwise_ece),
        number(quality.entropy),
        quality.mutual_information.map_or("–".into(), number),
    ]
}

/// The scores on all test images.
pub fn scores(evaluation: &Evaluation) -> Result<Table> {
    let protocol = &evaluation.protocol;
    let header = ["prediction"].into_iter().chain(SCORES);
    let mut table = aligned(Table::new(header), 1).caption(format!(
        "All {} test images. ECE has 15 bins: of equal width, of equal mass (adaptive), by class (classwise). Entropy and mutual \
         information (MI) are means, in nats.",
        protocol.test_images
    ));
    for measured in &evaluation.ways {
        let name = Cell::from(name(measured.way, protocol));
        table.row([name].into_iter().chain(cells(&measured.all)))?;
    }
    Ok(table)
}

/// The scores with and without temperature scaling, on images that the temperature was not fitted
/// to.
pub fn tempered(evaluation: &Evaluation) -> Result<Table> {
    let protocol = &evaluation.protocol;
    let header = ["prediction", "T"].into_iter().chain(SCORES);
    let mut table = aligned(Table::new(header), 1)
        .caption(format!("Temperature scaling: {}.", protocol.fit_in_words()));
    for measured in &evaluation.ways {
        let way = name(measured.way, protocol);
        let tempered = &measured.tempered;
        for (temperature, quality) in
            [(1.0, &tempered.before), (tempered.temperature, &tempered.after)]
        {
            let first = [Cell::from(way.as_str()), format!("{temperature:.3}").into()];
            table.row(first.into_iter().chain(cells(quality)))?;
        }
    }
    Ok(table)
}

/// Aligns the columns of scores to the right: all have the same number of decimals.
fn aligned(mut table: Table, first: usize) -> Table {
    for column in first..first + SCORES.len() + 1 {
        table = table.align(column, lab::Align::Right);
    }
    table
}
