//! A trained network, opened to be measured and looked at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarMap;
use sha2::{Digest, Sha256};
use vmf_candle::posterior::Summary;
use vmf_candle::{Checkpoint, Posterior, Progress, seeded};

use crate::data::{self, Dataset};
use crate::model::Vgg;
use crate::run::{self, Record};
use crate::settings::Config;

/// The weights in an exported folder, as the hub names them.
pub const EXPORTED: &str = "model.safetensors";

/// A network that was trained, from the folder of a run or from an exported one. Nothing is
/// written, so that a run can be looked at while it goes on.
pub struct Trained {
    /// The folder.
    pub folder: PathBuf,
    /// What was trained, and how.
    pub config: Config,
    /// What was recorded after each epoch.
    pub records: Vec<Record>,
    /// Epochs that this network has seen.
    pub epoch: u64,
    /// Where training stood when it was saved.
    pub progress: Progress,
    /// Its variables by name: weights, rho and both sets of statistics.
    pub vars: VarMap,
    /// Its noise.
    pub posterior: Posterior,
    /// The network itself.
    pub model: Vgg,
    /// Where it computes.
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
        let checkpoint = Checkpoint::open(weights)?;
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, config.settings.seed, DType::F32, device);
        let model = Vgg::new(&config.network(), &posterior, vb)?;
        checkpoint.restore(&vars, None).with_context(|| {
            format!("{} is not the network that {} describes", weights.display(), run::CONFIG)
        })?;
        Ok(Self {
            folder: folder.into(),
            records: run::read_records(folder)?,
            epoch: checkpoint.progress().epoch,
            progress: checkpoint.progress().clone(),
            config,
            vars,
            posterior,
            model,
            device: device.clone(),
        })
    }

    /// The name of the folder, to call the network by.
    pub fn name(&self) -> String {
        let name = self.folder.canonicalize().ok();
        let name = name.as_deref().unwrap_or(&self.folder).file_name();
        name.map_or_else(
            || self.folder.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The data set it was trained on, from this folder if one is named.
    pub fn dataset(&self, data_dir: Option<&Path>) -> Result<Dataset> {
        self.dataset_with(data_dir, None)
    }

    /// The data set it was trained on, with so many test images if that is said; 0 for all.
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
            "{} was trained on other images than {} now holds",
            self.folder.display(),
            set.name
        );
        Ok(set)
    }

    /// What was recorded when it had seen so many epochs. A network that was saved within an epoch,
    /// or before the first, is described by none.
    pub fn record(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.epoch == self.epoch)
    }

    /// The weight of the KL at the end of its training so far; 0 where the KL does not count.
    pub fn beta(&self) -> f64 {
        self.config.settings.beta_at(self.epoch as f64)
    }

    /// Its variables by name, as they are now.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let vars = self.vars.data().lock();
        let vars = vars.unwrap_or_else(PoisonError::into_inner);
        let tensors = vars.iter();
        tensors.map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect()
    }

    /// The SHA-256 of its variables: two networks that share it are the same.
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

    /// What its noise has learned.
    pub fn summary(&self) -> Result<Summary> {
        Ok(self.posterior.summary()?)
    }
}
