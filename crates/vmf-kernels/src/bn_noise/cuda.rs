//! The operation on a CUDA device: the launcher of bn_noise.cu (feature `cuda`).
//!
//! The functions mirror those of the [parent module](super), on buffers in device memory and on the
//! caller's stream. They return as soon as the kernels are queued. Tensors are NCHW, stored in
//! `f32`, `f16` or `bf16`; statistics, sigma and dsigma are `f32`.
//!
//! # Memory traffic
//!
//! With b bytes of storage, an element costs 3 b bytes in the forward pass of training, 2 b in
//! evaluation and 5 b in the backward pass: 12, 8 and 20 in `f32`, half of that in `f16` and
//! `bf16`. The noise is made again in registers, and with it the sign of y, so the backward pass
//! takes no y.
//!
//! # Compilation
//!
//! NVRTC compiles the kernels for the device at hand when a storage is first used on it. They are
//! kept for the life of the process. No float is added atomically: a pass gives the same bits every
//! time on the same device.
//!
//! # What has been checked
//!
//! This code has not run on a GPU yet. The project's tests execute its kernels on the CPU, from the
//! source and from the PTX that NVRTC makes of it, and run this launcher on a stand-in for the
//! driver. None of these shows how fast it is. The package `cuda-check` has the suite to run on a
//! GPU.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut,
    DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use half::{bf16, f16};

use super::Config;
use super::launches::{
    self, Argument, BLOCK, Launch, Plan, Pointers, Problem, Running, STATISTICS_PER_CHANNEL,
    SUMS_PER_CHANNEL, ScaleKind, Storage, Tiling, Windows, Words,
};
use crate::error::check_length;
use crate::noise::Noise;

/// Why a pass could not be launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments do not fit together.
    #[error(transparent)]
    Arguments(#[from] crate::Error),

    /// A buffer is on another device than the stream.
    #[error("`{name}` is on device {actual}, the stream on device {expected}; copy it there first")]
    Device {
        /// The argument's name.
        name: &'static str,
        /// Its device.
        actual: usize,
        /// The stream's device.
        expected: usize,
    },

    /// The driver refused to allocate or to launch.
    #[error("the CUDA driver failed: {0}")]
    Driver(#[from] DriverError),

    /// cuDNN failed.
    #[error("cuDNN failed in {what}: {reason}")]
    Cudnn {
        /// What it was to do.
        what: String,
        /// What it said.
        reason: String,
    },

    /// The kernels could not be compiled.
    #[error("NVRTC could not compile the kernels for {architecture}: {message}")]
    Compile {
        /// The architecture they were compiled for.
        architecture: String,
        /// What NVRTC said.
        message: String,
    },
}

/// A type that the kernels store tensors in: `f32`, `f16` or `bf16`.
pub trait CudaElement: crate::Element + DeviceRepr {
    /// Its name among the storages.
    const STORAGE: Storage;
}

impl CudaElement for f32 {
    const STORAGE: Storage = Storage::F32;
}
impl CudaElement for f16 {
    const STORAGE: Storage = Storage::F16;
}
impl CudaElement for bf16 {
    const STORAGE: Storage = Storage::Bf16;
}

/// The term sigma * z: the noise, and its scale for each group of channels, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct NoiseTerm<'a> {
    /// Where z comes from.
    pub noise: Noise,
    /// G scales. G divides C, and channel c uses the scale `c / (C / G)`.
    pub sigma: &'a CudaView<'a, f32>,
    /// What the scales are given as; gradients are with respect to that.
    pub kind: ScaleKind,
}

