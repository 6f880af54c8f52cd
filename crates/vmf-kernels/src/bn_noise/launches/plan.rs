//! How the work is divided among blocks, and the launches that follow from it.

use super::{
    Argument, BLOCK, Launch, NoiseArguments, Problem, Running, ScaleKind, Storage, Tiling,
    kernel_name,
};
use crate::Error;
use crate::bn_noise::Config;
use crate::layout::Layout;
use crate::noise::{MAX_ELEMENTS, Noise};

/// The kernels count channels, images and positions in 32 bits, and index up to four numbers per
/// channel.
const MAX_DIMENSION: u32 = 1 << 29;

/// Blocks that the grid aims at for each multiprocessor: 2048 threads, the most that any
/// multiprocessor keeps resident.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// The fewest vectors that a thread of a reduction should sum. With fewer, merging the block costs
/// more than the sums.
const VECTORS_PER_THREAD: u64 = 4;

/// Addresses in device memory. A pass uses those that its documentation names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pointers {
    /// The input of the forward pass.
    pub u: u64,
    /// Its output.
    pub y: u64,
    /// The gradient with respect to y.
    pub dy: u64,
    /// The gradient with respect to u.
    pub du: u64,
    /// One scale for each group of channels, `f32`; not read without noise.
    pub sigma: u64,
    /// The gradient with respect to sigma, or to what it is given as.
    pub dsigma: u64,
    /// A gradient that dsigma is added to, or 0.
    pub dsigma_base: u64,
    /// Running estimates that follow the statistics of the batch, if there are any.
    pub running: Running,
    /// The given mean of each channel, `f32`.
    pub mean: u64,
    /// The given variance of each channel, `f32`.
    pub variance: u64,
    /// The standard deviation in front of an expected activation, one per channel, `f32`.
    pub deviation: u64,
    /// [`STATISTICS_PER_CHANNEL`](super::STATISTICS_PER_CHANNEL) floats per channel.
    pub statistics: u64,
    /// [`SUMS_PER_CHANNEL`](super::SUMS_PER_CHANNEL) floats per channel.
    pub sums: u64,
    /// [`Plan::partials`] floats; not used if that is 0.
    pub partials: u64,
}

/// The geometry of a pass over one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    problem: Problem,
    tiling: Tiling,
    storage: Storage,
    groups: u32,
    /// Elements that a thread loads at once: 4 or 1.
    width: u32,
    multiprocessors: u32,
}

impl Plan {
    /// Plans the passes over a tensor of `config`'s shape on a device with this many
    /// multiprocessors.
    ///
    /// `noise` is the noise and the number of scales. `aligned` says whether every tensor starts at
    /// a multiple of four elements. If not, or if the positions are not a multiple of four, threads
    /// load single elements, and each makes the Philox block that it shares with its three
    /// neighbours.
    pub fn new(
        config: &Config,
        noise: Option<(&Noise, usize)>,
        storage: Storage,
        aligned: bool,
        multiprocessors: u32,
    ) -> Result<Self, Error> {
        let shape = config.shape;
        if shape.layout != Layout::Nchw && shape.positions != 1 {
            return Err(Error::Value {
                name: "layout",
                value: format!("{:?}", shape.layout),
                requirement: "Nchw: the CUDA kernels know no other",
            });
        }
        shape.check()?;
        let elements = shape.elements() as u64;
        if elements > MAX_ELEMENTS {
            return Err(Error::TooManyElements { elements });
        }
        if let Some((noise, _)) = noise {
            noise.check(shape.elements())?;
        }
        let dimension = |name, value: usize| {
            u32::try_from(value).ok().filter(|&value| value < MAX_DIMENSION).ok_or_else(|| {
                Error::Value {
                    name,
                    value: value.to_string(),
                    requirement: "less than 2^29 on CUDA",
                }
            })
        };
        let channels = dimension("channels", shape.channels)?;
        let groups = noise.map_or(1, |(_, groups)| groups);
        let channels_per_group = match shape.channels.checked_rem(groups) {
            Some(0) => channels / groups as u32,
            _ => {
                return Err(Error::SigmaGroups { groups, channels: shape.channels });
            }
        };
        let noise =
            noise.map(|(noise, _)| NoiseArguments::new(noise, elements)).unwrap_or_default();
        let problem = Problem {
            noise,
            batch: dimension("batch", shape.batch)?,
            channels,
            positions: dimension("positions", shape.positions)?,
            channels_per_group,
            relu: config.relu.into(),
            batch_statistics: 0,
            eps: config.eps as f32,
            scale_kind: ScaleKind::Sigma as u32,
        };
        let by_four = aligned
            && problem.positions.is_multiple_of(4)
            && noise.elements_per_sample.is_multiple_of(4);
        let width = if by_four { 4 } else { 1 };
        Ok(Self {
            tiling: tiling(&problem, width, multiprocessors),
            problem,
            storage,
            groups: groups as u32,
            width,
            multiprocessors,
        })
    }

