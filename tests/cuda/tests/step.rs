//! Level 5: whole training steps on a CUDA device, compared with the same steps on the CPU, and how
//! many launches and reads they take. They run on a GPU or on the mock.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::{Linear, VarMap, linear};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmf_candle::ops::{conv2d, max_pool2d};
use vmf_candle::train::backward;
use vmf_candle::{
    Adam, AdamConfig, ConvStack, Elbo, Forward, Pass, Posterior, VmfConfig, cross_entropy,
    cross_entropy_counted, seeded, vmf_conv2d,
};

fn wave(shape: &[usize], a: f32, device: &Device) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (a * i as f32).sin()).collect();
    Tensor::from_vec(values, shape, device)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_device(&Device::Cpu)?.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
}

fn assert_close(name: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * (1.0 + expected.abs()),
            "{name}[{i}]: {found} on CUDA, {expected} on the CPU"
        );
    }
}

/// One test at a time: the mock counts what the whole program does.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the mock has counted; nothing on a real driver.
fn counts() -> Option<[u64; 8]> {
    // SAFETY: the driver is loaded already, and opening it again runs nothing.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") }.ok()?;
    let mut counts = [0; 8];
    // SAFETY: the mock's function, which has this type; a real driver has no such function.
    unsafe {
        let count = driver.get::<unsafe extern "C" fn(*mut u64)>(b"mock_cuda_counts").ok()?;
        count(counts.as_mut_ptr());
    }
    Some(counts)
}

/// A network like VGG16: thirteen convolutions in five blocks, each with pooling at its end.
struct Network {
    vars: VarMap,
    posterior: Posterior,
    stack: ConvStack,
    classifier: Linear,
    adam: Adam,
}

const CLASSES: usize = 10;

impl Network {
    fn new(blocks: &[usize], width: usize, device: &Device) -> Result<Self> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        let vb = seeded(&vars, 7, DType::F32, device);
        let mut stack = ConvStack::new();
        let (mut inputs, mut place) = (3, 0);
        for &layers in blocks {
            for layer in 0..layers {
                let config = VmfConfig::default().padding(1).relu().sigma(0.3);
                let vb = vb.pp(format!("features.{place}"));
                let conv = vmf_conv2d(inputs, width, 3, config, &posterior, vb)?;
                stack = stack.unit(conv);
                if layer + 1 == layers {
                    stack = stack.max_pool(2);
                }
                (inputs, place) = (width, place + 1);
            }
        }
        let classifier = linear(width, CLASSES, vb.pp("classifier"))?;
        let config = AdamConfig { lr: 1e-2, clip_norm: Some(1.0), ..AdamConfig::default() };
        let adam = Adam::for_model(&vars, &posterior, config)?;
        Ok(Self { vars, posterior, stack, classifier, adam })
    }

    /// One step; returns NLL and the number of right predictions.
    fn step(&mut self, images: &Tensor, labels: &Tensor, step: u32) -> Result<Vec<f64>> {
        let features = self.stack.forward(images, &Pass::train(3, step))?;
        let logits = self.classifier.forward(&features.flatten_from(1)?)?;
        let (nll, right) = cross_entropy_counted(&logits, labels)?;
        let loss = Elbo::new(50).beta(1e-3).loss(&nll, &self.posterior)?;
        self.adam.backward_step_watching(&loss.total, &[&nll, &right])
    }

    fn state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let vars = self.vars.data().lock().unwrap();
        let mut state = Vec::new();
        for (name, var) in vars.iter() {
            state.push((name.clone(), numbers(var)?));
        }
        for (name, moments) in self.adam.state()? {
            state.push((format!("first moment of {name}"), numbers(&moments.first)?));
            state.push((format!("second moment of {name}"), numbers(&moments.second)?));
        }
        state.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(state)
    }
}

fn batch(images: usize, size: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..images).map(|i| (i * 3 % CLASSES) as u32).collect();
    Ok((wave(&[images, 3, size, size], 0.37, device)?, Tensor::new(labels, device)?))
}

/// The losses and every variable, statistic and moment after some steps are those of the CPU.
#[test]
fn steps_are_those_of_the_cpu() -> Result<()> {
    let _alone = alone();
    let run = |device: &Device| -> Result<_> {
        let mut network = Network::new(&[1, 1, 2, 1, 1], 5, device)?;
        let (images, labels) = batch(5, 32, device)?;
        let mut losses = Vec::new();
        for step in 0..3 {
            let values = network.step(&images, &labels, step)?;
            losses.extend(values.iter().map(|&value| value as f32));
        }
        Ok((losses, network.state()?))
    };
    let (expected, on_cpu) = run(&Device::Cpu)?;
    let (found, on_cuda) = run(&Device::new_cuda(0)?)?;
    assert_close("losses", &found, &expected, 1e-4);
    assert_eq!(on_cpu.len(), on_cuda.len());
    for ((name, expected), (other, found)) in on_cpu.iter().zip(&on_cuda) {
        assert_eq!(name, other);
        assert_close(name, found, expected, 2e-3);
    }
    Ok(())
}