/// Running estimates of mean and variance, in device memory.
#[derive(Debug)]
pub struct RunningEstimates<'a> {
    /// Means and variances of up to two sets of estimates: one value per channel each.
    pub sets: [Option<[CudaView<'a, f32>; 2]>; 2],
    /// The weight of the batch.
    pub weight: f64,
    /// How many values per channel the batch has, for the unbiased variance.
    pub count: usize,
}

/// The statistics a forward pass normalized with, in device memory.
#[derive(Debug)]
pub struct Statistics {
    /// [mean][variance][rstd][remainder]: the exact mean is mean + remainder.
    values: CudaSlice<f32>,
    channels: usize,
}

impl Statistics {
    /// The mean of each channel, rounded to `f32`.
    pub fn mean(&self) -> CudaView<'_, f32> {
        self.field(0)
    }

    /// The biased variance of each channel.
    pub fn variance(&self) -> CudaView<'_, f32> {
        self.field(1)
    }

    /// 1 / sqrt(variance + eps) of each channel.
    pub fn rstd(&self) -> CudaView<'_, f32> {
        self.field(2)
    }

    /// Copies them to the host, waiting for the stream.
    pub fn to_host(&self, stream: &Arc<CudaStream>) -> Result<super::Statistics, Error> {
        let values = stream.clone_dtoh(&self.values)?;
        let field = |index: usize| &values[index * self.channels..][..self.channels];
        let mean = field(0).iter().zip(field(3));
        Ok(super::Statistics {
            mean: mean.map(|(&mean, &rest)| f64::from(mean) + f64::from(rest)).collect(),
            var: field(1).iter().map(|&variance| variance.into()).collect(),
        })
    }

    fn field(&self, index: usize) -> CudaView<'_, f32> {
        self.values.slice(index * self.channels..(index + 1) * self.channels)
    }
}

/// Normalizes with the statistics of this batch, writes y and returns the statistics.
pub fn forward_train<T: CudaElement>(
    stream: &Arc<CudaStream>,
    config: &Config,
    noise: Option<NoiseTerm>,
    u: &impl DevicePtr<T>,
    y: &mut impl DevicePtrMut<T>,
) -> Result<Statistics, Error> {
    forward_train_following(stream, config, noise, None, u, y)
}

/// [`forward_train`], where running estimates follow the statistics of the batch: the kernel that
/// finishes the statistics also writes them. Channels that are not finite are left as they are.
pub fn forward_train_following<T: CudaElement>(
    stream: &Arc<CudaStream>,
    config: &Config,
    noise: Option<NoiseTerm>,
    running: Option<RunningEstimates>,
    u: &impl DevicePtr<T>,
    y: &mut impl DevicePtrMut<T>,
) -> Result<Statistics, Error> {
    let launcher = Launcher::new::<T>(stream, config, noise)?;
    launcher.check("u", u, config.shape.elements())?;
    launcher.check("y", y, config.shape.elements())?;
    let mut statistics = launcher.statistics()?;
    {
        let (u, _u) = u.device_ptr(stream);
        let (y, _y) = y.device_ptr_mut(stream);
        let plan = launcher.plan(&[u, y])?;
        let mut partials = launcher.scratch(plan.partials())?;
        let (partials, _partials) = launcher.pointer_mut(&mut partials);
        let (sigma, _sigma) = launcher.sigma();
        let (statistics, _statistics) = statistics.values.device_ptr_mut(stream);
        let (running, _running) = launcher.running(running.as_ref())?;
        let at = Pointers { u, y, sigma, statistics, partials, running, ..Pointers::default() };
        launcher.launch(&plan.forward_train(&at))?;
    }
    Ok(statistics)
}

/// Normalizes with given statistics, usually running estimates, and writes y. Returns what
/// [`backward_eval`] needs.
pub fn forward_eval<T: CudaElement>(
    stream: &Arc<CudaStream>,
    config: &Config,
    noise: Option<NoiseTerm>,
    mean: &impl DevicePtr<f32>,
    variance: &impl DevicePtr<f32>,
    u: &impl DevicePtr<T>,
    y: &mut impl DevicePtrMut<T>,
) -> Result<Statistics, Error> {
    let launcher = Launcher::new::<T>(stream, config, noise)?;
    launcher.check("u", u, config.shape.elements())?;
    launcher.check("y", y, config.shape.elements())?;
    launcher.check("mean", mean, config.shape.channels)?;
    launcher.check("variance", variance, config.shape.channels)?;
    let mut statistics = launcher.statistics()?;
    {
        let (u, _u) = u.device_ptr(stream);
        let (y, _y) = y.device_ptr_mut(stream);
        let (mean, _mean) = mean.device_ptr(stream);
        let (variance, _variance) = variance.device_ptr(stream);
        let (sigma, _sigma) = launcher.sigma();
        let (statistics, _statistics) = statistics.values.device_ptr_mut(stream);
        let at = Pointers { u, y, sigma, mean, variance, statistics, ..Pointers::default() };
        launcher.launch(&launcher.plan(&[u, y])?.forward_eval(&at))?;
    }
    Ok(statistics)
}

