//! The launch of the objective. The tests execute the same launch on the CPU.

use super::LayerKl;
use crate::bn_noise::launches::{Argument, Launch, Words};

/// Bytes of `struct Layer` in objective.cu.
pub const LAYER_BYTES: usize = 40;

/// The table of layers as objective.cu reads it. Slopes are numbered in the order of the layers.
pub fn table(layers: &[(LayerKl, u64)]) -> Vec<u64> {
    let mut first = 0;
    let mut table = Vec::with_capacity(layers.len() * LAYER_BYTES / 8);
    for (layer, rho) in layers {
        let groups = layer.groups as u64;
        table.extend([*rho, layer.log_ratio().to_bits(), layer.factor().to_bits()]);
        table.extend([groups | first << 32, layer.kind as u64]);
        first += groups;
    }
    table
}

/// Addresses in device memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pointers {
    /// The [`table`].
    pub layers: u64,
    /// The negative log-likelihood, `f32`.
    pub nll: u64,
    /// The weight of the KL, `f64`.
    pub weight: u64,
    /// One `f32` for each rho.
    pub slopes: u64,
    /// The KL, `f64`.
    pub kl: u64,
    /// The objective, `f32`.
    pub total: u64,
}

/// Reads rho, nll and weight, writes slopes, kl and total.
pub fn objective(layers: usize, at: &Pointers) -> Launch {
    let pointers = [at.layers, at.nll, at.weight, at.slopes, at.kl, at.total];
    let count = Argument::Words(Words::new([layers as u32]));
    Launch {
        kernel: "objective".into(),
        grid: 1,
        arguments: pointers.map(Argument::Pointer).into_iter().chain([count]).collect(),
    }
}