/// A step of VGG16 takes few launches and one read.
#[test]
fn a_step_of_vgg16_is_held_to_its_launches() -> Result<()> {
    let _alone = alone();
    let device = Device::new_cuda(0)?;
    let mut network = Network::new(&[2, 2, 3, 3, 3], 4, &device)?;
    let (images, labels) = batch(2, 32, &device)?;
    network.step(&images, &labels, 0)?;
    let Some(before) = counts() else { return Ok(()) };
    network.step(&images, &labels, 1)?;
    let Some(after) = counts() else { return Ok(()) };
    let spent: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let (launches, calls, reads, uploads, fills) =
        (spent[0], spent[1], spent[2], spent[3], spent[7]);
    println!(
        "a step of VGG16: {launches} launches, {calls} calls of cuBLAS and cuDNN, {reads} reads, \
         {uploads} uploads, {fills} fills"
    );
    // Where a channel is cut into parts, as on a large GPU, the statistics of each layer and the
    // sums of its gradient are merged by a launch more each.
    let merges = 2 * 13;
    assert!(launches + calls + merges <= 200, "{launches} launches and {calls} library calls");
    assert_eq!(reads, 1, "blocking reads");
    // The tables of Adam and of the objective, and shapes of broadcasts that Candle uploads.
    assert!(uploads <= 8, "{uploads} uploads");
    Ok(())
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_and_is_named() -> Result<()> {
    let _alone = alone();
    let device = Device::new_cuda(0)?;
    let mut network = Network::new(&[1, 1, 1, 1, 1], 4, &device)?;
    let (images, labels) = batch(4, 32, &device)?;
    network.step(&images, &labels, 0)?;
    let parameters = |network: &Network| -> Result<Vec<_>> {
        Ok(network.state()?.into_iter().filter(|(name, _)| !name.contains("norm")).collect())
    };
    let before = parameters(&network)?;
    let wrong = Tensor::new(&[0u32, 1, 2, CLASSES as u32], &device)?;
    let error = network.step(&images, &wrong, 1).unwrap_err().to_string();
    assert!(error.contains("not finite") || error.contains("NaN"), "{error}");
    assert_eq!(before, parameters(&network)?);
    network.step(&images, &labels, 1)?;
    assert_ne!(before, parameters(&network)?);
    Ok(())
}

/// Convolutions of every kind with their gradients, by cuDNN or, with `VMF_CUDNN=off`, by columns.
#[test]
fn convolutions_and_their_gradients_are_those_of_the_cpu() -> Result<()> {
    let _alone = alone();
    let cases = [
        // channels, units, image, kernel, (padding, stride, dilation, groups)
        ([3, 5, 8, 3], (1, 1, 1, 1)),
        ([4, 6, 9, 3], (1, 2, 1, 2)),
        ([2, 3, 7, 1], (0, 1, 1, 1)),
        ([4, 4, 8, 3], (2, 1, 2, 4)),
        ([3, 2, 10, 5], (0, 3, 1, 1)),
    ];
    for ([channels, units, size, kernel], (padding, stride, dilation, groups)) in cases {
        let run = |device: &Device| -> Result<Vec<Vec<f32>>> {
            let xs = Var::from_tensor(&wave(&[2, channels, size, size], 0.37, device)?)?;
            let shape = [units, channels / groups, kernel, kernel];
            let w = Var::from_tensor(&wave(&shape, 0.91, device)?)?;
            let y = conv2d(&xs, &w, padding, stride, dilation, groups)?;
            let loss = (&y * wave(y.dims(), 0.21, device)?)?.sum_all()?;
            let grads = backward(&loss)?;
            [&y, grads.get(&xs).unwrap(), grads.get(&w).unwrap()].map(numbers).into_iter().collect()
        };
        let (expected, found) = (run(&Device::Cpu)?, run(&Device::new_cuda(0)?)?);
        for ((name, found), expected) in ["y", "dx", "dw"].iter().zip(&found).zip(&expected) {
            assert_close(&format!("{name} of {channels} {units} {groups}"), found, expected, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn pooling_keeps_its_promise_on_ties_and_nan() -> Result<()> {
    let _alone = alone();
    let device = Device::new_cuda(0)?;
    let xs = Var::new(&[[[[1f32, 3.], [3., 3.]]]], &device)?;
    let grads = max_pool2d(&xs, 2, 2, 0)?.sum_all()?.backward()?;
    assert_eq!(numbers(grads.get(&xs).unwrap())?, [0., 1., 0., 0.]);
    for place in 0..4 {
        let mut values = [1f32, 2., 3., 4.];
        values[place] = f32::NAN;
        let xs = Tensor::new(&values, &device)?.reshape((1, 1, 2, 2))?;
        assert!(numbers(&max_pool2d(&xs, 2, 2, 0)?)?[0].is_nan(), "{place}");
    }
    Ok(())
}

#[test]
fn the_loss_and_its_gradient_are_those_of_the_cpu() -> Result<()> {
    let _alone = alone();
    let run = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let logits = Var::from_tensor(&(wave(&[9, 12], 0.77, device)? * 4.0)?)?;
        let labels = Tensor::new(&[0u32, 11, 3, 4, 5, 6, 7, 1, 2], device)?;
        let loss = cross_entropy(&logits, &labels)?;
        let grads = (&loss * 3.0)?.backward()?;
        let (_, right) = cross_entropy_counted(&logits, &labels)?;
        [&loss, grads.get(&logits).unwrap(), &right].map(numbers).into_iter().collect()
    };
    let (expected, found) = (run(&Device::Cpu)?, run(&Device::new_cuda(0)?)?);
    for (found, expected) in found.iter().zip(&expected) {
        assert_close("cross-entropy", found, expected, 1e-5);
    }
    Ok(())
}
