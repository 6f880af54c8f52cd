//! What the layers learn and what their noise means, against the theory.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Optimizer, VarMap};
use common::values;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use vmf_candle::prelude::*;
use vmf_core::{Sphere, VonMisesFisher, expected_cosine};

fn normals(count: usize, rng: &mut StdRng) -> Vec<f64> {
    StandardNormal.sample_iter(rng).take(count).collect()
}

fn unit_vector(dim: usize, rng: &mut StdRng) -> Vec<f64> {
    let vector = normals(dim, rng);
    let length = dot(&vector, &vector).sqrt();
    vector.into_iter().map(|v| v / length).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The solution of `sigma^2 (1 + sigma^2 (D-1)/D) = D s^2 / N`.
fn stationary_sigma(dim: f64, observation_noise: f64, samples: f64) -> f64 {
    let (a, b) = ((dim - 1.0) / dim, dim * observation_noise.powi(2) / samples);
    (((1.0 + 4.0 * a * b).sqrt() - 1.0) / (2.0 * a)).sqrt()
}

/// A linear student `y = BN(w~ . x) + sigma z` of a linear teacher, trained on the evidence lower
/// bound with known observation noise, ends at the sigma_eff that the theory predicts.
fn learned_sigma(dim: usize, observation_noise: f64, samples: usize) -> Result<f64> {
    let mut rng = StdRng::seed_from_u64(1);
    let teacher = unit_vector(dim, &mut rng);
    let inputs = normals(samples * dim, &mut rng);
    let targets: Vec<f64> = inputs
        .chunks(dim)
        .zip(normals(samples, &mut rng))
        .map(|(x, noise)| dot(&teacher, x) + observation_noise * noise)
        .collect();
    let device = Device::Cpu;
    let inputs = Tensor::from_vec(inputs, (samples, dim), &device)?.to_dtype(DType::F32)?;
    let targets = Tensor::from_vec(targets, (samples, 1), &device)?.to_dtype(DType::F32)?;

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 1, DType::F32, &device);
    let student =
        vmf_linear(dim, 1, VmfConfig::default().sigma(0.5), &posterior, vb.pp("student"))?;
    let config = AdamConfig { lr: 5e-3, noise_lr: 5e-3, ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let (steps, averaged) = (3000, 1000);
    let mut sum = 0.0;
    for step in 0..steps {
        let predictions = student.forward(&inputs, &Pass::train(1, step))?;
        let nll = gaussian_nll(&predictions, &targets, observation_noise)?;
        adam.backward_step(&Elbo::new(samples).loss(&nll, &posterior)?.total)?;
        if step >= steps - averaged {
            sum += student.sigma().values()?[0];
        }
    }
    Ok(sum / f64::from(averaged))
}

#[test]
fn a_linear_student_learns_the_sigma_of_the_closed_form() -> Result<()> {
    for (dim, observation_noise, samples) in [(20, 0.5, 1000), (20, 2.0, 1000), (50, 1.0, 2000)] {
        let learned = learned_sigma(dim, observation_noise, samples)?;
        let predicted = stationary_sigma(dim as f64, observation_noise, samples as f64);
        let error = learned / predicted - 1.0;
        assert!(
            error.abs() < 0.05,
            "D {dim}, s {observation_noise}, N {samples}: learned {learned:.4}, predicted {predicted:.4}"
        );
    }
    Ok(())
}

/// The residual `w . x / A - mu . x` of weights drawn from the posterior and inputs from `N(0, I)`:
/// the noise that the theory replaces by `sigma_eff * z`.
struct Residuals {
    sigma: f64,
    values: Vec<f64>,
}

impl Residuals {
    fn draw(dim: usize, sigma: f64, count: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(dim as u64);
        let mean_direction = unit_vector(dim, &mut rng);
        let kappa = Sphere::new(dim).unwrap().kappa_from_sigma_eff(sigma);
        let posterior = VonMisesFisher::new(mean_direction.clone(), kappa).unwrap();
        let mut weight = vec![0.0; dim];
        let values = (0..count)
            .map(|_| {
                posterior.sample_into(&mut rng, &mut weight).unwrap();
                let x = normals(dim, &mut rng);
                dot(&weight, &x) / expected_cosine(sigma) - dot(&mean_direction, &x)
            })
            .collect();
        Self { sigma, values }
    }

    fn moment(&self, power: i32) -> f64 {
        self.values.iter().map(|v| v.powi(power)).sum::<f64>() / self.values.len() as f64
    }

    /// The largest distance between the distribution of the residuals and that of `N(0, sigma^2)`
    /// (Kolmogorov-Smirnov).
    fn distance_from_gaussian(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let at = |(i, value): (usize, &f64)| {
            let below = normal_cdf(value / self.sigma);
            (below - i as f64 / count).abs().max((below - (i as f64 + 1.0) / count).abs())
        };
        sorted.iter().enumerate().map(at).fold(0.0, f64::max)
    }
}

/// The standard normal distribution function, by Simpson's rule from 0.
fn normal_cdf(z: f64) -> f64 {
    let (steps, density) = (200, |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt());
    let h = z / f64::from(steps);
    let inner: f64 =
        (1..steps).map(|i| density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(z))
}

/// The paper's central statement: a weight drawn from the posterior acts on an isotropic input like
/// Gaussian noise of deviation sigma_eff behind the normalization.
///
/// For one draw the residual is Gaussian in x, with variance `|w/A - mu|^2 = 1/A^2 + 1 - 2t/A`, t =
/// mu.w; over all draws it is a mixture with mean 0, variance sigma_eff^2 and kurtosis `3 + 12
/// A'(kappa) / (A^2 sigma_eff^4)`, which goes to 3 like 1/D.
///
/// Each bound is four standard errors of its estimate at these sample sizes (a chance of 6e-5 to
/// fail for a true statement, with seeds fixed), plus, for the distance from a Gaussian, a tenth of
/// the excess kurtosis.
#[test]
fn a_weight_draw_acts_like_gaussian_noise_of_deviation_sigma_eff() {
    for (dim, count) in [(27, 20_000), (128, 10_000), (576, 8_000), (4608, 3_000)] {
        for sigma in [0.3, 1.0, 3.0] {
            let residuals = Residuals::draw(dim, sigma, count);
            let errors = (count as f64).sqrt();
            let mean = residuals.moment(1) / sigma;
            assert!(mean.abs() < 4.0 / errors, "D {dim} sigma {sigma}: mean {mean}");
            let variance = residuals.moment(2) / sigma.powi(2);
            let kurtosis = residuals.moment(4) / residuals.moment(2).powi(2);
            let spread = (kurtosis - 1.0).sqrt();
            assert!(
                (variance - 1.0).abs() < 4.0 * spread / errors,
                "D {dim} sigma {sigma}: variance {variance} of sigma^2"
            );
            let sphere = Sphere::new(dim).unwrap();
            let ratio = sphere.ratio(sphere.kappa_from_sigma_eff(sigma));
            let exact = 3.0 + 12.0 * ratio.derivative / (ratio.a.powi(2) * sigma.powi(4));
            assert!(
                (kurtosis - exact).abs() < 4.0 * 24f64.sqrt() * (exact / 3.0).powi(2) / errors,
                "D {dim} sigma {sigma}: kurtosis {kurtosis} against {exact}"
            );
            // 1.95 / sqrt(n) is the value that a true Gaussian exceeds once in a thousand times.
            let distance = residuals.distance_from_gaussian();
            assert!(
                distance < 1.95 / errors + 0.1 * (exact - 3.0),
                "D {dim} sigma {sigma}: distance {distance}"
            );
        }
    }
}

/// Where the two differ: one weight draw is shared by all inputs, so its effect on similar inputs
/// is similar. The correlation of the residuals is the cosine of the inputs; the additive noise of
/// the layer has none.
#[test]
fn a_weight_draw_is_correlated_between_similar_inputs_and_additive_noise_is_not() -> Result<()> {
    let (dim, sigma, draws) = (576, 0.7, 4000);
    let mut rng = StdRng::seed_from_u64(3);
    let mean_direction = unit_vector(dim, &mut rng);
    let kappa = Sphere::new(dim).unwrap().kappa_from_sigma_eff(sigma);
    let posterior = VonMisesFisher::new(mean_direction.clone(), kappa).unwrap();
    let first = normals(dim, &mut rng);
    let others: Vec<Vec<f64>> = [0.0, 0.5, 0.9]
        .iter()
        .map(|share: &f64| {
            let fresh = normals(dim, &mut rng);
            let mix = |(a, b): (&f64, f64)| share * a + (1.0 - share * share).sqrt() * b;
            first.iter().zip(fresh).map(mix).collect()
        })
        .collect();
    let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();

    let mut weight = vec![0.0; dim];
    let mut residuals = vec![Vec::with_capacity(draws); 1 + others.len()];
    for _ in 0..draws {
        posterior.sample_into(&mut rng, &mut weight).unwrap();
        for (x, residuals) in std::iter::once(&first).chain(&others).zip(&mut residuals) {
            residuals.push(dot(&weight, x) / expected_cosine(sigma) - dot(&mean_direction, x));
        }
    }

    let (vars, registry) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 1, DType::F64, &Device::Cpu);
    let layer = vmf_linear(dim, 1, VmfConfig::default().sigma(sigma), &registry, vb.pp("unit"))?;
    let rows: Vec<f64> = std::iter::once(&first).chain(&others).flatten().copied().collect();
    let inputs = Tensor::from_vec(rows, (1 + others.len(), dim), &Device::Cpu)?;
    let mean = values(&layer.forward(&inputs, &Pass::mean())?);
    let mut additive = vec![Vec::with_capacity(draws); 1 + others.len()];
    for draw in 0..draws {
        let sample = values(&layer.forward(&inputs, &Pass::sample(5, draw as u32))?);
        for ((sample, mean), additive) in sample.iter().zip(&mean).zip(&mut additive) {
            additive.push(sample - mean);
        }
    }

    let error = 4.0 / (draws as f64).sqrt();
    for (index, other) in others.iter().enumerate() {
        let (expected, shared) =
            (cosine(&first, other), cosine(&residuals[0], &residuals[index + 1]));
        assert!((shared - expected).abs() < error, "{shared} against {expected}");
        let independent = cosine(&additive[0], &additive[index + 1]);
        assert!(independent.abs() < error, "{independent}");
    }
    // The additive noise itself has the deviation it was given.
    let variance = dot(&additive[0], &additive[0]) / draws as f64;
    assert!((variance / sigma.powi(2) - 1.0).abs() < 4.0 * (2.0 / draws as f64).sqrt());
    Ok(())
}
