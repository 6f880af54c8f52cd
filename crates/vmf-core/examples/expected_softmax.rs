//! Compares ways to find the expected softmax of Gaussian logits with brute force:
//! `cargo run -p vmf-core --example expected_softmax [CASES [SAMPLES]]`.
//!
//! The cases are like the logits of a classifier of ten classes: means up to 10 in size, variances
//! from 0.05 to 10. Half of the cases have independent logits, the other half a covariance of the
//! form `W diag(v) W^T`, as the last layer of a network makes it. The last column is the time of
//! one prediction on this machine.

use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use vmf_core::expected::{GaussHermite, normal, softmax::Logits};

const K: usize = 10;
type Vector = [f64; K];
type Matrix = [Vector; K];

struct Case {
    mean: Vector,
    covariance: Matrix,
    /// The lower triangular root of the covariance.
    root: Matrix,
    probabilities: Vector,
    information: f64,
}

/// A predictive distribution, and the mutual information if the method gives one.
type Answer = (Vector, Option<f64>);
type Method = Box<dyn Fn(&Case) -> Answer>;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let cases = arguments.next().unwrap_or(100);
    let samples = arguments.next().unwrap_or(1_000_000);
    let mut rng = Pcg64::seed_from_u64(1);
    let mut make = |correlated| -> Vec<Case> {
        (0..cases).map(|_| Case::new(&mut rng, correlated, samples)).collect()
    };
    let sets = [make(false), make(true)];
    let all = || sets.iter().flatten();
    let mean = |f: fn(&Case) -> f64| all().map(f).sum::<f64>() / all().count() as f64;
    println!(
        "{} cases, mean H {:.2}, mean I {:.2}\n",
        all().count(),
        mean(|case| entropy(&case.probabilities)),
        mean(|case| case.information)
    );
    println!(
        "| | exp | error in p | excess NLL | H | I | correlated: error in p | excess NLL | H | I | us |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (name, exponentials, method) in methods() {
        let start = Instant::now();
        all().for_each(|case| _ = std::hint::black_box(method(case)));
        let microseconds = start.elapsed().as_secs_f64() * 1e6 / all().count() as f64;
        let columns = sets.each_ref().map(|set| scores(set, &method)).join(" | ");
        println!("| {name} | {exponentials} | {columns} | {microseconds:.1} |");
    }
}

/// Mean errors over a set of cases.
fn scores(set: &[Case], method: &Method) -> String {
    let (mut probability, mut nll, mut entropies, mut information) = (0.0, 0.0, 0.0, Some(0.0));
    for case in set {
        let (q, i) = method(case);
        for (p, q) in case.probabilities.iter().zip(q) {
            probability += (p - q).abs() / K as f64;
            nll += p * (p / q.max(1e-30)).ln();
        }
        entropies += (entropy(&q) - entropy(&case.probabilities)).abs();
        information = information.zip(i).map(|(sum, i)| sum + (i - case.information).abs());
    }
    let n = set.len() as f64;
    let information = information.map_or("".into(), |sum| format!("{:.3}", sum / n));
    format!("{:.4} | {:.4} | {:.3} | {information}", probability / n, nll / n, entropies / n)
}

fn methods() -> Vec<(&'static str, &'static str, Method)> {
    let closed = |f: fn(&Case) -> Vector| -> Method { Box::new(move |case| (f(case), None)) };
    let sampled = |points: Vec<Vector>| -> Method { Box::new(move |case| average(case, &points)) };
    let odds = |points: usize| -> Method {
        let rule = GaussHermite::new(points);
        Box::new(move |case| {
            let prediction = logits(case, |logits| logits.predict(&rule));
            (vector(prediction.probabilities), Some(prediction.mutual_information))
        })
    };
    vec![
        ("softmax of the mean", "1", closed(|case| softmax(case.mean))),
        ("delta method, second order", "1", closed(delta)),
        ("Laplace bridge", "2", closed(laplace_bridge)),
        ("probit", "1", closed(|case| logits(case, |logits| vector(logits.probit())))),
        ("mf0", "K", closed(|case| mean_field(case, |c, k, _| c[k][k]))),
        ("mf1", "K", closed(|case| mean_field(case, |c, k, i| c[k][k] + c[i][i]))),
        ("mf2", "K", closed(|case| mean_field(case, |c, k, i| c[k][k] + c[i][i] - 2.0 * c[k][i]))),
        ("Monte Carlo, 8", "8", sampled(random_points(8))),
        ("Monte Carlo, 32", "32", sampled(random_points(32))),
        ("Sobol points, 8", "8", sampled(sobol(3))),
        ("Sobol points, 16", "16", sampled(sobol(4))),
        ("Sobol points, 32", "32", sampled(sobol(5))),
        ("rotated cubature, 2K", "2K", sampled(cubature())),
        (
            "**log-odds, closed form**",
            "3",
            closed(|case| logits(case, |l| vector(l.closed_form()))),
        ),
        ("log-odds, 5 points", "7", odds(5)),
        ("**log-odds, 8 points**", "10", odds(8)),
        ("log-odds, 16 points", "18", odds(16)),
    ]
}

