//! A trained network, opened to be evaluated and looked at.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder, VarMap};
use sha2::{Digest, Sha256};
use vmf_candle::posterior::Summary;
use vmf_candle::{Forward, Pass, Posterior, Progress, seeded};

use crate::checkpoint;
use crate::data::{self, Dataset};
use crate::methods;
use crate::methods::ivon::Ivon;
use crate::methods::swa::Swa;
use crate::model::{Network, in_layer_order, is_finite};
use crate::run::{self, Record};
use crate::settings::Config;

/// The checkpoint of an exported folder; the name is the hub's convention.
pub const EXPORTED: &str = "model.safetensors";

/// A trained network from the folder of a run or from an exported folder. Opening it writes
/// nothing, so a run can be looked at while it is being trained.
pub struct Trained {
    /// The folder.
    pub folder: PathBuf,
    /// Its configuration.
    pub config: Config,
    /// The record of each epoch.
    pub records: Vec<Record>,
    /// Number of epochs it was trained for.
    pub epoch: u64,
    /// The progress of training when it was saved.
    pub progress: Progress,
    /// Its variables: weights, rho and both sets of statistics.
    pub vars: VarMap,
    /// The posterior, which is its noise.
    pub posterior: Posterior,
    /// The network itself.
    pub model: Network,
    /// The posterior over all weights of a network that was trained with `--method ivon`.
    pub ivon: RefCell<Option<Ivon>>,
    /// The device it computes on.
    pub device: Device,
}

impl Trained {
    /// Opens the last network of a run, or the network of an exported folder.
    pub fn open(folder: &Path, device: &Device) -> Result<Self> {
        let config_file = folder.join(run::CONFIG);
        ensure!(
            config_file.is_file(),
            "{} holds no run: it has no {}",
            folder.display(),
            run::CONFIG
        );
        let config = run::read_config(&config_file)?;
        let weights = [run::LAST, EXPORTED].map(|name| folder.join(name));
        let Some(weights) = weights.iter().find(|path| path.is_file()) else {
            bail!(
                "{} holds no trained network: it has neither {} nor {EXPORTED}",
                folder.display(),
                run::LAST
            );
        };
        let checkpoint = checkpoint::open(weights, &config.network()).with_context(|| {
            let previous = folder.join(run::PREVIOUS);
            let has_previous = weights.ends_with(run::LAST) && checkpoint::is_sound(&previous);
            let way_out = match has_previous {
                true => format!(". {} is sound", previous.display()),
                false => String::new(),
            };
            format!("{} cannot be opened{way_out}", folder.display())
        })?;
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let settings = &config.settings;
        let vb = seeded(&vars, settings.seed, DType::F32, device);
        let model = Network::new(&config.network(), &posterior, vb)?;
        // The checkpoint knows how many examples it was trained on.
        let ivon = Ivon::new(settings, 1, &vars)?;
        let swa = Swa::new(settings, &vars)?;
        let vars = methods::copy_of(&vars);
        ivon.iter().for_each(|ivon| ivon.keep_in(&vars));
        swa.iter().for_each(|swa| swa.keep_in(&vars));
        checkpoint.restore(&vars, &posterior, None).with_context(|| {
            format!("{} is not the network that {} describes", weights.display(), run::CONFIG)
        })?;
        let epoch = checkpoint.progress().epoch;
        if let Some(swa) = &swa {
            swa.install(u32::try_from(epoch).unwrap_or(u32::MAX))?;
        }
        let trained = Self {
            folder: folder.into(),
            records: run::read_records(folder)?,
            epoch,
            progress: checkpoint.progress().clone(),
            config,
            vars,
            posterior,
            model,
            ivon: RefCell::new(ivon),
            device: device.clone(),
        };
        trained.ensure_finite().with_context(|| format!("{} cannot be used", weights.display()))?;
        Ok(trained)
    }

    /// Refuses a network that cannot predict, and names the first layer concerned. A value that is
    /// not finite need not show in the predictions: ReLU turns NaN into 0.
    fn ensure_finite(&self) -> Result<()> {
        let tensors = self.tensors();
        for name in in_layer_order(tensors.keys()) {
            let tensor = &tensors[name];
            ensure!(is_finite(tensor)?, "{name} holds values that are not finite");
            if name.ends_with("_var") {
                let variances = tensor.to_vec1::<f32>()?;
                ensure!(
                    variances.iter().all(|variance| *variance >= 0.0),
                    "{name} holds a negative variance"
                );
            }
        }
        Ok(())
    }

    /// The first layer whose output for these images is not finite, if there is one.
    pub fn first_overflow(&self, images: &Tensor, pass: &Pass) -> Result<Option<String>> {
        let network = self.config.network();
        let tensors = self.tensors().into_iter().collect();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &self.device);
        let mut outputs = images.clone();
        for part in network.parts()? {
            let features = network.features(std::slice::from_ref(&part), &Posterior::new(), &vb)?;
            outputs = features.forward(&outputs, pass)?;
            if !is_finite(&outputs)? {
                return Ok(Some(part.name().into()));
            }
        }
        let logits = network.classifier(&vb)?.forward(&outputs)?;
        Ok((!is_finite(&logits)?).then(|| network.classifier_name().into()))
    }

    /// The name of the folder, which is also the name of the network.
    pub fn name(&self) -> String {
        let name = self.folder.canonicalize().ok();
        let name = name.as_deref().unwrap_or(&self.folder).file_name();
        name.map_or_else(
            || self.folder.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The data set it was trained on, from `data_dir` if it is given.
    pub fn dataset(&self, data_dir: Option<&Path>) -> Result<Dataset> {
        self.dataset_with(data_dir, None)
    }

    /// Like [`dataset`](Self::dataset), with this number of test images if it is given; 0 for all.
    pub fn dataset_with(
        &self,
        data_dir: Option<&Path>,
        test_images: Option<usize>,
    ) -> Result<Dataset> {
        let stored = self.config.machine.data_dir.as_deref();
        let folder = data_dir.or(stored).map(Path::to_path_buf);
        let mut settings = self.config.settings.clone();
        settings.test_images = test_images.unwrap_or(settings.test_images);
        let set = data::load(&settings.data_request(folder))?;
        ensure!(
            set.interface().fits(&self.config.interface),
            "{} was trained on other images than {} holds now",
            self.folder.display(),
            set.name
        );
        Ok(set)
    }

    /// The record of the epoch after which it was saved. There is none for a network that was saved
    /// within an epoch or before the first.
    pub fn record(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.epoch == self.epoch)
    }

    /// The weight of the KL at the end of its training so far; 0 if training ignores the KL.
    pub fn beta(&self) -> f64 {
        let found = || self.record().or(self.records.last()).map_or(0.0, |record| record.beta);
        self.config.settings.beta_at(self.epoch as f64).unwrap_or_else(found)
    }

    /// Its variables by name.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let vars = self.vars.data().lock();
        let vars = vars.unwrap_or_else(PoisonError::into_inner);
        let tensors = vars.iter();
        tensors.map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect()
    }

    /// The SHA-256 of its variables, which identifies the network.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for (name, tensor) in self.tensors() {
            hash.update(name.as_bytes());
            let values = tensor.flatten_all()?.to_dtype(DType::F32)?;
            for value in values.to_vec1::<f32>()? {
                hash.update(value.to_le_bytes());
            }
        }
        let digest = hash.finalize();
        Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// What the noise of each layer has learned.
    pub fn summary(&self) -> Result<Summary> {
        Ok(self.posterior.summary()?)
    }
}
