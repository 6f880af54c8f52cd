//! Level 4: the launcher, on the driver of a GPU or on the mock. `VMF_CUDA_DEVICE` is the ordinal
//! of the device, 0 if unset.
//!
//! Without a device these tests fail; they are not skipped. On the mock everything runs except the
//! measurement of throughput, and some tests run with defects that only the mock can introduce.

use std::process::Command;
use std::sync::Arc;

use cuda_check::case::{Case, Outcome};
use cuda_check::check as reference;
use cuda_check::expected;
use cudarc::driver::{CudaContext, CudaStream, CudaView};
use half::{bf16, f16};
use vmf_kernels::bn_noise::cuda::{self, CudaElement, Error, NoiseTerm};
use vmf_kernels::bn_noise::launches::ScaleKind;
use vmf_kernels::bn_noise::{Config, Statistics};
use vmf_kernels::expected::cuda::{Channels, forward as forward_expected};

fn context() -> Arc<CudaContext> {
    let ordinal = std::env::var("VMF_CUDA_DEVICE").map_or(0, |text| text.parse().unwrap());
    CudaContext::new(ordinal).expect("no CUDA device")
}

fn is_mock(context: &CudaContext) -> bool {
    context.name().unwrap() == "mock"
}

/// Conversion to `f64` for the comparison, and back.
trait Stored: CudaElement {
    fn narrow(value: f64) -> Self;
    fn wide(self) -> f64;
}

macro_rules! stored {
    ($type:ty, $narrow:expr) => {
        impl Stored for $type {
            fn narrow(value: f64) -> Self {
                $narrow(value)
            }
            fn wide(self) -> f64 {
                self.into()
            }
        }
    };
}
stored!(f32, |value| value as f32);
stored!(f16, f16::from_f64);
stored!(bf16, bf16::from_f64);

fn upload<T: Stored>(stream: &Arc<CudaStream>, values: &[f64]) -> cudarc::driver::CudaSlice<T> {
    let narrow: Vec<T> = values.iter().map(|&value| T::narrow(value)).collect();
    stream.clone_htod(&narrow).unwrap()
}

/// Runs the forward and the backward pass of a case through the launcher.
fn run<T: Stored>(stream: &Arc<CudaStream>, case: &Case) -> Result<Outcome, Error> {
    let config = case.config();
    let (elements, front) = (config.shape.elements(), usize::from(case.misaligned));
    let tensor = |values: Vec<f64>| {
        let padded: Vec<f64> = std::iter::repeat_n(f64::NAN, front).chain(values).collect();
        upload::<T>(stream, &padded)
    };
    let (mean, deviation) = case.activations;
    let u = tensor(case.tensor(T::STORAGE, 1, mean, deviation));
    let dy = tensor(case.tensor(T::STORAGE, 2, 0.1, 1.0));
    let (mut y, mut du) = (tensor(vec![f64::NAN; elements]), tensor(vec![f64::NAN; elements]));
    let (u, dy) = (u.slice(front..), dy.slice(front..));
    let sigma = match case.groups {
        0 => None,
        _ => Some(stream.clone_htod(&case.sigma())?),
    };
    let view: Option<CudaView<f32>> = sigma.as_ref().map(|sigma| sigma.as_view());
    let noise = case.noise().zip(view.as_ref());
    let noise = noise.map(|(noise, sigma)| NoiseTerm { noise, sigma, kind: ScaleKind::Sigma });
    let statistics: Statistics;
    let dsigma = {
        let (mut y, mut du) = (y.slice_mut(front..), du.slice_mut(front..));
        let saved;
        let dsigma = if case.train {
            saved = cuda::forward_train(stream, &config, noise, &u, &mut y)?;
            cuda::backward_train(stream, &config, noise, &saved, &u, &dy, &mut du)?
        } else {
            let (mean, variance) = case.given();
            let mean = stream.clone_htod(&mean)?;
            let variance = stream.clone_htod(&variance)?;
            saved = cuda::forward_eval(stream, &config, noise, &mean, &variance, &u, &mut y)?;
            cuda::backward_eval(stream, &config, noise, &saved, &u, &dy, &mut du)?
        };
        statistics = saved.to_host(stream)?;
        dsigma
    };
    let download = |values: &cudarc::driver::CudaSlice<T>| {
        let values = stream.clone_dtoh(values).unwrap();
        values[front..].iter().map(|value| value.wide()).collect()
    };
    Ok(Outcome {
        y: download(&y),
        du: download(&du),
        statistics,
        dsigma: match dsigma {
            None => Vec::new(),
            Some(dsigma) => stream.clone_dtoh(&dsigma)?.into_iter().map(f64::from).collect(),
        },
    })
}