impl Case {
    fn new(rng: &mut Pcg64, correlated: bool, samples: usize) -> Self {
        let spread = rng.random_range(0.5..4.5);
        let mean = [(); K].map(|()| (spread * normal(rng)).clamp(-10.0, 10.0));
        let variance = (0.05f64.ln() + rng.random::<f64>() * 200f64.ln()).exp();
        let mut covariance = [[0.0; K]; K];
        if correlated {
            // Sixteen features of different variance, through random weights.
            for _ in 0..16 {
                let feature = -rng.random::<f64>().ln();
                let weights = [(); K].map(|()| normal(rng));
                for i in 0..K {
                    for j in 0..K {
                        covariance[i][j] += feature * weights[i] * weights[j];
                    }
                }
            }
            let trace: f64 = (0..K).map(|i| covariance[i][i]).sum();
            covariance.iter_mut().flatten().for_each(|c| *c *= variance * K as f64 / trace);
        } else {
            for (i, row) in covariance.iter_mut().enumerate() {
                row[i] = (variance * (0.4 * normal(rng)).exp()).clamp(0.05, 10.0);
            }
        }
        let root = cholesky(&covariance);
        let mut case = Self { mean, covariance, root, probabilities: [0.0; K], information: 0.0 };
        // Samples in pairs z and -z: odd terms cancel.
        let mut conditional = 0.0;
        for _ in 0..samples / 2 {
            let z = [(); K].map(|()| normal(rng));
            for z in [z, z.map(|z| -z)] {
                let p = softmax(case.logits_at(&z));
                conditional += entropy(&p) / samples as f64;
                case.probabilities
                    .iter_mut()
                    .zip(p)
                    .for_each(|(sum, p)| *sum += p / samples as f64);
            }
        }
        case.information = entropy(&case.probabilities) - conditional;
        case
    }

    fn logits_at(&self, z: &Vector) -> Vector {
        std::array::from_fn(|i| {
            self.mean[i] + self.root[i][..=i].iter().zip(z).map(|(r, z)| r * z).sum::<f64>()
        })
    }
}

