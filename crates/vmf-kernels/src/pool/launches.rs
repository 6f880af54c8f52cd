//! Which CUDA kernels a maximum pooling launches. The tests execute the same launches on the CPU.

use super::PoolShape;
use crate::Error;
use crate::bn_noise::launches::{Argument, Launch, Storage, Words, covering, storage_name};

/// The arguments of `struct Pooling` in pool.cu.
fn arguments(shape: &PoolShape) -> Result<Argument, Error> {
    shape.check()?;
    let [height, width] = shape.output();
    let sizes = [
        shape.batch * shape.channels,
        shape.input[0],
        shape.input[1],
        height,
        width,
        shape.window[0],
        shape.window[1],
        shape.stride,
        shape.padding,
    ];
    // Sums of two sizes must not wrap around.
    if sizes.iter().any(|&size| size >= 1 << 30) {
        let value = format!("{sizes:?}");
        return Err(Error::Value { name: "shape", value, requirement: "below 2^30 on CUDA" });
    }
    Ok(Argument::Words(Words::new(sizes.map(|size| size as u32))))
}

/// Reads x, writes y and the argmax, one byte for each output.
pub fn max_forward(
    shape: &PoolShape,
    storage: Storage,
    [x, y, argmax]: [u64; 3],
) -> Result<Launch, Error> {
    Ok(Launch {
        kernel: storage_name("max_pool", storage),
        grid: covering(shape.output_len()),
        arguments: [x, y, argmax]
            .map(Argument::Pointer)
            .into_iter()
            .chain([arguments(shape)?])
            .collect(),
    })
}

/// Reads the argmax and dy, writes dx.
pub fn max_backward(
    shape: &PoolShape,
    storage: Storage,
    [argmax, dy, dx]: [u64; 3],
) -> Result<Launch, Error> {
    Ok(Launch {
        kernel: storage_name("max_pool_backward", storage),
        grid: covering(shape.input_len()),
        arguments: [argmax, dy, dx]
            .map(Argument::Pointer)
            .into_iter()
            .chain([arguments(shape)?])
            .collect(),
    })
}
