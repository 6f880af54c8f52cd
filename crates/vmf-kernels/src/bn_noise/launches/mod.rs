//! Which CUDA kernels a pass launches, with which grid and which arguments.
//!
//! A pass is a short list of [`Launch`]es. Computing the list needs no device, since device
//! pointers are plain numbers. The launcher (feature `cuda`) passes the list to the driver. The
//! tests pass the same list to machines that execute the kernels on the CPU, so they test what a
//! GPU is given.

mod arguments;
mod expected;
mod plan;

pub use arguments::{
    Argument, NoiseArguments, Problem, Running, ScaleKind, Tiling, Windows, Words,
};
pub use plan::{Plan, Pointers};

/// Threads of a block, `BLOCK` in reduction.cuh.
pub const BLOCK: u32 = 256;

/// Floats per channel in a buffer of statistics: mean, biased variance, rstd, and what rounding
/// took from the mean.
pub const STATISTICS_PER_CHANNEL: usize = 4;

/// Floats per channel in a buffer of gradient sums: the means of g and of g * xhat, and the sum of
/// g * z.
pub const SUMS_PER_CHANNEL: usize = 3;

/// How elements are stored in device memory. Arithmetic is always in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// `f32`.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
}

impl Storage {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::F16 | Storage::Bf16 => 2,
        }
    }

    /// The part of a kernel's name that stands for it.
    pub fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
        }
    }

    fn c_type(self) -> &'static str {
        match self {
            Storage::F32 => "float",
            Storage::F16 => "Half",
            Storage::Bf16 => "Bfloat",
        }
    }
}

/// The kernels that [`source`] has for a storage.
pub fn kernels(storage: Storage) -> Vec<String> {
    let of_a_width = |width: u32| {
        ["statistics", "merge_statistics", "forward", "gradient_sums", "backward", "expected"]
            .map(|kernel| kernel_name(kernel, storage, width))
    };
    let of_any_storage = [
        "given_statistics",
        "merge_gradient_sums",
        "group_gradients",
        "cross_entropy_mean",
        "adam_squares",
        "adam_verdict",
        "adam_step",
        "objective",
    ];
    let of_a_storage = [
        "expected_pooled",
        "max_pool",
        "max_pool_backward",
        "cross_entropy_rows",
        "im2col",
        "col2im",
    ];
    let of_a_storage = of_a_storage.map(|kernel| storage_name(kernel, storage));
    let of_any_width = of_any_storage.map(String::from).into_iter().chain(of_a_storage);
    [1, 4].into_iter().flat_map(of_a_width).chain(of_any_width).collect()
}

fn kernel_name(kernel: &str, storage: Storage, width: u32) -> String {
    format!("{kernel}_{}_by{width}", storage.name())
}

/// A kernel that loads single elements.
pub(crate) fn storage_name(kernel: &str, storage: Storage) -> String {
    format!("{kernel}_{}", storage.name())
}

/// The CUDA source of the kernels for one storage, ready for NVRTC: it includes no header.
pub fn source(storage: Storage) -> String {
    let (name, c_type) = (storage.name(), storage.c_type());
    [
        include_str!("../../noise/noise.cuh"),
        include_str!("../reduction.cuh"),
        include_str!("../bn_noise.cu"),
        include_str!("../../expected/expected.cu"),
        include_str!("../../pool/pool.cu"),
        include_str!("../../cross_entropy/cross_entropy.cu"),
        include_str!("../../adam/adam.cu"),
        include_str!("../../objective/objective.cu"),
        include_str!("../../conv/im2col.cu"),
        &format!("KERNELS({c_type}, 4, {name}_by4)\nKERNELS({c_type}, 1, {name}_by1)\n"),
        &format!("EXPECTED_KERNELS({c_type}, 4, {name}_by4)\n"),
        &format!("EXPECTED_KERNELS({c_type}, 1, {name}_by1)\n"),
        &format!("POOLED_KERNEL({c_type}, {name})\nMAX_POOL_KERNELS({c_type}, {name})\n"),
        &format!("CROSS_ENTROPY_KERNEL({c_type}, {name})\nIM2COL_KERNELS({c_type}, {name})\n"),
    ]
    .concat()
}

/// Blocks of a kernel that goes over `elements` in turns, one a thread: at most so many that a
/// thread of any GPU has more than one turn.
pub(crate) fn covering(elements: usize) -> u32 {
    elements.div_ceil(BLOCK as usize).clamp(1, 1 << 12) as u32
}

/// One kernel launch, of a one-dimensional grid of blocks of [`BLOCK`] threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel's name.
    pub kernel: String,
    /// Blocks.
    pub grid: u32,
    /// Arguments in the kernel's order.
    pub arguments: Vec<Argument>,
}