/// The gradient of [`forward_train`]: writes du and returns dsigma, one value for each scale (none
/// without noise).
///
/// `config`, `noise` and `statistics` must be those of the forward launcher.
pub fn backward_train<T: CudaElement>(
    stream: &Arc<CudaStream>,
    config: &Config,
    noise: Option<NoiseTerm>,
    statistics: &Statistics,
    u: &impl DevicePtr<T>,
    dy: &impl DevicePtr<T>,
    du: &mut impl DevicePtrMut<T>,
) -> Result<Option<CudaSlice<f32>>, Error> {
    backward_train_onto(stream, config, noise, None, statistics, u, dy, du)
}

/// [`backward_train`], where dsigma is added to another gradient of the scales.
#[allow(clippy::too_many_arguments, reason = "those of backward_train and one more")]
pub fn backward_train_onto<T: CudaElement>(
    stream: &Arc<CudaStream>,
    config: &Config,
    noise: Option<NoiseTerm>,
    base: Option<&CudaView<f32>>,
    statistics: &Statistics,
    u: &impl DevicePtr<T>,
    dy: &impl DevicePtr<T>,
    du: &mut impl DevicePtrMut<T>,
) -> Result<Option<CudaSlice<f32>>, Error> {
    let launcher = Launcher::new::<T>(stream, config, noise)?;
    launcher.backward(Plan::backward_train, base, statistics, u, dy, du)
}

/// The gradient of [`forward_eval`], whose statistics are constants: writes du and returns dsigma.
pub fn backward_eval<T: CudaElement>(
    stream: &Arc<CudaStream>,
    config: &Config,
    noise: Option<NoiseTerm>,
    statistics: &Statistics,
    u: &impl DevicePtr<T>,
    dy: &impl DevicePtr<T>,
    du: &mut impl DevicePtrMut<T>,
) -> Result<Option<CudaSlice<f32>>, Error> {
    let launcher = Launcher::new::<T>(stream, config, noise)?;
    launcher.backward(Plan::backward_eval, None, statistics, u, dy, du)
}

/// What the four passes share.
pub(crate) struct Launcher<'a> {
    stream: &'a Arc<CudaStream>,
    config: &'a Config,
    noise: Option<NoiseTerm<'a>>,
    storage: Storage,
}

impl<'a> Launcher<'a> {
    pub(crate) fn new<T: CudaElement>(
        stream: &'a Arc<CudaStream>,
        config: &'a Config,
        noise: Option<NoiseTerm<'a>>,
    ) -> Result<Self, Error> {
        let launcher = Self { stream, config, noise, storage: T::STORAGE };
        if let Some(NoiseTerm { sigma, .. }) = noise {
            launcher.check("sigma", sigma, sigma.len())?;
        }
        Ok(launcher)
    }

    pub(crate) fn check<T>(
        &self,
        name: &'static str,
        buffer: &impl cudarc::driver::DeviceSlice<T>,
        length: usize,
    ) -> Result<(), Error> {
        check(self.stream, name, buffer, length)
    }

    pub(crate) fn plan(&self, tensors: &[u64]) -> Result<Plan, Error> {
        let unit = 4 * self.storage.bytes() as u64;
        let aligned = tensors.iter().all(|tensor| tensor.is_multiple_of(unit));
        let noise = self.noise.as_ref().map(|term| (&term.noise, term.sigma.len()));
        let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = self.stream.context().attribute(count)?.max(1) as u32;
        let plan = Plan::new(self.config, noise, self.storage, aligned, multiprocessors)?;
        Ok(plan.scales(self.noise.map_or(ScaleKind::Sigma, |term| term.kind)))
    }

    pub(crate) fn scratch(&self, floats: usize) -> Result<Option<CudaSlice<f32>>, Error> {
        if floats == 0 {
            return Ok(None);
        }
        // SAFETY: every pass writes each float of its scratch memory before reading it.
        Ok(Some(unsafe { self.stream.alloc(floats) }?))
    }

