//! Adam in one pass over the parameters, optionally on the sphere.
//!
//! For step t with gradient g (Kingma and Ba, 2015; decoupled decay λ by Loshchilov and Hutter,
//! 2019):
//!
//! ```text
//! m = β1 m + (1 - β1) g                w = (1 - lr λ) w - lr m̂ / (sqrt(v̂) + ε)
//! v = β2 v + (1 - β2) g²               m̂ = m / (1 - β1^t),  v̂ = v / (1 - β2^t)
//! ```
//!
//! Where only the direction of a row of weights matters, the step can be taken on the sphere: the
//! part of the gradient along the row is removed first, `g - (g . w) w / |w|²`, and the row is
//! scaled back to unit length afterwards. Both happen while the row is in cache.
//!
//! The caller keeps the moments m and v, two slices as long as the parameters, so that checkpoints
//! can hold them. Results are the same, bit for bit, for any number of threads.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod launches;

use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// The constants of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean of the gradient, 0.9 by custom.
    pub beta1: f64,
    /// Decay of the mean of its square, 0.999 by custom.
    pub beta2: f64,
    /// Added to the root of the mean square, 1e-8 by custom.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The length of the rows to keep on the unit sphere, if any.
    pub sphere: Option<usize>,
}

impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            sphere: None,
        }
    }
}

impl AdamConfig {
    fn check(&self, step: u64, len: usize) -> Result<(), Error> {
        let value =
            |name, value: String, requirement| Err(Error::Value { name, value, requirement });
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return value(name, beta.to_string(), "at least 0 and less than 1");
            }
        }
        let others = [("lr", self.lr), ("eps", self.eps), ("weight_decay", self.weight_decay)];
        for (name, number) in others {
            if !(number >= 0.0 && number.is_finite()) {
                return value(name, number.to_string(), "finite and not negative");
            }
        }
        if step == 0 {
            return value("step", "0".into(), "at least 1");
        }
        match self.sphere {
            Some(row) if row == 0 || !len.is_multiple_of(row) => value(
                "sphere",
                format!("{row} for {len} parameters"),
                "a row length that divides the number of parameters",
            ),
            _ => Ok(()),
        }
    }
}

/// Elements that a task steps, at least.
const TASK: usize = 1 << 14;

/// Takes step number `step`, the first being 1.
///
/// `mean` and `square` are the moments m and v, zeros before the first step.
pub fn adam(
    config: &AdamConfig,
    step: u64,
    parameters: &mut [f32],
    gradient: &[f32],
    mean: &mut [f32],
    square: &mut [f32],
) -> Result<(), Error> {
    adam_on(Isa::current(), config, step, parameters, gradient, mean, square)
}

/// [`adam`] on a given instruction set.
pub fn adam_on(
    isa: Isa,
    config: &AdamConfig,
    step: u64,
    parameters: &mut [f32],
    gradient: &[f32],
    mean: &mut [f32],
    square: &mut [f32],
) -> Result<(), Error> {
    config.check(step, parameters.len())?;
    check_length("gradient", gradient.len(), parameters.len())?;
    check_length("mean", mean.len(), parameters.len())?;
    check_length("square", square.len(), parameters.len())?;
    // A task is whole rows.
    let row = config.sphere.unwrap_or(1);
    let task = TASK.div_ceil(row) * row;
    parameters
        .par_chunks_mut(task)
        .by_task()
        .zip(gradient.par_chunks(task))
        .zip(mean.par_chunks_mut(task))
        .zip(square.par_chunks_mut(task))
        .for_each(|(((w, g), m), v)| dispatch_to(isa, Step { config, step, w, g, m, v }));
    Ok(())
}

