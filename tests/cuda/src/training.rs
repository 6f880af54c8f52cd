//! The kernels of a training step besides the unit: pooling, loss, objective, Adam, and the columns
//! of convolutions. Each is compared with its twin on the CPU or with a definition.

use vmf_kernels::adam::launches::{self as adam, Parameter, REPORT_HEAD};
use vmf_kernels::adam::{AdamConfig, adam as adam_on_cpu};
use vmf_kernels::bn_noise::launches::{Launch, ScaleKind, Storage};
use vmf_kernels::conv::{Conv2d, ConvShape, launches as conv};
use vmf_kernels::cross_entropy::{self, launches as loss};
use vmf_kernels::noise::{NoiseKey, normal};
use vmf_kernels::objective::{LayerKl, launches as objective};
use vmf_kernels::pool::{Pool, PoolShape, launches as pool};
use vmf_kernels::{Error, Layout};

use crate::case::{decode, encode, round};
use crate::check::tolerance;
use crate::machine::Machine;

/// Checks all of them in a storage, in two orders of the threads.
pub fn check(machine: &mut impl Machine, storage: Storage) -> Result<(), String> {
    for order in [0, 1] {
        pools(machine, storage, order)?;
        losses(machine, storage, order)?;
        columns(machine, storage, order)?;
        if storage == Storage::F32 {
            objectives(machine, order)?;
            steps(machine, order)?;
        }
    }
    Ok(())
}

fn text(error: Error) -> String {
    error.to_string()
}

fn values(count: usize, seed: u64) -> Vec<f64> {
    let key = NoiseKey { seed, ..NoiseKey::default() };
    (0..count).map(|i| normal(key, i as u64)).collect()
}

fn stored(storage: Storage, count: usize, seed: u64) -> Vec<f64> {
    values(count, seed).into_iter().map(|value| round(storage, value)).collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

fn bytes<T: Copy>(values: &[T], to: impl Fn(T) -> Vec<u8>) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    let double = |chunk: &[u8]| f64::from_le_bytes(chunk.try_into().unwrap_or_default());
    bytes.chunks_exact(8).map(double).collect()
}

fn run(machine: &mut impl Machine, order: u32, launches: &[Launch]) -> Result<(), String> {
    launches.iter().try_for_each(|launch| {
        machine.launch(launch, order).map_err(|error| format!("{}: {error}", launch.kernel))
    })
}

fn near(name: &str, actual: &[f64], expected: &[f64], tolerance: f64) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!("{name}: {} values, not {}", actual.len(), expected.len()));
    }
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let same = a == e || (a.is_nan() && e.is_nan());
        if !same && ((a - e).abs() > tolerance * (1.0 + e.abs()) || a.is_nan() || e.is_nan()) {
            return Err(format!("{name}[{i}] is {a:e}, not {e:e}"));
        }
    }
    Ok(())
}

/// Shapes with overlapping windows, padding and rows that no window reaches; ties, NaN and windows
/// of -infinity.
fn pools(machine: &mut impl Machine, storage: Storage, order: u32) -> Result<(), String> {
    let shape = |batch, channels, input, window, stride, padding| PoolShape {
        batch,
        channels,
        input,
        window: [window; 2],
        stride,
        padding,
    };
    let shapes = [
        shape(1, 1, [1, 1], 1, 1, 0),
        shape(2, 3, [4, 4], 2, 2, 0),
        shape(3, 5, [7, 6], 2, 2, 0),
        shape(2, 2, [7, 9], 3, 2, 1),
        shape(1, 3, [5, 5], 3, 1, 1),
        shape(5, 7, [16, 16], 2, 2, 0),
        shape(2, 1, [9, 8], 2, 3, 0),
    ];
    for shape in shapes {
        machine.clear();
        let mut x = stored(storage, shape.input_len(), 3);
        for (i, x) in x.iter_mut().enumerate() {
            match i % 11 {
                1 | 2 | 5 => *x = 1.0,
                7 if i % 3 == 0 => *x = f64::NAN,
                8 if i % 5 == 0 => *x = f64::NEG_INFINITY,
                _ => {}
            }
        }
        let dy = stored(storage, shape.output_len(), 4);
        let (mut y, mut argmax) = (vec![0f32; dy.len()], vec![0u8; dy.len()]);
        let mut dx = vec![0f32; x.len()];
        let twin = Pool::new(shape, Layout::Nchw).map_err(text)?;
        twin.max_forward(&narrow(&x), &mut y, &mut argmax).map_err(text)?;
        twin.max_backward(&argmax, &narrow(&dy), &mut dx).map_err(text)?;

        let empty = |count: usize| vec![f64::NAN; count];
        let at_x = machine.upload(&encode(storage, &x));
        let at_y = machine.upload(&encode(storage, &empty(dy.len())));
        let at_argmax = machine.upload(&vec![0xff; dy.len()]);
        let at_dy = machine.upload(&encode(storage, &dy));
        let at_dx = machine.upload(&encode(storage, &empty(x.len())));
        let launches = [
            pool::max_forward(&shape, storage, [at_x, at_y, at_argmax]).map_err(text)?,
            pool::max_backward(&shape, storage, [at_argmax, at_dy, at_dx]).map_err(text)?,
        ];
        run(machine, order, &launches)?;
        if machine.download(at_argmax, argmax.len()) != argmax {
            return Err(format!("{shape:?}: another argmax than on the CPU"));
        }
        let read = |at, count| decode(storage, &machine.download(at, count * storage.bytes()));
        let wide = |values: &[f32]| values.iter().map(|&v| v.into()).collect::<Vec<f64>>();
        near("pooled", &read(at_y, dy.len()), &wide(&y), 0.0)?;
        near("pooled dx", &read(at_dx, x.len()), &wide(&dx), tolerance(storage))?;
    }
    Ok(())
}

