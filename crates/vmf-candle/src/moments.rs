//! Mean and variance of activations, side by side.

use crate::error::check_shape;
use crate::ops::{self, avg_pool2d};
use candle_core::{DType, Module, Result, Tensor, shape::Dims};
use candle_nn::{Conv2d, Linear};
use vmf_core::expected::GaussHermite;

/// The mean and the variance of each element of a tensor over draws of the weights, on their way
/// through a network: what [`Forward::propagate`](crate::Forward::propagate) takes and returns.
///
/// Elements count as independent. Behind the noise of one layer they are; further on they share the
/// noise of the layers before, which the propagated variance leaves out.
///
/// A model's own code between variational layers becomes a call of one of these methods:
///
/// ```
/// # use candle_core::{Device, Result, Tensor};
/// use vmf_candle::prelude::*;
/// # let xs = Tensor::zeros((5, 16, 8, 8), candle_core::DType::F32, &Device::Cpu)?;
/// let xs = Moments::new(xs.clone(), xs.ones_like()?)?;
/// let sum = xs.add(&xs.affine(0.5, 0.0)?)?.relu()?; // relu(x + x' / 2), x' independent of x
/// let features = sum.max_pool(2)?.mean_over((2, 3))?;
/// assert_eq!(features.mean().dims(), [5, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Moments {
    mean: Tensor,
    variance: Option<Tensor>,
    /// Whether normalizations use the statistics of this batch, and not the running ones.
    is_training: bool,
}

impl Moments {
    /// Values that do not depend on the weights, such as the inputs of a network.
    pub fn certain(values: &Tensor) -> Self {
        Self { mean: values.clone(), variance: None, is_training: false }
    }

    /// The inputs of a training step: normalizations use the statistics of the batch under noise,
    /// the variance of the means plus the mean of the variances, and move the running ones.
    ///
    /// `model.propagate(&Moments::training(&xs))?.cross_entropy(&labels)?` is a loss without
    /// gradient noise: variational training that draws nothing. It costs several times as much as
    /// a step with noise, and it leaves out what units have in common.
    pub fn training(values: &Tensor) -> Self {
        Self { is_training: true, ..Self::certain(values) }
    }

    /// Values with this mean and this variance, of one shape and dtype.
    pub fn new(mean: Tensor, variance: Tensor) -> Result<Self> {
        let fits = mean.dims() == variance.dims() && mean.dtype() == variance.dtype();
        check_shape(fits, "moments", || {
            let [mean, variance] = [&mean, &variance].map(|t| (t.dims(), t.dtype()));
            format!("the mean is {mean:?}, the variance {variance:?}: they must be alike")
        })?;
        Ok(Self::from_parts(mean, Some(variance), false))
    }

    pub(crate) fn from_parts(mean: Tensor, variance: Option<Tensor>, is_training: bool) -> Self {
        Self { mean, variance, is_training }
    }

    pub(crate) fn is_training(&self) -> bool {
        self.is_training
    }

    /// Other values of the same pass.
    fn with(&self, mean: Tensor, variance: Option<Tensor>) -> Self {
        Self::from_parts(mean, variance, self.is_training)
    }

    /// The mean.
    pub fn mean(&self) -> &Tensor {
        &self.mean
    }

    /// The variance, in the shape of the mean.
    pub fn variance(&self) -> Result<Tensor> {
        match &self.variance {
            Some(variance) => Ok(variance.clone()),
            None => self.mean.zeros_like(),
        }
    }

    /// The variance, or `None` of values that are [certain](Self::certain).
    pub(crate) fn known_variance(&self) -> Option<&Tensor> {
        self.variance.as_ref()
    }

    /// One function for the means and one for the variances. Certain values stay certain.
    fn map(
        &self,
        mean: impl FnOnce(&Tensor) -> Result<Tensor>,
        variance: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let variance = self.variance.as_ref().map(variance).transpose()?;
        Ok(self.with(mean(&self.mean)?, variance))
    }

    /// Moves elements without changing them: `xs.rearrange(|t| t.flatten_from(1))`. The function
    /// may reshape, transpose, cut and repeat, but not compute.
    pub fn rearrange(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.map(&f, &f)
    }

