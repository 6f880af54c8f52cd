//! Times the operations that [`conv`](../conv.rs) and [`gemm`](../gemm.rs) leave out, beside those
//! of stock Candle: `cargo bench -p vmf-kernels --bench ops -- [threads]`.
//!
//! These are convolutions with kernels other than 3x3 (forward; input and weight gradient),
//! pooling, conversions of layout and the optimizer's step. The contenders take turns, and the
//! fastest run of each counts. Our tensors are in HWNC, those of Candle in NCHW. Candle has no
//! gradient for a convolution in groups and no optimizer on plain slices, so only our time is
//! printed there.

mod common;

use candle_core::{Device, Tensor, Var};
use common::{best_in_turns, random, with_threads};
use vmf_kernels::Layout;
use vmf_kernels::adam::{AdamConfig, adam};
use vmf_kernels::conv::{Conv2d, ConvShape, to_hwnc, to_nchw};
use vmf_kernels::pool::{Pool, PoolShape};

const BATCH: usize = 32;
const REPS: usize = 5;

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let threads = numbers.first().copied().unwrap_or(1);
    with_threads(threads, || {
        println!("batch {BATCH}, f32, {threads} thread(s); times in ms");
        println!(
            "{:<44}{:>9}{:>9}{:>7}{:>12}{:>9}{:>7}",
            "", "forward", "Candle", "", "backward", "Candle", ""
        );
        convolutions();
        pooling();
        layouts();
        optimizer();
    });
}

/// Prints one line: the times of the forward and the backward pass, ours and Candle's, and the
/// ratio of Candle's to ours.
fn print(name: &str, passes: [Option<(f64, Option<f64>)>; 2]) {
    print!("{name:<44}");
    for (pass, width) in passes.into_iter().zip([9, 12]) {
        let Some((ours, candle)) = pass else { continue };
        print!("{:>width$.2}", ours * 1e3);
        match candle {
            Some(candle) => print!("{:>9.2}{:>6.1}x", candle * 1e3, candle / ours),
            None => print!("{:>16}", ""),
        }
    }
    println!();
}

fn convolutions() {
    let base = ConvShape::same(BATCH, 64, 64, [32, 32], 3);
    let cases = [
        ("convolution 1x1, 256 to 64, 16x16", ConvShape::same(BATCH, 256, 64, [16, 16], 1)),
        ("convolution 5x5, 64 to 64, 16x16", ConvShape::same(BATCH, 64, 64, [16, 16], 5)),
        (
            "convolution 7x7, stride 2, 3 to 64, 64x64",
            ConvShape { stride: 2, ..ConvShape::same(BATCH, 3, 64, [64, 64], 7) },
        ),
        (
            "convolution 3x3, stride 2, 64 to 128, 32x32",
            ConvShape { stride: 2, out_channels: 128, ..base },
        ),
        ("convolution 3x3, 4 groups, 64 to 64, 32x32", ConvShape { groups: 4, ..base }),
        ("convolution 3x3, depthwise, 64, 32x32", ConvShape { groups: 64, ..base }),
    ];
    for (name, shape) in cases {
        let conv = Conv2d::new(shape).expect("a shape");
        let x = random(shape.input_len(), 1);
        let w = random(shape.weight_len(), 2);
        let dy = vec![1.0; shape.output_len()];
        let mut y = vec![0.0; shape.output_len()];
        let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);

        let [height, width] = shape.input;
        let image = (shape.batch, shape.in_channels, height, width);
        let inputs = shape.in_channels / shape.groups;
        let kernel = (shape.out_channels, inputs, shape.kernel[0], shape.kernel[1]);
        let theirs = (variable(&x, image), variable(&w, kernel));
        let stock = |x: &Tensor, w: &Tensor| {
            x.conv2d(w, shape.padding, shape.stride, shape.dilation, shape.groups)
                .expect("Candle's convolution")
        };
        let forward = best_in_turns(
            REPS,
            [&mut || conv.forward(&x, &w, &mut y).expect("lengths that fit"), &mut || {
                drop(stock(&theirs.0.detach(), &theirs.1.detach()))
            }],
        );
        let graph = stock(&theirs.0, &theirs.1);
        let mut ours = || {
            conv.input_gradient(&dy, &w, &mut dx).expect("lengths that fit");
            conv.weight_gradient(&x, &dy, &mut dw).expect("lengths that fit");
        };
        let backward = if shape.groups == 1 {
            let mut candle = || drop(graph.backward().expect("Candle's gradient"));
            let [ours, candle] = best_in_turns(REPS, [&mut ours, &mut candle]);
            (ours, Some(candle))
        } else {
            let [ours] = best_in_turns(REPS, [&mut ours]);
            (ours, None)
        };
        print(name, [Some((forward[0], Some(forward[1]))), Some(backward)]);
    }
}

