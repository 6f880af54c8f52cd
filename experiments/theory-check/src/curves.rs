//! One dimension: the measured points, and a fine grid for the formulas.

use anyhow::Result;
use lab::{Csv, Field, ProgressBar, seventeen_digits};
use plot::logspace;
use rayon::prelude::*;
use vmf_core::Sphere;

use crate::monte_carlo::{Measurement, measure};
use crate::quadrature;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The smallest and the largest concentration; `D/100` and `100 D` if not given.
    pub kappa: Option<(f64, f64)>,
    /// The number of concentrations, evenly spaced on a logarithmic scale.
    pub points: usize,
    /// The number of pairs of directions drawn at each.
    pub samples: u32,
    /// The seed of the draws.
    pub seed: u64,
}

/// A concentration with what was measured there.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The concentration.
    pub kappa: f64,
    /// The Monte Carlo estimates.
    pub measured: Measurement,
    /// The KL by quadrature.
    pub kl: f64,
}

/// One dimension's measurements and its grid.
#[derive(Clone, Debug)]
pub struct Curves {
    /// The sphere.
    pub sphere: Sphere,
    /// The measured points.
    pub points: Vec<Point>,
    /// A fine grid over the same range, for lines.
    pub grid: Vec<f64>,
}

impl Curves {
    /// Draws and integrates at every concentration of `settings`, on all processors.
    pub fn measure(dim: usize, settings: &Settings, progress: &ProgressBar) -> Result<Self> {
        let sphere = Sphere::new(dim)?;
        let d = dim as f64;
        let (low, high) = settings.kappa.unwrap_or((0.01 * d, 100.0 * d));
        let points = logspace(low, high, settings.points)
            .into_par_iter()
            .enumerate()
            .map(|(index, kappa)| {
                // Every point has its own stream, so the result does not depend on the number of
                // threads.
                let seed =
                    settings.seed.wrapping_add((dim as u64) << 32).wrapping_add(index as u64);
                let measured = measure(dim, kappa, settings.samples, seed)?;
                progress.advance(1);
                Ok(Point { kappa, measured, kl: quadrature::kl(dim, kappa) })
            })
            .collect::<Result<_>>()?;
        Ok(Self { sphere, points, grid: logspace(low, high, 300) })
    }

    /// A formula evaluated on the grid.
    pub fn line(&self, formula: impl Fn(&Sphere, f64) -> f64) -> Vec<f64> {
        self.grid.iter().map(|&kappa| formula(&self.sphere, kappa)).collect()
    }

    /// Writes the measured points and the formulas at them, with 17 significant digits.
    pub fn write_rows(&self, csv: &mut Csv) -> Result<()> {
        for Point { kappa, measured, kl } in &self.points {
            let (s, kappa) = (&self.sphere, *kappa);
            let sigma = s.sigma_eff(kappa);
            let estimates = [measured.sigma_u2, measured.a, measured.sigma_eff];
            let values = [kappa]
                .into_iter()
                .chain(estimates.iter().flat_map(|e| [e.value, e.error]))
                .chain([
                    s.one_minus_a2(kappa),
                    s.sigma_u2_paper(kappa),
                    s.sigma_u2_closed(kappa),
                    s.mean_resultant_length(kappa),
                    sigma,
                    s.sigma_eff_paper(kappa),
                    *kl,
                    s.kl(kappa),
                    s.kl_approx(sigma),
                    s.kl_broad(kappa),
                    s.kl_tight(kappa),
                    s.kl_with_printed_sign(kappa),
                ]);
            csv.row(
                [Field::from(s.dim() as u64)]
                    .into_iter()
                    .chain(values.map(|value| seventeen_digits(value).into())),
            )?;
        }
        Ok(())
    }
}

/// The columns of [`Curves::write_rows`]; `_mc` is a Monte Carlo estimate, `_se` its standard
/// error.
pub const COLUMNS: [&str; 20] = [
    "dim",
    "kappa",
    "sigma_u2_mc",
    "sigma_u2_se",
    "a_mc",
    "a_se",
    "sigma_eff_mc",
    "sigma_eff_se",
    "sigma_u2",
    "sigma_u2_paper",
    "sigma_u2_closed",
    "a",
    "sigma_eff",
    "sigma_eff_paper",
    "kl_quadrature",
    "kl",
    "kl_approx",
    "kl_broad",
    "kl_tight",
    "kl_printed_sign",
];
