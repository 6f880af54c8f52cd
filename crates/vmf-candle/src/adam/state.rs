//! What Adam remembers of one parameter, and the step it takes: in one pass over memory on the CPU,
//! from Candle's own operations elsewhere.

use crate::error::Error;
use crate::layers::unit_rows;
use crate::ops::contiguous_slice;
use crate::sigma::stable_dtype;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, Var};
use std::sync::{Mutex, PoisonError};
use vmf_kernels::adam;

/// The moments of one parameter, as a checkpoint keeps them.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The running mean of the gradient.
    pub first: Tensor,
    /// The running mean of its square.
    pub second: Tensor,
    /// How many gradients it has seen.
    pub steps: u64,
}

/// How one parameter is stepped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) lr: f64,
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) eps: f64,
    pub(super) weight_decay: f64,
    /// Whether rows are kept at unit length.
    pub(super) sphere: bool,
}

/// The moments where they are used.
#[derive(Debug)]
pub(super) struct State {
    steps: u64,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// Single precision on the CPU, which has a kernel.
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
            let device = var.device();
            Values::Tensors([first.to_device(device)?, second.to_device(device)?])
        };
        Ok(Self { steps, values })
    }

    /// A copy as tensors.
    pub(super) fn moments(&self, var: &Var) -> Result<Moments> {
        let [first, second] = match &self.values {
            Values::Tensors(moments) => moments.clone(),
            Values::Fused(moments) => {
                let moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
                let tensor = |values: &[f32]| Tensor::from_slice(values, var.shape(), &Device::Cpu);
                [tensor(&moments[0])?, tensor(&moments[1])?]
            }
        };
        Ok(Moments { first, second, steps: self.steps })
    }

    /// Moves the variable.
    pub(super) fn step(&mut self, var: &Var, gradient: &Tensor, rule: &Rule) -> Result<()> {
        let step = self.steps + 1;
        match &mut self.values {
            Values::Fused(moments) => {
                let op = FusedStep { step, rule, moments };
                var.inplace_op2(&gradient.contiguous()?, &op)?;
            }
            Values::Tensors(moments) => *moments = plain_step(var, gradient, moments, step, rule)?,
        }
        self.steps = step;
        Ok(())
    }
}

/// The step from tensor operations. Returns the new moments.
fn plain_step(
    var: &Var,
    gradient: &Tensor,
    [first, second]: &[Tensor; 2],
    step: u64,
    rule: &Rule,
) -> Result<[Tensor; 2]> {
    let Rule { beta1, beta2, .. } = *rule;
    let dtype = stable_dtype(var.dtype());
    let weight = var.as_detached_tensor().to_dtype(dtype)?;
    let mut gradient = gradient.to_dtype(dtype)?;
    if rule.sphere {
        gradient = tangent(&gradient, &weight)?;
    }
    let first = ((first * beta1)? + (&gradient * (1.0 - beta1))?)?;
    let second = ((second * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
    let exponent = i32::try_from(step).unwrap_or(i32::MAX);
    let (correction1, correction2) = (1.0 - beta1.powi(exponent), 1.0 - beta2.powi(exponent));
    let denominator = ((&second / correction2)?.sqrt()? + rule.eps)?;
    let mut next = (&weight - ((&first / denominator)? * (rule.lr / correction1))?)?;
    if rule.weight_decay > 0.0 {
        next = (next - (&weight * (rule.lr * rule.weight_decay))?)?;
    }
    if rule.sphere {
        next = unit_rows(&next)?;
    }
    var.set(&next.to_dtype(var.dtype())?)?;
    Ok([first, second])
}

/// `g - (g . w) w / (w . w)`, row by row.
fn tangent(gradient: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (g, w) = (gradient.flatten_from(1)?, weight.flatten_from(1)?);
    let radial = (&g * &w)?.sum_keepdim(1)?;
    let length = w.sqr()?.sum_keepdim(1)?.maximum(1e-30)?;
    let tangent = (&g - w.broadcast_mul(&(radial / length)?)?)?;
    tangent.reshape(gradient.shape())
}

/// The step as one pass over weight, gradient and both moments.
struct FusedStep<'a> {
    step: u64,
    rule: &'a Rule,
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
        let row = weight_layout.shape().elem_count()
            / weight_layout.dims().first().copied().unwrap_or(1).max(1);
        let config = adam::AdamConfig {
            lr: self.rule.lr,
            beta1: self.rule.beta1,
            beta2: self.rule.beta2,
            eps: self.rule.eps,
            weight_decay: self.rule.weight_decay,
            sphere: self.rule.sphere.then_some(row),
        };
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let [first, second] = &mut *moments;
        adam::adam(&config, self.step, &mut weights[start..end], gradient, first, second)
            .map_err(|error| Error::from(error).into())
    }
}
