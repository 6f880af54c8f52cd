//! Results must not depend on threads, layout or the folding of samples, and wrong arguments are
//! refused.

use vmf_kernels::Error;
use vmf_kernels::bn_noise::{
    Config, NoiseTerm, Saved, Shape, Statistics, backward_train, forward_eval, forward_train,
};
use vmf_kernels::noise::{Noise, NoiseKey, fill_normals};

const KEY: NoiseKey = NoiseKey { seed: 0xdead_beef_0000_0001, stream: 11, step: 12, sample: 13 };

fn values(stream: u32, count: usize) -> Vec<f32> {
    let key = NoiseKey { stream, ..NoiseKey::default() };
    let mut values = vec![0.0; count];
    fill_normals(&key.into(), 0, &mut values).unwrap();
    values
}

/// All results of a training step, in the layout of the shape.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    statistics: Statistics,
    y: Vec<f32>,
    du: Vec<f32>,
    dsigma: Vec<f32>,
}

fn step(config: &Config, noise: Noise, sigma: &[f32], u: &[f32], dy: &[f32]) -> Outcome {
    let term = Some(NoiseTerm { noise, sigma });
    let mut y = vec![0.0; u.len()];
    let mut du = vec![0.0; u.len()];
    let statistics = forward_train(config, term, u, &mut y).unwrap();
    let saved = Saved { u, y: &y, statistics: &statistics };
    let dsigma = backward_train(config, term, saved, dy, &mut du).unwrap();
    Outcome { statistics, y, du, dsigma }
}

fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(work)
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for shape in [
        Shape::nchw(16, 24, 256),
        Shape::hwnc(16, 24, 256),
        Shape::nchw(9, 7, 1031),
        Shape::hwnc(9, 70, 49),
        Shape::hwnc(300, 513, 1),
    ] {
        for relu in [false, true] {
            let config = Config::new(shape).relu(relu);
            let (u, dy) = (values(1, shape.elements()), values(2, shape.elements()));
            let run = || step(&config, Noise::new(KEY), &[0.5], &u, &dy);
            let one = with_threads(1, run);
            for threads in [2, 3, 7] {
                assert!(one == with_threads(threads, run), "{shape:?}, {threads} threads");
            }
        }
    }
}

#[test]
fn noise_does_not_depend_on_threads() {
    let fill = || {
        let mut out = vec![0f32; 300_001];
        fill_normals(&Noise::folded(KEY, 1001), 5, &mut out).unwrap();
        out
    };
    assert!(with_threads(1, fill) == with_threads(2, fill));
}

fn to_hwnc(nchw: Shape, tensor: &[f32]) -> Vec<f32> {
    let hwnc = Shape::hwnc(nchw.batch, nchw.channels, nchw.positions);
    let mut out = vec![0.0; tensor.len()];
    for n in 0..nchw.batch {
        for c in 0..nchw.channels {
            for s in 0..nchw.positions {
                out[hwnc.offset(n, c, s)] = tensor[nchw.offset(n, c, s)];
            }
        }
    }
    out
}

fn assert_close(what: &str, a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance, "{what} {i}: {a} and {b}");
    }
}

#[test]
fn both_layouts_agree() {
    for (n, c, s) in [(4, 6, 16), (3, 5, 7), (2, 64, 64), (7, 3, 1), (1, 9, 300)] {
        let (nchw, hwnc) = (Shape::nchw(n, c, s), Shape::hwnc(n, c, s));
        let (u, dy) = (values(1, nchw.elements()), values(2, nchw.elements()));
        let sigma = values(3, c);
        let noise = Noise::folded(KEY, (c * s) as u64);
        let a = step(&Config::new(nchw), noise, &sigma, &u, &dy);
        let (u, dy) = (to_hwnc(nchw, &u), to_hwnc(nchw, &dy));
        let b = step(&Config::new(hwnc), noise, &sigma, &u, &dy);
        assert_close("y", &to_hwnc(nchw, &a.y), &b.y, 2e-6);
        assert_close("du", &to_hwnc(nchw, &a.du), &b.du, 1e-5);
        assert_close("dsigma", &a.dsigma, &b.dsigma, 2e-4);
    }
}