    /// The same with scales that are given as something else than sigma.
    pub fn scales(self, kind: ScaleKind) -> Self {
        Self { problem: Problem { scale_kind: kind as u32, ..self.problem }, ..self }
    }

    /// Floats of scratch memory that the reductions need; 0 if no channel is cut into parts.
    pub fn partials(&self) -> usize {
        match self.tiling.parts {
            1 => 0,
            parts => 3 * parts as usize * self.problem.channels as usize,
        }
    }

    /// How the reductions are divided.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// Computes the statistics of the batch, then y: reads u and sigma, writes statistics and y.
    pub fn forward_train(&self, at: &Pointers) -> Vec<Launch> {
        let problem = self.with_statistics(true);
        let pointers = [at.u, at.partials, at.statistics];
        let mut launches = vec![self.reduction("statistics", &pointers, &problem)];
        if self.tiling.parts > 1 {
            let name = self.name("merge_statistics");
            launches.push(self.merge(name, &pointers, &problem));
        }
        for launch in &mut launches {
            launch.arguments.insert(pointers.len(), Argument::Running(at.running));
        }
        launches.push(self.forward(at, &problem));
        launches
    }

    /// Computes y from given statistics: reads u, sigma, mean and variance, writes statistics and
    /// y.
    pub fn forward_eval(&self, at: &Pointers) -> Vec<Launch> {
        vec![self.given_statistics(at), self.forward(at, &self.with_statistics(false))]
    }

    /// Prepares given statistics: reads mean and variance, writes statistics.
    pub(super) fn given_statistics(&self, at: &Pointers) -> Launch {
        let pointers = [at.mean, at.variance, at.statistics];
        Launch {
            kernel: "given_statistics".into(),
            grid: self.problem.channels.div_ceil(BLOCK),
            arguments: arguments(&pointers, &self.with_statistics(false), None),
        }
    }

    /// An elementwise kernel with given statistics.
    pub(super) fn elementwise_eval(&self, kernel: &str, pointers: &[u64]) -> Launch {
        self.elementwise(kernel, pointers, &self.with_statistics(false))
    }

    pub(super) fn problem(&self) -> &Problem {
        &self.problem
    }

    pub(super) fn storage(&self) -> Storage {
        self.storage
    }

    /// Blocks that the device keeps resident.
    pub(super) fn resident_blocks(&self) -> u64 {
        u64::from(self.multiprocessors * BLOCKS_PER_MULTIPROCESSOR)
    }

    /// The gradient of [`Self::forward_train`]: reads u, dy, sigma and statistics, writes sums,
    /// dsigma and du.
    pub fn backward_train(&self, at: &Pointers) -> Vec<Launch> {
        let problem = self.with_statistics(true);
        let mut launches = self.gradient_sums(at, &problem);
        launches.push(self.elementwise_backward(at, &problem));
        launches
    }

    /// The gradient of [`Self::forward_eval`], whose statistics are constants.
    pub fn backward_eval(&self, at: &Pointers) -> Vec<Launch> {
        let problem = self.with_statistics(false);
        let mut launches = match problem.noise.enabled {
            0 => Vec::new(),
            _ => self.gradient_sums(at, &problem),
        };
        launches.push(self.elementwise_backward(at, &problem));
        launches
    }

