//! The kernels of expected activations, compared with closed forms in double precision.

use vmf_core::expected::{Gaussian, maximum_of_window, relu};
use vmf_kernels::bn_noise::Config;
use vmf_kernels::bn_noise::launches::{Launch, Plan, Pointers, STATISTICS_PER_CHANNEL, Storage};

use crate::case::{Case, decode, encode};
use crate::check::tolerance;
use crate::machine::Machine;

/// One tensor, whose images may be pooled over 2x2 windows.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Images and channels.
    pub planes: (usize, usize),
    /// Height and width.
    pub image: [usize; 2],
    /// Whether they are pooled.
    pub pooled: bool,
    /// Whether u and y start at an address that is not aligned for vector loads.
    pub misaligned: bool,
}

/// The cases: sizes that are and are not multiples of four, odd images, whose last row and column
/// are in no window, and more outputs than one grid has threads.
pub fn cases() -> Vec<Expected> {
    let sizes = [
        ((1, 1), [1, 1]),
        ((3, 7), [1, 1]),
        ((2, 6), [2, 2]),
        ((3, 5), [3, 5]),
        ((2, 13), [4, 4]),
        ((5, 3), [7, 6]),
        ((9, 33), [8, 8]),
    ];
    let mut cases = Vec::new();
    for (planes, image) in sizes {
        for pooled in [false, true] {
            if !pooled || image[0] > 1 {
                cases.push(Expected { planes, image, pooled, misaligned: false });
            }
        }
    }
    cases.push(Expected { planes: (2, 6), image: [4, 4], pooled: false, misaligned: true });
    cases.push(Expected { planes: (2, 6), image: [4, 4], pooled: true, misaligned: true });
    cases
}

impl Expected {
    /// The case whose activations and statistics it uses.
    pub fn case(&self) -> Case {
        let (batch, channels) = self.planes;
        Case { groups: 0, train: false, ..Case::new(batch, channels, self.image.iter().product()) }
    }

    /// Its configuration.
    pub fn config(&self) -> Config {
        self.case().config()
    }

    /// Its input.
    pub fn input(&self, storage: Storage) -> Vec<f64> {
        let (mean, deviation) = self.case().activations;
        self.case().tensor(storage, 1, mean, deviation)
    }

    /// The s of each channel: from no noise at all to noise that drowns the signal.
    pub fn deviation(&self) -> Vec<f32> {
        (0..self.planes.1).map(|c| [0.7, 0.0, 1e-4, 0.05, 5.0][c % 5]).collect()
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        let [height, width] = self.image;
        let positions = if self.pooled { height / 2 * (width / 2) } else { height * width };
        self.planes.0 * self.planes.1 * positions
    }

    /// What the closed forms say.
    fn reference(&self, storage: Storage) -> Vec<f64> {
        let (mean, variance) = self.case().given();
        let (u, deviation, [height, width]) = (self.input(storage), self.deviation(), self.image);
        let gaussian = |plane: usize, row: usize, column: usize| {
            let c = plane % self.planes.1;
            let rstd = 1.0 / (f64::from(variance[c]) + self.config().eps).sqrt();
            let u = u[(plane * height + row) * width + column];
            Gaussian::new((u - f64::from(mean[c])) * rstd, f64::from(deviation[c]))
        };
        let mut outputs = Vec::new();
        for plane in 0..self.planes.0 * self.planes.1 {
            let step = if self.pooled { 2 } else { 1 };
            for row in (0..height + 1 - step).step_by(step) {
                for column in (0..width + 1 - step).step_by(step) {
                    let at = |i: usize| gaussian(plane, row + i / 2, column + i % 2);
                    outputs.push(match self.pooled {
                        true => relu(maximum_of_window([0, 1, 2, 3].map(at))).mean,
                        false => relu(gaussian(plane, row, column)).mean,
                    });
                }
            }
        }
        outputs
    }

    /// Compares outputs with the closed forms.
    pub fn compare(&self, storage: Storage, y: &[f64]) -> Result<(), String> {
        let reference = self.reference(storage);
        if reference.len() != y.len() {
            return Err(format!("{self:?}: {} outputs, not {}", y.len(), reference.len()));
        }
        for (i, (y, expected)) in y.iter().zip(reference).enumerate() {
            let error = (y - expected).abs();
            if error.is_nan() || error > tolerance(storage) * (1.0 + expected.abs()) {
                return Err(format!("{self:?} {storage:?}: y[{i}] is {y:e}, not {expected:e}"));
            }
        }
        Ok(())
    }

    /// Runs the case on a machine. `tamper` may change the launches.
    pub fn run(
        &self,
        machine: &mut impl Machine,
        storage: Storage,
        order: u32,
        tamper: impl Fn(&mut Vec<Launch>),
    ) -> Result<Vec<f64>, String> {
        machine.clear();
        let text = |error: vmf_kernels::Error| error.to_string();
        // Few multiprocessors, so that a grid goes over the tensor more than once.
        let plan = Plan::new(&self.config(), None, storage, !self.misaligned, 1).map_err(text)?;
        let front = usize::from(self.misaligned);
        let shift = (front * storage.bytes()) as u64;
        let mut tensor = |values: Vec<f64>| {
            let padded: Vec<f64> = std::iter::repeat_n(f64::NAN, front).chain(values).collect();
            machine.upload(&encode(storage, &padded)) + shift
        };
        let (u, y) = (tensor(self.input(storage)), tensor(vec![f64::NAN; self.outputs()]));
        let mut vector = |values: &[f32]| {
            let values: Vec<f64> = values.iter().map(|&value| value.into()).collect();
            machine.upload(&encode(Storage::F32, &values))
        };
        let (mean, variance) = self.case().given();
        let at = Pointers {
            u,
            y,
            mean: vector(&mean),
            variance: vector(&variance),
            deviation: vector(&self.deviation()),
            statistics: vector(&vec![f32::NAN; STATISTICS_PER_CHANNEL * self.planes.1]),
            ..Pointers::default()
        };
        let mut launches = match self.pooled {
            true => plan.expected_pooled(&at, self.image).map_err(text)?,
            false => plan.expected(&at),
        };
        tamper(&mut launches);
        for launch in &launches {
            machine.launch(launch, order).map_err(|error| format!("{}: {error}", launch.kernel))?;
        }
        Ok(decode(storage, &machine.download(y, self.outputs() * storage.bytes())))
    }
}

/// Runs every case in two orders of the threads, which must give the same bits.
pub fn check(machine: &mut impl Machine, storage: Storage) -> Result<(), String> {
    for case in cases() {
        let first = case.run(machine, storage, 0, |_| ())?;
        case.compare(storage, &first)?;
        if first != case.run(machine, storage, 1, |_| ())? {
            return Err(format!("{case:?}: another order gives other bits"));
        }
    }
    Ok(())
}
