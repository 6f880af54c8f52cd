//! `theory-check draws`: does a weight draw act like the additive noise that replaces it?
//!
//! In front of a normalization, the paper replaces a weight `w ~ vMF(mu, kappa)` by additive noise:
//! `mu.x + sigma_eff z` with a standard normal `z`. [`isotropic`] checks this for the inputs of the
//! theory. [`shared`] measures what is lost on photographs: `z` is drawn independently for every
//! input and position, but all of them share one weight draw.

pub mod figure;
pub mod images;
pub mod inputs;
pub mod isotropic;
pub mod shared;

use std::path::Path;

use anyhow::Result;
use lab::{
    Cell, Checks, Csv, Field, OutDir, ProgressBar, Report, Section, Table, say, significant,
};

use images::Images;
use inputs::Inputs;
use isotropic::{Residuals, exact_kurtosis};
use shared::{Shared, averaged_feature};

/// VGG16's first, second and last layers.
const DIMS: [usize; 3] = [27, 576, 4608];

/// The number of pictures that inputs are taken from.
const PICTURES: usize = 80;

/// Random units in front of the second layer: the width of VGG16's first layer.
const UNITS: usize = 64;

/// The largest distance of a measurement from the exact value, in standard errors, among some
/// hundred measurements.
const Z_LIMIT: f64 = 5.0;

/// The settings of the draws.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// The noise scale sigma_eff.
    pub sigma: f64,
    /// The number of weights.
    pub draws: u32,
    /// The seed.
    pub seed: u64,
}

