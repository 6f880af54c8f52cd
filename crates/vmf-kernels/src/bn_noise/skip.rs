//! The gradient of the operation with a skip connection before its activation, in HWNC.
//!
//! ```text
//! y = act(v + skip),    v = gain * (xhat + sigma z) + shift
//! g = dy where y > 0 (everywhere, without ReLU),    dskip = g
//! ```
//! One pass over memory writes g and `v = y - skip`. What remains is the gradient of v, from which
//! the noise can be read off wherever g is not zero.

use super::cpu::Inputs;
use super::{Config, Mode, ParameterGradients, Saved, Terms, backward_terms, start_backward};
use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use rayon::prelude::*;

/// Elements of a task.
const TASK: usize = 1 << 14;

/// Writes dskip and du, and returns the other gradients.
pub(crate) fn backward(
    config: &Config,
    terms: Terms<f32>,
    mode: Mode,
    saved: Saved<f32>,
    dy: &[f32],
    (dskip, du): (&mut [f32], &mut [f32]),
) -> Result<ParameterGradients<f32>, Error> {
    let (Saved { y, .. }, elements) = (saved, config.shape.elements());
    let skip = terms.skip.unwrap_or_default();
    let lengths = [("skip", skip.len()), ("y", y.len()), ("dy", dy.len()), ("dskip", dskip.len())];
    lengths.into_iter().try_for_each(|(name, length)| check_length(name, length, elements))?;
    let mut v = Scratch::take(elements);
    separate(config.relu, [y, skip, dy], dskip, &mut v);
    let (config, saved) = (config.relu(false), Saved { y: &[], ..saved });
    if mode == Mode::Eval {
        return backward_terms(&config, terms, mode, saved, dskip, du);
    }
    let (normalization, inputs) = start_backward(&config, terms, saved, dskip, du)?;
    normalization.backward_train_skip(Inputs { y: &v, ..inputs }, du)
}

/// Writes g and v.
fn separate(relu: bool, [y, skip, dy]: [&[f32]; 3], g: &mut [f32], v: &mut [f32]) {
    let written = g.par_chunks_mut(TASK).by_task().zip(v.par_chunks_mut(TASK));
    let read = y.par_chunks(TASK).zip(skip.par_chunks(TASK)).zip(dy.par_chunks(TASK));
    written.zip(read).for_each(|((g, v), ((y, skip), dy))| {
        let length = g.len();
        let (v, y, skip, dy) = (&mut v[..length], &y[..length], &skip[..length], &dy[..length]);
        for i in 0..length {
            g[i] = if relu && y[i] <= 0.0 { 0.0 } else { dy[i] };
            v[i] = y[i] - skip[i];
        }
    });
}
