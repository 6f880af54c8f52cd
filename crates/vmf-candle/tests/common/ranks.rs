//! What is asked of ranks, however they are connected: threads in tests/ranks.rs, processes in
//! tests/mpi.rs.
#![allow(unreachable_pub)]

use crate::common::{largest_difference, named, values, wave};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Optimizer, VarMap};
use std::path::Path;
use vmf_candle::ops::{bn_noise, bn_noise_config, bn_noise_reference};
use vmf_candle::prelude::*;
use vmf_candle::ranks::Ranks;
use vmf_candle::{Checkpoint, Progress};

/// Examples in the training set.
const EXAMPLES: usize = 60;

/// A training: its batch, its dtype, and which of its steps.
#[derive(Clone, Copy)]
pub struct Training<'a> {
    pub batch: usize,
    pub dtype: DType,
    pub steps: (u32, u32),
    /// The checkpoint that it continues.
    pub from: Option<&'a Path>,
    /// Where rank 0 saves.
    pub to: Option<&'a Path>,
    pub local_statistics: bool,
}

impl Training<'_> {
    pub const WHOLE: Self = Self {
        batch: 12,
        dtype: DType::F32,
        steps: (0, 200),
        from: None,
        to: None,
        local_statistics: false,
    };
}

/// The losses of all steps, and all variables at the end, running statistics among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    pub losses: Vec<f64>,
    pub variables: Vec<(String, Vec<f64>)>,
}

/// A network with everything that sees a batch: a unit with pooling, one with gain and shift, a
/// linear one, and images whose 36 and 9 positions take the two routes of the noise.
fn network(vars: &VarMap, posterior: &Posterior, dtype: DType) -> Result<Chain> {
    let vb = seeded(vars, 5, dtype, &Device::Cpu);
    let unit = || VmfConfig::default().relu().padding(1);
    let features = ConvStack::new()
        .unit(vmf_conv2d(2, 6, 3, unit(), posterior, vb.pp("features.0"))?)
        .max_pool(2)
        .unit(vmf_conv2d(6, 8, 3, unit().affine(), posterior, vb.pp("features.1"))?);
    let hidden = vmf_linear(8, 12, VmfConfig::default().relu(), posterior, vb.pp("hidden"))?;
    Ok(Chain::new()
        .add(features)
        .add_plain(|xs: &Tensor| xs.mean((2, 3)))
        .add(hidden)
        .add_plain(candle_nn::linear(12, 3, vb.pp("head"))?))
}

