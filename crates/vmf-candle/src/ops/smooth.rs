//! Softmax, GELU and SiLU with gradients.
//!
//! On a CPU each is one pass of a kernel, forward and backward. Elsewhere they are made of Candle's
//! operations, which Candle differentiates.

use super::mapped::{KernelResult, Mapped, apply, check_input, has_kernel};
use crate::error::check_shape;
use candle_core::{D, Result, Tensor};
use vmf_kernels::smooth::{self, Smooth};
use vmf_kernels::{Element, Elementary, softmax};

/// The softmax over the last dimension, differentiable. (`candle_nn::ops::softmax_last_dim` returns
/// no gradient, and no error.)
///
/// ```
/// # use candle_core::{Device, Var};
/// let logits = Var::new(&[[0f32, 1.0, 2.0]], &Device::Cpu)?;
/// let probs = vmf_candle::ops::softmax_last_dim(&logits)?;
/// let gradients = probs.narrow(1, 0, 1)?.sum_all()?.backward()?;
/// assert!(gradients.get(&logits).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    check_input("softmax", xs)?;
    check_shape(xs.rank() > 0, "softmax", || "a scalar has no last dimension".into())?;
    if has_kernel(xs) {
        return apply(xs, Softmax { length: xs.dim(D::Minus1)? });
    }
    let shifted = xs.broadcast_sub(&xs.detach().max_keepdim(D::Minus1)?)?;
    let exponentials = shifted.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

/// `gelu(x) = x Phi(x)`: the exact GELU, not its approximation by `tanh`.
pub fn gelu(xs: &Tensor) -> Result<Tensor> {
    check_input("GELU", xs)?;
    if has_kernel(xs) { apply(xs, Activation(Smooth::Gelu)) } else { xs.gelu_erf() }
}

/// `silu(x) = x / (1 + exp(-x))`.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    check_input("SiLU", xs)?;
    if has_kernel(xs) { apply(xs, Activation(Smooth::Silu)) } else { xs.silu() }
}

struct Softmax {
    length: usize,
}

impl Mapped for Softmax {
    const NAME: &'static str = "softmax";
    const FROM_OUTPUT: bool = true;

    fn forward<E: Element<Real: Elementary>>(&self, x: &[E], y: &mut [E]) -> KernelResult {
        softmax::forward(self.length, x, y)
    }

    fn backward<E: Element<Real: Elementary>>(
        &self,
        y: &[E],
        dy: &[E],
        dx: &mut [E],
    ) -> KernelResult {
        softmax::backward(self.length, y, dy, dx)
    }
}

struct Activation(Smooth);

impl Mapped for Activation {
    const NAME: &'static str = "smooth-activation";

    fn forward<E: Element<Real: Elementary>>(&self, x: &[E], y: &mut [E]) -> KernelResult {
        smooth::forward(self.0, x, y)
    }

    fn backward<E: Element<Real: Elementary>>(
        &self,
        x: &[E],
        dy: &[E],
        dx: &mut [E],
    ) -> KernelResult {
        smooth::backward(self.0, x, dy, dx)
    }
}
