//! `theory-check expected`: does one deterministic pass compute what many noisy ones do on average?
//!
//! In front of the activations of a random network, mean and deviation over noisy passes are
//! measured by brute force and compared with what deterministic passes say: with the noise left
//! out, and with expected activations in both grades. The first two layers are exact, since sums of
//! independent values are; further on units share the noise of the layers before them, and their
//! values are not quite Gaussian.

pub mod figure;
pub mod network;

use std::path::Path;

use anyhow::Result;
use lab::{
    Cell, Checks, Csv, Field, OutDir, ProgressBar, Report, Section, Table, say, significant,
};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use rayon::prelude::*;
use vmf_core::expected::Gaussian;

use network::{Grade, Network};

/// Layers of the networks.
const DEPTH: usize = 8;
/// Units of each layer.
const WIDTH: usize = 48;
/// Inputs that are compared.
const INPUTS: usize = 4;
/// Noisy passes of one task.
const CHUNK: u32 = 1000;
/// The largest distance of an exact value from its measurement, in standard errors, among some
/// thousand of them.
const Z_LIMIT: f64 = 5.0;

/// The settings of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The noise scale sigma_eff of all layers.
    pub sigma: f64,
    /// Noisy passes for each input.
    pub passes: u32,
    /// The seed.
    pub seed: u64,
}

/// What was found in front of the activations of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// How far the mean is off in each grade: noise off, fixed, full. The root mean square over
    /// units and inputs, in standard deviations of the value.
    pub mean_off: [f64; 3],
    /// The relative error of the deviation, on average: fixed, full.
    pub deviation_bias: [f64; 2],
    /// The root mean square of that error.
    pub deviation_off: [f64; 2],
    /// The largest distance of the full grade from brute force, in standard errors: of the mean and
    /// of the variance.
    pub z: [f64; 2],
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Compares the layers of one network.
pub fn measure(network: &Network, settings: &Settings) -> Vec<Row> {
    let mut rng = Pcg64::seed_from_u64(settings.seed ^ 0x696e_7075);
    let mut rows = vec![Sums::default(); network.depth()];
    for number in 0..INPUTS {
        let input = network::normals(WIDTH, &mut rng);
        let grades = [Grade::NoiseOff, Grade::Fixed, Grade::Full];
        let predicted = grades.map(|grade| network.predict(&input, grade));
        let measured = brute_force(network, &input, &predicted[2], settings, number as u64);
        for (layer, row) in rows.iter_mut().enumerate() {
            for (unit, exact) in measured[layer].iter().enumerate() {
                let predicted = [0, 1, 2].map(|grade| predicted[grade][layer][unit]);
                row.add(predicted, *exact, f64::from(settings.passes));
            }
        }
    }
    rows.into_iter().map(Sums::row).collect()
}

/// Mean and variance over noisy passes of the values in front of each activation. Sums are taken
/// around given means, so that they keep their digits.
fn brute_force(
    network: &Network,
    input: &[f64],
    around: &[Vec<Gaussian>],
    settings: &Settings,
    number: u64,
) -> Vec<Vec<Gaussian>> {
    let chunks: Vec<u32> = (0..settings.passes).step_by(CHUNK as usize).collect();
    // Every chunk has its own seed, so the result does not depend on the number of threads.
    let sums: Vec<Vec<Vec<[f64; 2]>>> = chunks
        .par_iter()
        .map(|&first| {
            let seed = settings.seed ^ (number + 1) << 56 ^ u64::from(first + 1) << 20;
            let mut rng = Pcg64::seed_from_u64(seed);
            let mut sums: Vec<_> = around.iter().map(|units| vec![[0.0; 2]; units.len()]).collect();
            for _ in first..settings.passes.min(first + CHUNK) {
                network.sample(input, &mut rng, |layer, values| {
                    for (unit, value) in values.iter().enumerate() {
                        let difference = value - around[layer][unit].mean;
                        sums[layer][unit][0] += difference;
                        sums[layer][unit][1] += difference * difference;
                    }
                });
            }
            sums
        })
        .collect();
    let passes = f64::from(settings.passes);
    let moments = |layer: usize, unit: usize| {
        let total = |i: usize| sums.iter().map(|sums| sums[layer][unit][i]).sum::<f64>() / passes;
        let (first, second) = (total(0), total(1));
        Gaussian { mean: around[layer][unit].mean + first, variance: second - first * first }
    };
    (0..around.len())
        .map(|layer| (0..around[layer].len()).map(|unit| moments(layer, unit)).collect())
        .collect()
}

