//! Which CUDA kernels turn a convolution into a matrix product. The tests execute the same launches
//! on the CPU.

use super::ConvShape;
use crate::Error;
use crate::bn_noise::launches::{Argument, Launch, Storage, Words, covering, storage_name};

/// Elements of the columns of a convolution: one for each output position and input of a unit.
pub fn columns_len(shape: &ConvShape) -> usize {
    let [height, width] = shape.output();
    shape.batch * shape.in_channels * shape.kernel[0] * shape.kernel[1] * height * width
}

/// The arguments of `struct Geometry` in im2col.cu.
fn arguments(shape: &ConvShape) -> Result<Argument, Error> {
    let [height, width] = shape.output();
    let sizes = [
        shape.batch * shape.in_channels,
        shape.input[0],
        shape.input[1],
        height,
        width,
        shape.kernel[0],
        shape.kernel[1],
        shape.stride,
        shape.padding,
        shape.dilation,
    ];
    let reach = [0, 1].map(|axis| shape.input[axis] + 2 * shape.padding);
    // Differences that wrap around must not come back into the image.
    if sizes.iter().chain(&reach).any(|&size| size >= 1 << 30) {
        let value = format!("{sizes:?}");
        return Err(Error::Value { name: "shape", value, requirement: "below 2^30 on CUDA" });
    }
    Ok(Argument::Words(Words::new(sizes.map(|size| size as u32))))
}

/// Reads x, writes its columns: (N, C * kh * kw, positions).
pub fn im2col(shape: &ConvShape, storage: Storage, x: u64, columns: u64) -> Result<Launch, Error> {
    Ok(Launch {
        kernel: storage_name("im2col", storage),
        grid: covering(columns_len(shape)),
        arguments: vec![Argument::Pointer(x), Argument::Pointer(columns), arguments(shape)?],
    })
}

/// Reads columns, adds up what belongs to each element of dx, and writes it.
pub fn col2im(shape: &ConvShape, storage: Storage, columns: u64, dx: u64) -> Result<Launch, Error> {
    Ok(Launch {
        kernel: storage_name("col2im", storage),
        grid: covering(shape.input_len()),
        arguments: vec![Argument::Pointer(columns), Argument::Pointer(dx), arguments(shape)?],
    })
}