/// Batches below, at and above a block's rows; classes below and above a warp; smoothing; a label
/// that is no class.
fn losses(machine: &mut impl Machine, storage: Storage, order: u32) -> Result<(), String> {
    for (rows, classes, smoothing, wrong) in [
        (1, 1, 0.0, false),
        (3, 10, 0.0, false),
        (8, 33, 0.1, false),
        (70, 10, 0.0, false),
        (300, 5, 0.2, false),
        (4, 10, 0.0, true),
    ] {
        machine.clear();
        let mut logits: Vec<f64> =
            values(rows * classes, 5).iter().map(|x| round(storage, 3.0 * x)).collect();
        // A tie, and a row that overflows without the shift by the maximum.
        if classes > 4 {
            let largest = logits[..classes].iter().copied().fold(f64::MIN, f64::max);
            (logits[2], logits[4]) = (largest, largest);
            logits[classes * (rows - 1)] = round(storage, 300.0);
        }
        let mut labels: Vec<u32> =
            (0..rows).map(|row| (row * row + 2) as u32 % classes as u32).collect();
        if wrong {
            labels[1] = classes as u32;
        }
        let mut gradient = vec![0f32; logits.len()];
        let outcome =
            cross_entropy::cross_entropy(&narrow(&logits), &labels, smoothing, &mut gradient)
                .map_err(text)?;
        let at = loss::Pointers {
            logits: machine.upload(&encode(storage, &logits)),
            labels: machine.upload(&bytes(&labels, |label| label.to_le_bytes().into())),
            gradient: machine.upload(&encode(storage, &vec![f64::NAN; logits.len()])),
            rows: machine.upload(&vec![0xff; 8 * rows]),
            results: machine.upload(&[0xff; 8]),
        };
        let shape = [rows as u32, classes as u32];
        run(machine, order, &loss::cross_entropy(shape, smoothing as f32, storage, &at))?;
        let results = decode(Storage::F32, &machine.download(at.results, 8));
        near("loss", &results, &[outcome.loss, outcome.right as f64], 1e-5)?;
        let found = machine.download(at.gradient, logits.len() * storage.bytes());
        let expected: Vec<f64> = gradient.iter().map(|&g| g.into()).collect();
        near("dlogits", &decode(storage, &found), &expected, tolerance(storage))?;
    }
    Ok(())
}