    fn gradient_sums(&self, at: &Pointers, problem: &Problem) -> Vec<Launch> {
        let mut launches = vec![self.reduction(
            "gradient_sums",
            &[at.u, at.dy, at.statistics, at.sigma, at.partials, at.sums],
            problem,
        )];
        if self.tiling.parts > 1 {
            let name = "merge_gradient_sums".into();
            launches.push(self.merge(name, &[at.partials, at.sums], problem));
        }
        if problem.noise.enabled == 1 {
            launches.push(Launch {
                kernel: "group_gradients".into(),
                grid: self.groups,
                arguments: arguments(
                    &[at.sums, at.sigma, at.dsigma_base, at.dsigma],
                    problem,
                    None,
                ),
            });
        }
        launches
    }

    fn with_statistics(&self, of_the_batch: bool) -> Problem {
        Problem { batch_statistics: of_the_batch.into(), ..self.problem }
    }

    fn name(&self, kernel: &str) -> String {
        kernel_name(kernel, self.storage, self.width)
    }

    fn reduction(&self, kernel: &str, pointers: &[u64], problem: &Problem) -> Launch {
        let tiles = problem.channels.div_ceil(self.tiling.channels_per_tile);
        Launch {
            kernel: self.name(kernel),
            grid: tiles * self.tiling.parts,
            arguments: arguments(pointers, problem, Some(&self.tiling)),
        }
    }

    fn merge(&self, kernel: String, pointers: &[u64], problem: &Problem) -> Launch {
        Launch {
            kernel,
            grid: problem.channels.div_ceil(BLOCK / 32),
            arguments: arguments(pointers, problem, Some(&self.tiling)),
        }
    }

    fn forward(&self, at: &Pointers, problem: &Problem) -> Launch {
        self.elementwise("forward", &[at.u, at.statistics, at.sigma, at.y], problem)
    }

    fn elementwise_backward(&self, at: &Pointers, problem: &Problem) -> Launch {
        let pointers = [at.u, at.dy, at.statistics, at.sigma, at.sums, at.du];
        self.elementwise("backward", &pointers, problem)
    }

    fn elementwise(&self, kernel: &str, pointers: &[u64], problem: &Problem) -> Launch {
        let planes = u64::from(problem.batch) * u64::from(problem.channels);
        let vectors = planes * u64::from(problem.positions / self.width);
        Launch {
            kernel: self.name(kernel),
            grid: vectors.div_ceil(u64::from(BLOCK)).min(self.resident_blocks()) as u32,
            arguments: arguments(pointers, problem, None),
        }
    }
}

fn arguments(pointers: &[u64], problem: &Problem, tiling: Option<&Tiling>) -> Vec<Argument> {
    let pointers = pointers.iter().map(|&pointer| Argument::Pointer(pointer));
    let tiling = tiling.map(|&tiling| Argument::Tiling(tiling));
    pointers.chain([Argument::Problem(*problem)]).chain(tiling).collect()
}

/// Takes enough channels into a tile for a warp to read consecutive addresses, and enough parts to
/// fill the device.
fn tiling(problem: &Problem, width: u32, multiprocessors: u32) -> Tiling {
    let columns = problem.positions / width;
    let channels_per_tile = (32 / columns).clamp(1, problem.channels);
    let tiles = problem.channels.div_ceil(channels_per_tile);
    let batch = u64::from(problem.batch);
    let vectors = batch * u64::from(channels_per_tile * columns);
    let useful = vectors.div_ceil(u64::from(BLOCK) * VECTORS_PER_THREAD);
    let filling = u64::from((multiprocessors * BLOCKS_PER_MULTIPROCESSOR).div_ceil(tiles));
    let divisible = if channels_per_tile == 1 { vectors } else { batch };
    let part_length = divisible.div_ceil(useful.min(filling).clamp(1, divisible));
    Tiling { part_length, channels_per_tile, parts: divisible.div_ceil(part_length) as u32 }
}
