//! Adam with parameter groups, weights that stay on the sphere, and a guard against non-finite
//! numbers.
//!
//! ```text
//! m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
//! w <- (1 - lr decay) w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//! ```
//!
//! A weight under the sphere constraint loses the radial part of its gradient first, `g <- g - (g .
//! w) w`, and its rows are put back to unit length afterwards.

#[cfg(feature = "cuda")]
mod cuda;
mod moments;

pub use moments::Moments;

use super::{backward, flat};
use crate::dtype::stable_dtype;
use crate::error::{Error, check_setting};
use crate::finite::sum_of_squares;
use crate::posterior::Posterior;
use crate::ranks::Ranks;
use crate::train::memory::keep_freed_memory;
use crate::vars::{is_statistic, lock};
use crate::warning::warn;
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use candle_nn::{Optimizer, VarMap};
use moments::State;
use vmf_kernels::adam as kernel;

/// The settings of [`Adam`].
///
/// The default learning rates are the paper's, 1e-4 for weights and 2e-2 for noise, meant for 200
/// epochs of CIFAR-10. A short training needs a higher rate for its weights, and a schedule that
/// ends at zero so that running statistics settle:
///
/// ```
/// # use vmf_candle::prelude::*;
/// let config = AdamConfig { lr: 1e-3, ..Default::default() };
/// let lr = Schedule::cosine(1e-3, 0.0, 20.0); // in each epoch: adam.set_learning_rate(lr.at(epoch))
/// # assert!(lr.at(20.0) < 1e-9);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AdamConfig {
    /// Learning rate of every parameter that is not noise.
    pub lr: f64,
    /// Learning rate of the noise parameters, which move further than weights do.
    pub noise_lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator, so that it is not zero.
    pub eps: f64,
    /// Decoupled weight decay of every parameter that is neither noise nor on the sphere.
    pub weight_decay: f64,
    /// If set, gradients are scaled down so that their joint Euclidean norm is at most this.
    pub clip_norm: Option<f64>,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self {
            lr: 1e-4,
            noise_lr: 2e-2,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: None,
        }
    }
}

impl AdamConfig {
    fn check(&self) -> Result<()> {
        let non_negative = |value: f64| value >= 0.0 && value.is_finite();
        let decay = |value: f64| (0.0..1.0).contains(&value);
        let settings = [
            ("the learning rate", self.lr, non_negative(self.lr)),
            ("the noise learning rate", self.noise_lr, non_negative(self.noise_lr)),
            ("eps", self.eps, non_negative(self.eps)),
            ("weight decay", self.weight_decay, non_negative(self.weight_decay)),
            ("beta1", self.beta1, decay(self.beta1)),
            ("beta2", self.beta2, decay(self.beta2)),
        ];
        for (name, value, valid) in settings {
            let requirement = "it must be finite and not negative, and a decay below 1";
            check_setting(valid, name, value, requirement)?;
        }
        if let Some(clip) = self.clip_norm {
            check_setting(clip > 0.0, "the gradient norm to clip at", clip, "it must be positive")?;
        }
        Ok(())
    }
}

/// The parameter groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Base,
    Sphere,
    Noise,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    var: Var,
    group: Group,
    state: Option<State>,
}

impl Parameter {
    fn new(name: String, var: Var, group: Group) -> Self {
        Self { name, var, group, state: None }
    }

    /// The constants of its step.
    fn rule(&self, config: &AdamConfig) -> kernel::AdamConfig {
        let (lr, weight_decay) = match self.group {
            Group::Base => (config.lr, config.weight_decay),
            Group::Sphere => (config.lr, 0.0),
            Group::Noise => (config.noise_lr, 0.0),
        };
        let row = self.var.elem_count() / self.var.dims().first().copied().unwrap_or(1).max(1);
        kernel::AdamConfig {
            lr,
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            weight_decay,
            sphere: (self.group == Group::Sphere).then_some(row),
        }
    }