/// What a [`Row`] is the summary of.
#[derive(Clone, Debug, Default)]
struct Sums {
    count: f64,
    mean: [f64; 3],
    deviation: [f64; 2],
    squares: [f64; 2],
    z: [f64; 2],
}

impl Sums {
    fn add(&mut self, predicted: [Gaussian; 3], exact: Gaussian, passes: f64) {
        let s = exact.deviation();
        self.count += 1.0;
        for (sum, x) in self.mean.iter_mut().zip(predicted) {
            *sum += ((x.mean - exact.mean) / s).powi(2);
        }
        for (grade, x) in predicted[1..].iter().enumerate() {
            let off = x.deviation() / s - 1.0;
            self.deviation[grade] += off;
            self.squares[grade] += off * off;
        }
        // The variance of a Gaussian is known to sqrt(2 / n).
        let mean = (predicted[2].mean - exact.mean) / s * passes.sqrt();
        let variance = (predicted[2].variance / exact.variance - 1.0) * (passes / 2.0).sqrt();
        self.z = [self.z[0].max(mean.abs()), self.z[1].max(variance.abs())];
    }

    fn row(self) -> Row {
        Row {
            mean_off: self.mean.map(|sum| (sum / self.count).sqrt()),
            deviation_bias: self.deviation.map(|sum| sum / self.count),
            deviation_off: self.squares.map(|sum| (sum / self.count).sqrt()),
            z: self.z,
        }
    }
}

/// Measures, prints the tables, writes figure and report to `out`, and returns the checks of our
/// statements.
pub fn run(settings: &Settings, out: &Path) -> Result<Checks> {
    let out = OutDir::create(out)?;
    let progress = ProgressBar::new("noisy passes", 2);
    let names = STATEMENTS.each_ref().map(|statement| statement.name);
    let networks = [false, true].map(|pooling| {
        let network = Network::new(DEPTH, WIDTH, pooling, settings.sigma, settings.seed);
        let rows = measure(&network, settings);
        progress.advance(1);
        rows
    });
    progress.finish();
    let mut checks = Checks::new();
    for (statement, rows) in STATEMENTS.iter().zip(&networks) {
        judge(statement, rows, settings, &mut checks);
    }
    let figure = figure::figure(&names, &networks, settings);
    out.save_figure(&figure, "expected")?;
    csv(&names, &networks)?.save(&out, "expected.csv")?;
    let table = table(&names, &networks)?;
    say!(
        "\nOne deterministic pass against {} noisy ones, at σ_eff = {}\n",
        settings.passes,
        settings.sigma
    )?;
    table.print()?;
    checks.table()?.print()?;
    let report = Report::new("The expected pass against brute force")
        .subtitle(format!(
            "{} noisy passes for each of {INPUTS} inputs at σ_{{eff}} = {}, seed {}",
            settings.passes, settings.sigma, settings.seed
        ))
        .section(
            Section::new("In front of the activations of each layer")
                .figure(&figure, "The dotted line is the error of brute force itself.")?
                .table(&table)
                .heading("What we state")
                .table(&checks.table()?),
        )
        .save(&out, "report.html")?;
    say!("\n{}; the report is {}", checks.summary(), report.display())?;
    Ok(checks)
}

/// What we state of a network. The limits were set after the first measurement, some tens of per
/// cent above it: they guard against changes, and predict nothing.
struct Statement {
    name: &'static str,
    /// Layers in which the full grade is exact. With pooling the second layer already inherits what
    /// the maximum of four Gaussians is approximated by.
    exact: usize,
    /// The largest error of a mean in each grade, in deviations.
    means: [f64; 2],
    /// The largest error of the propagated deviation, on average over a layer. Clark's maximum of
    /// four has a deviation that is some per cent too small, layer by layer.
    deviation: f64,
}

