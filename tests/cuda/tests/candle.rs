//! Level 5: the operation of `vmf-candle` on a CUDA device, through Candle, compared with the CPU.
//! It runs on a GPU or on the mock.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, Var,
};
use candle_nn::VarMap;
use vmf_candle::ops::{Noise, Statistics, bn_noise, bn_noise_config, bn_noise_eval};
use vmf_candle::posterior::stream_of;
use vmf_candle::{Forward, Pass, Posterior, VmfConfig, seeded, vmf_linear};

/// The identity, with a given tensor as its gradient: a loss that needs no kernel of Candle.
struct WithGradient(Tensor);

impl CustomOp1 for WithGradient {
    fn name(&self) -> &'static str {
        "with-gradient"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _xs: &Tensor, _ys: &Tensor, _gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}

/// A tensor of a shape with elements `sin(a i)`, on a device.
fn wave(shape: &[usize], a: f32, device: &Device) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (a * i as f32).sin()).collect();
    Tensor::from_vec(values, shape, device)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    let tensor = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    tensor.to_dtype(DType::F32)?.to_vec1()
}

/// What was computed, by name.
type Computed = Vec<(&'static str, Vec<f32>)>;

fn compare(compute: impl Fn(&Device) -> Result<Computed>, tolerance: f32) -> Result<()> {
    let on_cpu = compute(&Device::Cpu)?;
    let on_cuda = compute(&Device::new_cuda(0)?)?;
    for ((name, expected), (_, found)) in on_cpu.iter().zip(&on_cuda) {
        assert_eq!(expected.len(), found.len(), "{name}");
        for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
            assert!(
                (expected - found).abs() <= tolerance * (1.0 + expected.abs()),
                "{name}[{i}]: {found} on CUDA, {expected} on the CPU"
            );
        }
    }
    Ok(())
}

const SHAPE: [usize; 4] = [4, 6, 5, 7];

fn noise(pass: &Pass, u: &Tensor) -> Result<Option<Noise>> {
    pass.noise(stream_of("layer"), u.dims())
}

#[test]
fn a_training_pass_and_its_gradients_are_those_of_the_cpu() -> Result<()> {
    compare(
        |device| {
            let u = Var::from_tensor(&wave(&SHAPE, 0.37, device)?)?;
            let sigma = Var::from_tensor(&Tensor::new(&[0.3f32, 0.7, 1.1], device)?)?;
            let noise = noise(&Pass::train(5, 9), &u)?;
            let (y, batch) = bn_noise(&u, &sigma, &bn_noise_config(&u)?.relu(true), noise)?;
            let loss = y.apply_op1(WithGradient(wave(&SHAPE, 0.11, device)?))?;
            let grads = loss.backward()?;
            Ok(vec![
                ("y", numbers(&y)?),
                ("mean", numbers(&batch.mean)?),
                ("variance", numbers(&batch.var)?),
                ("du", numbers(grads.get(&u).unwrap())?),
                ("dsigma", numbers(grads.get(&sigma).unwrap())?),
            ])
        },
        3e-5,
    )
}

#[test]
fn a_pass_by_running_statistics_and_its_gradients_are_those_of_the_cpu() -> Result<()> {
    compare(
        |device| {
            let u = Var::from_tensor(&wave(&SHAPE, 0.37, device)?)?;
            let sigma = Var::from_tensor(&Tensor::new(&[0.4f32], device)?)?;
            let mean = wave(&[6], 0.9, device)?;
            let var = Tensor::new(&[0.5f32, 1.0, 2.0, 0.1, 3.0, 0.7], device)?;
            // Two Monte Carlo samples in one batch.
            let noise = noise(&Pass::folded(5, 3, 2), &u)?;
            let (statistics, config) = (Statistics { mean, var }, bn_noise_config(&u)?.relu(true));
            let y = bn_noise_eval(&u, &sigma, &statistics, &config, noise)?;
            let loss = y.apply_op1(WithGradient(wave(&SHAPE, 0.11, device)?))?;
            let grads = loss.backward()?;
            Ok(vec![
                ("y", numbers(&y)?),
                ("du", numbers(grads.get(&u).unwrap())?),
                ("dsigma", numbers(grads.get(&sigma).unwrap())?),
            ])
        },
        3e-5,
    )
}

