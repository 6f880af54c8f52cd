//! The settings of a variational layer.

use crate::error::check_setting;
use crate::posterior::{Parameterization, Sigma, SigmaConfig};
use candle_core::Result;

/// What follows normalization and noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    Identity,
    /// `max(y, 0)`, in the same pass over memory.
    Relu,
    /// `y Phi(y)`. Not behind batch normalization.
    Gelu,
    /// `y / (1 + exp(-y))`. Not behind batch normalization.
    Silu,
}

/// What is normalized between a unit's weight and its noise.
///
/// | | removes from the weights | so the posterior over directions is |
/// |---|---|---|
/// | `Batch` | the length of each unit's weight | all there is to know: exact |
/// | `Group` | a length that the units of a group have in common | exact with one unit per group |
/// | `Layer`, `Rms` | a length that all units have in common | a restriction: the relative lengths, which would matter, are fixed at 1 |
/// | `None` | nothing | a restriction: the lengths are fixed at 1, and the gain stands for them |
///
/// Where lengths are fixed, `affine` gives back a scale for each unit. In all of them a weight drawn
/// from the posterior acts on isotropic inputs like noise of deviation sigma_eff behind the
/// normalization, up to the common factor `1 / sqrt(1 + sigma_eff^2)`, which the gain or the next
/// normalization takes up; with M units per normalization this holds up to O(1/M). `Group` with
/// positions counts them too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// Each unit over the batch (and all positions). It has running statistics.
    #[default]
    Batch,
    /// All units of a token, or of a position of an image: mean 0, variance 1.
    Layer,
    /// All units of a token, or of a position: mean square 1.
    Rms,
    /// Each of so many groups of neighbouring units, at all positions of one example.
    Group(usize),
    /// Nothing is normalized: for projections that no normalization follows. The noise is relative
    /// to the root mean square of the units' outputs, and a gain per unit follows it.
    None,
}

/// How the length of a weight, which the normalization removes, is kept fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum WeightConstraint {
    /// Each unit's weight is a point on the unit sphere. The forward pass computes nothing for it:
    /// [`Adam`](crate::train::Adam) moves along the sphere and stays on it.
    #[default]
    Sphere,
    /// Each unit's weight is `gain * v / |v|` with a free v, for any optimizer.
    WeightNorm {
        /// The fixed length of each unit's weight.
        gain: f64,
    },
}

/// The settings of a variational layer, [`vmf_linear`](super::vmf_linear) or
/// [`vmf_conv2d`](super::vmf_conv2d). They can be given in any order.
///
/// ```
/// use vmf_candle::posterior::Parameterization;
/// use vmf_candle::prelude::*;
/// let paper = VmfConfig::default().relu().padding(1);
/// let other = VmfConfig::default().stride(2).groups(2).sigma(0.3).sigma_groups(4);
/// let other = other.parameterization(Parameterization::Softplus).relu();
/// ```
///
/// `padding`, `stride`, `dilation` and `groups` are settings of a convolution, as in Candle:
/// `vmf_linear` refuses them.
#[derive(Clone, Debug)]
pub struct VmfConfig {
    pub(super) sigma: SigmaConfig,
    pub(super) shared: Option<Sigma>,
    pub(super) activation: Activation,
    pub(super) norm: Norm,
    pub(super) constraint: WeightConstraint,
    pub(super) affine: bool,
    pub(super) eps: f64,
    pub(super) momentum: f64,
    pub(super) norm_at: Option<String>,
    pub(super) padding: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) groups: usize,
}

impl Default for VmfConfig {
    fn default() -> Self {
        Self {
            sigma: SigmaConfig::default(),
            shared: None,
            activation: Activation::Identity,
            norm: Norm::Batch,
            constraint: WeightConstraint::Sphere,
            affine: false,
            eps: 1e-5,
            momentum: super::norm::MOMENTUM,
            norm_at: None,
            padding: 0,
            stride: 1,
            dilation: 1,
            groups: 1,
        }
    }
}

impl VmfConfig {
    /// ReLU after the noise.
    pub fn relu(self) -> Self {
        self.activation(Activation::Relu)
    }

    /// GELU after the noise. Not behind batch normalization.
    pub fn gelu(self) -> Self {
        self.activation(Activation::Gelu)
    }

    /// SiLU after the noise. Not behind batch normalization.
    pub fn silu(self) -> Self {
        self.activation(Activation::Silu)
    }

    /// What is normalized in front of the noise (batch normalization by default).
    pub fn norm(self, norm: Norm) -> Self {
        Self { norm, ..self }
    }

