//! Where a weight draw differs from additive noise: all inputs share it.
//!
//! The residual `r(x) = w.x / A - mu.x` of one draw at two inputs has the covariance
//!
//! ```text
//! Cov(r(x), r(x')) = (s_perp x.x' + (s_par - s_perp) (mu.x) (mu.x')) / A^2
//! ```
//!
//! Except for the one direction `mu` of many, its correlation is therefore the cosine of the angle
//! between the inputs, and its variance grows with `|x|^2`. Additive noise has the same variance
//! for every input, and no correlation.

use rand::{SeedableRng, distr::Distribution};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use rayon::prelude::*;
use vmf_core::{Error, Sphere, VonMisesFisher, expected_cosine};

use super::images::Images;
use super::inputs::{Inputs, Patches};
use super::{Draws, dot};
use crate::monte_carlo::{Estimate, Welford, random_direction};

/// How the noise of one draw is correlated between two inputs.
pub struct Pair {
    /// The distance of their positions in one picture; `None` for two pictures.
    pub distance: Option<usize>,
    /// The cosine of the angle between them.
    pub cosine: f64,
    /// The correlation of the residuals, from the covariance above.
    pub exact: f64,
    /// The correlation of the residuals over the draws.
    pub measured: f64,
}

/// An average over positions.
pub struct Average {
    /// The number of positions.
    pub positions: usize,
    /// The variance of the average in units of `sigma_eff^2`, from the covariance above. Additive
    /// noise leaves `1 / positions`.
    pub exact: f64,
    /// The same over the draws.
    pub measured: Estimate,
}

/// The noise of weight draws at the inputs of a layer.
pub struct Shared {
    /// The name of the inputs.
    pub name: String,
    /// Their dimension.
    pub dim: usize,
    /// The pairs.
    pub pairs: Vec<Pair>,
    /// The averages over positions.
    pub averages: Vec<Average>,
    /// The variance of the residual at single inputs in units of `sigma_eff^2`, smallest first.
    pub variances: Vec<f64>,
}

impl Shared {
    /// Draws weights of one unit and applies each to all inputs.
    pub fn measure(inputs: &Inputs, draws: &Draws) -> Result<Self, Error> {
        let unit = Unit::new(inputs.dim, draws)?;
        let all: Vec<&[f64]> = inputs
            .pairs
            .iter()
            .flat_map(|(_, pair)| pair)
            .chain(inputs.averages.iter().flat_map(|(_, averages)| averages))
            .map(Vec::as_slice)
            .collect();
        let residuals = unit.residuals(&all, draws)?;
        let at = |index: usize| residuals.iter().map(move |draw| draw[index]);
        let product = |a: usize, b: usize| at(a).zip(at(b)).map(|(a, b)| a * b).sum::<f64>();

        let pairs: Vec<Pair> = inputs
            .pairs
            .iter()
            .enumerate()
            .map(|(index, (distance, [x, y]))| {
                let (a, b) = (2 * index, 2 * index + 1);
                let over = |f: &dyn Fn(&[f64], &[f64]) -> f64| f(x, y) / (f(x, x) * f(y, y)).sqrt();
                Pair {
                    distance: *distance,
                    cosine: over(&|x, y| dot(x, y)),
                    exact: over(&|x, y| unit.covariance(x, y)),
                    measured: product(a, b) / (product(a, a) * product(b, b)).sqrt(),
                }
            })
            .collect();

        let mut first = 2 * pairs.len();
        let averages = inputs
            .averages
            .iter()
            .map(|(positions, averages)| {
                let range = first..first + averages.len();
                first = range.end;
                let mut measured = Welford::default();
                for draw in &residuals {
                    let squares = draw[range.clone()].iter().map(|r| r * r).sum::<f64>();
                    measured.add(squares / averages.len() as f64);
                }
                let exact = averages.iter().map(|x| unit.covariance(x, x)).sum::<f64>();
                Average {
                    positions: *positions,
                    exact: exact / averages.len() as f64,
                    measured: measured.estimate(),
                }
            })
            .collect();

        let mut variances: Vec<f64> =
            (0..2 * pairs.len()).map(|a| product(a, a) / residuals.len() as f64).collect();
        variances.sort_by(f64::total_cmp);
        Ok(Self { name: inputs.name.clone(), dim: inputs.dim, pairs, averages, variances })
    }

    /// The largest distance of a correlation from the exact one, in standard errors (by Fisher's
    /// transformation).
    pub fn largest_correlation_error(&self, draws: &Draws) -> f64 {
        let error = 1.0 / (f64::from(draws.draws) - 3.0).sqrt();
        let z = |pair: &Pair| (pair.measured.atanh() - pair.exact.atanh()).abs() / error;
        self.pairs.iter().map(z).fold(0.0, f64::max)
    }

    /// The root mean square, over the pairs, of the exact correlation minus the cosine.
    pub fn distance_from_cosine(&self) -> f64 {
        let squares = self.pairs.iter().map(|pair| (pair.exact - pair.cosine).powi(2));
        (squares.sum::<f64>() / self.pairs.len() as f64).sqrt()
    }