    /// The sum with values that are independent of these: means and variances add.
    pub fn add(&self, other: &Self) -> Result<Self> {
        let variance = match (&self.variance, &other.variance) {
            (Some(a), Some(b)) => Some((a + b)?),
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        Ok(self.with((&self.mean + &other.mean)?, variance))
    }

    /// `scale * x + shift`.
    pub fn affine(&self, scale: f64, shift: f64) -> Result<Self> {
        self.map(|m| m.affine(scale, shift), |v| v.affine(scale * scale, 0.0))
    }

    /// `scale * x + shift` with tensors that broadcast to the shape of the values, such as the gain
    /// and the shift of a normalization.
    pub fn scale_and_shift(&self, scale: &Tensor, shift: &Tensor) -> Result<Self> {
        self.map(
            |m| m.broadcast_mul(scale)?.broadcast_add(shift),
            |v| v.broadcast_mul(&scale.sqr()?),
        )
    }

    /// The mean over some dimensions: `xs.mean_over((2, 3))` averages images over their positions.
    pub fn mean_over<D: Dims + Clone>(&self, dims: D) -> Result<Self> {
        let mean = self.mean.mean(dims.clone())?;
        let count = self.mean.elem_count() as f64 / mean.elem_count().max(1) as f64;
        let variance = match &self.variance {
            Some(variance) => Some((variance.mean(dims)? / count)?),
            None => None,
        };
        Ok(self.with(mean, variance))
    }

    /// The mean over windows of this side, side by side, of images (N, C, H, W).
    pub fn avg_pool(&self, window: usize) -> Result<Self> {
        let count = (window * window) as f64;
        let pool = |t: &Tensor| avg_pool2d(t, window, window, 0);
        self.map(pool, |v| pool(v)? / count)
    }

    /// The maximum over windows of this side, side by side, of images (N, C, H, W), by Clark's
    /// formulas for two Gaussians, pair by pair.
    pub fn max_pool(&self, window: usize) -> Result<Self> {
        match &self.variance {
            None => Ok(self.with(ops::max_pool2d(&self.mean, window, window, 0)?, None)),
            Some(variance) => {
                let (mean, variance) = ops::largest_of_windows(&self.mean, variance, window)?;
                Ok(self.with(mean, Some(variance)))
            }
        }
    }

    /// `relu(x)`, of values that count as Gaussian.
    pub fn relu(&self) -> Result<Self> {
        match &self.variance {
            None => Ok(self.with(self.mean.relu()?, None)),
            Some(variance) => {
                let (mean, variance) = ops::relu_moments(&self.mean, variance)?;
                Ok(self.with(mean, Some(variance)))
            }
        }
    }

    /// Any activation, of values that count as Gaussian, by Gauss-Hermite quadrature: eight points
    /// are enough for smooth ones such as GELU and SiLU.
    ///
    /// ```text
    /// mean = sum_i w_i f(x_i)        variance = sum_i w_i (f(x_i) - mean)^2
    /// ```
    pub fn activation(&self, points: usize, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let Some(variance) = &self.variance else {
            return Ok(self.with(f(&self.mean)?, None));
        };
        let s = variance.sqrt()?;
        let rule = GaussHermite::new(points.max(1));
        let mut values = Vec::with_capacity(rule.points().len());
        for &(z, weight) in rule.points() {
            values.push((f(&(&self.mean + (&s * z)?)?)?, weight));
        }
        let mut mean = self.mean.zeros_like()?;
        for (value, weight) in &values {
            mean = (mean + (value * *weight)?)?;
        }
        let mut variance = self.mean.zeros_like()?;
        for (value, weight) in &values {
            variance = (variance + ((value - &mean)?.sqr()? * *weight)?)?;
        }
        Ok(self.with(mean, Some(variance)))
    }

    /// A plain linear layer: `W m + b`, and the variances with the squared weights.
    pub fn linear(&self, layer: &Linear) -> Result<Self> {
        let squared = || layer.weight().sqr();
        self.map(|m| layer.forward(m), |v| Linear::new(squared()?, None).forward(v))
    }

    /// A plain convolution, likewise.
    pub fn conv2d(&self, layer: &Conv2d) -> Result<Self> {
        let squared = || layer.weight().sqr();
        self.map(
            |m| layer.forward(m),
            |v| Conv2d::new(squared()?, None, *layer.config()).forward(v),
        )
    }

    /// The expected cross-entropy of logits (N, K) with these labels (N), from a bound that holds
    /// for independent Gaussian logits,
    /// ```text
    /// E -ln softmax_y(z) = E logsumexp(z) - m_y <= ln sum_k exp(m_k + v_k / 2) - m_y
    /// ```
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        let widened = (&self.mean + (self.variance()? * 0.5)?)?.log_sum_exp(1)?;
        let of_labels = self.mean.gather(&labels.unsqueeze(1)?, 1)?.squeeze(1)?;
        (widened - of_labels)?.mean_all()
    }

    /// In another dtype.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        self.rearrange(|t| t.to_dtype(dtype))
    }
}