/// Trains on this rank's share of every batch.
pub fn train(ranks: Ranks, training: Training) -> Result<Trained> {
    let Training { batch, dtype, steps: (first, end), .. } = training;
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let model = network(&vars, &posterior, dtype)?;
    let config = AdamConfig { lr: 3e-3, ..AdamConfig::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?.across(ranks);
    if let Some(path) = training.from {
        let checkpoint = Checkpoint::open(path)?;
        checkpoint.restore(&vars, &posterior, Some(&mut adam))?;
        assert_eq!(checkpoint.progress().step, u64::from(first));
    }
    let images = wave(&[EXAMPLES, 2, 6, 6], 0.37, 0.1)?.to_dtype(dtype)?;
    let labels: Vec<u32> = (0..EXAMPLES as u32).map(|i| i * i % 7 % 3).collect();
    let labels = Tensor::from_vec(labels, EXAMPLES, &Device::Cpu)?;
    let share = ranks.share(batch)?;
    let share = if training.local_statistics { share.local_statistics() } else { share };
    let mut losses = Vec::new();
    for step in first..end {
        let place = (step as usize * batch) % (EXAMPLES - batch + 1);
        let here = |all: &Tensor| all.narrow(0, place + share.first(), share.count());
        let pass = Pass::train(11, step).shared(&share);
        let nll = cross_entropy(&model.forward(&here(&images)?, &pass)?, &here(&labels)?)?;
        let loss = Elbo::new(EXAMPLES).beta(0.05).share(&share).loss(&nll, &posterior)?;
        adam.backward_step(&loss.total)?;
        let mut total = [loss.total.to_dtype(DType::F64)?.to_scalar::<f64>()?];
        ranks.sum_f64(&mut total)?;
        losses.extend(total);
    }
    if let (Some(path), true) = (training.to, ranks.is_first()) {
        let progress = Progress { step: end.into(), ..Progress::default() };
        Checkpoint::capture(&vars, &posterior, Some(&adam), progress)?.save(path)?;
    }
    ranks.barrier()?;
    let variables = named(&vars).into_iter().map(|(name, var)| (name, values(&var))).collect();
    Ok(Trained { losses, variables })
}

/// How far two trainings are apart: in their losses, and in their variables, each relative to the
/// largest value of its variable.
pub fn distance(a: &Trained, b: &Trained) -> (f64, f64) {
    let losses = largest_difference(&a.losses, &b.losses);
    let variables = a.variables.iter().zip(&b.variables).map(|((name, a), (other, b))| {
        assert_eq!(name, other);
        let size = a.iter().fold(1e-3f64, |size, x| size.max(x.abs()));
        largest_difference(a, b) / size
    });
    (losses, variables.fold(0.0, f64::max))
}

/// What a group promises, with numbers whose sums are exact.
pub fn check_collectives(ranks: Ranks) -> Result<()> {
    let (rank, size) = (ranks.rank(), ranks.size());
    assert!(rank < size);
    // Longer than what is sent at a time.
    for length in [0, 1, 3, 1000, (1 << 22) + 5] {
        let number = |i: usize, rank: usize| (i % 1000 + 17 * rank) as f64;
        let expected = |i: usize| (0..size).map(|rank| number(i, rank)).sum::<f64>();
        let mut double: Vec<f64> = (0..length).map(|i| number(i, rank)).collect();
        let mut single: Vec<f32> = double.iter().map(|&x| x as f32).collect();
        ranks.sum_f64(&mut double)?;
        ranks.sum_f32(&mut single)?;
        assert!((0..length).all(|i| double[i] == expected(i)));
        assert!((0..length).all(|i| f64::from(single[i]) == expected(i)));
        let mut bytes: Vec<u8> = (0..length).map(|i| (i + 31 * rank) as u8).collect();
        ranks.broadcast(&mut bytes)?;
        assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == i as u8));
    }
    // All ranks get the same bits of a sum that is rounded, and twice the same.
    let rounded = || -> Result<Vec<u64>> {
        let mut values: Vec<f64> = (0..999).map(|i| 1.0 / (3 * i + 7 * rank + 1) as f64).collect();
        ranks.sum_f64(&mut values)?;
        Ok(values.into_iter().map(f64::to_bits).collect())
    };
    let first = rounded()?;
    assert_eq!(first, rounded()?);
    let bytes: Vec<u8> = first.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    ranks.ensure_equal("the sums", &bytes)?;

    let message = ["longer than that of rank 0", "of rank 0"][usize::from(rank == 0)];
    assert_eq!(ranks.tell(message.as_bytes())?, b"of rank 0");
    assert_eq!(ranks.which(rank == size - 1)?, [size - 1]);
    if size > 1 {
        let error = ranks.ensure_equal("the settings", &[u8::from(rank == 1)]).unwrap_err();
        assert_eq!(error.to_string(), "the settings of rank 1 are not those of rank 0");
        assert!(ranks.time_in_communication().as_nanos() > 0);
        assert!(ranks.share(size - 1).is_err());
    }
    for batch in [size, size + 1, 64] {
        let share = ranks.share(batch)?;
        let mut counts = [share.count() as f64, share.weight()];
        ranks.sum_f64(&mut counts)?;
        assert_eq!(counts[0], batch as f64);
        assert!((counts[1] - 1.0).abs() < 1e-12);
        assert!(share.count().abs_diff(batch / size) <= 1);
    }
    ranks.barrier()?;
    Ok(())
}