impl Draws {
    /// Chunks of draws as pairs of a seed and a length. Every chunk has its own seed, so the result
    /// does not depend on the number of threads.
    fn seeds(&self, stream: u64) -> Vec<(u64, usize)> {
        const CHUNK: usize = 50;
        let total = self.draws as usize;
        (0..total.div_ceil(CHUNK))
            .map(|index| {
                let seed = self.seed ^ (stream << 24) ^ ((index as u64 + 1) << 44);
                (seed, CHUNK.min(total - index * CHUNK))
            })
            .collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Measures, prints the tables, writes figure and report to `out`, and returns the checks of our
/// statements. The pictures are CIFAR-10's in the folder `data`; without it they are generated.
pub fn run(draws: &Draws, data: Option<&Path>, out: &Path) -> Result<Checks> {
    let images = match data {
        Some(folder) => Images::cifar(folder, PICTURES)?,
        None => Images::generated(PICTURES, draws.seed),
    };
    let out = OutDir::create(out)?;
    let mut checks = Checks::new();
    let progress = ProgressBar::new("weight draws", DIMS.len() as u64 + 4);

    let mut gaussian =
        Table::new(["D", "mean/σ_{eff}", "variance/σ_{eff}²", "kurtosis", "exact", "distance"]);
    for dim in DIMS {
        judge_isotropic(&Residuals::draw(dim, draws)?, draws, &mut gaussian, &mut checks)?;
        progress.advance(1);
    }

    let behind = images.through_random_units(UNITS, draws.seed);
    let inputs = [
        Inputs::patches(&images, draws.seed),
        Inputs::patches(&behind, draws.seed),
        Inputs::whole(&images),
    ];
    let mut layers = Vec::new();
    for inputs in &inputs {
        layers.push(Shared::measure(inputs, draws)?);
        progress.advance(1);
    }
    let [shared, additive] = averaged_feature(&images, draws)?;
    progress.advance(1);
    progress.finish();

    layers.iter().for_each(|layer| judge_shared(layer, draws, &mut checks));
    let table = layer_table(&layers)?;
    let feature = format!(
        "A feature averaged over a whole picture behind a ReLU (D = 27) has the deviation {} under weight draws and {} under \
         additive noise: {} times as much.",
        significant(shared, 3),
        significant(additive, 3),
        significant(shared / additive, 2)
    );
    let figure = figure::figure(&layers, &images.source, draws);
    out.save_figure(&figure, "draws")?;
    csv(&layers)?.save(&out, "draws.csv")?;

    say!(
        "\nw·x/A − μ·x of {} draws on isotropic inputs, at σ_eff = {}\n",
        draws.draws,
        draws.sigma
    )?;
    gaussian.print()?;
    say!("\nOne draw for all inputs: {}\n", images.source)?;
    table.print()?;
    say!("\n{feature}\n")?;
    checks.table()?.print()?;
    let report = Report::new("Weight draws and additive noise")
        .subtitle(format!(
            "{} draws at σ_{{eff}} = {}, seed {}",
            draws.draws, draws.sigma, draws.seed
        ))
        .section(Section::new("On isotropic inputs").table(&gaussian))
        .section(
            Section::new(format!("On {}", images.source))
                .figure(&figure, "Lines are the exact covariance, points are draws.")?
                .table(&table)
                .paragraph(&feature)
                .heading("What we state")
                .table(&checks.table()?),
        )
        .save(&out, "report.html")?;
    say!("\n{}; the report is {}", checks.summary(), report.display())?;
    Ok(checks)
}

/// Compares mean, variance and shape of the residuals on isotropic inputs with the exact ones.
fn judge_isotropic(
    residuals: &Residuals,
    draws: &Draws,
    table: &mut Table,
    checks: &mut Checks,
) -> Result<()> {
    let errors = f64::from(draws.draws).sqrt();
    let (mean, variance) = (residuals.moment(1), residuals.moment(2));
    let (kurtosis, exact) = (residuals.kurtosis(), exact_kurtosis(residuals.dim, draws.sigma)?);
    let distance = residuals.distance_from_gaussian();
    table.row([
        residuals.dim.into(),
        Cell::number(mean, 2),
        Cell::number(variance, 4),
        Cell::number(kurtosis, 4),
        Cell::number(exact, 4),
        Cell::number(distance, 2),
    ])?;
    // Standard errors of a mean, a variance and a kurtosis. A true Gaussian exceeds 1.95 / sqrt(n)
    // once in a thousand times; its density times a quarter of the excess kurtosis bounds the
    // distance of the mixture from it.
    let z = [
        mean * errors,
        (variance - 1.0) * errors / (exact - 1.0).sqrt(),
        (kurtosis - exact) * errors / (24f64.sqrt() * (exact / 3.0).powi(2)),
    ];
    checks.add(
        format!("D = {}: w·x/A has mean μ·x, variance σ_{{eff}}² and the kurtosis 3 + 12A'/(A²σ_{{eff}}^{{4}})", residuals.dim),
        format!("{} standard errors", z.map(|z| significant(z.abs(), 2)).join(", ")),
        z.iter().all(|z| z.abs() < Z_LIMIT),
    );
    let allowed = 1.95 / errors + 0.1 * (exact - 3.0);
    checks.add(
        format!("D = {}: and is Gaussian but for a tenth of the excess kurtosis", residuals.dim),
        format!("distance {} of {}", significant(distance, 2), significant(allowed, 2)),
        distance < allowed,
    );
    Ok(())
}

/// Compares the draws with their exact covariance.
fn judge_shared(layer: &Shared, draws: &Draws, checks: &mut Checks) {
    let z = layer.largest_correlation_error(draws);
    checks.add(
        format!(
            "D = {}: the noise of a draw at two inputs is correlated as the covariance of w says",
            layer.dim
        ),
        format!("{} pairs: at most {} standard errors", layer.pairs.len(), significant(z, 2)),
        z < Z_LIMIT,
    );
    // The covariance differs from that of an isotropic draw in one of D directions.
    let (distance, allowed) = (layer.distance_from_cosine(), 1.0 / (layer.dim as f64).sqrt());
    checks.add(
        format!("D = {}: which is the cosine of the angle between them, to 1/√D", layer.dim),
        format!("{} of {} from it", significant(distance, 2), significant(allowed, 2)),
        distance < allowed,
    );
    if !layer.averages.is_empty() {
        let z = layer.largest_average_error();
        checks.add(
            format!("D = {}: averages over positions keep the variance that follows", layer.dim),
            format!(
                "{} sizes: at most {} standard errors",
                layer.averages.len(),
                significant(z, 2)
            ),
            z < Z_LIMIT,
        );
    }
}

fn layer_table(layers: &[Shared]) -> Result<Table> {
    let mut table = Table::new([
        "what the layer sees",
        "D",
        "correlation of neighbours",
        "of two pictures",
        "variance left in the average of a picture",
        "with additive noise",
        "variance at an input, 10 % to 90 %",
    ]);
    for layer in layers {
        let number = |value: f64| {
            if value.is_nan() { "".into() } else { Cell::number(value, 2) }
        };
        let (left, independent) = layer
            .averages
            .last()
            .map_or((f64::NAN, f64::NAN), |a| (a.measured.value, 1.0 / a.positions as f64));
        table.row([
            layer.name.as_str().into(),
            layer.dim.into(),
            number(layer.typical_correlation(Some(1))),
            number(layer.typical_correlation(None)),
            number(left),
            number(independent),
            format!(
                "{} to {}",
                significant(layer.quantile(0.1), 2),
                significant(layer.quantile(0.9), 2)
            )
            .into(),
        ])?;
    }
    Ok(table)
}

fn csv(layers: &[Shared]) -> Result<Csv> {
    let mut csv =
        Csv::new(["inputs", "dim", "distance", "cosine", "correlation", "correlation_exact"]);
    for layer in layers {
        for pair in &layer.pairs {
            let distance = pair.distance.map_or("other picture".into(), |d| d.to_string());
            csv.row([
                Field::from(layer.name.as_str()),
                (layer.dim as u64).into(),
                distance.as_str().into(),
                pair.cosine.into(),
                pair.measured.into(),
                pair.exact.into(),
            ])?;
        }
    }
    Ok(csv)
}
