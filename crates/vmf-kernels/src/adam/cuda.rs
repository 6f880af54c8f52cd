//! Adam on a CUDA device: the launcher of adam.cu (feature `cuda`). It steps all parameters in three
//! launches, and reads the result back once.

use super::AdamConfig;
use super::launches::{self, Parameter, Pointers, REPORT_HEAD};
use crate::bn_noise::cuda::{Error, launch};
use crate::bn_noise::launches::Storage;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use std::sync::Arc;

/// How a step ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The norm of all gradients together.
    pub norm: f64,
    /// Whether the step was taken. Otherwise the loss or a gradient is not finite, and nothing
    /// changed.
    pub taken: bool,
    /// The sum of squares of each gradient, if no step was taken.
    pub squares: Vec<f64>,
    /// The loss, and the further numbers that were to be reported.
    pub watched: Vec<f32>,
}

/// Takes a step. `watched` are the addresses of the loss and of further numbers in `f32`, which the
/// report returns.
///
/// # Safety
/// The addresses of parameters and watched numbers must be valid on the stream's device, of the
/// lengths that they say, and nothing else may use the parameters and moments until the stream is
/// synchronized, which this function does.
pub unsafe fn step(
    stream: &Arc<CudaStream>,
    clip: Option<f64>,
    parameters: &[Parameter],
    watched: &[u64],
) -> Result<Report, Error> {
    let config = parameters.first().map_or_else(AdamConfig::default, |first| first.config);
    for parameter in parameters {
        parameter.config.check(parameter.step, parameter.len)?;
        if parameter.len >= 1 << 31 {
            let value = parameter.len.to_string();
            let requirement = "below 2^31 elements on CUDA";
            return Err(crate::Error::Value { name: "parameter", value, requirement }.into());
        }
    }
    let (mut words, chunks) = launches::table(parameters);
    let table_words = words.len();
    words.extend(watched);
    let table = stream.clone_htod(&words)?;
    // SAFETY: the kernels write all of them before anybody reads them. The report follows the sums
    // of squares, so that one copy returns both.
    let (mut partials, mut results) = unsafe {
        let results = parameters.len() + (REPORT_HEAD + watched.len()).div_ceil(2);
        (stream.alloc::<f64>(chunks.max(1))?, stream.alloc::<f64>(results)?)
    };
    {
        let (table, _table) = table.device_ptr(stream);
        let (partials, _partials) = partials.device_ptr_mut(stream);
        let (squares, _results) = results.device_ptr_mut(stream);
        let at = Pointers {
            table,
            partials,
            watched: table + 8 * table_words as u64,
            squares,
            report: squares + 8 * parameters.len() as u64,
        };
        let counts = [parameters.len(), chunks, watched.len()];
        let launches = launches::step(&config, clip, counts, &at);
        let launches = if chunks == 0 { &launches[1..2] } else { &launches[..] };
        launch(stream, Storage::F32, launches)?;
    }
    let results = stream.clone_dtoh(&results)?;
    let (squares, report) = results.split_at(parameters.len());
    let report: Vec<f32> = report
        .iter()
        .flat_map(|pair| [pair.to_bits() as u32, (pair.to_bits() >> 32) as u32])
        .map(f32::from_bits)
        .collect();
    let taken = report[0] != 0.0;
    Ok(Report {
        norm: report[1].into(),
        taken,
        squares: if taken { Vec::new() } else { squares.to_vec() },
        watched: report[REPORT_HEAD..][..watched.len()].to_vec(),
    })
}
