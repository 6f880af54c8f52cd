//! Converts a trained network with batch normalization to a variational one that computes the same.
//!
//! A convolution with weight w, bias b and a normalization with statistics (m, v), gain and shift
//! gives
//!
//! ```text
//! gain * (w . x + b - m) / sqrt(v + eps) + shift
//! ```
//!
//! Dividing w, m - b and sqrt(v + eps) by |w| does not change the result. The weight is then on the
//! unit sphere, the bias is part of the mean, and the expression is the variational unit at
//! sigma_eff = 0 with a gain and a shift. Training begins at a positive sigma_eff.

use crate::error::{Error, Result, check_setting};
use crate::posterior::Parameterization;
use crate::sphere::unit_rows;
use crate::vars::{assign, lock};
use candle_core::{DType, Tensor};
use candle_nn::VarMap;
use std::collections::{BTreeMap, HashMap};

/// How to convert a state dict of a network with batch normalization, such as torchvision's
/// `vgg16_bn`. The variational network has the same logits in the pass without noise.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use std::collections::HashMap;
/// use vmf_candle::checkpoint::Convert;
/// # fn main() -> vmf_candle::Result<()> {
/// # let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu);
/// # let state = HashMap::from([
/// #     ("features.0.weight".to_string(), ones(&[8, 3, 3, 3])?),
/// #     ("features.1.running_mean".to_string(), ones(&[8])?),
/// # ]);
/// let converted = Convert::new().state_dict(&state)?;
/// assert_eq!(converted.units, [("features.0".into(), "features.1".into())]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Convert {
    source_eps: f64,
    eps: f64,
    sigma: f64,
    parameterization: Parameterization,
    pairs: Vec<(String, String)>,
}

impl Default for Convert {
    fn default() -> Self {
        Self {
            source_eps: 1e-5,
            eps: 1e-5,
            sigma: 0.1,
            parameterization: Parameterization::Exp,
            pairs: Vec::new(),
        }
    }
}

/// A converted state dict.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Converted {
    /// Every tensor of the variational network, by name: for `VarBuilder::from_tensors`, or see
    /// [`Converted::load_into`].
    pub tensors: HashMap<String, Tensor>,
    /// The names of the layers that became units, each with the name of its normalization.
    pub units: Vec<(String, String)>,
}

impl Convert {
    /// For networks with eps = 1e-5 and torchvision's names: a layer `features.0` with its
    /// normalization `features.1`, or `layer1.0.conv2` with `layer1.0.bn2`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names a layer and its normalization that do not follow the rule.
    pub fn pair(mut self, layer: impl Into<String>, norm: impl Into<String>) -> Self {
        self.pairs.push((layer.into(), norm.into()));
        self
    }

    /// The eps of the network's normalizations.
    pub fn source_eps(self, source_eps: f64) -> Self {
        Self { source_eps, ..self }
    }

    /// The eps that the variational layers are built with.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The sigma_eff that training starts from, and how it is kept positive.
    pub fn sigma(self, sigma: f64, parameterization: Parameterization) -> Self {
        Self { sigma, parameterization, ..self }
    }

    /// Converts the variables of a Candle model.
    pub fn vars(&self, vars: &VarMap) -> Result<Converted> {
        let state =
            lock(vars).iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        self.state_dict(&state)
    }

    /// Converts a state dict. Each linear or convolutional layer with a normalization becomes a
    /// unit, for a layer built with `VmfConfig::default().affine().norm_at(..)`. All other tensors
    /// stay as they are.
    pub fn state_dict(&self, state: &HashMap<String, Tensor>) -> Result<Converted> {
        let (valid, requirement) =
            (self.sigma > 0.0 && self.sigma.is_finite(), "it must be positive and finite");
        check_setting(valid, "the initial sigma_eff", self.sigma, requirement)?;
        let units = self.find_units(state)?;
        let mut tensors: HashMap<String, Tensor> = state
            .iter()
            .filter(|(name, _)| !name.ends_with("num_batches_tracked"))
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect();
        for (layer, norm) in &units {
            tensors.remove(&format!("{layer}.bias"));
            for (name, tensor) in self.unit(state, layer, norm)? {
                tensors.insert(name, tensor);
            }
        }
        Ok(Converted { tensors, units })
    }

