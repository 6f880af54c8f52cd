//! Layer, RMS and group normalization with gradients, and with the noise of variational units.
//!
//! `candle_nn`'s layer and RMS normalizations return no gradient for contiguous inputs, and no
//! error: everything in front of them stays as it was initialised. These do. On a CPU each is one
//! kernel, [`vmf_kernels::row_norm`], which has the equations; elsewhere they are made of Candle's
//! operations.

use super::mapped::{check_input, has_kernel};
use super::noise_tensor;
use crate::dtype::stable_dtype;
use crate::error::{Error, check_setting, check_shape};
use crate::storage::{contiguous_slice, cpu_slice, for_dtype, same_storage};
use candle_core::{CpuStorage, CustomOp2, D, Device, Layout, Result, Shape, Tensor, WithDType};
use std::sync::{Arc, OnceLock};
use vmf_kernels::Element;
use vmf_kernels::noise::Noise;
use vmf_kernels::row_norm::{self as kernel, Config, Gradients, Norm, Parameters, Statistics};

/// Layer normalization over the last dimension, `gain (x - mean) / sqrt(var + eps) + shift`,
/// differentiable in all arguments.
///
/// # Shapes
/// `xs` (..., C); gain and shift (C), either of which may be missing.
///
/// ```
/// # use candle_core::{DType, Device, Tensor, Var};
/// let xs = Var::new(&[[1f32, 2.0, 6.0]], &Device::Cpu)?;
/// let gain = Tensor::ones(3, DType::F32, &Device::Cpu)?;
/// let ys = vmf_candle::ops::layer_norm(&xs, Some(&gain), None, 1e-5)?;
/// assert!(ys.sum_all()?.to_scalar::<f32>()?.abs() < 1e-5);
/// assert!(ys.sqr()?.narrow(1, 0, 1)?.sum_all()?.backward()?.get(&xs).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm(
    xs: &Tensor,
    gain: Option<&Tensor>,
    shift: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let given = Given { gain, shift, noise: None };
    norm_rows(xs, &Rows::last_dim("layer normalization", xs, Norm::Layer, eps)?, given)
}

/// RMS normalization over the last dimension, `gain x / sqrt(mean x^2 + eps)`, differentiable in
/// all arguments.
///
/// # Shapes
/// `xs` (..., C); gain (C).
pub fn rms_norm(xs: &Tensor, gain: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let given = Given { gain, shift: None, noise: None };
    norm_rows(xs, &Rows::last_dim("RMS normalization", xs, Norm::Rms, eps)?, given)
}

/// Group normalization: the channels are cut into `groups` equal parts, each of which is normalized
/// over its channels and all positions of one example. Differentiable in all arguments.
///
/// # Shapes
/// `xs` (N, C, ...); gain and shift (C), either of which may be missing.
pub fn group_norm(
    xs: &Tensor,
    groups: usize,
    gain: Option<&Tensor>,
    shift: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let given = Given { gain, shift, noise: None };
    norm_rows(xs, &Rows::grouped(xs, groups, eps)?, given)
}

/// What the channels are given, if anything.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    /// One factor per channel, behind the noise.
    pub(crate) gain: Option<&'a Tensor>,
    /// One summand per channel, behind the noise.
    pub(crate) shift: Option<&'a Tensor>,
    /// The noise, and its standard deviation: one value per group of channels.
    pub(crate) noise: Option<(Noise, &'a Tensor)>,
}

/// How a tensor is normalized row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    what: &'static str,
    config: Config,
}

impl Rows {
    /// Rows along the last dimension.
    pub(crate) fn last_dim(what: &'static str, xs: &Tensor, norm: Norm, eps: f64) -> Result<Self> {
        check_input(what, xs)?;
        let channels = xs.dims().last().copied().unwrap_or(0);
        check_shape(channels > 0, what, || "a scalar has no channels".into())?;
        let shape = kernel::Shape::tokens(xs.elem_count() / channels, channels);
        Self { what, config: Config { shape, norm, eps } }.checked()
    }

    /// Groups of channels at all positions of (N, C, ...).
    pub(crate) fn grouped(xs: &Tensor, groups: usize, eps: f64) -> Result<Self> {
        let what = "group normalization";
        check_input(what, xs)?;
        check_shape(xs.rank() >= 2, what, || {
            format!("expected (batch, channels, ...), got {:?}", xs.dims())
        })?;
        let (batch, channels) = (xs.dim(0)?, xs.dim(1)?);
        let valid = groups > 0 && channels.is_multiple_of(groups);
        let requirement = "it must divide the number of channels";
        check_setting(valid, "the number of groups", groups, requirement)?;
        let positions = xs.elem_count() / batch / channels;
        let shape = kernel::Shape { batch, channels, positions, groups };
        Self { what, config: Config { shape, norm: Norm::Layer, eps } }.checked()
    }