/// A step of some whole rows.
struct Step<'a> {
    config: &'a AdamConfig,
    step: u64,
    w: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl Kernel for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let AdamConfig { lr, beta1, beta2, eps, weight_decay, sphere } = *self.config;
        let correction = |beta: f64| 1.0 - beta.powf(self.step as f64);
        let rate = (lr / correction(beta1)) as f32;
        let root_scale = (1.0 / correction(beta2).sqrt()) as f32;
        let decay = (1.0 - lr * weight_decay) as f32;
        let (keep_m, new_m) = (beta1 as f32, (1.0 - beta1) as f32);
        let (keep_v, new_v) = (beta2 as f32, (1.0 - beta2) as f32);
        let eps = eps as f32;

        let row = sphere.unwrap_or(self.w.len()).max(1);
        let rows = self.w.chunks_mut(row).zip(self.g.chunks(row));
        for (((w, g), m), v) in rows.zip(self.m.chunks_mut(row)).zip(self.v.chunks_mut(row)) {
            // g - (g . w) w / |w|², on the sphere.
            let radial = match sphere.map(|_| (dot::<S>(g, w), dot::<S>(w, w))) {
                Some((along, squared)) if squared > 0.0 => (along / squared) as f32,
                _ => 0.0,
            };
            for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
                let g = S::mul_add(-radial, *w, *g);
                *m = S::mul_add(keep_m, *m, new_m * g);
                *v = S::mul_add(keep_v, *v, new_v * g * g);
                let step = *m / S::mul_add(v.sqrt(), root_scale, eps);
                *w = S::mul_add(-rate, step, decay * *w);
            }
            if sphere.is_some() {
                let squared = dot::<S>(w, w);
                // A row of zeros has no direction, and stays.
                let scale = if squared > 0.0 { 1.0 / squared.sqrt() } else { 1.0 } as f32;
                w.iter_mut().for_each(|w| *w *= scale);
            }
        }
    }
}

/// The sum of the squares of all elements. It is not finite if an element is not, or if the sum is
/// too large.
///
/// The result is the same, bit for bit, for any number of threads.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    struct Squares<'a>(&'a [f32]);
    impl Kernel for Squares<'_> {
        type Output = f64;
        #[inline(always)]
        fn run<S: Simd>(self) -> f64 {
            const CHAINS: usize = 16;
            let mut sums = [0.0; CHAINS];
            let (strips, rest) = self.0.as_chunks::<CHAINS>();
            for strip in strips {
                for (sum, &x) in sums.iter_mut().zip(strip) {
                    *sum = S::mul_add_f64(x.into(), x.into(), *sum);
                }
            }
            for (sum, &x) in sums.iter_mut().zip(rest) {
                *sum = S::mul_add_f64(x.into(), x.into(), *sum);
            }
            sums.iter().sum()
        }
    }
    let parts: Vec<f64> = values
        .par_chunks(TASK)
        .by_task()
        .map(|values| dispatch_to(Isa::current(), Squares(values)))
        .collect();
    parts.iter().sum()
}