/// Samples folded into a batch have the same noise as one after another.
#[test]
fn folded_samples_are_separate_samples() {
    let (samples, n, c, s) = (3, 2, 5, 12);
    for make in [Shape::nchw, Shape::hwnc] {
        let (folded, single) = (make(samples * n, c, s), make(n, c, s));
        let statistics = Statistics { mean: vec![0.1; c], var: vec![0.8; c] };
        let u = values(1, folded.elements());
        let evaluate = |shape: Shape, noise: Noise, u: &[f32]| {
            let mut y = vec![0.0; u.len()];
            let term = Some(NoiseTerm { noise, sigma: &[0.7f32] });
            forward_eval(&Config::new(shape), term, &statistics, u, &mut y).unwrap();
            y
        };
        let noise = Noise::folded(KEY, single.elements() as u64);
        let together = evaluate(folded, noise, &u);
        for sample in 0..samples {
            let key = NoiseKey { sample: KEY.sample + sample as u32, ..KEY };
            let image = |i: usize| {
                let at = |shape: Shape, n: usize, c: usize, s: usize| shape.offset(n, c, s);
                let (row, s) = (i / single.positions, i % single.positions);
                let (n_, c_) = (row / c, row % c);
                (at(single, n_, c_, s), at(folded, sample * n + n_, c_, s))
            };
            let mut own = vec![0.0; single.elements()];
            for i in 0..own.len() {
                let (to, from) = image(i);
                own[to] = u[from];
            }
            let alone = evaluate(single, Noise::new(key), &own);
            for i in 0..own.len() {
                let (to, from) = image(i);
                assert_eq!(alone[to], together[from], "{folded:?}, sample {sample}");
            }
        }
    }
}

#[test]
fn one_element_per_channel_is_normalized_to_zero() {
    for shape in [Shape::nchw(1, 5, 1), Shape::hwnc(1, 5, 1)] {
        let outcome =
            step(&Config::new(shape), Noise::new(KEY), &[1.0], &values(1, 5), &values(2, 5));
        let mut z = vec![0f32; 5];
        fill_normals(&KEY.into(), 0, &mut z).unwrap();
        assert_eq!(outcome.statistics.var, vec![0.0; 5]);
        assert_close("y", &outcome.y, &z, 2e-6);
        assert_close("du", &outcome.du, &[0.0; 5], 0.0);
    }
}

#[test]
fn nan_is_not_hidden_by_relu() {
    let shape = Shape::nchw(1, 2, 4);
    let mut u = values(1, 8);
    u[5] = f32::NAN;
    let config = Config::new(shape).relu(true);
    let mut y = vec![0.0; 8];
    let statistics = forward_train(&config, None, &u, &mut y).unwrap();
    assert!(y[..4].iter().all(|y| y.is_finite()));
    assert!(y[4..].iter().all(|y| y.is_nan()));
    assert!(statistics.mean[1].is_nan());
}

#[test]
fn wrong_arguments_are_refused() {
    let shape = Shape::nchw(2, 6, 4);
    let config = Config::new(shape).relu(true);
    let u = vec![0f32; 48];
    let mut y = vec![0f32; 48];
    let term = |noise, sigma| Some(NoiseTerm { noise, sigma });
    let plain = Noise::new(KEY);

    let short = forward_train(&config, None, &u[1..], &mut y);
    let expected = Error::Length { name: "u", actual: 47, expected: 48 };
    assert_eq!(short.unwrap_err(), expected);
    assert!(forward_train(&config, None, &u, &mut y[..3]).is_err());

    let groups = forward_train(&config, term(plain, &[1.0; 4]), &u, &mut y);
    assert_eq!(
        groups.unwrap_err().to_string(),
        "4 noise scales for 6 channels; give one scale, or a number that divides the channels"
    );
    assert!(forward_train(&config, term(plain, &[]), &u, &mut y).is_err());

    for per_sample in [0, 5, 7, 96] {
        let noise = Noise::folded(KEY, per_sample);
        assert!(matches!(
            forward_train(&config, term(noise, &[1.0]), &u, &mut y),
            Err(Error::Folding { .. })
        ));
    }

    let empty = Config::new(Shape::nchw(0, 6, 4));
    assert!(matches!(
        forward_train::<f32>(&empty, None, &[], &mut []),
        Err(Error::EmptyShape { .. })
    ));
    let huge = Config::new(Shape::nchw(usize::MAX, 6, 4));
    assert!(forward_train::<f32>(&huge, None, &[], &mut []).is_err());
    for eps in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(forward_train(&config.eps(eps), None, &u, &mut y).is_err());
    }

    let statistics = forward_train(&config, None, &u, &mut y).unwrap();
    let short = Statistics { mean: vec![0.0; 5], var: vec![1.0; 6] };
    assert!(forward_eval(&config, None, &short, &u, &mut y).is_err());
    let mut du = vec![0f32; 48];
    let saved = Saved { u: &u, y: &[], statistics: &statistics };
    assert!(backward_train(&config, None, saved, &u, &mut du).is_err());
    assert!(backward_train(&config.relu(false), None, saved, &u, &mut du).is_ok());
    assert!(backward_train(&config.relu(false), None, saved, &u[1..], &mut du).is_err());
}