    /// Layers with a normalization behind them, sorted by name.
    fn find_units(&self, state: &HashMap<String, Tensor>) -> Result<Vec<(String, String)>> {
        let is_norm = |name: &str| state.contains_key(&format!("{name}.running_mean"));
        for (layer, norm) in &self.pairs {
            let weight = format!("{layer}.weight");
            for (name, there) in [(&weight, state.contains_key(&weight)), (norm, is_norm(norm))] {
                if !there {
                    return Err(Error::Convert {
                        name: name.clone(),
                        reason: "the state dict has none of that name".into(),
                    });
                }
            }
        }
        let mut units = self.pairs.clone();
        for (name, tensor) in state {
            let Some(layer) = name.strip_suffix(".weight") else {
                continue;
            };
            if tensor.rank() < 2 || units.iter().any(|(known, _)| known == layer) {
                continue;
            }
            if let Some(norm) = norm_beside(layer).filter(|norm| is_norm(norm)) {
                units.push((layer.to_string(), norm));
            }
        }
        if units.is_empty() {
            return Err(Error::Convert {
                name: "the state dict".into(),
                reason: "no layer has a normalization beside it: name them with `Convert::pair`"
                    .into(),
            });
        }
        units.sort();
        Ok(units)
    }

    /// The tensors of one unit.
    fn unit(
        &self,
        state: &HashMap<String, Tensor>,
        layer: &str,
        norm: &str,
    ) -> Result<Vec<(String, Tensor)>> {
        let refuse = |reason: String| Error::Convert { name: layer.into(), reason };
        let weight = &state[&format!("{layer}.weight")];
        let units = weight.dim(0)?;
        let channels = |name: String, default: f64| -> Result<Tensor> {
            match state.get(&name) {
                None => Ok((Tensor::ones(units, DType::F64, weight.device())? * default)?),
                Some(tensor) if tensor.dims() == [units] => Ok(tensor.to_dtype(DType::F64)?),
                Some(tensor) => {
                    Err(refuse(format!("{name:?} has shape {:?} for {units} units", tensor.dims())))
                }
            }
        };
        let rows = weight.to_dtype(DType::F64)?.flatten_from(1)?;
        let lengths = rows.sqr()?.sum(1)?.sqrt()?;
        if lengths.min_all()?.to_scalar::<f64>()? <= 0.0 {
            return Err(refuse(
                "one of its units has a weight of zeros, which has no direction".into(),
            ));
        }
        let mean = channels(format!("{norm}.running_mean"), 0.0)?;
        let bias = channels(format!("{layer}.bias"), 0.0)?;
        let var = channels(format!("{norm}.running_var"), 1.0)?;
        let mean = ((mean - bias)? / &lengths)?;
        // v' = (v + eps) / |w|^2 - eps' is negative for a channel that was nearly constant. It is
        // then set to 0.
        let var = (((var + self.source_eps)? / lengths.sqr()?)? - self.eps)?.maximum(0.0)?;
        let dtype = weight.dtype();
        let rho = Tensor::new(&[self.parameterization.rho(self.sigma)], weight.device())?;
        let named = [
            (format!("{layer}.weight"), unit_rows(weight)?),
            (format!("{layer}.rho"), rho),
            (format!("{norm}.running_mean"), mean.clone()),
            (format!("{norm}.running_var"), var.clone()),
            (format!("{norm}.noise_free_mean"), mean),
            (format!("{norm}.noise_free_var"), var),
            (format!("{norm}.inherited_var"), lengths.zeros_like()?),
            (format!("{norm}.weight"), channels(format!("{norm}.weight"), 1.0)?),
            (format!("{norm}.bias"), channels(format!("{norm}.bias"), 0.0)?),
        ];
        named.into_iter().map(|(name, tensor)| Ok((name, tensor.to_dtype(dtype)?))).collect()
    }
}

/// The normalization of `a.0` is `a.1`, that of `a.conv2` is `a.bn2`.
fn norm_beside(layer: &str) -> Option<String> {
    let (parent, own) = match layer.rsplit_once('.') {
        Some((parent, own)) => (format!("{parent}."), own),
        None => (String::new(), layer),
    };
    if let Ok(index) = own.parse::<usize>() {
        return Some(format!("{parent}{}", index.checked_add(1)?));
    }
    own.strip_prefix("conv").map(|number| format!("{parent}bn{number}"))
}

impl Converted {
    /// Gives the variables of a model their converted values, so that training can continue. The
    /// model must have exactly these variables; dtypes are converted.
    pub fn load_into(&self, vars: &VarMap) -> Result<()> {
        let mut tensors = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            let dtype = lock(vars).get(name).map(|var| var.dtype());
            let tensor = tensor.to_dtype(dtype.unwrap_or(tensor.dtype()))?;
            tensors.insert(name.clone(), tensor);
        }
        assign(vars, &tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_norm_by_torchvisions_names() {
        assert_eq!(norm_beside("features.0").as_deref(), Some("features.1"));
        assert_eq!(norm_beside("layer1.0.conv2").as_deref(), Some("layer1.0.bn2"));
        assert_eq!(norm_beside("conv1").as_deref(), Some("bn1"));
        assert_eq!(norm_beside("layer2.0.downsample.0").as_deref(), Some("layer2.0.downsample.1"));
        assert_eq!(norm_beside("head"), None);
    }
}
