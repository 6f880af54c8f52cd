//! The objective on a CUDA device: the launcher of objective.cu (feature `cuda`).

use super::LayerKl;
use super::launches::{self, Pointers};
use crate::bn_noise::cuda::{Error, check, launch};
use crate::bn_noise::launches::Storage;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut};
use std::sync::Arc;

/// What a step minimizes, in device memory.
#[derive(Debug)]
pub struct Objective {
    /// nll + weight KL.
    pub total: CudaSlice<f32>,
    /// The KL.
    pub kl: CudaSlice<f64>,
    /// The derivative of weight KL with respect to each rho, in the order of the layers.
    pub slopes: CudaSlice<f32>,
}

/// Computes the objective from the mean negative log-likelihood and every layer's rho.
pub fn objective(
    stream: &Arc<CudaStream>,
    layers: &[(LayerKl, CudaView<f32>)],
    weight: f64,
    nll: &impl DevicePtr<f32>,
) -> Result<Objective, Error> {
    check(stream, "nll", nll, 1)?;
    for (layer, rho) in layers {
        check(stream, "rho", rho, layer.groups)?;
    }
    let (pointers, _guards): (Vec<_>, Vec<_>) = layers
        .iter()
        .map(|(layer, rho)| {
            let (pointer, guard) = rho.device_ptr(stream);
            ((*layer, pointer), guard)
        })
        .unzip();
    // One upload: the weight, then the table.
    let mut words = vec![weight.to_bits()];
    words.extend(launches::table(&pointers));
    let table = stream.clone_htod(&words)?;
    let slopes: usize = layers.iter().map(|(layer, _)| layer.groups).sum();
    // SAFETY: the kernel writes all of them.
    let mut made = unsafe {
        Objective {
            total: stream.alloc(1)?,
            kl: stream.alloc(1)?,
            slopes: stream.alloc(slopes.max(1))?,
        }
    };
    {
        let (weight, _table) = table.device_ptr(stream);
        let (nll, _nll) = nll.device_ptr(stream);
        let (slopes, _slopes) = made.slopes.device_ptr_mut(stream);
        let (kl, _kl) = made.kl.device_ptr_mut(stream);
        let (total, _total) = made.total.device_ptr_mut(stream);
        let at = Pointers { layers: weight + 8, nll, weight, slopes, kl, total };
        launch(stream, Storage::F32, &[launches::objective(layers.len(), &at)])?;
    }
    Ok(made)
}