/// Both parameterizations, several groups, more layers than a block has threads.
fn objectives(machine: &mut impl Machine, order: u32) -> Result<(), String> {
    for count in [1, 13, 300] {
        machine.clear();
        let layers: Vec<LayerKl> = (0..count)
            .map(|i| LayerKl {
                dim: 27 + 100 * (i % 5),
                units_per_group: 8 + i % 3,
                groups: 1 + i % 2 * 2,
                kind: [ScaleKind::Exponential, ScaleKind::Softplus][i / 2 % 2],
            })
            .collect();
        let (mut placed, mut slopes, mut kl) = (vec![], vec![], 0.0);
        let weight = 1e-5;
        for (i, layer) in layers.iter().enumerate() {
            let rho: Vec<f32> = narrow(&values(layer.groups, 7 + i as u64));
            for &rho in &rho {
                let (term, slope) = layer.of(rho.into());
                kl += term;
                slopes.push(weight * slope);
            }
            placed.push((*layer, machine.upload(&bytes(&rho, |r| r.to_le_bytes().into()))));
        }
        let table = bytes(&objective::table(&placed), |word| word.to_le_bytes().into());
        let at = objective::Pointers {
            layers: machine.upload(&table),
            nll: machine.upload(&2.5f32.to_le_bytes()),
            weight: machine.upload(&f64::to_le_bytes(weight)),
            slopes: machine.upload(&vec![0xff; 4 * slopes.len()]),
            kl: machine.upload(&[0xff; 8]),
            total: machine.upload(&[0xff; 4]),
        };
        run(machine, order, &[objective::objective(count, &at)])?;
        let found_kl = doubles(&machine.download(at.kl, 8));
        near("KL", &found_kl, &[kl], 1e-12)?;
        let total = decode(Storage::F32, &machine.download(at.total, 4));
        near("objective", &total, &[2.5 + weight * kl], 1e-6)?;
        let found = decode(Storage::F32, &machine.download(at.slopes, 4 * slopes.len()));
        let scale = slopes.iter().fold(0f64, |most, slope| most.max(slope.abs()));
        let relative = |values: &[f64]| values.iter().map(|v| v / scale).collect::<Vec<f64>>();
        near("slopes of the KL", &relative(&found), &relative(&slopes), 1e-6)?;
    }
    Ok(())
}

/// Several parameters at once: scalars, rows on the sphere shorter and longer than a warp, more
/// than one block of each, other rates and steps, decay and clipping. And no step at all if the loss
/// or a gradient is not finite.
fn steps(machine: &mut impl Machine, order: u32) -> Result<(), String> {
    let plain = AdamConfig { lr: 0.01, ..AdamConfig::default() };
    let parameters = [
        (1, plain, 1),
        (5, AdamConfig { lr: 0.5, ..plain }, 7),
        (30 * 27, AdamConfig { sphere: Some(27), ..plain }, 3),
        (20_000, AdamConfig { weight_decay: 0.1, ..plain }, 2),
        (9 * 3000, AdamConfig { sphere: Some(3000), ..plain }, 1),
        (33, plain, 1),
    ];
    for (clip, loss, broken) in [
        (None, 1.0, None),
        (Some(0.5), 1.0, None),
        (Some(1e9), 1.0, None),
        (None, f32::NAN, None),
        (Some(1.0), 1.0, Some((3, 12_345, f32::NAN))),
        (None, 1.0, Some((2, 0, f32::INFINITY))),
    ] {
        machine.clear();
        let mut placed = Vec::new();
        let mut expected = Vec::new();
        let mut squares = Vec::new();
        for (i, &(len, config, step)) in parameters.iter().enumerate() {
            let seed = 20 + 10 * i as u64;
            let [w, mut g, m, mut v] = [0, 1, 2, 3].map(|k| narrow(&values(len, seed + k)));
            v.iter_mut().for_each(|v| *v = v.abs());
            if let Some((_, at, value)) = broken.filter(|(parameter, ..)| *parameter == i) {
                g[at] = value;
            }
            let floats = |values: &[f32]| bytes(values, |value: f32| value.to_le_bytes().into());
            let at = [&w, &g, &m, &v].map(|values| machine.upload(&floats(values)));
            placed.push(Parameter { at, len, step, config });
            squares.push(g.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>());
            expected.push((config, step, [w, g, m, v]));
        }
        let norm = squares.iter().sum::<f64>().sqrt();
        let taken = norm.is_finite() && loss.is_finite();
        let scale = clip.filter(|&clip| norm > clip).map_or(1.0, |clip| clip / norm);
        if taken {
            for (config, step, [w, g, m, v]) in &mut expected {
                g.iter_mut().for_each(|g| *g = (f64::from(*g) * scale) as f32);
                adam_on_cpu(config, *step, w, g, m, v).map_err(text)?;
            }
        }
        let (table, chunks) = adam::table(&placed);
        let watched = [loss, 17.0].map(|value| machine.upload(&value.to_le_bytes()));
        let words = |words: &[u64]| bytes(words, |word: u64| word.to_le_bytes().into());
        let at = adam::Pointers {
            table: machine.upload(&words(&table)),
            partials: machine.upload(&vec![0xff; 8 * chunks]),
            watched: machine.upload(&words(&watched)),
            squares: machine.upload(&vec![0xff; 8 * placed.len()]),
            report: machine.upload(&[0xff; 4 * (REPORT_HEAD + 2)]),
        };
        let counts = [placed.len(), chunks, watched.len()];
        run(machine, order, &adam::step(&plain, clip, counts, &at))?;
        let report = decode(Storage::F32, &machine.download(at.report, 4 * (REPORT_HEAD + 2)));
        let wanted = [if taken { scale } else { 0.0 }, norm, loss.into(), 17.0];
        near("report", &report, &wanted, 1e-6)?;
        near("squares", &doubles(&machine.download(at.squares, 8 * placed.len())), &squares, 1e-9)?;
        for (i, ((_, _, values), parameter)) in expected.iter().zip(&placed).enumerate() {
            for (place, name) in [(0, "weights"), (2, "first moments"), (3, "second moments")] {
                let found = machine.download(parameter.at[place], 4 * parameter.len);
                let expected: Vec<f64> = values[place].iter().map(|&v| v.into()).collect();
                let tolerance = if taken { 3e-6 } else { 0.0 };
                let name = format!("{name} of parameter {i}");
                near(&name, &decode(Storage::F32, &found), &expected, tolerance)?;
            }
        }
    }
    Ok(())
}