fn check<T: Stored>(stream: &Arc<CudaStream>, case: &Case) {
    let first = run::<T>(stream, case).unwrap();
    reference::compare(case, T::STORAGE, &first)
        .unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let second = run::<T>(stream, case).unwrap();
    assert!(first == second, "{case:?}: a second run gives other bits");
}

#[test]
fn f32_agrees_with_the_cpu() {
    let stream = context().default_stream();
    reference::cases().iter().for_each(|case| check::<f32>(&stream, case));
    check::<f32>(&stream, &reference::far_from_zero(64));
}

#[test]
fn f16_agrees_with_the_cpu() {
    let stream = context().default_stream();
    reference::cases().iter().for_each(|case| check::<f16>(&stream, case));
}

#[test]
fn bf16_agrees_with_the_cpu() {
    let stream = context().default_stream();
    reference::cases().iter().for_each(|case| check::<bf16>(&stream, case));
}

/// Runs the cases of expected activations through their launcher.
fn check_expected<T: Stored>(stream: &Arc<CudaStream>) {
    for case in expected::cases() {
        let front = usize::from(case.misaligned);
        let tensor = |values: Vec<f64>| {
            let padded: Vec<f64> = std::iter::repeat_n(f64::NAN, front).chain(values).collect();
            upload::<T>(stream, &padded)
        };
        let u = tensor(case.input(T::STORAGE));
        let mut y = tensor(vec![f64::NAN; case.outputs()]);
        let (mean, variance) = case.case().given();
        let constants = [mean, variance, case.deviation()];
        let [mean, variance, deviation] = constants.map(|c| stream.clone_htod(&c).unwrap());
        let channels = Channels { mean: &mean, variance: &variance, deviation: &deviation };
        let image = case.pooled.then_some(case.image);
        let (u, mut out) = (u.slice(front..), y.slice_mut(front..));
        forward_expected(stream, &case.config(), channels, image, &u, &mut out).unwrap();
        let y: Vec<f64> =
            stream.clone_dtoh(&y).unwrap()[front..].iter().map(|value| value.wide()).collect();
        case.compare(T::STORAGE, &y).unwrap();
    }
}

#[test]
fn expected_activations_agree_with_closed_forms() {
    let stream = context().default_stream();
    check_expected::<f32>(&stream);
    check_expected::<f16>(&stream);
    check_expected::<bf16>(&stream);
    let case = Case::new(4, 6, 16);
    let u = stream.clone_htod(&vec![1.0f32; 4 * 6 * 16]).unwrap();
    let (mut y, six) = (u.try_clone().unwrap(), stream.clone_htod(&[1.0f32; 6]).unwrap());
    let mut fails = |config: Config, image| {
        let channels = Channels { mean: &six, variance: &six, deviation: &six };
        forward_expected(&stream, &config, channels, image, &u, &mut y).unwrap_err().to_string()
    };
    assert!(fails(case.config().relu(false), None).contains("with ReLU"));
    assert!(fails(case.config(), Some([4, 4])).contains("`y`"));
}

#[test]
fn a_stream_of_the_caller_works() {
    let stream = context().new_stream().unwrap();
    check::<f32>(&stream, &Case::new(6, 6, 16));
}

#[test]
fn every_device_has_its_own_kernels() {
    let count = CudaContext::device_count().unwrap() as usize;
    println!("{count} devices");
    let streams: Vec<_> =
        (0..count).map(|ordinal| CudaContext::new(ordinal).unwrap().default_stream()).collect();
    for stream in streams.iter().chain(&streams) {
        check::<f32>(stream, &Case::new(4, 3, 16));
    }
    if let [first, second, ..] = &streams[..] {
        let config = Case::new(4, 3, 16).config();
        let u = first.clone_htod(&vec![1.0f32; config.shape.elements()]).unwrap();
        let mut y = u.try_clone().unwrap();
        let error = cuda::forward_train(second, &config, None, &u, &mut y).unwrap_err();
        assert!(matches!(error, Error::Device { name: "u", .. }), "{error}");
    }
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let stream = context().default_stream();
    let config = Case::new(4, 6, 16).config();
    let u = stream.clone_htod(&[1.0f32; 10]).unwrap();
    let mut y = u.try_clone().unwrap();
    let error = cuda::forward_train(&stream, &config, None, &u, &mut y).unwrap_err();
    assert!(matches!(error, Error::Arguments(_)), "{error}");

    let u = stream.clone_htod(&vec![1.0f32; 4 * 6 * 16]).unwrap();
    let mut y = u.try_clone().unwrap();
    let sigma = stream.clone_htod(&[0.1f32; 4]).unwrap();
    let sigma = &sigma.as_view();
    let noise =
        Case::new(4, 6, 16).noise().map(|noise| NoiseTerm { noise, sigma, kind: ScaleKind::Sigma });
    let error = cuda::forward_train(&stream, &config, noise, &u, &mut y).unwrap_err();
    assert!(error.to_string().contains("4 noise scales for 6 channels"), "{error}");
}

