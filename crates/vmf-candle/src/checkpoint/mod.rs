//! Checkpoints: a safetensors file with every variable, the optimizer's moments, and one JSON
//! document. [`Convert`] reads networks with batch normalization.
//!
//! | in the file | what |
//! |---|---|
//! | `<variable>` | weights, rho and running statistics, under their own names (below) |
//! | `posterior.output_covariance` | the covariance of the model's outputs, if it was measured |
//! | `optimizer.first.<variable>`, `optimizer.second.<variable>` | Adam's moments |
//! | metadata `vmf` | the JSON document: format version, configuration, counters, state of the trainer, the posterior's layers |
//! | metadata `sha256` | the SHA-256 of the file, with these 64 digits read as zeros |
//!
//! The checksum is compared when a file is opened, and every value must be finite when it is saved
//! and when it is opened. On a processor with instructions for SHA-256 both together take a second
//! for 1.9 GB (measured on Zen 4), and several times as long on one without.
//!
//! The variables of a layer that was built at `<layer>`:
//!
//! | variable | shape | what |
//! |---|---|---|
//! | `<layer>.weight` | (M, C / groups, k, k) or (M, D) | the weights, rows of length 1 |
//! | `<layer>.rho` | (groups) | the parameter behind sigma_eff, unless it is shared or frozen |
//! | `<norm>.running_mean`, `<norm>.running_var` | (M) | statistics of the passes with noise |
//! | `<norm>.noise_free_mean`, `<norm>.noise_free_var` | (M) | statistics of the mean pass |
//! | `<norm>.inherited_var` | (M) | what the expected pass needs; also that of a `relu_layer` |
//! | `<norm>.weight`, `<norm>.bias` | (M) | gain and shift, with [`affine`](crate::layers::VmfConfig::affine) |
//!
//! `<norm>` is `<layer>.norm`, or what [`norm_at`](crate::layers::VmfConfig::norm_at) says. With
//! `norm_at`, networks have torchvision's names: VGG `features.0` and `features.1`; ResNet `conv1` and
//! `bn1`, `layer1.0.conv1` and `layer1.0.bn1`, `layer2.0.downsample.0` and `layer2.0.downsample.1`.
//!
//! Noise is a function of seed and step, so this is all that training needs: on a CPU a resumed run
//! continues bit for bit. Any program that reads safetensors can read the file;
//! `python/load_checkpoint.py` runs one in PyTorch.

mod checksum;
mod convert;
mod file;
mod header;

pub use convert::{Convert, Converted};
/// The JSON values of [`Progress`].
pub use serde_json;

use crate::error::{Error, Result};
use crate::finite::{has_negative_variance, in_layer_order, is_finite};
use crate::posterior::{LayerSummary, Learned, Parameterization, Posterior, Summary};
use crate::train::{Adam, Moments};
use crate::vars::{assign, check, lock};
use crate::warning::warn;
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use checksum::Checksum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The version of the format that this crate writes. It reads all versions from 1 on.
///
/// Version 2 calls [`Progress::state`] what version 1 called `metrics`, and adds what the expected
/// pass needs: inherited variances and the covariance of the outputs. A network from a file of
/// version 1 has none until [`reestimate`](crate::predict::reestimate) measures them. Version 3 adds
/// the checksum. Files of versions 1 and 2 open with a warning that damage would not be noticed.
pub const FORMAT_VERSION: u64 = 3;

const METADATA_KEY: &str = "vmf";
const FORMAT_NAME: &str = "vmf-checkpoint";
const OUTPUT_COVARIANCE: &str = "posterior.output_covariance";
const FIRST: &str = "optimizer.first.";
const SECOND: &str = "optimizer.second.";

/// Where training stands: what a training loop saves in a checkpoint besides the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Progress {
    /// The configuration of model and run, in any form, such as
    /// `vmf_candle::checkpoint::serde_json::json!({ "width": 0.25 })`.
    pub config: serde_json::Value,
    /// Epochs finished.
    pub epoch: u64,
    /// Steps taken.
    pub step: u64,
    /// The seed of the run.
    pub seed: u64,
    /// What the trainer needs to continue, such as its place in the epoch and the best loss so
    /// far. A float comes back within one unit in its last place, and exactly if the program turns on
    /// the feature `float_roundtrip` of serde_json.
    #[serde(alias = "metrics")]
    pub state: serde_json::Value,
}