    fn checked(self) -> Result<Self> {
        let valid = self.config.eps > 0.0 && self.config.eps.is_finite();
        check_setting(valid, "eps", self.config.eps, "it must be positive")?;
        Ok(self)
    }

    /// The same for another number of rows.
    pub(super) fn with_batch(self, batch: usize) -> Self {
        let shape = kernel::Shape { batch, ..self.config.shape };
        Self { config: Config { shape, ..self.config }, ..self }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }
}

/// Normalizes the rows of `u`, and adds noise, gain and shift.
pub(crate) fn norm_rows(u: &Tensor, rows: &Rows, given: Given) -> Result<Tensor> {
    let packed = Packed::new(u, rows, given)?;
    if !has_kernel(u) {
        return reference(u, rows, &packed);
    }
    let node = Node { rows: *rows, layout: packed.layout, saved: Arc::default() };
    u.contiguous()?.apply_op2(&packed.values, node)
}

/// Gain, shift and sigma of all channels in one tensor: an operation of Candle has at most three
/// inputs.
pub(super) struct Packed {
    pub(super) values: Tensor,
    pub(super) layout: PackedLayout,
}

/// Which of the three there are.
#[derive(Clone, Copy)]
pub(super) struct PackedLayout {
    gain: bool,
    shift: bool,
    noise: Option<Noise>,
}

impl Packed {
    pub(super) fn new(u: &Tensor, rows: &Rows, given: Given) -> Result<Self> {
        let (channels, dtype) = (rows.config.shape.channels, stable_dtype(u.dtype()));
        let per_channel = |values: &Tensor, spread: bool| {
            let count = values.elem_count();
            let valid = values.rank() == 1
                && if spread {
                    count > 0 && channels.is_multiple_of(count)
                } else {
                    count == channels
                };
            check_shape(valid, rows.what, || {
                format!("values of shape {:?} for {channels} channels", values.dims())
            })?;
            let spread = values.reshape((count, 1))?.broadcast_as((count, channels / count))?;
            spread.flatten_all()?.to_dtype(dtype)
        };
        let mut parts = Vec::new();
        for values in [given.gain, given.shift].into_iter().flatten() {
            parts.push(per_channel(values, false)?);
        }
        if let Some((_, sigma)) = given.noise {
            parts.push(per_channel(sigma, true)?);
        }
        let values = match &parts[..] {
            [] => Tensor::zeros(1, dtype, u.device())?,
            [one] => one.contiguous()?,
            parts => Tensor::cat(parts, 0)?,
        };
        let (gain, shift) = (given.gain.is_some(), given.shift.is_some());
        let noise = given.noise.map(|(noise, _)| noise);
        Ok(Self { values, layout: PackedLayout { gain, shift, noise } })
    }

    /// Gain, shift and sigma as tensors.
    fn tensors(&self, channels: usize) -> Result<[Option<Tensor>; 3]> {
        let PackedLayout { gain, shift, noise } = self.layout;
        let mut first = 0;
        let mut next = |present: bool| {
            let part = present.then(|| self.values.narrow(0, first, channels)).transpose();
            first += if present { channels } else { 0 };
            part
        };
        Ok([next(gain)?, next(shift)?, next(noise.is_some())?])
    }
}

impl PackedLayout {
    /// The same as slices.
    pub(super) fn parameters<R>(self, values: &[R], channels: usize) -> Parameters<'_, R> {
        let mut rest = values;
        let mut next = |present: bool| {
            present.then(|| {
                let (part, others) = rest.split_at(channels.min(rest.len()));
                rest = others;
                part
            })
        };
        let (gain, shift) = (next(self.gain), next(self.shift));
        Parameters { gain, shift, noise: self.noise.and_then(|n| Some((n, next(true)?))) }
    }

    /// The gradient of the packed tensor, which has so many elements.
    pub(super) fn gradient<R: Clone + Default>(self, parts: Gradients<R>, count: usize) -> Vec<R> {
        let mut all = [parts.gain, parts.shift, parts.sigma].concat();
        all.resize(count, R::default());
        all
    }
}