#[test]
fn half_precision_is_that_of_the_cpu() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        compare(
            |device| {
                // Rounded to half precision on the CPU, so that the device needs no kernel for it.
                let u = wave(&SHAPE, 0.37, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
                let sigma = Tensor::new(&[0.3f32, 0.7], device)?;
                let noise = noise(&Pass::train(5, 9), &u)?;
                let (y, batch) = bn_noise(&u, &sigma, &bn_noise_config(&u)?.relu(true), noise)?;
                Ok(vec![("y", numbers(&y)?), ("mean", numbers(&batch.mean)?)])
            },
            1e-2,
        )?;
    }
    Ok(())
}

/// What a linear layer computes on a device: the product by Candle, then the fused operation.
#[test]
fn a_product_and_the_operation_behind_it_pass_gradients_on() -> Result<()> {
    compare(
        |device| {
            let xs = Var::from_tensor(&wave(&[10, 8], 0.53, device)?)?;
            let weight = Var::from_tensor(&wave(&[6, 8], 0.29, device)?)?;
            let sigma = Var::from_tensor(&Tensor::new(&[0.5f32], device)?)?;
            let u = xs.matmul(&weight.t()?)?;
            let noise = noise(&Pass::train(3, 0), &u)?;
            let (y, _) = bn_noise(&u, &sigma, &bn_noise_config(&u)?.relu(true), noise)?;
            let loss = y.apply_op1(WithGradient(wave(&[10, 6], 0.21, device)?))?;
            let grads = loss.backward()?;
            Ok(vec![
                ("y", numbers(&y)?),
                ("gradient of the input", numbers(grads.get(&xs).unwrap())?),
                ("gradient of the weight", numbers(grads.get(&weight).unwrap())?),
                ("gradient of sigma", numbers(grads.get(&sigma).unwrap())?),
            ])
        },
        1e-4,
    )
}

/// A layer as a user builds it: initial weights, noise, running statistics, and the gradients of
/// all its variables.
#[test]
fn a_layer_is_that_of_the_cpu() -> Result<()> {
    compare(
        |device| {
            let (vars, posterior) = (VarMap::new(), Posterior::new());
            let vb = seeded(&vars, 7, DType::F32, device);
            let config = VmfConfig::default().relu().sigma(0.5);
            let layer = vmf_linear(8, 6, config, &posterior, vb.pp("layer"))?;
            let xs = Var::from_tensor(&wave(&[10, 8], 0.53, device)?)?;
            let y = layer.forward(&xs, &Pass::train(3, 0))?;
            let loss = y.apply_op1(WithGradient(wave(&[10, 6], 0.21, device)?))?;
            let grads = loss.backward()?;
            let Statistics { mean, var } = layer.norm().running();
            let gradient = |tensor: &Tensor| numbers(grads.get(tensor).unwrap());
            Ok(vec![
                ("initial weights", numbers(layer.weight())?),
                ("y", numbers(&y)?),
                ("running mean", numbers(&mean)?),
                ("running variance", numbers(&var)?),
                ("gradient of the input", gradient(&xs)?),
                ("gradient of the weight", gradient(layer.weight())?),
                ("gradient of rho", gradient(&layer.sigma().rho())?),
                ("a sample", numbers(&layer.forward(&xs, &Pass::sample(3, 1))?)?),
                ("the mean", numbers(&layer.forward(&xs, &Pass::mean())?)?),
                ("the expected pass", numbers(&layer.forward(&xs, &Pass::expected())?)?),
            ])
        },
        1e-4,
    )
}