    /// The activation after the noise (none by default).
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// sigma_eff before training (0.1 by default).
    pub fn sigma(mut self, initial: f64) -> Self {
        self.sigma.initial = initial;
        self
    }

    /// How sigma_eff is kept positive (`exp` by default).
    pub fn parameterization(mut self, parameterization: Parameterization) -> Self {
        self.sigma.parameterization = parameterization;
        self
    }

    /// A sigma_eff for each of `groups` equal groups of neighbouring channels, instead of one for
    /// the layer.
    pub fn sigma_groups(mut self, groups: usize) -> Self {
        self.sigma.groups = groups;
        self
    }

    /// Keeps sigma_eff at its initial value.
    pub fn frozen(mut self) -> Self {
        self.sigma.frozen = true;
        self
    }

    /// Uses this parameter instead of one of the layer's own. Layers that are given the same
    /// parameter share it.
    pub fn shared(self, sigma: &Sigma) -> Self {
        Self { shared: Some(sigma.clone()), ..self }
    }

    /// How the length of a weight is kept fixed.
    pub fn constraint(self, constraint: WeightConstraint) -> Self {
        Self { constraint, ..self }
    }

    /// Adds a learned gain and shift per channel after the noise: `gain * (BN(u) + sigma z) +
    /// shift`. The paper has none. A network that was converted from one with affine normalization
    /// needs them. sigma_eff keeps its meaning.
    pub fn affine(self) -> Self {
        Self { affine: true, ..self }
    }

    /// The constant that is added to the variance under the root (1e-5 by default).
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The weight of a new batch in the running statistics (0.1 by default).
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Puts the normalization's tensors beside the layer under this name, instead of inside it
    /// under `norm`. A layer at `features.0` with `norm_at("1")` has its running mean at
    /// `features.1.running_mean`, as torchvision's VGG does.
    pub fn norm_at(self, name: impl Into<String>) -> Self {
        Self { norm_at: Some(name.into()), ..self }
    }

    /// Zeros around each image, on each side (0 by default).
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Pixels between neighbouring outputs (1 by default).
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Pixels between neighbouring elements of the kernel (1 by default).
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// Splits input and output channels into groups that are convolved separately (1 by default).
    /// D, the number of inputs of a unit, is that of one group.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Checks the settings of every layer.
    pub(super) fn check(&self) -> Result<()> {
        let valid = self.eps > 0.0 && self.eps.is_finite();
        check_setting(valid, "eps", self.eps, "it must be positive")?;
        let valid = self.momentum > 0.0 && self.momentum <= 1.0;
        check_setting(valid, "momentum", self.momentum, "it must lie in (0, 1]")?;
        let smooth = matches!(self.activation, Activation::Gelu | Activation::Silu);
        check_setting(
            !smooth || self.norm != Norm::Batch,
            "the activation of a unit with batch normalization",
            format_args!("{:?}", self.activation),
            "it must be ReLU or none: apply `ops::gelu` or `ops::silu` behind the layer, or choose another `norm`",
        )?;
        if let WeightConstraint::WeightNorm { gain } = self.constraint {
            let (valid, name) =
                (gain > 0.0 && gain.is_finite(), "the gain of weight normalization");
            check_setting(valid, name, gain, "it must be positive")?;
        }
        Ok(())
    }

    /// Checks that no setting of convolutions is set.
    pub(super) fn check_linear(&self) -> Result<()> {
        let no_linear = "it is a setting of convolutions: a linear layer does not have it";
        check_setting(self.padding == 0, "padding", self.padding, no_linear)?;
        check_setting(self.stride == 1, "stride", self.stride, no_linear)?;
        check_setting(self.dilation == 1, "dilation", self.dilation, no_linear)?;
        let requirement = "it splits the channels of a convolution: `sigma_groups` sets how many groups of units have their own sigma_eff";
        Ok(check_setting(self.groups == 1, "groups", self.groups, requirement)?)
    }

    /// Checks the settings of a convolution with this many channels and kernels of this side.
    pub(super) fn check_conv2d(&self, inputs: usize, outputs: usize, kernel: usize) -> Result<()> {
        let Self { stride, dilation, groups, .. } = *self;
        let sizes = [("kernel", kernel), ("stride", stride), ("dilation", dilation)];
        for (name, value) in sizes {
            check_setting(value > 0, name, value, "it must be at least 1")?;
        }
        let divides = |channels: usize| groups > 0 && channels.is_multiple_of(groups);
        let requirement = "it must divide the input and the output channels";
        Ok(check_setting(divides(inputs) && divides(outputs), "groups", groups, requirement)?)
    }
}
