//! The posterior: a registry of every layer's noise parameter, and the KL that follows from it.
//!
//! As a `VarBuilder` collects weights, a [`Posterior`] collects each layer's sigma_eff with its D
//! and M while the model is built. So `forward` does not have to return KL terms.

mod last_pass;
mod sigma;
mod stream;
mod summary;
mod vigil;

pub(crate) use last_pass::LastPass;
pub use sigma::{Sigma, SigmaConfig};
pub use stream::stream_of;
pub(crate) use summary::Learned;
pub use summary::{Collapse, LayerSummary, Summary, Thresholds};
pub use vmf_core::Parameterization;

use crate::error::{Error, check_setting, check_shape};
use crate::sphere::unit_rows;
use candle_core::{DType, Device, Result, Tensor, Var};
use sigma::{ln_sigma_of, softplus};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vigil::Vigil;

/// What a layer tells the posterior about itself.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// The path of the layer, which determines its noise stream.
    pub name: String,
    /// D: the number of inputs of one unit, and so the dimension of its weight's direction.
    pub dim: usize,
    /// M: how many such directions the layer has (output units or channels).
    pub units: usize,
    /// The noise parameter, its own or a shared one.
    pub sigma: Sigma,
    /// The weight, if its rows are to stay on the unit sphere.
    pub sphere_weight: Option<Tensor>,
}

#[derive(Clone, Debug)]
struct Layer {
    spec: LayerSpec,
    stream: u32,
}

/// Every variational layer of a model. Cloning gives another handle to the same registry.
#[derive(Clone, Debug, Default)]
pub struct Posterior {
    layers: Arc<Mutex<Vec<Layer>>>,
    output_covariance: Arc<Mutex<Option<Tensor>>>,
    lag: Arc<AtomicBool>,
    last_pass: LastPass,
    vigil: Arc<Mutex<Vigil>>,
}

impl Posterior {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer, and returns the stream its noise comes from.
    ///
    /// Refuses a name that is taken, a name whose stream is taken, `dim < 2` (a direction needs two
    /// dimensions) and units that do not divide into the groups of sigma.
    pub fn register(&self, spec: LayerSpec) -> Result<u32> {
        let what = format!("layer {:?}", spec.name);
        check_shape(spec.dim >= 2, &what, || {
            let dim = spec.dim;
            format!(
                "it has D = {dim} inputs, which must be at least 2: with one a direction is only a sign"
            )
        })?;
        let groups = spec.sigma.config().groups;
        check_shape(spec.units > 0 && spec.units.is_multiple_of(groups), &what, || {
            let units = spec.units;
            format!(
                "it has {units} units, which must be a positive multiple of its {groups} groups of sigma_eff"
            )
        })?;
        let stream = stream_of(&spec.name);
        let mut layers = self.lock();
        if let Some(other) = layers.iter().find(|layer| layer.stream == stream) {
            let first = other.spec.name.clone();
            Err(if first == spec.name {
                Error::DuplicateLayer { name: first }
            } else {
                Error::StreamCollision { first, second: spec.name.clone() }
            })?
        }
        layers.push(Layer { spec, stream });
        Ok(stream)
    }