    fn step(&mut self, gradient: &Tensor, scale: f64, config: &AdamConfig) -> Result<()> {
        let rule = self.rule(config);
        let mut gradient = gradient.detach();
        if scale != 1.0 {
            gradient = (gradient * scale)?;
        }
        let state = match &mut self.state {
            Some(state) => state,
            empty => empty.insert(State::zeros(&self.var)?),
        };
        state.step(&self.var, &gradient, &rule)
    }
}

/// The optimizer. Build it with [`Adam::for_model`]; as a `candle_nn::Optimizer` it also takes a
/// plain list of variables.
#[derive(Debug)]
pub struct Adam {
    config: AdamConfig,
    parameters: Vec<Parameter>,
    /// That of the model, if it is known.
    posterior: Option<Posterior>,
    ranks: Ranks,
    /// Whether a step has been taken, in which parameters without a gradient were named.
    has_stepped: bool,
}

impl Adam {
    /// Adam over every variable in `vars`. The posterior says which of them are noise parameters,
    /// with a learning rate of their own, and which are weights to keep on the sphere. Frozen noise
    /// parameters are left out; variables that receive no gradient, such as running statistics, do
    /// not change.
    ///
    /// The posterior must have layers, and all of them must be built from `vars`. The first step
    /// warns of every variable that receives no gradient and is no statistic.
    pub fn for_model(vars: &VarMap, posterior: &Posterior, config: AdamConfig) -> Result<Self> {
        config.check()?;
        let specs = posterior.specs();
        if specs.is_empty() {
            let instead = "Without such layers use `Adam::new(vars.all_vars(), config)`";
            Err(Error::EmptyPosterior { instead })?
        }
        for spec in &specs {
            let id = spec.sigma.variable().id();
            if !lock(vars).values().any(|var| var.id() == id) {
                let (name, rho) = (&spec.name, spec.sigma.name());
                let reason =
                    format!("{rho:?} of its layer {name:?} is not a variable of this `VarMap`");
                Err(Error::ForeignPosterior { reason })?
            }
        }
        let group = |var: &Var| {
            let is = |tensor: &Tensor| tensor.id() == var.id();
            if let Some(spec) = specs.iter().find(|spec| is(spec.sigma.variable())) {
                return (!spec.sigma.config().frozen).then_some(Group::Noise);
            }
            let on_sphere = specs.iter().any(|spec| spec.sphere_weight.as_ref().is_some_and(is));
            Some(if on_sphere { Group::Sphere } else { Group::Base })
        };
        let mut parameters: Vec<Parameter> = lock(vars)
            .iter()
            .filter(|(_, var)| var.dtype().is_float())
            .filter_map(|(name, var)| Some(Parameter::new(name.clone(), var.clone(), group(var)?)))
            .collect();
        // The map has no fixed order, and the rounding of a sum depends on the order of its terms.
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self::of(config, parameters, Some(posterior.clone())))
    }

    fn of(config: AdamConfig, parameters: Vec<Parameter>, posterior: Option<Posterior>) -> Self {
        keep_freed_memory();
        Self { config, parameters, posterior, ranks: Ranks::alone(), has_stepped: false }
    }

    /// Its settings.
    pub fn config(&self) -> &AdamConfig {
        &self.config
    }

    /// Sets the learning rate of the noise parameters.
    pub fn set_noise_learning_rate(&mut self, lr: f64) {
        self.config.noise_lr = lr;
    }

    /// The moments of every parameter that has had a gradient, sorted by the parameter's name.
    pub fn state(&self) -> Result<Vec<(String, Moments)>> {
        self.parameters
            .iter()
            .filter_map(|parameter| Some((parameter, parameter.state.as_ref()?)))
            .map(|(parameter, state)| Ok((parameter.name.clone(), state.moments(&parameter.var)?)))
            .collect()
    }

    /// The same optimizer for ranks that share each batch: `backward_step` adds their gradients up
    /// and takes the same step on all of them.
    pub fn across(self, ranks: Ranks) -> Self {
        Self { ranks, ..self }
    }

    /// Replaces all moments. Parameters that are not named begin again at zero. Changes nothing if
    /// a name, shape or dtype does not fit.
    pub fn load_state(&mut self, state: Vec<(String, Moments)>) -> crate::Result<()> {
        let mut placed = Vec::with_capacity(state.len());
        for (name, moments) in state {
            let position = self.parameters.iter().position(|p| p.name == name);
            let Some(position) = position else {
                let reason = format!("optimizer state for {name:?}, which is no parameter");
                return Err(Error::Mismatch(reason));
            };
            let var = &self.parameters[position].var;
            for moment in [&moments.first, &moments.second] {
                let dtype = stable_dtype(var.dtype());
                if moment.shape() != var.shape() || moment.dtype() != dtype {
                    return Err(Error::Mismatch(format!(
                        "optimizer state for {name:?} is {:?} {:?}, expected {dtype:?} {:?}",
                        moment.dtype(),
                        moment.dims(),
                        var.dims()
                    )));
                }
            }
            placed.push((position, State::from_moments(moments, var)?));
        }
        for parameter in &mut self.parameters {
            parameter.state = None;
        }
        self.has_stepped = !placed.is_empty();
        for (position, state) in placed {
            self.parameters[position].state = Some(state);
        }
        Ok(())
    }

    /// `backward_step`, which also returns the values of further scalars that were computed on the
    /// way. On a GPU one read at the end of the step returns everything: whether the step was taken,
    /// and these values. They are `f32` there.
    pub fn backward_step_watching(
        &mut self,
        loss: &Tensor,
        scalars: &[&Tensor],
    ) -> Result<Vec<f64>> {
        #[cfg(feature = "cuda")]
        if loss.device().is_cuda() && self.ranks.is_alone() {
            let gradients = backward(loss)?;
            if cuda::fits(&self.parameters, &gradients) {
                let watched: Vec<&Tensor> =
                    [loss].into_iter().chain(scalars.iter().copied()).collect();
                let values = self.step_on_cuda(&gradients, &watched)?;
                return Ok(values.iter().skip(1).map(|&value| value.into()).collect());
            }
        }
        let read = |scalar: &&Tensor| scalar.to_dtype(DType::F64)?.to_scalar();
        let values = scalars.iter().map(read).collect::<Result<_>>()?;
        self.backward_step(loss)?;
        Ok(values)
    }

    #[cfg(feature = "cuda")]
    fn step_on_cuda(&mut self, grads: &GradStore, watched: &[&Tensor]) -> Result<Vec<f32>> {
        self.or_undo(self.check_statistics())?;
        let taken = cuda::step(&mut self.parameters, grads, &self.config, watched);
        let values = self.or_undo(taken)?;
        if !std::mem::replace(&mut self.has_stepped, true) {
            self.name_parameters_without_gradient(grads);
        }
        self.keep_statistics();
        Ok(values)
    }

    /// A parameter that the loss does not depend on is never trained: a layer that was built and
    /// not used, a tensor that was detached, a part of the network behind another optimizer.
    fn name_parameters_without_gradient(&self, grads: &GradStore) {
        let is_left_out = |p: &&Parameter| grads.get(&p.var).is_none() && !is_statistic(&p.name);
        let names: Vec<&str> =
            self.parameters.iter().filter(is_left_out).map(|p| p.name.as_str()).collect();
        if !names.is_empty() {
            warn(format_args!(
                "these variables received no gradient in the first step and are not trained: {}. \
                 Is the layer they belong to used, and nothing between it and the loss detached?",
                names.join(", ")
            ));
        }
    }

    /// Fails if a layer has met statistics that are not finite and could not say so at once.
    fn check_statistics(&self) -> Result<()> {
        let Some(posterior) = &self.posterior else { return Ok(()) };
        match posterior.last_pass().first_not_finite()? {
            None => Ok(()),
            Some(layer) => {
                let reason = "the mean or the variance of a channel over the batch is not finite: \
                              look for NaN in the inputs, and lower the learning rate or clip \
                              gradients if there is none";
                Err(Error::NonFiniteLayer { layer, reason })?
            }
        }
    }

    /// Without a step, the pass before it has no effect on running statistics either.
    fn or_undo<T>(&self, result: Result<T>) -> Result<T> {
        if let (Err(_), Some(posterior)) = (&result, &self.posterior) {
            posterior.undo_statistics()?;
        }
        result
    }

    /// After a step, what the pass before it changed in running statistics is final.
    fn keep_statistics(&self) {
        if let Some(posterior) = &self.posterior {
            posterior.last_pass().keep();
        }
    }

    /// The gradients of a loss, added up over the ranks.
    fn gradients(&self, loss: &Tensor) -> Result<GradStore> {
        self.check_statistics()?;
        let not_finite = || Error::NonFinite { what: "the loss".into() };
        if self.ranks.is_alone() {
            if sum_of_squares(loss)?.is_none() {
                Err(not_finite())?
            }
            return backward(loss);
        }
        let mut gradients = backward(loss)?;
        let variables = self.parameters.iter().map(|parameter| &parameter.var);
        let loss = flat::sum_over(self.ranks, variables, &mut gradients, loss)?;
        if !loss.is_finite() {
            Err(not_finite())?
        }
        Ok(gradients)
    }

    /// The factor by which clipping scales the gradients. Fails on the first gradient that is not
    /// finite.
    fn check_gradients(&self, grads: &GradStore) -> Result<f64> {
        self.check_statistics()?;
        let mut squares = 0.0;
        for parameter in &self.parameters {
            if let Some(gradient) = grads.get(&parameter.var) {
                match sum_of_squares(gradient)? {
                    Some(sum) => squares += sum,
                    None => Err(Error::NonFinite {
                        what: format!("the gradient of {}", parameter.name),
                    })?,
                }
            }
        }
        Ok(match self.config.clip_norm {
            Some(clip) if squares.sqrt() > clip => clip / squares.sqrt(),
            _ => 1.0,
        })
    }
}

