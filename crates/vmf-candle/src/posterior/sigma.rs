//! sigma_eff, the one number that a layer learns about its own uncertainty. It is positive by
//! construction.

use crate::dtype::stable_dtype;
use crate::error::check_setting;
use candle_core::{DType, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmf_core::Parameterization;

/// sigma_eff from rho, differentiable.
pub(crate) fn sigma_of(rho: &Tensor, parameterization: Parameterization) -> Result<Tensor> {
    match parameterization {
        Parameterization::Exp => rho.exp(),
        Parameterization::Softplus => softplus(rho),
    }
}

/// `ln sigma_eff` from rho, differentiable, finite where sigma itself would over- or underflow.
pub(crate) fn ln_sigma_of(rho: &Tensor, parameterization: Parameterization) -> Result<Tensor> {
    match parameterization {
        Parameterization::Exp => Ok(rho.clone()),
        Parameterization::Softplus => softplus(rho)?.log(),
    }
}

/// `ln(1 + exp(x))` for any x, to full relative precision, with its gradient `1 / (1 + exp(-x))`.
///
/// The gradient of the stable form `max(x, 0) + ln1p(exp(-|x|))`, taken term by term, would cancel
/// for very negative x. So value and slope are each computed in a stable form of their own, and the
/// graph holds the tangent: `value + slope * (x - detach(x))`.
pub(crate) fn softplus(x: &Tensor) -> Result<Tensor> {
    let at = x.detach();
    let tail = at.abs()?.neg()?.exp()?;
    let value = (at.maximum(0.0)? + ln_1p(&tail)?)?;
    let slope = at.ge(0.0)?.where_cond(&tail.ones_like()?, &tail)?;
    let slope = (slope / (&tail + 1.0)?)?;
    value + (slope * (x - &at)?)?
}

/// `ln(1 + t)`, accurate for small t: the factor `t / ((1 + t) - 1)` undoes the rounding of `1 + t`
/// (Kahan).
fn ln_1p(t: &Tensor) -> Result<Tensor> {
    let sum = (t + 1.0)?;
    let rounded = (&sum - 1.0)?;
    let corrected = ((sum.log()? * t)? / &rounded)?;
    rounded.eq(0.0)?.where_cond(t, &corrected)
}

/// How the noise of one layer is parameterized.
#[derive(Clone, Debug, PartialEq)]
pub struct SigmaConfig {
    /// sigma_eff before training.
    pub initial: f64,
    /// How it is kept positive.
    pub parameterization: Parameterization,
    /// The number of equal groups of channels, each with its own sigma_eff. One is the paper's
    /// method.
    pub groups: usize,
    /// Whether sigma_eff stays at its initial value. A frozen layer adds noise, its sigma_eff gets
    /// no gradient, and its KL is a constant.
    pub frozen: bool,
}

impl Default for SigmaConfig {
    fn default() -> Self {
        Self { initial: 0.1, parameterization: Parameterization::Exp, groups: 1, frozen: false }
    }
}

/// The noise parameter of one layer, or of several that share it.
#[derive(Clone, Debug)]
pub struct Sigma {
    name: String,
    rho: Tensor,
    config: SigmaConfig,
    /// Whether a layer has computed with it.
    used: Arc<AtomicBool>,
}

impl Sigma {
    /// The parameter named `rho` at the builder's path, for one layer or for several that share it.
    pub fn new(config: SigmaConfig, vb: VarBuilder) -> Result<Self> {
        let valid = config.initial > 0.0 && config.initial.is_finite();
        let requirement = "it must be positive and finite";
        check_setting(valid, "the initial sigma_eff", config.initial, requirement)?;
        let (groups, requirement) = (config.groups, "a layer has at least one");
        check_setting(groups > 0, "the number of sigma_eff groups", groups, requirement)?;
        let init = Init::Const(config.parameterization.rho(config.initial));
        let rho = vb.get_with_hints_dtype(config.groups, "rho", init, stable_dtype(vb.dtype()))?;
        let name = match vb.prefix() {
            prefix if prefix.is_empty() => "rho".to_string(),
            prefix => format!("{prefix}.rho"),
        };
        Ok(Self { name, rho, config, used: Arc::default() })
    }

    /// The name of its variable.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its settings.
    pub fn config(&self) -> &SigmaConfig {
        &self.config
    }

    /// The free parameter, one value per group. It has no gradient if it is frozen.
    pub fn rho(&self) -> Tensor {
        if self.config.frozen { self.rho.detach() } else { self.rho.clone() }
    }

    /// The variable itself, frozen or not.
    pub(crate) fn variable(&self) -> &Tensor {
        &self.rho
    }

    /// Remembers that a layer has computed with it.
    pub(crate) fn mark_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Whether a layer has computed with it.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// sigma_eff, one value per group, differentiable.
    pub fn sigma(&self) -> Result<Tensor> {
        self.mark_used();
        sigma_of(&self.rho(), self.config.parameterization)
    }

    /// sigma_eff, as numbers.
    pub fn values(&self) -> Result<Vec<f64>> {
        let rho = self.rho.detach().to_dtype(DType::F64)?.to_vec1::<f64>()?;
        Ok(rho.into_iter().map(|rho| self.config.parameterization.sigma(rho)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn sigma_and_its_logarithm_are_right_at_every_scale() -> Result<()> {
        for parameterization in [Parameterization::Exp, Parameterization::Softplus] {
            for exponent in -30..=30 {
                let sigma = 10f64.powi(exponent);
                let rho = Tensor::new(&[parameterization.rho(sigma)], &Device::Cpu)?;
                let back = sigma_of(&rho, parameterization)?.to_vec1::<f64>()?[0];
                let log = ln_sigma_of(&rho, parameterization)?.to_vec1::<f64>()?[0];
                let error = (back / sigma - 1.0).abs();
                assert!(error < 2e-14, "{parameterization:?} {sigma:e}: {error:e}");
                assert!((log - sigma.ln()).abs() < 2e-14 * sigma.ln().abs().max(1.0));
            }
        }
        Ok(())
    }

    #[test]
    fn softplus_has_the_logistic_gradient() -> Result<()> {
        for x in [-200.0f64, -40.0, -9.0, -1e-9, 0.0, 0.3, 8.0, 50.0, 300.0] {
            let var = Var::new(&[x], &Device::Cpu)?;
            let value = softplus(&var)?;
            let gradient = value.backward()?.get(&var).unwrap().to_vec1::<f64>()?[0];
            let expected =
                if x > 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) };
            assert!((gradient / expected - 1.0).abs() < 1e-12, "{x}: {gradient}");
            let expected = if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() };
            let value = value.to_vec1::<f64>()?[0];
            assert!((value / expected - 1.0).abs() < 1e-14, "{x}: {value}");
        }
        Ok(())
    }
}
