//! The cases, and the comparison with the CPU kernel in double precision.

use vmf_kernels::bn_noise::launches::Storage;
use vmf_kernels::bn_noise::{self, NoiseTerm, Saved, Statistics};

use crate::case::{Case, Outcome, run};
use crate::machine::Machine;

/// The cases that every level runs: odd sizes, one element per channel, batch 1, numbers of
/// positions below, at and above a warp and a block, every way of tiling, groups of channels,
/// folded samples, evaluation, and unaligned tensors.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 1),
        (1, 3, 1),
        (2, 1, 1),
        (1, 2, 4),
        (5, 7, 1),
        (64, 40, 1),
        (70, 100, 1),
        (3, 5, 3),
        (2, 6, 4),
        (33, 9, 4),
        (1, 2, 31),
        (4, 3, 33),
        (2, 3, 36),
        (9, 33, 16),
        (7, 4, 49),
        (3, 2, 255),
        (2, 2, 257),
        (2, 3, 1024),
        (1, 2, 1089),
        (1, 1, 4099),
        (3, 5, 1100),
        (300, 2, 9),
    ];
    let mut cases: Vec<Case> = shapes
        .iter()
        .map(|&(batch, channels, positions)| Case::new(batch, channels, positions))
        .collect();
    let more = |batch, channels, positions| Case::new(batch, channels, positions);
    for multiprocessors in [1, 40] {
        for shape in [(40, 6, 16), (3, 2, 1100), (2, 3, 1023), (600, 3, 1)] {
            cases.push(Case { multiprocessors, ..more(shape.0, shape.1, shape.2) });
        }
    }
    for (groups, relu, train) in [
        (0, true, true),
        (0, false, false),
        (3, false, true),
        (6, true, false),
        (2, true, true),
        (1, false, false),
    ] {
        for positions in [16, 9] {
            cases.push(Case { groups, relu, train, ..more(6, 6, positions) });
        }
    }
    for (samples, positions) in [(3, 16), (2, 7), (6, 1), (3, 1)] {
        for train in [true, false] {
            cases.push(Case { samples, train, ..more(6, 5, positions) });
        }
    }
    cases.push(Case { misaligned: true, ..more(4, 3, 64) });
    cases
}

/// A channel whose mean is a million times its deviation. Only `f32` can represent it.
pub fn far_from_zero(positions: usize) -> Case {
    Case { activations: (1e4, 1e-2), ..Case::new(20, 3, positions) }
}

/// What the CPU kernel computes in double precision.
///
/// `stored` is the output under test. Its sign, as the forward pass stored it, decides where the
/// backward pass lets the gradient pass. A sum that is zero except for rounding may have one sign
/// there and another here.
pub fn reference(
    case: &Case,
    storage: Storage,
    stored: &[f64],
) -> Result<Outcome, vmf_kernels::Error> {
    let config = case.config();
    let (mean, deviation) = case.activations;
    let u = case.tensor(storage, 1, mean, deviation);
    let dy = case.tensor(storage, 2, 0.1, 1.0);
    let sigma: Vec<f64> = case.sigma().into_iter().map(f64::from).collect();
    let term = case.noise().map(|noise| NoiseTerm { noise, sigma: &sigma });
    let (mut forward, mut du) = (vec![0.0; u.len()], vec![0.0; u.len()]);
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
    let statistics = if case.train {
        bn_noise::forward_train(&config, term, &u, &mut forward)?
    } else {
        let (mean, var) = case.given();
        let statistics = Statistics { mean: wide(mean), var: wide(var) };
        bn_noise::forward_eval(&config, term, &statistics, &u, &mut forward)?;
        statistics
    };
    let sign_of_stored = |(&y, &stored): (&f64, &f64)| match stored > 0.0 {
        true => y.max(f64::MIN_POSITIVE),
        false => 0.0,
    };
    let y: Vec<f64> = forward.iter().zip(stored).map(sign_of_stored).collect();
    let saved = Saved { u: &u, y: &y, statistics: &statistics };
    let backward = if case.train { bn_noise::backward_train } else { bn_noise::backward_eval };
    let dsigma = backward(&config, term, saved, &dy, &mut du)?;
    Ok(Outcome { y: forward, statistics, du, dsigma })
}

/// How far a result may be from the reference, relative to the scale of the values.
///
/// Arithmetic in `f32` is good to a few 10^-6 here; rounding for storage adds half a unit in the
/// last place.
pub fn tolerance(storage: Storage) -> f64 {
    1e-5 + match storage {
        Storage::F32 => 0.0,
        Storage::F16 => 0.5f64.powi(11),
        Storage::Bf16 => 0.5f64.powi(8),
    }
}

/// Compares an outcome with the reference; the error names the first value that is off.
pub fn compare(case: &Case, storage: Storage, outcome: &Outcome) -> Result<(), String> {
    let expected = reference(case, storage, &outcome.y).map_err(|error| error.to_string())?;
    let (_, channels, positions) = case.shape;
    let (_, deviation) = case.activations;
    let (single, stored) = (tolerance(Storage::F32), tolerance(storage));
    close("mean", &outcome.statistics.mean, &expected.statistics.mean, |_, _| 1e-6 * deviation)?;
    close("variance", &outcome.statistics.var, &expected.statistics.var, |_, variance| {
        single * variance
    })?;
    close("y", &outcome.y, &expected.y, |_, y| stored * y.abs().max(1.0))?;
    // du is a difference of terms of the size of rstd g, and |g| seldom exceeds 4.
    let rstd = expected.statistics.rstd(case.config().eps);
    close("du", &outcome.du, &expected.du, |i, du| {
        stored * du.abs() + 4.0 * single * rstd[i / positions % channels]
    })?;
    // dsigma is a sum of terms of order one and of either sign, so its scale is the root of their
    // number.
    let terms = outcome.y.len() as f64 / case.groups.max(1) as f64;
    close("dsigma", &outcome.dsigma, &expected.dsigma, |_, _| single * terms.sqrt().max(1.0))
}

fn close(
    name: &str,
    actual: &[f64],
    expected: &[f64],
    tolerance: impl Fn(usize, f64) -> f64,
) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!("{name}: {} values, not {}", actual.len(), expected.len()));
    }
    for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        if error > tolerance(i, expected) || error.is_nan() {
            return Err(format!("{name}[{i}] is {actual:e}, not {expected:e}: off by {error:.1e}"));
        }
    }
    Ok(())
}

/// Runs a case in several orders of the threads, which must give the same bits, and compares the
/// result with the reference.
pub fn case(
    machine: &mut impl Machine,
    case: &Case,
    storage: Storage,
    orders: &[u32],
) -> Result<(), String> {
    let in_case = |error: String| format!("{case:?} {storage:?}: {error}");
    let mut first: Option<Outcome> = None;
    for &order in orders {
        let outcome = run(machine, case, storage, order, |_| ()).map_err(in_case)?;
        match &first {
            None => {
                compare(case, storage, &outcome).map_err(in_case)?;
                first = Some(outcome);
            }
            Some(first) if *first != outcome => {
                return Err(in_case(format!("order {order} gives other bits")));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Checks the noise and every case in `f32`. A mutant must fail one of these.
pub fn all(machine: &mut impl Machine) -> Result<(), String> {
    crate::noise::check(machine)?;
    crate::expected::check(machine, Storage::F32)?;
    crate::training::check(machine, Storage::F32)?;
    self::case(machine, &far_from_zero(64), Storage::F32, &[0])?;
    cases().iter().try_for_each(|case| self::case(machine, case, Storage::F32, &[0, 1]))
}