fn pooling() {
    let shape = PoolShape::tiling(BATCH, 64, [32, 32], 2);
    let pool = Pool::new(shape, Layout::Hwnc).expect("a shape");
    let x = random(shape.input_len(), 1);
    let dy = vec![1.0; shape.output_len()];
    let (mut y, mut dx) = (dy.clone(), x.clone());
    let mut argmax = vec![0; dy.len()];
    let theirs = variable(&x, (BATCH, 64, 32, 32));

    let graph = theirs.max_pool2d(2).expect("Candle's pooling");
    let forward = best_in_turns(
        REPS,
        [&mut || pool.max_forward(&x, &mut y, &mut argmax).expect("lengths that fit"), &mut || {
            drop(theirs.detach().max_pool2d(2).expect("Candle's pooling"))
        }],
    );
    let backward = best_in_turns(
        REPS,
        [&mut || pool.max_backward(&argmax, &dy, &mut dx).expect("lengths that fit"), &mut || {
            drop(graph.backward().expect("Candle's gradient"))
        }],
    );
    let both = |[ours, candle]: [f64; 2]| Some((ours, Some(candle)));
    let name = "maximum of 2x2, 64 channels, 32x32";
    print(name, [both(forward), both(backward)]);

    let graph = theirs.avg_pool2d(2).expect("Candle's pooling");
    let forward = best_in_turns(
        REPS,
        [&mut || pool.average_forward(&x, &mut y).expect("lengths that fit"), &mut || {
            drop(theirs.detach().avg_pool2d(2).expect("Candle's pooling"))
        }],
    );
    let backward = best_in_turns(
        REPS,
        [&mut || pool.average_backward(&dy, &mut dx).expect("lengths that fit"), &mut || {
            drop(graph.backward().expect("Candle's gradient"))
        }],
    );
    let name = "average of 2x2, 64 channels, 32x32";
    print(name, [both(forward), both(backward)]);
}

fn layouts() {
    let x = random(BATCH * 64 * 32 * 32, 1);
    let mut to = x.clone();
    let theirs = variable(&x, (BATCH, 64, 32, 32)).detach();
    let permuted = |axes: [usize; 4]| {
        let there = theirs.permute(axes).and_then(|x| x.contiguous());
        drop(there.expect("Candle's copy"));
    };
    let [ours, candle] = best_in_turns(
        REPS,
        [&mut || to_hwnc(&x, BATCH, 64, 32 * 32, &mut to).expect("lengths that fit"), &mut || {
            permuted([2, 3, 0, 1])
        }],
    );
    print("NCHW to HWNC, 64 channels, 32x32", [Some((ours, Some(candle))), None]);
    let [ours] = best_in_turns(
        REPS,
        [&mut || to_nchw(&x, BATCH, 64, 32 * 32, &mut to).expect("lengths that fit")],
    );
    print("HWNC to NCHW, 64 channels, 32x32", [Some((ours, None)), None]);
}

fn optimizer() {
    const LEN: usize = 1 << 22;
    let gradient = random(LEN, 1);
    let (mut w, mut mean, mut square) = (random(LEN, 2), vec![0.0; LEN], vec![0.0; LEN]);
    let config = AdamConfig::default();
    let mut step = 0;
    let [seconds] = best_in_turns(
        REPS,
        [&mut || {
            step += 1;
            adam(&config, step, &mut w, &gradient, &mut mean, &mut square)
                .expect("lengths that fit");
        }],
    );
    // Four arrays are read and three are written.
    let speed = (7 * LEN * size_of::<f32>()) as f64 / seconds * 1e-9;
    let name = format!("Adam, 4 million numbers ({speed:.0} GB/s)");
    print(&name, [Some((seconds, None)), None]);
}

fn variable(values: &[f32], shape: (usize, usize, usize, usize)) -> Tensor {
    let tensor = Tensor::from_slice(values, shape, &Device::Cpu).expect("a tensor");
    Var::from_tensor(&tensor).expect("a variable").into_inner()
}