/// The same from Candle's own operations, which Candle differentiates.
fn reference(u: &Tensor, rows: &Rows, packed: &Packed) -> Result<Tensor> {
    let Config { shape, norm, eps } = rows.config;
    let xs = u.to_dtype(stable_dtype(u.dtype()))?.reshape((shape.batch * shape.groups, ()))?;
    let centred = match norm {
        Norm::Layer => xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?,
        Norm::Rms | Norm::None => xs,
    };
    let root = (centred.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    let mut ys = match norm {
        Norm::Layer | Norm::Rms => centred.broadcast_div(&root)?,
        Norm::None => centred,
    };
    let per_example = (shape.batch, shape.channels, shape.positions);
    let [gain, shift, sigma] = packed.tensors(shape.channels)?;
    let columns = |values: Tensor| values.reshape((1, shape.channels, 1));
    if let (Some(sigma), Some(noise)) = (sigma, packed.layout.noise) {
        let z = noise_tensor(per_example, noise, ys.dtype(), ys.device())?;
        let mut z = z.broadcast_mul(&columns(sigma)?)?.reshape(ys.shape())?;
        if norm == Norm::None {
            z = z.broadcast_mul(&root)?;
        }
        ys = (ys + z)?;
    }
    ys = ys.reshape(per_example)?;
    if let Some(gain) = gain {
        ys = ys.broadcast_mul(&columns(gain)?)?;
    }
    if let Some(shift) = shift {
        ys = ys.broadcast_add(&columns(shift)?)?;
    }
    ys.reshape(u.shape())?.to_dtype(u.dtype())
}

/// The statistics of a forward pass, in the type that it computed in.
#[derive(Default)]
enum Saved {
    #[default]
    Nothing,
    F32(Statistics<f32>),
    F64(Statistics<f64>),
}

/// What differs between the types that kernels compute in.
trait Working: WithDType + vmf_kernels::Real {
    fn save(statistics: Statistics<Self>) -> Saved;
    fn saved(saved: &Saved) -> Option<&Statistics<Self>>;
}

macro_rules! working {
    ($type:ty, $variant:ident) => {
        impl Working for $type {
            fn save(statistics: Statistics<Self>) -> Saved {
                Saved::$variant(statistics)
            }

            fn saved(saved: &Saved) -> Option<&Statistics<Self>> {
                match saved {
                    Saved::$variant(statistics) => Some(statistics),
                    _ => None,
                }
            }
        }
    };
}
working!(f32, F32);
working!(f64, F64);

/// The node over (u, packed).
struct Node {
    rows: Rows,
    layout: PackedLayout,
    saved: Arc<OnceLock<Saved>>,
}

impl Node {
    fn forward<E: Element<Real: Working>>(&self, u: &[E], packed: &[E::Real]) -> Result<Vec<E>> {
        let mut y = vec![E::default(); u.len()];
        let config = self.rows.config();
        let parameters = self.layout.parameters(packed, config.shape.channels);
        let statistics = kernel::forward(config, parameters, u, &mut y).map_err(Error::from)?;
        // A graph evaluates a node once; a second evaluation would save the same.
        let _ = self.saved.set(E::Real::save(statistics));
        Ok(y)
    }

    fn backward<E>(&self, [u, packed, dy]: [&Tensor; 3]) -> Result<(Tensor, Tensor)>
    where
        E: Element<Real: Working> + WithDType,
    {
        let storages = [u, packed, dy].map(Tensor::storage_and_layout);
        let (us, dys) = (cpu_slice::<E>(&storages[0])?, cpu_slice::<E>(&storages[2])?);
        let values = cpu_slice::<E::Real>(&storages[1])?;
        let Some(statistics) = self.saved.get().and_then(E::Real::saved) else {
            candle_core::bail!("{}: the backward pass came before the forward pass", self.rows.what)
        };
        let config = self.rows.config();
        let parameters = self.layout.parameters(values, config.shape.channels);
        let mut du = vec![E::default(); us.len()];
        let gradients = kernel::backward(config, parameters, (us, statistics), dys, &mut du)
            .map_err(Error::from)?;
        let packed_gradient = self.layout.gradient(gradients, values.len());
        Ok((
            Tensor::from_vec(du, u.shape(), &Device::Cpu)?,
            Tensor::from_vec(packed_gradient, packed.shape(), &Device::Cpu)?,
        ))
    }
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        "row-norm"
    }

    fn cpu_fwd(
        &self,
        u: &CpuStorage,
        u_layout: &Layout,
        packed: &CpuStorage,
        packed_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y = same_storage!(
            u,
            self.rows.what,
            self.forward(
                contiguous_slice(u, u_layout)?,
                contiguous_slice(packed, packed_layout)?,
            )?
        );
        Ok((y, u_layout.shape().clone()))
    }

    fn bwd(
        &self,
        u: &Tensor,
        packed: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = &dy.contiguous()?;
        let tensors = [u, packed, dy];
        let (du, dpacked) = for_dtype!(u.dtype(), self.rows.what, self.backward(tensors))?;
        Ok((Some(du), Some(dpacked)))
    }
}