impl Optimizer for Adam {
    type Config = AdamConfig;

    /// Adam over a list of variables, all in the base group, named by their positions in the list.
    fn new(vars: Vec<Var>, config: AdamConfig) -> Result<Self> {
        config.check()?;
        let parameters = vars
            .into_iter()
            .filter(|var| var.dtype().is_float())
            .enumerate()
            .map(|(place, var)| Parameter::new(format!("variable {place}"), var, Group::Base))
            .collect();
        Ok(Self::of(config, parameters, None))
    }

    /// Takes a step. If a gradient is NaN or infinite, the error names it and nothing changes; the
    /// running statistics are those before the pass.
    fn step(&mut self, grads: &GradStore) -> Result<()> {
        #[cfg(feature = "cuda")]
        if cuda::fits(&self.parameters, grads) {
            return self.step_on_cuda(grads, &[]).map(|_| ());
        }
        let scale = self.or_undo(self.check_gradients(grads))?;
        if !std::mem::replace(&mut self.has_stepped, true) {
            self.name_parameters_without_gradient(grads);
        }
        for parameter in &mut self.parameters {
            if let Some(gradient) = grads.get(&parameter.var) {
                parameter.step(gradient, scale, &self.config)?;
            }
        }
        self.keep_statistics();
        Ok(())
    }

    /// The learning rate of the base group.
    fn learning_rate(&self) -> f64 {
        self.config.lr
    }

    /// Sets the learning rate of the base group. The noise keeps its own.
    fn set_learning_rate(&mut self, lr: f64) {
        self.config.lr = lr;
    }

    /// Computes the gradients of `loss`, adds those of all ranks up if there are several, and takes a
    /// step. If the loss or a gradient is NaN or infinite, the error names it and nothing changes;
    /// the running statistics are those before the pass.
    fn backward_step(&mut self, loss: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if loss.device().is_cuda() && self.ranks.is_alone() {
            let gradients = self.or_undo(backward(loss))?;
            if cuda::fits(&self.parameters, &gradients) {
                return self.step_on_cuda(&gradients, &[loss]).map(|_| ());
            }
        }
        let gradients = self.or_undo(self.gradients(loss))?;
        self.step(&gradients)
    }
}

#[cfg(test)]
mod tests;