/// The library's type for a case.
fn logits<T>(case: &Case, f: impl FnOnce(Logits<'_>) -> T) -> T {
    f(Logits::correlated(&case.mean, case.covariance.as_flattened()).expect("a valid case"))
}

/// The mean of the softmax over points in noise space, with its mutual information.
fn average(case: &Case, points: &[Vector]) -> Answer {
    let n = points.len() as f64;
    let (mut mean, mut conditional) = ([0.0; K], 0.0);
    for z in points {
        let p = softmax(case.logits_at(z));
        conditional += entropy(&p) / n;
        mean.iter_mut().zip(p).for_each(|(sum, p)| *sum += p / n);
    }
    (mean, Some(entropy(&mean) - conditional))
}

/// `p_k = s_k (1 + (q_k - sum_i s_i q_i) / 2)` with `q_k = Var(l_k - s.l)`, not less than zero.
fn delta(case: &Case) -> Vector {
    let s = softmax(case.mean);
    let c = &case.covariance;
    let product: Vector = std::array::from_fn(|i| dot(&c[i], &s));
    let q: Vector = std::array::from_fn(|k| c[k][k] - 2.0 * product[k] + dot(&s, &product));
    let mean = dot(&s, &q);
    normalized(std::array::from_fn(|k| (s[k] * (1.0 + 0.5 * (q[k] - mean))).max(1e-12)))
}

/// The Dirichlet distribution with `alpha_k = (1 - 2/K + exp(m_k) sum_i exp(-m_i) / K^2) / C_kk`,
/// for logits from which their sum has been removed.
fn laplace_bridge(case: &Case) -> Vector {
    let c = &case.covariance;
    let row: Vector = std::array::from_fn(|i| c[i].iter().sum());
    let total: f64 = row.iter().sum();
    let sum: f64 = case.mean.iter().sum();
    let mean: Vector = std::array::from_fn(|i| case.mean[i] - row[i] * sum / total);
    let inverse: f64 = mean.iter().map(|m| (-m).exp()).sum();
    let k = K as f64;
    normalized(std::array::from_fn(|i| {
        let variance = c[i][i] - row[i] * row[i] / total;
        (1.0 - 2.0 / k + mean[i].exp() * inverse / (k * k)) / variance
    }))
}

/// `p_k ~ 1 / sum_i exp((m_i - m_k) / sqrt(1 + pi/8 variance(k, i)))`.
fn mean_field(case: &Case, variance: fn(&Matrix, usize, usize) -> f64) -> Vector {
    normalized(std::array::from_fn(|k| {
        let term = |i: usize| {
            let v = variance(&case.covariance, k, i);
            ((case.mean[i] - case.mean[k]) / (1.0 + std::f64::consts::PI / 8.0 * v).sqrt()).exp()
        };
        1.0 / (0..K).map(|i| if i == k { 1.0 } else { term(i) }).sum::<f64>()
    }))
}

fn random_points(n: usize) -> Vec<Vector> {
    let mut rng = Pcg64::seed_from_u64(2);
    (0..n).map(|_| [(); K].map(|()| normal(&mut rng))).collect()
}

/// The first `2^bits` points of Sobol's sequence, each at the centre of its cell, through the
/// inverse of the normal distribution function.
///
/// Direction numbers: S. Joe and F. Y. Kuo, *Constructing Sobol sequences with better
/// two-dimensional projections*, SIAM J. Sci. Comput. 30 (2008), `new-joe-kuo-6.21201`.
fn sobol(bits: usize) -> Vec<Vector> {
    // The polynomial's inner coefficients as bits, and the first direction numbers.
    let table: [(u32, &[u32]); K] = [
        (0, &[]),
        (0, &[1]),
        (1, &[1, 3]),
        (1, &[1, 3, 1]),
        (2, &[1, 1, 1]),
        (1, &[1, 1, 3, 3]),
        (4, &[1, 3, 5, 13]),
        (2, &[1, 1, 5, 5, 17]),
        (4, &[1, 1, 5, 5, 5]),
        (7, &[1, 1, 7, 11, 19]),
    ];
    let directions = table.map(|(polynomial, first)| {
        let mut m = first.to_vec();
        let degree = first.len();
        for j in degree..bits {
            let next = (1..degree)
                .fold(0, |sum, k| sum ^ ((polynomial >> (degree - 1 - k) & 1) * (m[j - k] << k)));
            // The first dimension has no polynomial: its direction numbers are all one.
            m.push(if degree == 0 { 1 } else { next ^ m[j - degree] ^ (m[j - degree] << degree) });
        }
        m
    });
    let coordinate = |i: usize, m: &[u32]| {
        let bit = |j: usize| if i >> j & 1 == 1 { m[j] << (bits - 1 - j) } else { 0 };
        let cell = (0..bits).fold(0, |x, j| x ^ bit(j));
        quantile((f64::from(cell) + 0.5) / f64::from(1 << bits))
    };
    (0..1 << bits).map(|i| directions.each_ref().map(|m| coordinate(i, m))).collect()
}

/// The points `+- sqrt(K) e_i` in a rotated coordinate system: mean and covariance are exact.
fn cubature() -> Vec<Vector> {
    let mut basis: Vec<Vector> = Vec::new();
    for mut v in random_points(K) {
        for b in &basis {
            let along = dot(&v, b);
            v = std::array::from_fn(|i| v[i] - along * b[i]);
        }
        let norm = dot(&v, &v).sqrt();
        basis.push(v.map(|x| x / norm));
    }
    let radius = (K as f64).sqrt();
    basis.iter().flat_map(|b| [b.map(|x| radius * x), b.map(|x| -radius * x)]).collect()
}

/// The inverse of the normal distribution function, by bisection.
fn quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if normal::cdf(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn cholesky(c: &Matrix) -> Matrix {
    let mut root = [[0.0; K]; K];
    for i in 0..K {
        for j in 0..=i {
            let rest = c[i][j] - (0..j).map(|k| root[i][k] * root[j][k]).sum::<f64>();
            root[i][j] = if i == j { rest.sqrt() } else { rest / root[j][j] };
        }
    }
    root
}

fn normal(rng: &mut Pcg64) -> f64 {
    rng.sample(StandardNormal)
}

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn vector(values: Vec<f64>) -> Vector {
    values.try_into().expect("one value per class")
}

fn softmax(l: Vector) -> Vector {
    let largest = l.into_iter().fold(f64::NEG_INFINITY, f64::max);
    normalized(l.map(|l| (l - largest).exp()))
}

fn normalized(values: Vector) -> Vector {
    let sum: f64 = values.iter().sum();
    values.map(|value| value / sum)
}

fn entropy(p: &Vector) -> f64 {
    p.iter().map(|&p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum()
}
