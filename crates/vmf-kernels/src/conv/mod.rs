//! Two-dimensional convolution and its gradients on the CPU.
//!
//! Activations are in the layout `[height * width][batch][channels]` ("HWNC"): at each position the
//! batch is a matrix of images by channels, and a convolution is a few dense products of such
//! matrices with the weights of the taps (`direct`). With a 1x1 kernel it is a single product
//! (`pointwise`). A 3x3 convolution with stride 1 and padding 1 can use Winograd's algorithm
//! (`winograd`), which does a quarter of the multiplications. Two kinds of layers have code of
//! their own: the first, with three input channels (`narrow`), and those that convolve each channel
//! by itself (`depthwise`). Weights are `(out, in / groups, height, width)`, as in PyTorch and
//! Candle; the kernels pack them. [`to_hwnc`] and [`to_nchw`] convert activations at the edges of a
//! model.
//!
//! Results are the same, bit for bit, for any number of threads.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
pub mod cudnn;
#[cfg(feature = "cuda")]
mod cudnn_library;
mod depthwise;
mod direct;
mod direct_gradient;
pub mod launches;
mod layout;
mod narrow;
mod pointwise;
mod shape;
mod weight_gradient;
mod winograd;

#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::simd::Isa;
pub use layout::{to_hwnc, to_nchw};
pub use shape::ConvShape;
use shape::Direction;

/// How to compute a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Whichever is faster for the shape.
    #[default]
    Auto,
    /// Dense products, tap by tap.
    Direct,
    /// Winograd's F(4x4, 3x3), or its counterpart for images of 2x2, where they apply; direct
    /// elsewhere.
    Winograd,
}

/// The code that computes a convolution in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Channel by channel.
    Depthwise,
    /// One product of matrices for all positions.
    Pointwise,
    /// One product of matrices for each row of the image, all taps gathered.
    Narrow,
    /// Products at the points of Winograd's algorithm.
    Winograd,
    /// Products tap by tap.
    Direct,
}

/// A convolution of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Conv2d {
    shape: ConvShape,
    algorithm: Algorithm,
    isa: Isa,
}

impl Conv2d {
    /// Checks the shape; the algorithm is [`Algorithm::Auto`], the instruction set
    /// [`Isa::current`].
    pub fn new(shape: ConvShape) -> Result<Self, Error> {
        shape.check()?;
        Ok(Conv2d { shape, algorithm: Algorithm::Auto, isa: Isa::current() })
    }

    /// With another algorithm.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Conv2d { algorithm, ..self }
    }

    /// On another instruction set (the baseline if the processor lacks it).
    pub fn with_isa(self, isa: Isa) -> Self {
        Conv2d { isa, ..self }
    }

    /// The shape it was made for.
    pub fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// `output = input * weights`.
    ///
    /// # Shapes
    /// `input` `[h * w][batch][in]`, `weights` `(out, in / groups, kh, kw)`, `output` `[oh *
    /// ow][batch][out]`.
    pub fn forward(&self, input: &[f32], weights: &[f32], output: &mut [f32]) -> Result<(), Error> {
        let shape = &self.shape;
        shape.check_input("input", input.len())?;
        shape.check_weights("weights", weights.len())?;
        shape.check_output("output", output.len())?;
        if output.is_empty() {
            return Ok(());
        }
        match self.forward_route() {
            Route::Depthwise => depthwise::run(self, Direction::Forward, input, weights, output),
            Route::Pointwise => pointwise::run(self, Direction::Forward, input, weights, output)?,
            Route::Narrow => narrow::forward(self, input, weights, output),
            Route::Winograd => winograd::run(self, Direction::Forward, input, weights, output),
            Route::Direct => direct::run(self, Direction::Forward, input, weights, output),
        }
        Ok(())
    }

    /// The gradient of a loss with respect to the input, from that with respect to the output.
    ///
    /// # Shapes
    /// As in [`forward`](Conv2d::forward).
    pub fn input_gradient(
        &self,
        output_gradient: &[f32],
        weights: &[f32],
        input_gradient: &mut [f32],
    ) -> Result<(), Error> {
        let shape = &self.shape;
        shape.check_output("output_gradient", output_gradient.len())?;
        shape.check_weights("weights", weights.len())?;
        shape.check_input("input_gradient", input_gradient.len())?;
        if input_gradient.is_empty() {
            return Ok(());
        }
        let (direction, dy, w, dx) =
            (Direction::InputGradient, output_gradient, weights, input_gradient);
        match self.input_gradient_route() {
            Route::Depthwise => depthwise::run(self, direction, dy, w, dx),
            Route::Pointwise => pointwise::run(self, direction, dy, w, dx)?,
            Route::Winograd => winograd::run(self, direction, dy, w, dx),
            Route::Narrow | Route::Direct => direct::run(self, direction, dy, w, dx),
        }
        Ok(())
    }

    /// The gradient of a loss with respect to the weights.
    ///
    /// # Shapes
    /// As in [`forward`](Conv2d::forward).
    pub fn weight_gradient(
        &self,
        input: &[f32],
        output_gradient: &[f32],
        weight_gradient: &mut [f32],
    ) -> Result<(), Error> {
        let shape = &self.shape;
        shape.check_input("input", input.len())?;
        shape.check_output("output_gradient", output_gradient.len())?;
        shape.check_weights("weight_gradient", weight_gradient.len())?;
        let (x, dy, dw) = (input, output_gradient, weight_gradient);
        match self.weight_gradient_route() {
            Route::Depthwise => depthwise::weight_gradient(self, x, dy, dw),
            Route::Pointwise => pointwise::weight_gradient(self, x, dy, dw)?,
            Route::Narrow => narrow::weight_gradient(self, x, dy, dw),
            Route::Winograd => winograd::weight_gradient(self, x, dy, dw),
            Route::Direct => direct_gradient::run(self, x, dy, dw),
        }
        Ok(())
    }

    fn forward_route(&self) -> Route {
        match &self.shape {
            shape if shape.is_depthwise() => Route::Depthwise,
            shape if shape.is_pointwise() => Route::Pointwise,
            shape if shape.is_narrow() => Route::Narrow,
            _ => self.winograd_or_direct(),
        }
    }

    fn input_gradient_route(&self) -> Route {
        match self.forward_route() {
            // Few channels of the result are no reason to gather.
            Route::Narrow => self.winograd_or_direct(),
            route => route,
        }
    }

    fn weight_gradient_route(&self) -> Route {
        match self.forward_route() {
            Route::Pointwise if !pointwise::shares_weights(&self.shape) => Route::Direct,
            route => route,
        }
    }

    fn winograd_or_direct(&self) -> Route {
        let winograd = match self.algorithm {
            Algorithm::Auto => winograd::pays(&self.shape),
            Algorithm::Direct => false,
            Algorithm::Winograd => true,
        };
        match winograd && self.shape.is_plain_3x3() {
            true => Route::Winograd,
            false => Route::Direct,
        }
    }
}