/// The JSON document of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u64,
    progress: Progress,
    layers: Vec<LayerRecord>,
    /// How many gradients each parameter has seen; absent without an optimizer.
    optimizer_steps: Option<BTreeMap<String, u64>>,
}

/// What [`Checkpoint::summary`] needs to know about a layer besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerRecord {
    name: String,
    dim: usize,
    units: usize,
    rho: String,
    parameterization: String,
    frozen: bool,
}

/// A checkpoint in memory.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    document: Document,
    variables: BTreeMap<String, Tensor>,
    output_covariance: Option<Tensor>,
    moments: BTreeMap<String, Moments>,
    is_verified: bool,
}

impl Checkpoint {
    /// Copies the state of a model, and of its optimizer if there is one.
    pub fn capture(
        vars: &VarMap,
        posterior: &Posterior,
        optimizer: Option<&Adam>,
        progress: Progress,
    ) -> Result<Self> {
        let mut variables = BTreeMap::new();
        for (name, var) in lock(vars).iter() {
            if name.starts_with("optimizer.") || name == OUTPUT_COVARIANCE {
                return Err(Error::Mismatch(format!(
                    "the variable {name:?} has a name that checkpoints reserve"
                )));
            }
            let copy = var.as_detached_tensor().copy()?;
            variables.insert(name.clone(), copy.to_device(&Device::Cpu)?);
        }
        let mut moments = BTreeMap::new();
        for (name, state) in optimizer.map_or(Ok(Vec::new()), Adam::state)? {
            let state = Moments {
                first: state.first.to_device(&Device::Cpu)?,
                second: state.second.to_device(&Device::Cpu)?,
                steps: state.steps,
            };
            moments.insert(name, state);
        }
        let steps = |moments: &BTreeMap<String, Moments>| {
            moments.iter().map(|(name, moments)| (name.clone(), moments.steps)).collect()
        };
        let layers = posterior
            .specs()
            .into_iter()
            .map(|spec| LayerRecord {
                name: spec.name,
                dim: spec.dim,
                units: spec.units,
                rho: spec.sigma.name().to_string(),
                parameterization: parameterization_name(spec.sigma.config().parameterization),
                frozen: spec.sigma.config().frozen,
            })
            .collect();
        Ok(Self {
            document: Document {
                format: FORMAT_NAME.into(),
                version: FORMAT_VERSION,
                progress,
                layers,
                optimizer_steps: optimizer.map(|_| steps(&moments)),
            },
            variables,
            output_covariance: posterior.output_covariance(),
            moments,
            is_verified: true,
        })
    }

