//! The variational unit as one node, in f32 on the CPU.
//!
//! A node of Candle has at most three arguments, and the unit has six: x, w, sigma, gain, shift and
//! a skip connection. The small ones travel in one tensor. With a skip connection the weight has no
//! place left, so it travels with them, by reference: [`Carrier`] is a node over the small
//! parameters and the weight whose value is the small parameters alone. The unit leaves the
//! gradient of the weight with it, and the carrier's backward pass, which comes next, hands it on.

use super::bn_noise::Statistics;
use super::conv2d::is_tracked;
use super::layout::Images;
use super::unit::{Inputs, Unit};
use crate::error::Error;
use crate::storage::{contiguous_slice, cpu_slice, unwritten};
use crate::train::deliver;
use candle_core::{
    CpuStorage, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Tensor, Var,
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use vmf_kernels::bn_noise as norm;
use vmf_kernels::unit::{Affine, Gradients, NoiseTerm, Operands, ParameterGradients, Saved, Terms};

/// What a pass normalizes with, and what it computes.
pub(super) enum Mode {
    /// Normalizes with the batch, and leaves here what the backward pass needs.
    Train(Arc<OnceLock<Saved>>),
    /// Normalizes with these statistics.
    Eval(norm::Statistics),
    /// Normalizes with these statistics and computes expected activations.
    Expected(Statistics),
}

/// The unit's output. `scale` is sigma, or in an expected pass the deviation.
pub(super) fn apply(unit: &Unit, inputs: &Inputs, scale: &Tensor, mode: Mode) -> Result<Images> {
    let (xs, w) = (inputs.xs.to_hwnc()?.contiguous()?, inputs.w.contiguous()?);
    let scale = scale.to_dtype(DType::F32)?.contiguous()?;
    let scales = scale.elem_count();
    let parameters = match inputs.affine {
        Some((gain, shift)) => {
            let f32 = |tensor: &Tensor| tensor.to_dtype(DType::F32);
            Tensor::cat(&[scale, f32(gain)?, f32(shift)?], 0)?
        }
        None => scale,
    };
    let mut node = FusedUnit {
        unit: *unit,
        mode,
        scales,
        needs_dx: is_tracked(&xs),
        output: output_shape(unit, w.rank()),
        carried: None,
    };
    let ys = match inputs.skip {
        None => xs.apply_op3(&w, &parameters, node)?,
        Some(skip) => {
            let skip = skip.to_hwnc()?.contiguous()?;
            if skip.shape() != &node.output {
                let dims = inputs.skip.map(Images::dims);
                let reason = format!("a skip connection {dims:?} does not fit it");
                return Err(Error::shape("a residual unit", reason).into());
            }
            let carrier = Carrier::default();
            let needs_dskip = is_tracked(&skip);
            node.carried = Some(Carried { w: w.detach(), dw: carrier.dw.clone(), needs_dskip });
            let parameters = parameters.apply_op2(&w, carrier)?;
            xs.apply_op3(&skip, &parameters, node)?
        }
    };
    Ok(Images::hwnc(ys))
}

/// HWNC, or a matrix if the weight has rank 2.
pub(super) fn output_shape(unit: &Unit, rank: usize) -> Shape {
    let (conv, [height, width]) = (unit.kernel.conv().shape(), unit.kernel.output());
    match rank {
        2 => (conv.batch, conv.out_channels).into(),
        _ => (height, width, conv.batch, conv.out_channels).into(),
    }
}

/// Where a gradient of the weight waits for the carrier.
type Slot = Arc<Mutex<Option<Tensor>>>;

/// The node over (x, w, parameters), or (x, skip, parameters) if the weight is carried.
struct FusedUnit {
    unit: Unit,
    mode: Mode,
    /// How many of the parameters are sigma, or deviations. Gains and shifts follow.
    scales: usize,
    /// Whether anybody needs the gradient with respect to x. The images that a network sees have
    /// none.
    needs_dx: bool,
    output: Shape,
    carried: Option<Carried>,
}

/// A weight that is not an argument of the node.
struct Carried {
    w: Tensor,
    dw: Slot,
    needs_dskip: bool,
}

impl FusedUnit {
    /// The terms of the kernel, from the parameters and the skip connection.
    fn terms<'a>(&self, parameters: &'a [f32], skip: Option<&'a [f32]>) -> Terms<'a, f32> {
        let (sigma, affine) = parameters.split_at(self.scales);
        let (gain, shift) = affine.split_at(affine.len() / 2);
        Terms {
            noise: self.unit.noise.map(|noise| NoiseTerm { noise, sigma }),
            affine: (!affine.is_empty()).then_some(Affine { gain, shift }),
            skip,
        }
    }

    /// Writes y, and saves what the backward pass needs.
    fn forward(&self, terms: Terms<f32>, scales: &[f32], x: &[f32], w: &[f32]) -> Result<Vec<f32>> {
        let unit = &self.unit.kernel;
        // SAFETY: all passes write all of y; after an error nobody reads it.
        let mut y = unsafe { unwritten(unit.output_len()) };
        match &self.mode {
            Mode::Eval(statistics) => unit.forward_eval(terms, statistics, x, w, &mut y),
            Mode::Expected(statistics) => {
                let statistics = statistics.to_kernel()?;
                unit.forward_expected(terms, scales, &statistics, x, w, &mut y)
            }
            Mode::Train(saved) => {
                let mut fresh = Saved::default();
                let done = unit.forward_train(terms, x, w, &mut y, &mut fresh);
                // A graph evaluates a node once; a second evaluation would save the same.
                let _ = saved.set(fresh);
                done
            }
        }
        .map_err(Error::from)?;
        Ok(y)
    }

    /// The gradients with respect to x, w, the skip connection and the parameters.
    fn gradients(
        &self,
        [x, w, parameters, y, dy]: [&Tensor; 5],
        skip: Option<&Tensor>,
    ) -> Result<[Option<Tensor>; 4]> {
        if let Mode::Expected(statistics) = &self.mode {
            return self.expected_gradients(statistics, [x, w, parameters, dy], skip);
        }
        let dy = dy.contiguous()?;
        let storages = [x, w, parameters, y, &dy].map(Tensor::storage_and_layout);
        let [xs, ws, ps, ys, dys] = [0, 1, 2, 3, 4].map(|i| cpu_slice::<f32>(&storages[i]));
        let (xs, ws, ps, ys, dys) = (xs?, ws?, ps?, ys?, dys?);
        let skip_storage = skip.map(Tensor::storage_and_layout);
        let skips = skip_storage.as_ref().map(cpu_slice::<f32>).transpose()?;
        let needs_dskip = self.carried.as_ref().is_some_and(|carried| carried.needs_dskip);
        // SAFETY: the backward pass writes every gradient that it is given; after an error nobody
        // reads them.
        let (mut dw, mut dx, mut dskip) = unsafe {
            let dx = self.needs_dx.then(|| unwritten(xs.len()));
            (unwritten(ws.len()), dx, needs_dskip.then(|| unwritten(ys.len())))
        };
        let to = Gradients { dx: dx.as_deref_mut(), dw: &mut dw, dskip: dskip.as_deref_mut() };
        let (unit, terms) = (&self.unit.kernel, self.terms(ps, skips));
        let found = match &self.mode {
            Mode::Train(saved) => {
                let Some(saved) = saved.get() else {
                    candle_core::bail!("the unit's backward pass came before its forward pass")
                };
                unit.backward_train(terms, Operands { x: xs, w: ws, y: ys }, saved, dys, to)
            }
            Mode::Eval(statistics) => unit.backward_eval(terms, statistics, xs, ws, dys, to),
            Mode::Expected(_) => return Ok([const { None }; 4]),
        };
        let ParameterGradients { sigma: mut parameter_gradients, gain, shift } =
            found.map_err(Error::from)?;
        // Without noise the kernel returns no gradient of sigma.
        parameter_gradients.resize(self.scales, 0.0);
        parameter_gradients.extend(gain.into_iter().chain(shift));
        let tensor =
            |values: Vec<f32>, like: &Tensor| Tensor::from_vec(values, like.shape(), &Device::Cpu);
        Ok([
            dx.map(|dx| tensor(dx, x)).transpose()?,
            Some(tensor(dw, w)?),
            dskip.map(|dskip| tensor(dskip, y)).transpose()?,
            Some(tensor(parameter_gradients, parameters)?),
        ])
    }

    /// The gradients of an expected pass: those of the same function from Candle's operations.
    /// Whoever trains through the expected pass pays for it; a prediction does not.
    fn expected_gradients(
        &self,
        statistics: &Statistics,
        [x, w, parameters, dy]: [&Tensor; 4],
        skip: Option<&Tensor>,
    ) -> Result<[Option<Tensor>; 4]> {
        let variable = |tensor: &Tensor| Var::from_tensor(&tensor.detach());
        let (x, w, parameters) = (variable(x)?, variable(w)?, variable(parameters)?);
        let skip = skip.map(variable).transpose()?;
        let channels = (parameters.elem_count() - self.scales) / 2;
        let affine = (channels > 0)
            .then(|| {
                let part = |first: usize| parameters.narrow(0, first, channels);
                Result::Ok((part(self.scales)?, part(self.scales + channels)?))
            })
            .transpose()?;
        let deviation = parameters.narrow(0, 0, self.scales)?;
        let xs = Images::hwnc(x.as_tensor().clone());
        let skipped = skip.as_ref().map(|skip| Images::hwnc(skip.as_tensor().clone()));
        // A weight that is no variable, so that its gradient comes back and is not delivered.
        let weight = w.affine(1.0, 0.0)?;
        let inputs = Inputs {
            xs: &xs,
            w: &weight,
            sigma: &deviation,
            affine: affine.as_ref(),
            skip: skipped.as_ref(),
        };
        let y = self.unit.expected_reference(&deviation, statistics, inputs)?.to_hwnc()?;
        let mut gradients = (y * dy)?.sum_all()?.backward()?;
        // Without an activation y does not depend on the deviations; Candle expects a gradient of
        // everything that is part of a graph.
        let mut of = |variable: &Var| match gradients.remove(variable) {
            Some(gradient) => Ok(Some(gradient)),
            None => variable.zeros_like().map(Some),
        };
        let dskip = skip.as_ref().map_or(Ok(None), &mut of)?;
        Ok([of(&x)?, of(&w)?, dskip, of(&parameters)?])
    }
}

impl CustomOp3 for FusedUnit {
    fn name(&self) -> &'static str {
        "variational-unit"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        second: &CpuStorage,
        second_layout: &Layout,
        parameters: &CpuStorage,
        parameters_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = contiguous_slice(x, x_layout)?;
        let second = contiguous_slice(second, second_layout)?;
        let parameters = contiguous_slice::<f32>(parameters, parameters_layout)?;
        let scales = &parameters[..self.scales];
        let y = match &self.carried {
            None => self.forward(self.terms(parameters, None), scales, x, second)?,
            Some(Carried { w, .. }) => {
                let storage = w.storage_and_layout();
                let terms = self.terms(parameters, Some(second));
                self.forward(terms, scales, x, cpu_slice(&storage)?)?
            }
        };
        Ok((CpuStorage::F32(y), self.output.clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        second: &Tensor,
        parameters: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        match &self.carried {
            None => {
                let [dx, dw, _, dparameters] =
                    self.gradients([x, second, parameters, y, dy], None)?;
                Ok((dx, dw.and_then(|dw| deliver(second, dw)), dparameters))
            }
            Some(Carried { w, dw: slot, .. }) => {
                let [dx, dw, dskip, dparameters] =
                    self.gradients([x, w, parameters, y, dy], Some(second))?;
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = dw;
                Ok((dx, dskip, dparameters))
            }
        }
    }
}

/// The node over (parameters, w) that stands for both.
#[derive(Default)]
struct Carrier {
    dw: Slot,
}

impl CustomOp2 for Carrier {
    fn name(&self) -> &'static str {
        "unit-parameters"
    }

    fn cpu_fwd(
        &self,
        parameters: &CpuStorage,
        layout: &Layout,
        _w: &CpuStorage,
        _w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let values = contiguous_slice::<f32>(parameters, layout)?.to_vec();
        Ok((CpuStorage::F32(values), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _parameters: &Tensor,
        w: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dw = self.dw.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(dw) = dw else {
            candle_core::bail!("the gradient of a residual unit's weight is missing")
        };
        Ok((Some(grad_res.clone()), deliver(w, dw)))
    }
}
