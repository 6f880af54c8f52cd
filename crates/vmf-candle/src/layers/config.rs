//! The settings of a variational unit.

use crate::error::Error;
use crate::ops::Activation;
use crate::sigma::{Sigma, SigmaConfig};
use candle_core::Result;
use vmf_core::Parameterization;

/// What keeps the length of a weight from mattering.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum WeightConstraint {
    /// Each unit's weight is a point on the unit sphere. The normalization behind it removes any
    /// scale in the forward pass, so nothing is computed there: [`Adam`](crate::Adam) moves
    /// along the sphere and stays on it.
    #[default]
    Sphere,
    /// Each unit's weight is `gain * v / |v|` with a free v: for optimizers that know nothing of
    /// spheres.
    WeightNorm {
        /// The fixed length of each unit's weight.
        gain: f64,
    },
}

/// The settings of a [`VmfLinear`](crate::VmfLinear), and of the unit inside a
/// [`VmfConv2d`](crate::VmfConv2d).
///
/// ```
/// use vmf_candle::{Parameterization, VmfConfig};
/// let paper = VmfConfig::default().relu();
/// let mine = VmfConfig::default().relu().sigma(0.3).groups(4).parameterization(Parameterization::Softplus);
/// ```
#[derive(Clone, Debug)]
pub struct VmfConfig {
    pub(crate) sigma: SigmaConfig,
    pub(crate) shared: Option<Sigma>,
    pub(crate) activation: Activation,
    pub(crate) constraint: WeightConstraint,
    pub(crate) affine: bool,
    pub(crate) eps: f64,
    pub(crate) momentum: f64,
    pub(crate) norm_at: Option<String>,
}

impl Default for VmfConfig {
    fn default() -> Self {
        Self {
            sigma: SigmaConfig::default(),
            shared: None,
            activation: Activation::Identity,
            constraint: WeightConstraint::Sphere,
            affine: false,
            eps: 1e-5,
            momentum: 0.1,
            norm_at: None,
        }
    }
}

impl VmfConfig {
    /// ReLU after the noise.
    pub fn relu(self) -> Self {
        self.activation(Activation::Relu)
    }

    /// What follows the noise.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// sigma_eff before training (0.1 if not said).
    pub fn sigma(mut self, initial: f64) -> Self {
        self.sigma.initial = initial;
        self
    }

    /// How sigma_eff is kept positive (`exp` if not said).
    pub fn parameterization(mut self, parameterization: Parameterization) -> Self {
        self.sigma.parameterization = parameterization;
        self
    }

    /// A sigma_eff for each of `groups` equal groups of neighbouring channels, instead of one for
    /// the layer.
    pub fn groups(mut self, groups: usize) -> Self {
        self.sigma.groups = groups;
        self
    }

    /// Keeps sigma_eff at its initial value.
    pub fn frozen(mut self) -> Self {
        self.sigma.frozen = true;
        self
    }

    /// Uses this parameter, in place of one of the layer's own: give the same one to each layer
    /// that is to share it.
    pub fn shared(self, sigma: &Sigma) -> Self {
        Self { shared: Some(sigma.clone()), ..self }
    }

    /// What keeps the length of a weight from mattering.
    pub fn constraint(self, constraint: WeightConstraint) -> Self {
        Self { constraint, ..self }
    }

    /// Adds a learned gain and shift a channel after the noise: `gain * (BN(u) + sigma eps) +
    /// shift`. The paper has none; a network converted from one with affine normalization needs
    /// them. sigma_eff keeps its meaning.
    pub fn affine(self) -> Self {
        Self { affine: true, ..self }
    }

    /// Added to the variance under the root (1e-5 if not said).
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The weight of a new batch in the running statistics (0.1 if not said).
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Keeps the normalization's tensors beside the layer under this name, in place of `norm`
    /// inside it. A layer at `features.0` with `norm_at("1")` has its running mean at
    /// `features.1.running_mean`, as torchvision's VGG does.
    pub fn norm_at(self, name: impl Into<String>) -> Self {
        Self { norm_at: Some(name.into()), ..self }
    }

    /// The same unit in a convolution with this padding.
    pub fn padding(self, padding: usize) -> VmfConv2dConfig {
        VmfConv2dConfig::from(self).padding(padding)
    }

    /// The same unit in a convolution with this stride.
    pub fn stride(self, stride: usize) -> VmfConv2dConfig {
        VmfConv2dConfig::from(self).stride(stride)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let setting = |name, value: f64, requirement| Error::Setting {
            name,
            value: value.to_string(),
            requirement,
        };
        if !(self.eps > 0.0 && self.eps.is_finite()) {
            Err(setting("eps", self.eps, "it must be positive"))?
        }
        if !(self.momentum > 0.0 && self.momentum <= 1.0) {
            Err(setting("momentum", self.momentum, "it must lie in (0, 1]"))?
        }
        if let WeightConstraint::WeightNorm { gain } = self.constraint
            && !(gain > 0.0 && gain.is_finite())
        {
            Err(setting("the gain of weight normalization", gain, "it must be positive"))?
        }
        Ok(())
    }
}

/// The settings of a [`VmfConv2d`](crate::VmfConv2d): a unit, and how its kernel moves.
#[derive(Clone, Debug)]
pub struct VmfConv2dConfig {
    pub(crate) unit: VmfConfig,
    pub(crate) padding: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) groups: usize,
}

impl From<VmfConfig> for VmfConv2dConfig {
    fn from(unit: VmfConfig) -> Self {
        Self { unit, padding: 0, stride: 1, dilation: 1, groups: 1 }
    }
}

impl VmfConv2dConfig {
    /// Pixels of zeros on each side (0 if not said).
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Pixels between neighbouring outputs (1 if not said).
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Pixels between neighbouring weights (1 if not said).
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// Splits input and output channels into groups that do not see each other (1 if not said). D
    /// shrinks with them.
    pub fn channel_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }
}