    pub(crate) fn pointer_mut<'b>(
        &'b self,
        buffer: &'b mut Option<CudaSlice<f32>>,
    ) -> (u64, Option<cudarc::driver::SyncOnDrop<'b>>) {
        match buffer {
            Some(buffer) => {
                let (pointer, guard) = buffer.device_ptr_mut(self.stream);
                (pointer, Some(guard))
            }
            None => (0, None),
        }
    }

    fn sigma(&self) -> (u64, Option<cudarc::driver::SyncOnDrop<'_>>) {
        match &self.noise {
            Some(term) => {
                let (pointer, guard) = term.sigma.device_ptr(self.stream);
                (pointer, Some(guard))
            }
            None => (0, None),
        }
    }

    /// The estimates as the kernels take them.
    fn running<'b>(
        &'b self,
        running: Option<&'b RunningEstimates>,
    ) -> Result<(Running, Vec<cudarc::driver::SyncOnDrop<'b>>), Error> {
        let (mut at, mut guards) = (Running::default(), Vec::new());
        let Some(running) = running else { return Ok((at, guards)) };
        at.weight = running.weight as f32;
        at.unbiased = (running.count as f64 / (running.count as f64 - 1.0)) as f32;
        for (place, set) in running.sets.iter().enumerate() {
            let Some([mean, variance]) = set else { continue };
            for (estimate, to) in [(mean, &mut at.mean[place]), (variance, &mut at.variance[place])]
            {
                self.check("running", estimate, self.config.shape.channels)?;
                let (pointer, guard) = estimate.device_ptr(self.stream);
                *to = pointer;
                guards.push(guard);
            }
        }
        Ok((at, guards))
    }

    fn statistics(&self) -> Result<Statistics, Error> {
        let channels = self.config.shape.channels;
        // At least one float, because the driver refuses to allocate nothing. The plan, which is
        // made after this, rejects an empty shape.
        let floats = (STATISTICS_PER_CHANNEL * channels).max(1);
        Ok(Statistics {
            // SAFETY: the forward passes write all of it.
            values: unsafe { self.stream.alloc(floats) }?,
            channels,
        })
    }

    fn backward<T: CudaElement>(
        &self,
        launches: impl Fn(&Plan, &Pointers) -> Vec<Launch>,
        base: Option<&CudaView<f32>>,
        statistics: &Statistics,
        u: &impl DevicePtr<T>,
        dy: &impl DevicePtr<T>,
        du: &mut impl DevicePtrMut<T>,
    ) -> Result<Option<CudaSlice<f32>>, Error> {
        let (stream, shape) = (self.stream, self.config.shape);
        self.check("u", u, shape.elements())?;
        self.check("dy", dy, shape.elements())?;
        self.check("du", du, shape.elements())?;
        self.check("statistics", &statistics.values, STATISTICS_PER_CHANNEL * shape.channels)?;
        let groups = self.noise.map_or(0, |term| term.sigma.len());
        if let Some(base) = base {
            self.check("the other gradient of sigma", base, groups)?;
        }
        let mut dsigma = self.scratch(groups)?;
        {
            let (u, _u) = u.device_ptr(stream);
            let (dy, _dy) = dy.device_ptr(stream);
            let (du, _du) = du.device_ptr_mut(stream);
            let plan = self.plan(&[u, dy, du])?;
            let mut sums = self.scratch(SUMS_PER_CHANNEL * shape.channels)?;
            let mut partials = self.scratch(plan.partials())?;
            let (sigma, _sigma) = self.sigma();
            let (dsigma, _dsigma) = self.pointer_mut(&mut dsigma);
            let base = base.map(|base| base.device_ptr(stream));
            let dsigma_base = base.as_ref().map_or(0, |(pointer, _)| *pointer);
            let (statistics, _statistics) = statistics.values.device_ptr(stream);
            let (sums, _sums) = self.pointer_mut(&mut sums);
            let (partials, _partials) = self.pointer_mut(&mut partials);
            let at = Pointers {
                u,
                dy,
                du,
                sigma,
                dsigma,
                dsigma_base,
                statistics,
                sums,
                partials,
                ..Pointers::default()
            };
            self.launch(&launches(&plan, &at))?;
        }
        Ok(dsigma)
    }

    pub(crate) fn launch(&self, launches: &[Launch]) -> Result<(), Error> {
        launch(self.stream, self.storage, launches)
    }
}