    /// How many layers it holds.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no layer has been registered.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The covariance of the model's outputs over draws of the weights, as
    /// [`reestimate`](crate::predict::reestimate) measured it: (P, P) for P outputs, in double
    /// precision on the CPU. `None` before that.
    pub fn output_covariance(&self) -> Option<Tensor> {
        self.output_covariance.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what [`output_covariance`](Self::output_covariance) returns, for example to what a
    /// [`Checkpoint`](crate::checkpoint::Checkpoint) holds.
    pub fn set_output_covariance(&self, covariance: &Tensor) -> Result<()> {
        let (rows, columns) = covariance.dims2()?;
        let requirement = "it must be a square matrix";
        check_setting(rows == columns, "the output covariance", rows, requirement)?;
        let covariance = covariance.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let values = covariance.flatten_all()?.to_vec1::<f64>()?;
        if !values.iter().all(|value| value.is_finite()) {
            let what = "the covariance of the outputs".into();
            let reason = "holds NaN or infinity: it was not set".into();
            Err(Error::NonFiniteValue { what, reason })?
        }
        *self.output_covariance.lock().unwrap_or_else(PoisonError::into_inner) = Some(covariance);
        Ok(())
    }

    /// Whether the statistics of the mean pass have followed noisy training since they were
    /// measured. All layers of the model share it.
    pub(crate) fn lag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.lag)
    }

    /// What the last pass changed in the statistics of normalizations.
    pub(crate) fn last_pass(&self) -> &LastPass {
        &self.last_pass
    }

    /// Undoes what the last pass changed in the statistics of normalizations, unless an
    /// [`Adam`](crate::train::Adam) for this posterior has taken its step since.
    ///
    /// Layers whose values are not finite, [`Elbo`](crate::train::Elbo) and `Adam` call it
    /// themselves. It is for a training loop that gives a pass up for reasons of its own, such as an
    /// error between two layers.
    pub fn undo_statistics(&self) -> Result<()> {
        self.last_pass.undo()
    }

    /// Refuses a posterior whose KL cannot train the model that has just been run.
    pub(crate) fn check_trainable(&self) -> Result<()> {
        let layers = self.lock();
        if layers.is_empty() {
            let instead =
                "Without such layers there is no KL: minimize the negative log-likelihood itself";
            Err(Error::EmptyPosterior { instead })?
        }
        let foreign = |reason: String| -> Result<()> { Err(Error::ForeignPosterior { reason })? };
        let fixed = |layer: &Layer| {
            !layer.spec.sigma.config().frozen && !layer.spec.sigma.variable().is_variable()
        };
        if let Some(layer) = layers.iter().find(|layer| fixed(layer)) {
            let name = &layer.spec.name;
            foreign(format!("sigma_eff of {name:?} is a constant, not a variable"))?;
        }
        if !layers.iter().any(|layer| layer.spec.sigma.is_used()) {
            foreign("none of its layers has taken part in a forward pass".into())?;
        }
        Ok(())
    }

    /// Warns of layers that have collapsed since the last call, every so many calls.
    pub(crate) fn watch_for_collapse(&self) -> Result<()> {
        if self.vigil.lock().unwrap_or_else(PoisonError::into_inner).is_due() {
            let sigmas = self.specs().into_iter().filter(|spec| !spec.sigma.config().frozen);
            let sigmas = sigmas.map(|spec| Ok((spec.name, spec.sigma.values()?)));
            let sigmas = sigmas.collect::<Result<Vec<_>>>()?;
            self.vigil.lock().unwrap_or_else(PoisonError::into_inner).look(&sigmas);
        }
        Ok(())
    }

    /// A beta to begin with, for a training set of this size:
    /// ```text
    /// beta = N / (2 sum over layers of M D),    at most 1
    /// ```
    /// The KL grows with the number of weights, the information in the data with the number of
    /// examples N. This beta keeps their ratio at a value that worked for VGG16 at two widths on
    /// CIFAR-10 (`docs/reproduction.md` in the repository). It is a starting point: raise beta if
    /// the predictions are overconfident, lower it if accuracy suffers.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use vmf_candle::prelude::*;
    /// # let (vars, posterior) = (VarMap::new(), Posterior::new());
    /// # let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
    /// vmf_linear(100, 50, VmfConfig::default(), &posterior, vb.pp("layer"))?; // 5000 weights
    /// assert_eq!(posterior.suggested_beta(1000), 0.1);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn suggested_beta(&self, train_set_len: usize) -> f64 {
        let weights = |layer: &Layer| layer.spec.units as f64 * layer.spec.dim as f64;
        let weights: f64 = self.lock().iter().map(weights).sum();
        // Without layers there is no KL, and beta does not matter.
        (0.5 * train_set_len as f64 / weights.max(1.0)).min(1.0)
    }

    /// The KL of the posterior from the uniform prior, in nats, summed over all layers: a
    /// differentiable scalar.
    ///
    /// It is computed in double precision where the device has it. A wide layer has 10^6 nats, of
    /// which a training step changes only the last digits.
    pub fn kl(&self) -> Result<Tensor> {
        let terms = self.kl_per_layer()?;
        let Some((_, first)) = terms.first() else {
            return Tensor::zeros((), DType::F64, &Device::Cpu);
        };
        let device = first.device().clone();
        let terms =
            terms.iter().map(|(_, kl)| kl.to_device(&device)).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&terms, 0)?.sum_all()
    }

    /// The KL of each layer, by name, in the order of registration: differentiable scalars.
    pub fn kl_per_layer(&self) -> Result<Vec<(String, Tensor)>> {
        self.lock().iter().map(|layer| Ok((layer.spec.name.clone(), kl_of(&layer.spec)?))).collect()
    }

    /// What the posterior has learned, layer by layer.
    pub fn summary(&self) -> Result<Summary> {
        let specs = self.specs();
        let uses = |sigma: &Sigma| {
            let id = sigma.variable().id();
            specs.iter().filter(|spec| spec.sigma.variable().id() == id).count()
        };
        let layers = specs.iter().map(|spec| {
            let learned = Learned {
                name: spec.name.clone(),
                dim: spec.dim,
                units: spec.units,
                sigmas: spec.sigma.values()?,
                shared: uses(&spec.sigma) > 1,
                frozen: spec.sigma.config().frozen,
            };
            Ok(LayerSummary::new(learned)?)
        });
        Ok(Summary::new(layers.collect::<Result<_>>()?))
    }

    /// Puts the rows of every weight under the sphere constraint back on the unit sphere.
    ///
    /// [`Adam`](crate::train::Adam) does this itself. With another optimizer, call it after each
    /// step.
    pub fn project_weights(&self) -> Result<()> {
        for layer in self.lock().iter() {
            if let Some(weight) = &layer.spec.sphere_weight
                && weight.is_variable()
            {
                Var::from_tensor(weight)?.set(&unit_rows(&weight.detach())?)?;
            }
        }
        Ok(())
    }

    /// What each layer said about itself, in the order of registration.
    pub fn specs(&self) -> Vec<LayerSpec> {
        self.lock().iter().map(|layer| layer.spec.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Layer>> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `sum_g M/G (D-1)/2 ln(1 + D/(D-1) / sigma_g^2)`.
///
/// The logarithm is `softplus(ln(D/(D-1)) - 2 ln sigma)`, which neither overflows for a tiny sigma
/// nor loses the small values of a large one.
fn kl_of(layer: &LayerSpec) -> Result<Tensor> {
    let rho = layer.sigma.rho();
    let rho = if rho.device().is_metal() { rho } else { rho.to_dtype(DType::F64)? };
    let config = layer.sigma.config();
    let dim = layer.dim as f64;
    let exponent =
        ln_sigma_of(&rho, config.parameterization)?.affine(-2.0, (dim / (dim - 1.0)).ln())?;
    let units_per_group = (layer.units / config.groups) as f64;
    softplus(&exponent)?.sum_all()? * (units_per_group * (dim - 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_nn::{VarBuilder, VarMap};

    fn sigma(vars: &VarMap, path: &str, config: SigmaConfig) -> Result<Sigma> {
        let vb = VarBuilder::from_varmap(vars, DType::F64, &Device::Cpu);
        Sigma::new(config, vb.pp(path))
    }

    fn spec(name: &str, dim: usize, units: usize, sigma: Sigma) -> LayerSpec {
        LayerSpec { name: name.to_string(), dim, units, sigma, sphere_weight: None }
    }

    #[test]
    fn kl_is_the_closed_form_and_so_is_its_gradient() -> Result<()> {
        for parameterization in [Parameterization::Exp, Parameterization::Softplus] {
            for exponent in [-30, -8, -3, -1, 0, 1, 3, 8, 30] {
                for dim in [2, 27, 4608] {
                    let vars = VarMap::new();
                    let config = SigmaConfig {
                        initial: 10f64.powi(exponent),
                        parameterization,
                        ..Default::default()
                    };
                    let initial = config.initial;
                    let posterior = Posterior::new();
                    let sigma = sigma(&vars, "layer", config)?;
                    let rho = sigma.rho();
                    posterior.register(spec("layer", dim, 64, sigma))?;
                    let kl = posterior.kl()?;
                    let gradient = kl.backward()?.get(&rho).unwrap().to_vec1::<f64>()?[0];

                    let sphere = vmf_core::Sphere::new(dim).unwrap();
                    let expected = 64.0 * sphere.kl_approx(initial);
                    let kl = kl.to_scalar::<f64>()?;
                    assert!((kl / expected - 1.0).abs() < 1e-12, "{kl:e} {expected:e}");

                    let rho = parameterization.rho(initial);
                    let expected = 64.0 * sphere.kl_approx_slope_in_rho(parameterization, rho);
                    assert!(
                        (gradient / expected - 1.0).abs() < 1e-10,
                        "{parameterization:?} sigma 1e{exponent} D {dim}: {gradient:e} {expected:e}"
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn groups_weigh_their_units_and_shared_sigma_counts_in_each_layer() -> Result<()> {
        let vars = VarMap::new();
        let grouped = SigmaConfig { groups: 4, ..Default::default() };
        let posterior = Posterior::new();
        posterior.register(spec("a", 27, 64, sigma(&vars, "a", grouped)?))?;
        let shared = sigma(&vars, "shared", SigmaConfig::default())?;
        posterior.register(spec("b", 100, 8, shared.clone()))?;
        posterior.register(spec("c", 50, 8, shared.clone()))?;
        let expected: f64 = [(27, 64.0), (100, 8.0), (50, 8.0)]
            .map(|(dim, units)| units * vmf_core::Sphere::new(dim).unwrap().kl_approx(0.1))
            .iter()
            .sum();
        let kl = posterior.kl()?;
        assert!((kl.to_scalar::<f64>()? / expected - 1.0).abs() < 1e-12);
        assert!(kl.backward()?.get(&shared.rho()).is_some());
        let summary = posterior.summary()?;
        let shared: Vec<bool> = summary.iter().map(|layer| layer.shared).collect();
        assert_eq!(shared, [false, true, true]);
        Ok(())
    }

    #[test]
    fn a_frozen_sigma_has_a_kl_and_no_gradient() -> Result<()> {
        let vars = VarMap::new();
        let frozen = SigmaConfig { frozen: true, ..Default::default() };
        let posterior = Posterior::new();
        let sigma = sigma(&vars, "a", frozen)?;
        posterior.register(spec("a", 27, 64, sigma.clone()))?;
        let kl = posterior.kl()?;
        assert!(kl.to_scalar::<f64>()? > 0.0);
        assert!(kl.backward()?.get(sigma.variable()).is_none());
        Ok(())
    }

    #[test]
    fn refuses_what_cannot_be_right() -> Result<()> {
        let vars = VarMap::new();
        let posterior = Posterior::new();
        let plain = || sigma(&vars, "s", SigmaConfig::default());
        posterior.register(spec("costarring", 27, 64, plain()?))?;
        let message = |spec| posterior.register(spec).unwrap_err().to_string();
        assert!(message(spec("costarring", 27, 64, plain()?)).contains("already"));
        // A known pair of English words with one FNV-1a hash.
        let collision = message(spec("liquid", 27, 64, plain()?));
        assert!(collision.contains("costarring") && collision.contains("liquid"));
        assert!(message(spec("thin", 1, 64, plain()?)).contains("at least 2"));
        let grouped = SigmaConfig { groups: 3, ..Default::default() };
        let grouped = sigma(&vars, "g", grouped)?;
        assert!(message(spec("odd", 27, 64, grouped)).contains("multiple"));
        Ok(())
    }
}
