//! Adam's moments of one parameter, and the step that they make: one pass over memory on the CPU,
//! Candle's own operations elsewhere.

use crate::dtype::stable_dtype;
use crate::error::Error;
use crate::sphere::{tangent, unit_rows};
use crate::storage::contiguous_slice;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, Var};
use std::sync::{Mutex, PoisonError};
use vmf_kernels::adam::{AdamConfig, adam};

/// The moments of one parameter, as a checkpoint holds them.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The running mean of the gradient.
    pub first: Tensor,
    /// The running mean of its square.
    pub second: Tensor,
    /// How many gradients it has seen.
    pub steps: u64,
}

/// The moments of one parameter, in the form that its step works on.
#[derive(Debug)]
pub(super) struct State {
    steps: u64,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// For the kernel, which steps variables in f32 on the CPU.
    Fused(Mutex<[Vec<f32>; 2]>),
    Tensors([Tensor; 2]),
}

fn is_fused(var: &Var) -> bool {
    var.device().is_cpu() && var.dtype() == DType::F32
}

impl State {
    pub(super) fn zeros(var: &Var) -> Result<Self> {
        let zeros = Tensor::zeros(var.shape(), stable_dtype(var.dtype()), var.device())?;
        let moments = Moments { first: zeros.clone(), second: zeros, steps: 0 };
        Self::from_moments(moments, var)
    }

    /// The moments must have the shape of the variable.
    pub(super) fn from_moments(moments: Moments, var: &Var) -> Result<Self> {
        let Moments { first, second, steps } = moments;
        let values = if is_fused(var) {
            let values = |moment: Tensor| moment.flatten_all()?.to_vec1::<f32>();
            Values::Fused(Mutex::new([values(first)?, values(second)?]))
        } else {
            // Copies, because the CUDA kernel changes them in place.
            let own = |moment: Tensor| moment.to_device(var.device())?.copy();
            Values::Tensors([own(first)?, own(second)?])
        };
        Ok(Self { steps, values })
    }

    /// A copy as tensors.
    pub(super) fn moments(&self, var: &Var) -> Result<Moments> {
        let [first, second] = match &self.values {
            Values::Tensors([first, second]) => [first.copy()?, second.copy()?],
            Values::Fused(moments) => {
                let moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
                let tensor = |values: &[f32]| Tensor::from_slice(values, var.shape(), &Device::Cpu);
                [tensor(&moments[0])?, tensor(&moments[1])?]
            }
        };
        Ok(Moments { first, second, steps: self.steps })
    }

    /// The moments, where a kernel changes them in place.
    #[cfg(feature = "cuda")]
    pub(super) fn on_device(&self) -> Result<&[Tensor; 2]> {
        match &self.values {
            Values::Tensors(moments) => Ok(moments),
            Values::Fused(_) => candle_core::bail!("the moments are on the CPU"),
        }
    }

    /// How many gradients it has seen.
    #[cfg(feature = "cuda")]
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts a step that a kernel took.
    #[cfg(feature = "cuda")]
    pub(super) fn count_step(&mut self) {
        self.steps += 1;
    }

    /// Moves the variable.
    pub(super) fn step(&mut self, var: &Var, gradient: &Tensor, config: &AdamConfig) -> Result<()> {
        let step = self.steps + 1;
        match &mut self.values {
            Values::Fused(moments) => {
                let op = FusedStep { step, config, moments };
                var.inplace_op2(&gradient.contiguous()?, &op)?;
            }
            Values::Tensors(moments) => {
                *moments = plain_step(var, gradient, moments, step, config)?;
            }
        }
        self.steps = step;
        Ok(())
    }
}

/// The step from Candle's own operations. Returns the new moments.
fn plain_step(
    var: &Var,
    gradient: &Tensor,
    [first, second]: &[Tensor; 2],
    step: u64,
    config: &AdamConfig,
) -> Result<[Tensor; 2]> {
    let AdamConfig { lr, beta1, beta2, eps, weight_decay, sphere } = *config;
    let dtype = stable_dtype(var.dtype());
    let weight = var.as_detached_tensor().to_dtype(dtype)?;
    let mut gradient = gradient.to_dtype(dtype)?;
    if sphere.is_some() {
        gradient = tangent(&gradient, &weight)?;
    }
    let first = ((first * beta1)? + (&gradient * (1.0 - beta1))?)?;
    let second = ((second * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
    let exponent = i32::try_from(step).unwrap_or(i32::MAX);
    let (correction1, correction2) = (1.0 - beta1.powi(exponent), 1.0 - beta2.powi(exponent));
    let denominator = ((&second / correction2)?.sqrt()? + eps)?;
    let mut next = (&weight - ((&first / denominator)? * (lr / correction1))?)?;
    if weight_decay > 0.0 {
        next = (next - (&weight * (lr * weight_decay))?)?;
    }
    if sphere.is_some() {
        next = unit_rows(&next)?;
    }
    var.set(&next.to_dtype(var.dtype())?)?;
    Ok([first, second])
}

/// The step as one pass over weight, gradient and both moments.
struct FusedStep<'a> {
    step: u64,
    config: &'a AdamConfig,
    moments: &'a Mutex<[Vec<f32>; 2]>,
}

impl InplaceOp2 for FusedStep<'_> {
    fn name(&self) -> &'static str {
        "adam-step"
    }

    fn cpu_fwd(
        &self,
        weight: &mut CpuStorage,
        weight_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let gradient = contiguous_slice::<f32>(gradient, gradient_layout)?;
        let (CpuStorage::F32(weights), Some((start, end))) =
            (weight, weight_layout.contiguous_offsets())
        else {
            candle_core::bail!("adam-step needs a contiguous variable in f32")
        };
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let [first, second] = &mut *moments;
        adam(self.config, self.step, &mut weights[start..end], gradient, first, second)
            .map_err(|error| Error::from(error).into())
    }
}
