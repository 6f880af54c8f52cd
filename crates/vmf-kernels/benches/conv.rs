//! The convolutions of VGG16 at batch 64, as shares of the processor's peak:
//!
//! ```text
//! cargo bench -p vmf-kernels --bench conv -- [threads] [width divisor]
//! ```
//!
//! GFLOP/s are nominal (nine taps everywhere), so Winograd's algorithm can exceed the peak.

mod common;

use common::{best, fma_peak, random, with_threads};
use vmf_kernels::conv::{Algorithm, Conv2d, ConvShape};

/// Size, input channels, output channels, and how often VGG16 has it.
const LAYERS: [(usize, usize, usize, usize); 9] = [
    (32, 3, 64, 1),
    (32, 64, 64, 1),
    (16, 64, 128, 1),
    (16, 128, 128, 1),
    (8, 128, 256, 1),
    (8, 256, 256, 2),
    (4, 256, 512, 1),
    (4, 512, 512, 2),
    (2, 512, 512, 3),
];

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let threads = numbers.first().copied().unwrap_or(1);
    let divisor = numbers.get(1).copied().unwrap_or(1);
    with_threads(threads, || run(threads, divisor));
}

fn run(threads: usize, divisor: usize) {
    let peak = fma_peak() * threads as f64;
    println!(
        "{threads} threads, peak {peak:.0} GFLOP/s, width 1/{divisor}, batch 64; ms and % of peak"
    );
    println!(
        "{:>16} | {:^29} | {:^29} | {:^29}",
        "", "forward", "input gradient", "weight gradient"
    );
    println!("{:>16} |{}", "size in out", " direct       winograd         |".repeat(3));
    let mut totals = [[0.0; 2]; 3];
    for (size, inputs, outputs, times) in LAYERS {
        let inputs = if inputs == 3 { 3 } else { inputs / divisor };
        let shape = ConvShape::same(64, inputs, outputs / divisor, [size; 2], 3);
        let x = random(shape.input_len(), 1);
        let w = random(shape.weight_len(), 2);
        let dy = random(shape.output_len(), 3);
        let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
        print!("{size:4} {inputs:5} {:5} |", shape.out_channels);
        for (pass, totals) in totals.iter_mut().enumerate() {
            for (algorithm, total) in
                [Algorithm::Direct, Algorithm::Winograd].into_iter().zip(totals)
            {
                let conv = Conv2d::new(shape).unwrap().with_algorithm(algorithm);
                let reps = ((4e9 / shape.flops()) as usize).clamp(3, 20);
                let seconds = best(reps, || match pass {
                    0 => conv.forward(&x, &w, &mut y).unwrap(),
                    1 => conv.input_gradient(&dy, &w, &mut dx).unwrap(),
                    _ => conv.weight_gradient(&x, &dy, &mut dw).unwrap(),
                });
                *total += times as f64 * seconds * 1e3;
                let share = shape.flops() / seconds * 1e-9 / peak * 100.0;
                print!(" {:7.2} {share:4.0} %", seconds * 1e3);
            }
            print!("  |");
        }
        println!();
    }
    print!("{:>16} |", "VGG16");
    for [direct, winograd] in totals {
        print!(" {direct:7.1}        {winograd:7.1}         |");
    }
    println!();
}