/// Checks the length and the device of a buffer.
pub(crate) fn check<T>(
    stream: &Arc<CudaStream>,
    name: &'static str,
    buffer: &impl cudarc::driver::DeviceSlice<T>,
    length: usize,
) -> Result<(), Error> {
    check_length(name, buffer.len(), length)?;
    let expected = stream.context().ordinal();
    let actual = buffer.stream().context().ordinal();
    if actual != expected {
        return Err(Error::Device { name, actual, expected });
    }
    Ok(())
}

/// Queues launches of the kernels of a storage.
pub(crate) fn launch(
    stream: &Arc<CudaStream>,
    storage: Storage,
    launches: &[Launch],
) -> Result<(), Error> {
    let kernels = kernels(stream.context(), storage)?;
    for launch in launches {
        let mut builder = stream.launch_builder(&kernels[&launch.kernel]);
        for argument in &launch.arguments {
            match argument {
                Argument::Pointer(pointer) => builder.arg(pointer),
                Argument::Problem(problem) => builder.arg(problem),
                Argument::Tiling(tiling) => builder.arg(tiling),
                Argument::Windows(windows) => builder.arg(windows),
                Argument::Running(running) => builder.arg(running),
                Argument::Words(words) => builder.arg(words),
            };
        }
        let grid = LaunchConfig {
            grid_dim: (launch.grid, 1, 1),
            block_dim: (BLOCK, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the launches list each kernel's arguments in its order, and the callers have
        // compared the length and the device of every buffer with what the launch was made for.
        unsafe { builder.launch(grid) }?;
    }
    Ok(())
}

// SAFETY: plain numbers in the layout of the C structs that they mirror.
unsafe impl DeviceRepr for Problem {}
// SAFETY: as above.
unsafe impl DeviceRepr for Tiling {}
// SAFETY: as above.
unsafe impl DeviceRepr for Windows {}
// SAFETY: as above.
unsafe impl DeviceRepr for Running {}
// SAFETY: its words come first, and a kernel reads no more of them than it has.
unsafe impl DeviceRepr for Words {}

type Kernels = Arc<HashMap<String, CudaFunction>>;

/// The kernels of a storage in a context, compiled and loaded at the first call.
fn kernels(context: &Arc<CudaContext>, storage: Storage) -> Result<Kernels, Error> {
    // The key is the context and not the ordinal, because a process may have several contexts on
    // one device. A loaded kernel keeps its context alive, so no address in the map is ever
    // reused.
    static LOADED: Mutex<Option<HashMap<(usize, Storage), Kernels>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    let key = (context.cu_ctx() as usize, storage);
    if let Some(kernels) = loaded.get(&key) {
        return Ok(kernels.clone());
    }
    let (major, minor) = context.compute_capability()?;
    let module = context.load_module(compile(storage, &format!("compute_{major}{minor}"))?)?;
    let functions = launches::kernels(storage)
        .into_iter()
        .map(|name| Ok((name.clone(), module.load_function(&name)?)))
        .collect::<Result<HashMap<_, _>, DriverError>>()?;
    let kernels = Arc::new(functions);
    loaded.insert(key, kernels.clone());
    Ok(kernels)
}

/// The PTX that NVRTC makes of the kernels for a virtual architecture such as `compute_80`. This
/// needs no device.
pub fn compile(storage: Storage, architecture: &str) -> Result<Ptx, Error> {
    compile_source(&launches::source(storage), architecture)
}

/// The PTX that NVRTC makes of a CUDA source, with the options that the kernels are compiled with.
pub fn compile_source(source: &str, architecture: &str) -> Result<Ptx, Error> {
    let options = CompileOptions {
        // Approximate division and root are within 2 ulp, and cost a quarter of the exact ones.
        prec_div: Some(false),
        prec_sqrt: Some(false),
        name: Some("bn_noise.cu".into()),
        options: vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into()],
        ..CompileOptions::default()
    };
    // cudarc panics if it is to load libnvrtc at run time and does not find it.
    let compiled = catch_unwind(AssertUnwindSafe(|| compile_ptx_with_opts(source, options)));
    let message = match compiled {
        Ok(Ok(ptx)) => return Ok(ptx),
        Ok(Err(CompileError::CompileError { log, .. })) => log.to_string_lossy().into_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the library libnvrtc was not found; install the CUDA toolkit, or add its lib \
                   folder to the library path"
            .into(),
    };
    Err(Error::Compile { architecture: architecture.into(), message })
}