/// A share of a batch, normalized with the statistics of all ranks, is that share of the batch that
/// one process normalizes: values, statistics and gradients, by the kernel and by Candle's own
/// operations.
pub fn check_normalization(ranks: Ranks) -> Result<()> {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
        for (shape, relu) in [([13, 5, 4, 3], true), ([8, 3, 2, 2], false), ([7, 6, 1, 1], true)] {
            // Far from zero, where merged squares would suffer first.
            let u = (wave(&shape, 1.3, 0.4)? + 30.0)?.to_dtype(dtype)?;
            let sigma = Var::from_tensor(&Tensor::new(&[0.3f64], &Device::Cpu)?.to_dtype(dtype)?)?;
            let direction = wave(&shape, 0.7, 0.2)?.to_dtype(dtype)?;
            let pass = Pass::train(3, 9);

            let whole = Var::from_tensor(&u)?;
            let config = bn_noise_config(&whole)?.relu(relu);
            let (y, statistics) = bn_noise(&whole, &sigma, &config, pass.noise(4, &shape)?)?;
            let gradients = (&y * &direction)?.sum_all()?.backward()?;
            let [du, dsigma] = [&whole, &sigma].map(|var| gradients.get(var).unwrap());

            let share = ranks.share(shape[0])?;
            let part = |all: &Tensor| all.narrow(0, share.first(), share.count());
            let local = Var::from_tensor(&part(&u)?)?;
            let config = bn_noise_config(&local)?.relu(relu).across(ranks.across());
            let noise = pass.shared(&share).noise(4, local.dims())?;
            for reference in [false, true] {
                let compute = if reference { bn_noise_reference } else { bn_noise };
                let (y_part, merged) = compute(&local, &sigma, &config, noise)?;
                let gradients = (&y_part * part(&direction)?)?.sum_all()?.backward()?;
                let mut dsigma_sum = values(gradients.get(&sigma).unwrap());
                ranks.sum_f64(&mut dsigma_sum)?;
                let pairs = [
                    ("y", values(&y_part), values(&part(&y)?)),
                    ("mean", values(&merged.mean), values(&statistics.mean)),
                    ("var", values(&merged.var), values(&statistics.var)),
                    ("du", values(gradients.get(&local).unwrap()), values(&part(du)?)),
                    ("dsigma", dsigma_sum, values(dsigma)),
                ];
                for (name, found, expected) in pairs {
                    let size = expected.iter().fold(1.0f64, |size, x| size.max(x.abs()));
                    let error = largest_difference(&found, &expected) / size;
                    let what = format!("{name} of {shape:?} {dtype:?} reference {reference}");
                    assert!(error < tolerance, "{what}: {error:e}");
                }
            }
        }
    }
    check_units(ranks)
}

/// y, dw and the running statistics as numbers, and dx.
type OfUnit = (Vec<f64>, Vec<f64>, Vec<f64>, Tensor);

/// The same for a whole unit in f32, with pooling and without: the fused operation.
fn check_units(ranks: Ranks) -> Result<()> {
    let shape = [10, 3, 6, 6];
    let xs = wave(&shape, 1.1, 0.3)?.to_dtype(DType::F32)?;
    for pool in [false, true] {
        let gradients = |ranks: Ranks| -> Result<OfUnit> {
            let (vars, posterior) = (VarMap::new(), Posterior::new());
            let vb = seeded(&vars, 2, DType::F32, &Device::Cpu);
            let unit = VmfConfig::default().relu().padding(1);
            let conv = vmf_conv2d(3, 4, 3, unit, &posterior, vb.pp("conv"))?;
            let weight = conv.weight().clone();
            let stack = ConvStack::new().unit(conv);
            let stack = if pool { stack.max_pool(2) } else { stack };
            let share = ranks.share(shape[0])?;
            let xs = Var::from_tensor(&xs.narrow(0, share.first(), share.count())?)?;
            let ys = stack.forward(&xs, &Pass::train(1, 2).shared(&share))?;
            // The weights of the whole sum, of which this is a part.
            let mut dims = ys.dims().to_vec();
            dims[0] = shape[0];
            let weights = wave(&dims, 0.7, 0.2)?.to_dtype(DType::F32)?;
            let weights = weights.narrow(0, share.first(), share.count())?;
            let gradients = (&ys * weights)?.sum_all()?.backward()?;
            let mut dw = values(gradients.get(&weight).unwrap());
            ranks.sum_f64(&mut dw)?;
            let running = named(&vars).into_iter().filter(|(name, _)| name.contains("running"));
            let running = running.flat_map(|(_, var)| values(&var)).collect();
            Ok((values(&ys), dw, running, gradients.get(&xs).unwrap().clone()))
        };
        let (ys, dw, running, dx) = gradients(ranks)?;
        let (all_ys, all_dw, all_running, all_dx) = gradients(Ranks::alone())?;
        let share = ranks.share(shape[0])?;
        let each = all_ys.len() / shape[0];
        let all_ys = &all_ys[each * share.first()..][..each * share.count()];
        let all_dx = all_dx.narrow(0, share.first(), share.count())?;
        let pairs = [
            ("y", ys, all_ys.to_vec()),
            ("dw", dw, all_dw),
            ("running statistics", running, all_running),
            ("dx", values(&dx), values(&all_dx)),
        ];
        for (name, found, expected) in pairs {
            let size = expected.iter().fold(1.0f64, |size, x| size.max(x.abs()));
            let error = largest_difference(&found, &expected) / size;
            assert!(error < 2e-5, "{name} with pooling {pool}: {error:e}");
        }
    }
    Ok(())
}