/// The dot product. Sums over blocks are in single precision, in independent chains so that they
/// fill registers, and the blocks are added in double precision.
#[inline(always)]
fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f64 {
    const CHAINS: usize = 32;
    const BLOCK: usize = 64 * CHAINS;
    let mut total = 0.0;
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        let mut sums = [0f32; CHAINS];
        let (a_strips, b_strips) = (a.chunks_exact(CHAINS), b.chunks_exact(CHAINS));
        for (a, b) in a_strips.remainder().iter().zip(b_strips.remainder()) {
            total += f64::from(*a) * f64::from(*b);
        }
        for (a, b) in a_strips.zip(b_strips) {
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                *sum = S::mul_add(*a, *b, *sum);
            }
        }
        total += sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, assert_close, with_threads};

    /// The definition, in double precision.
    struct Reference {
        w: Vec<f64>,
        m: Vec<f64>,
        v: Vec<f64>,
    }

    impl Reference {
        fn step(&mut self, c: &AdamConfig, t: i32, gradient: &[f32]) {
            let row = c.sphere.unwrap_or(self.w.len());
            for start in (0..self.w.len()).step_by(row) {
                let range = start..start + row;
                let mut g: Vec<f64> =
                    gradient[range.clone()].iter().map(|&g| f64::from(g)).collect();
                if c.sphere.is_some() {
                    let w = &self.w[range.clone()];
                    let dot =
                        |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                    let radial = dot(&g, w) / dot(w, w);
                    g.iter_mut().zip(w).for_each(|(g, w)| *g -= radial * w);
                }
                for (i, g) in range.clone().zip(g) {
                    self.m[i] = c.beta1 * self.m[i] + (1.0 - c.beta1) * g;
                    self.v[i] = c.beta2 * self.v[i] + (1.0 - c.beta2) * g * g;
                    let m_hat = self.m[i] / (1.0 - c.beta1.powi(t));
                    let v_hat = self.v[i] / (1.0 - c.beta2.powi(t));
                    self.w[i] = (1.0 - c.lr * c.weight_decay) * self.w[i]
                        - c.lr * m_hat / (v_hat.sqrt() + c.eps);
                }
                if c.sphere.is_some() {
                    let norm = self.w[range.clone()].iter().map(|w| w * w).sum::<f64>().sqrt();
                    self.w[range].iter_mut().for_each(|w| *w /= norm);
                }
            }
        }
    }

    #[test]
    fn squares_are_summed_in_double_precision() {
        let values: Vec<f32> = (0..100_003).map(|i| 1e15 + i as f32).collect();
        let expected: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        let sums = [1, 2, 3].map(|threads| with_threads(threads, || sum_of_squares(&values)));
        assert!((sums[0] / expected - 1.0).abs() < 1e-10);
        assert_eq!(sums, [sums[0]; 3]);
        assert_eq!(sum_of_squares(&[]), 0.0);
        assert!(!sum_of_squares(&[1.0, f32::NAN, 2.0]).is_finite());
        assert!(!sum_of_squares(&[f32::INFINITY]).is_finite());
    }

    #[test]
    fn steps_match_the_definition() {
        let mut rng = Rng::new(7);
        let plain = AdamConfig { lr: 0.01, ..AdamConfig::default() };
        let configs = [
            plain,
            AdamConfig { weight_decay: 0.1, ..plain },
            AdamConfig { sphere: Some(27), beta1: 0.5, eps: 1e-4, ..plain },
            AdamConfig { sphere: Some(2700), weight_decay: 0.01, ..plain },
        ];
        for isa in Isa::available() {
            for config in configs {
                let len = 27 * 700;
                let mut w = rng.normals(len);
                let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
                let mut reference = Reference {
                    w: w.iter().map(|&w| f64::from(w)).collect(),
                    m: vec![0.0; len],
                    v: vec![0.0; len],
                };
                for t in 1..=5 {
                    let g = rng.normals(len);
                    adam_on(isa, &config, t, &mut w, &g, &mut m, &mut v).unwrap();
                    reference.step(&config, t as i32, &g);
                }
                assert_close(&w, &reference.w, 3e-6, &format!("w {isa:?} {config:?}"));
                assert_close(&m, &reference.m, 3e-6, &format!("m {isa:?} {config:?}"));
                assert_close(&v, &reference.v, 3e-6, &format!("v {isa:?} {config:?}"));
                if let Some(row) = config.sphere {
                    for w in w.chunks(row) {
                        let norm = w.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>();
                        assert!((norm - 1.0).abs() < 1e-6, "|w|^2 = {norm}");
                    }
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let run = |threads| {
            with_threads(threads, || {
                let mut rng = Rng::new(8);
                let len = 3 * 50_000;
                let (mut w, g) = (rng.normals(len), rng.normals(len));
                let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
                let config = AdamConfig { sphere: Some(len / 3), ..AdamConfig::default() };
                adam(&config, 1, &mut w, &g, &mut m, &mut v).unwrap();
                w.iter().map(|w| w.to_bits()).collect::<Vec<_>>()
            })
        };
        assert!(run(1) == run(3));
    }

    #[test]
    fn zero_rows_stay_and_wrong_arguments_are_errors() {
        let config = AdamConfig { sphere: Some(2), ..AdamConfig::default() };
        let (mut w, mut m, mut v) = ([0.0; 4], [0.0; 4], [0.0; 4]);
        adam(&config, 1, &mut w, &[0.0; 4], &mut m, &mut v).unwrap();
        assert_eq!(w, [0.0; 4]);
        let mut step = |config: AdamConfig, t| adam(&config, t, &mut w, &[0.0; 4], &mut m, &mut v);
        assert!(step(config, 0).is_err());
        assert!(step(AdamConfig { sphere: Some(3), ..config }, 1).is_err());
        assert!(step(AdamConfig { beta2: 1.0, ..config }, 1).is_err());
        assert!(step(AdamConfig { lr: f64::NAN, ..config }, 1).is_err());
        assert!(adam(&config, 1, &mut [0.0; 4], &[0.0; 2], &mut [0.0; 4], &mut [0.0; 4]).is_err());
    }
}
