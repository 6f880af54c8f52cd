//! Two-dimensional convolution and its gradients on the CPU.
//!
//! Activations are in the layout `[height * width][batch][channels]` ("HWNC"): at each position the
//! batch is a matrix of images by channels, and a convolution is a few dense products of such
//! matrices with the taps' weights (`direct`), with a 1x1 kernel a single one (`pointwise`). A 3x3
//! convolution with stride 1 and padding 1 can instead go through Winograd's
//! algorithm (`winograd`), which does a quarter of the multiplications. Weights are `(out, in /
//! groups, height, width)`, as PyTorch and Candle have them, and are brought into the kernels'
//! order inside. [`to_hwnc`] and [`to_nchw`] convert at the edges.
//!
//! Results are the same, bit for bit, for any number of threads.

mod depthwise;
mod direct;
mod direct_gradient;
mod layout;
mod narrow;
mod pointwise;
mod shape;
mod weight_gradient;
mod weights;
mod winograd;

#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::simd::Isa;
pub use layout::{to_hwnc, to_nchw};
pub use shape::ConvShape;
use weights::Role;

/// How to compute a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Whichever is faster for the shape.
    #[default]
    Auto,
    /// Dense products, tap by tap.
    Direct,
    /// Winograd's F(4x4, 3x3), and its kin for images of 2x2, where they apply, direct elsewhere.
    Winograd,
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
        } else if shape.is_depthwise() {
            depthwise::run(self.isa, shape, Role::Forward, input, weights, output);
        } else if shape.is_pointwise() {
            pointwise::forward(self.isa, shape, input, weights, output)?;
        } else if narrow::is_narrow(shape) {
            narrow::forward(self.isa, shape, input, weights, output);
        } else if self.winograd() {
            winograd::run(self.isa, shape, Role::Forward, input, weights, output);
        } else {
            direct::run(self.isa, shape, Role::Forward, input, weights, output);
        }
        Ok(())
    }

    /// The gradient of a loss by the input, from its gradient by the output.
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
        let (isa, role) = (self.isa, Role::InputGradient);
        if input_gradient.is_empty() {
        } else if shape.is_depthwise() {
            depthwise::run(isa, shape, role, output_gradient, weights, input_gradient);
        } else if shape.is_pointwise() {
            pointwise::input_gradient(isa, shape, output_gradient, weights, input_gradient)?;
        } else if self.winograd() {
            winograd::run(isa, shape, role, output_gradient, weights, input_gradient);
        } else {
            direct::run(isa, shape, role, output_gradient, weights, input_gradient);
        }
        Ok(())
    }

    /// The gradient of a loss by the weights.
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
        if shape.is_depthwise() {
            depthwise::weight_gradient(self.isa, shape, input, output_gradient, weight_gradient);
        } else if shape.is_pointwise() && pointwise::shares_weights(shape) {
            pointwise::weight_gradient(self.isa, shape, input, output_gradient, weight_gradient)?;
        } else if !narrow::is_narrow(shape) && self.winograd() {
            winograd::weight_gradient(self.isa, shape, input, output_gradient, weight_gradient);
        } else {
            direct_gradient::run(self.isa, shape, input, output_gradient, weight_gradient);
        }
        Ok(())
    }

    fn winograd(&self) -> bool {
        self.shape.is_plain_3x3()
            && match self.algorithm {
                Algorithm::Auto => winograd::pays(&self.shape),
                Algorithm::Direct => false,
                Algorithm::Winograd => true,
            }
    }
}