const STATEMENTS: [Statement; 2] = [
    Statement { name: "ReLU", exact: 2, means: [0.1, 0.08], deviation: 0.05 },
    Statement { name: "ReLU and pooling", exact: 1, means: [0.1, 0.15], deviation: 0.15 },
];

fn judge(statement: &Statement, rows: &[Row], settings: &Settings, checks: &mut Checks) {
    let Statement { name, exact, means, deviation } = *statement;
    let z = |i: usize| rows[..exact].iter().map(|row| row.z[i]).fold(0.0, f64::max);
    checks.add(
        format!(
            "{name}: mean and variance of the full grade are exact in the first {}",
            if exact == 1 { "layer" } else { "two layers" }
        ),
        format!("at most {}, {} standard errors", significant(z(0), 2), significant(z(1), 2)),
        z(0) < Z_LIMIT && z(1) < Z_LIMIT,
    );
    let noise = 1.0 / f64::from(settings.passes).sqrt();
    for (grade, limit) in means.into_iter().enumerate() {
        let worst = rows.iter().map(|row| row.mean_off[grade + 1]).fold(0.0, f64::max);
        checks.add(
            format!(
                "{name}: in the {} grade no layer's means are off by more than {limit} deviations",
                ["fixed", "full"][grade]
            ),
            format!("{} at most", significant(worst, 2)),
            worst < limit + noise,
        );
    }
    let last = rows[rows.len() - 1].mean_off;
    checks.add(
        format!("{name}: with noise off the last layer is off by four times as much or more"),
        format!("{} against {}", significant(last[0], 2), significant(last[2], 2)),
        last[0] > 4.0 * last[1].max(last[2]),
    );
    let bias = rows.iter().map(|row| row.deviation_bias[1].abs()).fold(0.0, f64::max);
    checks.add(
        format!(
            "{name}: a layer's propagated deviations are within {} % on average",
            100.0 * deviation
        ),
        format!("{} %", significant(100.0 * bias, 2)),
        bias < deviation,
    );
}

fn table(names: &[&str; 2], networks: &[Vec<Row>; 2]) -> Result<Table> {
    let mut table = Table::new([
        "network",
        "layer",
        "mean off, noise off",
        "fixed",
        "full",
        "deviation off, fixed (%)",
        "full (%)",
        "full, on average (%)",
    ]);
    for (name, rows) in names.iter().zip(networks) {
        for (layer, row) in rows.iter().enumerate() {
            let [noise_off, fixed, full] = row.mean_off.map(|off| Cell::number(off, 2));
            table.row([
                (*name).into(),
                (layer + 1).into(),
                noise_off,
                fixed,
                full,
                Cell::number(100.0 * row.deviation_off[0], 2),
                Cell::number(100.0 * row.deviation_off[1], 2),
                Cell::number(100.0 * row.deviation_bias[1], 2),
            ])?;
        }
    }
    Ok(table)
}

fn csv(names: &[&str; 2], networks: &[Vec<Row>; 2]) -> Result<Csv> {
    let mut csv = Csv::new([
        "network",
        "layer",
        "mean_off_noise_off",
        "mean_off_fixed",
        "mean_off_full",
        "deviation_off_fixed",
        "deviation_off_full",
        "deviation_bias_full",
    ]);
    for (name, rows) in names.iter().zip(networks) {
        for (layer, row) in rows.iter().enumerate() {
            let [noise_off, fixed, full] = row.mean_off;
            csv.row([
                Field::from(*name),
                (layer as u64 + 1).into(),
                noise_off.into(),
                fixed.into(),
                full.into(),
                row.deviation_off[0].into(),
                row.deviation_off[1].into(),
                row.deviation_bias[1].into(),
            ])?;
        }
    }
    Ok(csv)
}