    /// Writes the checkpoint, whole or not at all: an existing file is replaced only once the new
    /// one is complete.
    ///
    /// A value that is not finite is an error that names it, and an existing file stays: a network
    /// with such a value cannot be used any more, and the one in the file perhaps can.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.check_values("nothing was saved")?;
        let document = serde_json::to_string(&self.document).map_err(|error| Error::Malformed {
            path: path.to_path_buf(),
            reason: format!("its document cannot be written as JSON: {error}"),
        })?;
        let mut tensors: Vec<(String, &Tensor)> = Vec::new();
        for (name, tensor) in &self.variables {
            tensors.push((name.clone(), tensor));
        }
        tensors.extend(self.output_covariance.iter().map(|t| (OUTPUT_COVARIANCE.to_string(), t)));
        for (name, moments) in &self.moments {
            tensors.push((format!("{FIRST}{name}"), &moments.first));
            tensors.push((format!("{SECOND}{name}"), &moments.second));
        }
        file::write(path, METADATA_KEY, document, &tensors)
    }

    /// Reads a checkpoint. The file is not trusted: whatever is wrong with it is an error, and so
    /// are a checksum that differs and values that are not finite.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let checkpoint = Self::read(path, true)?;
        checkpoint.check_values(&format!("{} cannot be used", path.display()))?;
        if !checkpoint.is_verified {
            warn(format_args!(
                "{} was written by an earlier version and has no checksum, so that damage to it \
                 would not be noticed: saving it again adds one",
                path.display()
            ));
        }
        Ok(checkpoint)
    }

    /// [`open`](Self::open) without comparing the checksum and without looking at the values: to
    /// save time, or to look into a file that is damaged or that another program has changed.
    pub fn open_unverified(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(path.as_ref(), false)
    }

    /// Whether it is known to be what was saved: its checksum has been compared, or it was captured
    /// from a model and not read from a file.
    pub fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// Refuses values that are not finite, and names the first of them.
    fn check_values(&self, consequence: &str) -> Result<()> {
        let refuse = |what: String, reason: &str| {
            Err(Error::NonFiniteValue { what, reason: format!("{reason}: {consequence}") })
        };
        let layers = &self.document.layers;
        let layers: Vec<String> = layers.iter().map(|layer| layer.name.clone()).collect();
        for name in in_layer_order(self.variables.keys(), &layers) {
            let tensor = &self.variables[name];
            if !is_finite(tensor)? {
                return refuse(format!("the variable {name:?}"), "holds NaN or infinity");
            }
            if has_negative_variance(name, tensor)? {
                return refuse(format!("the variable {name:?}"), "holds a negative variance");
            }
        }
        for name in in_layer_order(self.moments.keys(), &layers) {
            let Moments { first, second, .. } = &self.moments[name];
            if !(is_finite(first)? && is_finite(second)?) {
                return refuse(format!("the moments of {name:?}"), "hold NaN or infinity");
            }
        }
        match &self.output_covariance {
            Some(covariance) if !is_finite(covariance)? => {
                refuse("the covariance of the outputs".into(), "holds NaN or infinity")
            }
            _ => Ok(()),
        }
    }

    fn read(path: &Path, verify: bool) -> Result<Self> {
        let malformed = |reason: String| Error::Malformed { path: path.to_path_buf(), reason };
        let file::Contents { mut metadata, mut tensors, checksum } = file::read(path, verify)?;
        let Some(text) = metadata.remove(METADATA_KEY) else {
            return Err(malformed("it holds tensors but no vmf document".into()));
        };
        // The version is checked before the rest, which may differ in another version.
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u64,
        }
        let not_ours = |error| malformed(format!("its document is not valid: {error}"));
        let header: Header = serde_json::from_str(&text).map_err(not_ours)?;
        if header.format != FORMAT_NAME {
            let format = header.format;
            return Err(malformed(format!("its document is of format {format:?}")));
        }
        if !(1..=FORMAT_VERSION).contains(&header.version) {
            return Err(Error::Version { found: header.version, supported: FORMAT_VERSION });
        }
        if header.version >= 3 && checksum == Checksum::Absent {
            return Err(malformed("its checksum is missing".into()));
        }
        let mut document: Document = serde_json::from_str(&text).map_err(not_ours)?;
        document.version = FORMAT_VERSION;
        let mut moments = BTreeMap::new();
        for (name, &steps) in document.optimizer_steps.iter().flatten() {
            let mut take = |prefix: &str| {
                let full = format!("{prefix}{name}");
                let tensor = tensors.remove(&full);
                tensor.ok_or_else(|| malformed(format!("{full:?} is missing")))
            };
            let state = Moments { first: take(FIRST)?, second: take(SECOND)?, steps };
            moments.insert(name.clone(), state);
        }
        if let Some(stray) = tensors.keys().find(|name| name.starts_with("optimizer.")) {
            return Err(malformed(format!("{stray:?} belongs to no parameter of its document")));
        }
        let output_covariance = tensors.remove(OUTPUT_COVARIANCE);
        if header.version == 1 {
            add_inherited_variances(&mut tensors)?;
        }
        let is_verified = checksum == Checksum::Right;
        let variables = tensors;
        let checkpoint = Self { document, variables, output_covariance, moments, is_verified };
        checkpoint.summary().map_err(|error| malformed(error.to_string()))?;
        Ok(checkpoint)
    }

    /// Where training stood.
    pub fn progress(&self) -> &Progress {
        &self.document.progress
    }

    /// The variables by name, on the CPU.
    pub fn variables(&self) -> &BTreeMap<String, Tensor> {
        &self.variables
    }

    /// A builder over the variables, for inference. What it builds cannot be trained.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        let tensors = self.variables.clone().into_iter().collect();
        VarBuilder::from_tensors(tensors, dtype, device)
    }

    /// What the posterior had learned, from the file alone.
    pub fn summary(&self) -> Result<Summary> {
        let mut uses = BTreeMap::new();
        for layer in &self.document.layers {
            *uses.entry(layer.rho.as_str()).or_insert(0) += 1;
        }
        let layers = self.document.layers.iter().map(|layer| {
            let wrong = |reason: String| Error::shape(format!("layer {:?}", layer.name), reason);
            let Some(rho) = self.variables.get(&layer.rho) else {
                return Err(wrong(format!("its parameter {:?} is missing", layer.rho)));
            };
            let parameterization = parameterization_from(&layer.parameterization)
                .ok_or_else(|| wrong(format!("unknown form {:?}", layer.parameterization)))?;
            let rho = rho.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            let sigmas: Vec<f64> = rho.iter().map(|&rho| parameterization.sigma(rho)).collect();
            LayerSummary::new(Learned {
                name: layer.name.clone(),
                dim: layer.dim,
                units: layer.units,
                sigmas,
                shared: uses[layer.rho.as_str()] > 1,
                frozen: layer.frozen,
            })
        });
        Ok(Summary::new(layers.collect::<Result<_>>()?))
    }

    /// The covariance of the model's outputs, for
    /// [`Posterior::set_output_covariance`](crate::posterior::Posterior::set_output_covariance).
    pub fn output_covariance(&self) -> Option<&Tensor> {
        self.output_covariance.as_ref()
    }

    /// Restores the variables of a model that was built as the captured one was, what its posterior
    /// knows of its outputs, and the moments of its optimizer.
    ///
    /// Names, shapes and dtypes are compared first. If one does not fit, the error names it and
    /// nothing changes.
    pub fn restore(
        &self,
        vars: &VarMap,
        posterior: &Posterior,
        optimizer: Option<&mut Adam>,
    ) -> Result<()> {
        check(vars, &self.variables)?;
        if let Some(adam) = optimizer {
            if self.document.optimizer_steps.is_none() {
                let reason = "it has no optimizer state: pass `None` to take the weights alone";
                return Err(Error::Mismatch(reason.into()));
            }
            adam.load_state(self.moments.clone().into_iter().collect())?;
        }
        if let Some(covariance) = &self.output_covariance {
            posterior.set_output_covariance(covariance)?;
        }
        assign(vars, &self.variables)
    }
}

/// Adds to the tensors of a file of version 1 what its normalizations have since: inherited
/// variances, which are zero until they are measured.
fn add_inherited_variances(tensors: &mut BTreeMap<String, Tensor>) -> Result<()> {
    let beside = |(name, tensor): (&String, &Tensor)| {
        let path = name.strip_suffix("noise_free_var")?;
        Some((format!("{path}inherited_var"), tensor.clone()))
    };
    let found: Vec<_> = tensors.iter().filter_map(beside).collect();
    for (name, tensor) in found {
        tensors.insert(name, tensor.zeros_like()?);
    }
    Ok(())
}

fn parameterization_name(parameterization: Parameterization) -> String {
    match parameterization {
        Parameterization::Exp => "exp".into(),
        Parameterization::Softplus => "softplus".into(),
    }
}

fn parameterization_from(name: &str) -> Option<Parameterization> {
    match name {
        "exp" => Some(Parameterization::Exp),
        "softplus" => Some(Parameterization::Softplus),
        _ => None,
    }
}
