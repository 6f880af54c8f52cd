//! A step of all parameters on a CUDA device: three launches, and one read at the end.

use super::{Parameter, State};
use crate::cuda::{cuda, failed, view};
use crate::error::Error;
use candle_core::backend::BackendStorage;
use candle_core::backprop::GradStore;
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{DType, Result, Tensor};
use vmf_kernels::adam::cuda as kernel;
use vmf_kernels::adam::launches;

/// Whether the kernels can step these parameters: all that have a gradient, in f32 on one GPU.
pub(super) fn fits(parameters: &[Parameter], grads: &GradStore) -> bool {
    let mut device = None;
    parameters.iter().filter(|parameter| grads.get(&parameter.var).is_some()).all(|parameter| {
        let var = &parameter.var;
        let device = device.get_or_insert_with(|| var.device().clone());
        var.device().is_cuda()
            && var.device().same_device(device)
            && var.dtype() == DType::F32
            && var.is_contiguous()
    }) && device.is_some()
}

/// Takes a step if the loss, the first of the watched scalars, and all gradients are finite.
/// Returns the watched scalars.
pub(super) fn step(
    parameters: &mut [Parameter],
    grads: &GradStore,
    config: &super::AdamConfig,
    watched: &[&Tensor],
) -> Result<Vec<f32>> {
    let mut stepped: Vec<(&mut Parameter, Tensor)> = Vec::new();
    for parameter in parameters {
        if let Some(gradient) = grads.get(&parameter.var) {
            let gradient = gradient.detach().to_dtype(DType::F32)?.contiguous()?;
            if parameter.state.is_none() {
                parameter.state = Some(State::zeros(&parameter.var)?);
            }
            stepped.push((parameter, gradient));
        }
    }
    let mut tensors: Vec<Tensor> = Vec::new();
    for (parameter, gradient) in &stepped {
        let Some(state) = &parameter.state else { continue };
        let [first, second] = state.on_device()?;
        let var = parameter.var.as_detached_tensor();
        tensors.extend([var, gradient.clone(), first.clone(), second.clone()]);
    }
    for scalar in watched {
        tensors.push(scalar.detach().to_dtype(DType::F32)?.contiguous()?);
    }
    let storages: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let views = storages
        .iter()
        .map(|(storage, layout)| view::<f32>((cuda(storage)?, layout)))
        .collect::<Result<Vec<_>>>()?;
    let Some((storage, _)) = storages.first() else { return Ok(Vec::new()) };
    let stream = cuda(storage)?.device().cuda_stream();
    let (pointers, guards): (Vec<u64>, Vec<_>) =
        views.iter().map(|view| view.device_ptr(&stream)).unzip();
    let (of_parameters, of_watched) = pointers.split_at(4 * stepped.len());
    let table: Vec<launches::Parameter> = stepped
        .iter()
        .zip(of_parameters.as_chunks::<4>().0)
        .map(|((parameter, _), &at)| launches::Parameter {
            at,
            len: parameter.var.elem_count(),
            step: parameter.state.as_ref().map_or(0, State::steps) + 1,
            config: parameter.rule(config),
        })
        .collect();
    // SAFETY: the addresses are those of the tensors, which live until the end of this function,
    // with the lengths of the variables: gradients and moments have their shapes.
    let report = unsafe { kernel::step(&stream, config.clip_norm, &table, of_watched) };
    drop(guards);
    let report = report.map_err(failed)?;
    if !report.taken {
        let broken = report.squares.iter().position(|sum| !sum.is_finite());
        let what = match broken {
            Some(place) => format!("the gradient of {}", stepped[place].0.name),
            None => "the loss".into(),
        };
        Err(Error::NonFinite { what })?
    }
    for (parameter, _) in &mut stepped {
        if let Some(state) = &mut parameter.state {
            state.count_step();
        }
    }
    Ok(report.watched)
}