    /// The largest distance of an average's variance from the exact one, in standard errors.
    pub fn largest_average_error(&self) -> f64 {
        let z = |average: &Average| average.measured.z_score(average.exact).abs();
        self.averages.iter().map(z).fold(0.0, f64::max)
    }

    /// The root mean square of the correlations at a distance.
    pub fn typical_correlation(&self, distance: Option<usize>) -> f64 {
        let squares: Vec<f64> = self
            .pairs
            .iter()
            .filter(|pair| pair.distance == distance)
            .map(|pair| pair.measured.powi(2))
            .collect();
        (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
    }

    /// The variance below which this share of the inputs lies.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = (self.variances.len() - 1) as f64;
        self.variances[(share * last).round() as usize]
    }
}

/// A unit with its posterior. Its residuals are in units of `sigma_eff`.
struct Unit {
    posterior: VonMisesFisher,
    shrinkage: f64,
    sigma: f64,
    along: f64,
    across: f64,
}

impl Unit {
    fn new(dim: usize, draws: &Draws) -> Result<Self, Error> {
        let sphere = Sphere::new(dim)?;
        let kappa = sphere.kappa_from_sigma_eff(draws.sigma);
        let mut rng = Pcg64::seed_from_u64(draws.seed.wrapping_add((dim as u64) << 32));
        Ok(Self {
            posterior: VonMisesFisher::new(random_direction(dim, &mut rng), kappa)?,
            shrinkage: expected_cosine(draws.sigma),
            sigma: draws.sigma,
            along: sphere.variance_along_mean(kappa),
            across: sphere.variance_across_mean(kappa),
        })
    }

    fn covariance(&self, x: &[f64], y: &[f64]) -> f64 {
        let mu = self.posterior.mean_direction();
        let along = (self.along - self.across) * dot(mu, x) * dot(mu, y);
        (self.across * dot(x, y) + along) / (self.shrinkage * self.sigma).powi(2)
    }

    /// For every draw, the residuals at all inputs, in units of `sigma_eff`.
    fn residuals(&self, inputs: &[&[f64]], draws: &Draws) -> Result<Vec<Vec<f64>>, Error> {
        let mu = self.posterior.mean_direction();
        let chunks = draws
            .seeds(mu.len() as u64)
            .into_par_iter()
            .map(|(seed, count)| {
                let mut rng = Pcg64::seed_from_u64(seed);
                let mut weight = vec![0.0; mu.len()];
                (0..count)
                    .map(|_| {
                        self.posterior.sample_into(&mut rng, &mut weight)?;
                        let noise = weight.iter_mut().zip(mu);
                        noise.for_each(|(w, mu)| *w = (*w / self.shrinkage - mu) / self.sigma);
                        Ok(inputs.iter().map(|x| dot(&weight, x)).collect())
                    })
                    .collect::<Result<Vec<_>, Error>>()
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(chunks.into_iter().flatten().collect())
    }
}

/// The standard deviation of a feature that is averaged over a whole picture behind a ReLU: with a
/// shared weight draw, and with independent noise of the same variance at every position. It is the
/// mean over eight units, each with its own picture.
pub fn averaged_feature(images: &Images, draws: &Draws) -> Result<[f64; 2], Error> {
    const UNITS: usize = 8;
    let patches = Patches::new(images);
    let few = (draws.draws / 5).max(50);
    let variances = (0..UNITS)
        .into_par_iter()
        .map(|index| {
            let own =
                Draws { seed: draws.seed.wrapping_add(1000 + index as u64), draws: few, ..*draws };
            let picture = index % images.pictures.len();
            feature_variances(&patches.of(picture), &own)
        })
        .collect::<Result<Vec<_>, Error>>()?;
    Ok([0, 1].map(|kind| {
        let sum: f64 = variances.iter().map(|variance| variance[kind]).sum();
        (sum / variances.len() as f64).sqrt()
    }))
}

/// The variances of one unit's feature over the draws, with shared draws and with additive noise.
fn feature_variances(inputs: &[Vec<f64>], draws: &Draws) -> Result<[f64; 2], Error> {
    let inputs: Vec<&[f64]> = inputs.iter().map(Vec::as_slice).collect();
    let unit = Unit::new(inputs[0].len(), draws)?;
    let mu = unit.posterior.mean_direction();
    let signal: Vec<f64> = inputs.iter().map(|x| dot(mu, x)).collect();
    let feature = |noise: &mut dyn FnMut(usize) -> f64| {
        let relu = |(at, signal): (usize, &f64)| (signal + draws.sigma * noise(at)).max(0.0);
        signal.iter().enumerate().map(relu).sum::<f64>() / signal.len() as f64
    };
    let mut rng = Pcg64::seed_from_u64(draws.seed);
    let (mut shared, mut additive) = (Welford::default(), Welford::default());
    for residuals in unit.residuals(&inputs, draws)? {
        shared.add(feature(&mut |at| residuals[at]));
        additive.add(feature(&mut |_| StandardNormal.sample(&mut rng)));
    }
    Ok([shared.variance(), additive.variance()])
}