/// A convolution by its columns is the convolution, and adding columns up is its gradient.
fn columns(machine: &mut impl Machine, storage: Storage, order: u32) -> Result<(), String> {
    let shape = |batch, channels, input, kernel: usize, stride, padding, dilation| ConvShape {
        batch,
        in_channels: channels,
        out_channels: 1,
        input,
        kernel: [kernel, kernel],
        stride,
        padding,
        dilation,
        groups: 1,
    };
    for shape in [
        shape(2, 3, [5, 4], 3, 1, 1, 1),
        shape(1, 2, [8, 7], 3, 2, 1, 1),
        shape(2, 1, [9, 9], 3, 1, 2, 2),
        shape(1, 1, [6, 6], 1, 2, 0, 1),
        shape(3, 2, [16, 16], 3, 1, 1, 1),
        shape(1, 2, [7, 7], 2, 3, 0, 1),
    ] {
        machine.clear();
        Conv2d::new(shape).map_err(text)?;
        let [height, width] = shape.output();
        let (taps, positions) = (shape.kernel[0] * shape.kernel[1], height * width);
        let x = stored(storage, shape.input_len(), 8);
        let sent = stored(storage, conv::columns_len(&shape), 9);
        let (mut columns, mut dx) = (vec![0.0; sent.len()], vec![0.0; x.len()]);
        for (i, column) in columns.iter_mut().enumerate() {
            let (p, tap, plane) = (i % positions, i / positions % taps, i / positions / taps);
            let along = |axis: usize, out: usize, tap: usize| {
                (out * shape.stride + tap * shape.dilation)
                    .checked_sub(shape.padding)
                    .filter(|&at| at < shape.input[axis])
            };
            let row = along(0, p / width, tap / shape.kernel[1]);
            let from = row.zip(along(1, p % width, tap % shape.kernel[1]));
            if let Some((row, column_of)) = from {
                let at = (plane * shape.input[0] + row) * shape.input[1] + column_of;
                *column = x[at];
                dx[at] += sent[i];
            }
        }
        let at_x = machine.upload(&encode(storage, &x));
        let at_columns = machine.upload(&encode(storage, &vec![f64::NAN; columns.len()]));
        let at_sent = machine.upload(&encode(storage, &sent));
        let at_dx = machine.upload(&encode(storage, &vec![f64::NAN; x.len()]));
        let launches = [
            conv::im2col(&shape, storage, at_x, at_columns).map_err(text)?,
            conv::col2im(&shape, storage, at_sent, at_dx).map_err(text)?,
        ];
        run(machine, order, &launches)?;
        let read = |at, count| decode(storage, &machine.download(at, count * storage.bytes()));
        near("columns", &read(at_columns, columns.len()), &columns, 0.0)?;
        near("dx of columns", &read(at_dx, x.len()), &dx, 2.0 * tolerance(storage))?;
    }
    Ok(())
}