/// One case. The tests below run it in a process of its own.
#[test]
fn one_case() {
    check::<f32>(&context().default_stream(), &Case::new(6, 4, 16));
}

/// Runs `one_case` on the mock with a defect.
fn with_defect(variable: &str, value: &str) -> (bool, String) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_case", "--nocapture"])
        .env(variable, value)
        .output()
        .unwrap();
    (run.status.success(), String::from_utf8_lossy(&run.stderr).into_owned())
}

#[test]
fn swapped_launch_arguments_are_noticed() {
    if !is_mock(&context()) {
        println!("SKIPPED: only the mock driver can swap arguments");
        return;
    }
    for (kernel, pointers) in [
        ("statistics_f32_by4", 3),
        ("forward_f32_by4", 4),
        ("gradient_sums_f32_by4", 6),
        ("group_gradients", 2),
        ("backward_f32_by4", 6),
    ] {
        for second in 1..pointers {
            let swap = format!("{kernel},{},{second}", second - 1);
            let (passed, output) = with_defect("MOCK_CUDA_SWAP", &swap);
            assert!(!passed, "{swap}: {output}");
        }
    }
}

#[test]
fn a_failed_launch_is_an_error() {
    if !is_mock(&context()) {
        println!("SKIPPED: only the mock driver can be made to fail");
        return;
    }
    let (passed, output) = with_defect("MOCK_CUDA_FAIL", "forward_f32_by4");
    assert!(!passed && output.contains("CUDA_ERROR_LAUNCH_FAILED"), "{output}");
}

/// Compares the bytes per second of forward and backward pass with those of a copy on the device,
/// which is the most that the memory can do.
#[test]
fn throughput_is_near_the_memory_roofline() {
    let context = context();
    if is_mock(&context) {
        println!("SKIPPED: the mock driver has no speed to measure");
        return;
    }
    let stream = context.default_stream();
    println!("{}", context.name().unwrap());
    for (batch, channels, positions) in
        [(64, 64, 1024), (256, 64, 3136), (256, 512, 16), (256, 2048, 49)]
    {
        throughput::<f32>(&stream, &Case::new(batch, channels, positions));
        throughput::<bf16>(&stream, &Case::new(batch, channels, positions));
    }
}

/// Seconds of one call, on average over many calls after a few for warming up.
fn seconds(stream: &Arc<CudaStream>, mut call: impl FnMut()) -> f64 {
    (0..5).for_each(|_| call());
    stream.synchronize().unwrap();
    let (start, calls) = (std::time::Instant::now(), 50);
    (0..calls).for_each(|_| call());
    stream.synchronize().unwrap();
    start.elapsed().as_secs_f64() / f64::from(calls)
}

fn throughput<T: Stored>(stream: &Arc<CudaStream>, case: &Case) {
    let config = case.config();
    let bytes = (config.shape.elements() * size_of::<T>()) as f64;
    let u: cudarc::driver::CudaSlice<T> = upload(stream, &case.tensor(T::STORAGE, 1, 0.7, 1.9));
    let (mut y, mut du) = (u.try_clone().unwrap(), u.try_clone().unwrap());
    let sigma = stream.clone_htod(&[0.3f32]).unwrap();
    let sigma = &sigma.as_view();
    let noise = case.noise().map(|noise| NoiseTerm { noise, sigma, kind: ScaleKind::Sigma });
    let copy = 2.0 * bytes / seconds(stream, || stream.memcpy_dtod(&u, &mut y).unwrap());
    let forward = 3.0 * bytes
        / seconds(stream, || {
            cuda::forward_train(stream, &config, noise, &u, &mut y).unwrap();
        });
    let saved = cuda::forward_train(stream, &config, noise, &u, &mut y).unwrap();
    let backward = 5.0 * bytes
        / seconds(stream, || {
            cuda::backward_train(stream, &config, noise, &saved, &u, &y, &mut du).unwrap();
        });
    println!(
        "{:?} {:?}: copy {:.0} GB/s, forward {:.2} of it, backward {:.2} of it",
        case.shape,
        T::STORAGE,
        copy / 1e9,
        forward / copy,
        backward / copy
    );
    // Only for large tensors, where the limit is the memory and not the latency of a launch.
    if bytes > 1e8 {
        assert!(forward > 0.4 * copy && backward > 0.4 * copy);
    }
}
