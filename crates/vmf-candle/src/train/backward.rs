//! Gradients without Candle's copies of them.
//!
//! Candle allocates a tensor of zeros for every gradient and adds what an operation returns to it,
//! so a weight's gradient is written twice and read twice more before the optimizer sees it. For
//! VGG16 that is 240 MB per step. During [`backward`], operations of this crate deliver the
//! gradients of variables directly and return none of them to Candle.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor};
use std::cell::RefCell;

/// Variables with their gradients, in the order in which operations delivered them.
type Delivered = Vec<(Tensor, Tensor)>;

thread_local! {
    /// What operations have delivered during a [`backward`] on this thread. Candle calls operations
    /// on the thread that called it.
    static DELIVERED: RefCell<Option<Delivered>> = const { RefCell::new(None) };
}

/// The gradients of a scalar. They are those of `loss.backward()`, with fewer copies.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::VarMap;
/// # use vmf_candle::prelude::*;
/// # use vmf_candle::train::backward;
/// # fn main() -> candle_core::Result<()> {
/// # let (vars, posterior) = (VarMap::new(), Posterior::new());
/// # let vb = seeded(&vars, 1, DType::F32, &Device::Cpu);
/// # let layer = vmf_linear(4, 8, VmfConfig::default(), &posterior, vb)?;
/// # let xs = Tensor::randn(0f32, 1.0, (16, 4), &Device::Cpu)?;
/// let loss = layer.forward(&xs, &Pass::train(1, 0))?.sqr()?.mean_all()?;
/// let gradients = backward(&loss)?;
/// let weight = gradients.get(layer.weight()).expect("the loss depends on it");
/// assert_eq!(weight.dims(), [8, 4]);
/// # Ok(()) }
/// ```
/// [`Adam`](crate::train::Adam) calls it in `backward_step`.
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    let collection = Collection::begin();
    let mut gradients = loss.backward()?;
    for (variable, gradient) in collection.end() {
        let sum = match gradients.remove(&variable) {
            Some(other) => (other + gradient)?,
            None => gradient,
        };
        gradients.insert(&variable, sum);
    }
    Ok(gradients)
}

/// What an operation returns to Candle as the gradient with respect to `argument`: `None` if
/// [`backward`] has taken it.
///
/// Only variables are leaves of the graph. The gradient of anything else has to go on through it.
pub(crate) fn deliver(argument: &Tensor, gradient: Tensor) -> Option<Tensor> {
    DELIVERED.with_borrow_mut(|delivered| match delivered {
        Some(delivered) if argument.is_variable() => {
            delivered.push((argument.clone(), gradient));
            None
        }
        _ => Some(gradient),
    })
}

/// Takes back a gradient that was delivered for `argument`, to add another to it.
#[cfg(feature = "cuda")]
pub(crate) fn take_delivered(argument: &Tensor) -> Option<Tensor> {
    DELIVERED.with_borrow_mut(|delivered| {
        let delivered = delivered.as_mut()?;
        let place = delivered.iter().position(|(variable, _)| variable.id() == argument.id())?;
        Some(delivered.remove(place).1)
    })
}

/// The collection of a [`backward`] on this thread. Dropping it restores the collection that it
/// interrupted, if there was one.
struct Collection {
    outer: Option<Delivered>,
}

impl Collection {
    fn begin() -> Self {
        Self { outer: DELIVERED.replace(Some(Vec::new())) }
    }

    fn end(self) -> Delivered {
        DELIVERED.take().unwrap_or_default()
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        DELIVERED.set(self.outer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::conv2d;
    use candle_core::{Device, Var};

    fn weight() -> Result<Var> {
        Var::randn(0f32, 1.0, (4, 3, 3, 3), &Device::Cpu)
    }

    fn images() -> Result<Tensor> {
        Tensor::randn(0f32, 1.0, (2, 3, 5, 5), &Device::Cpu)
    }

    fn convolved(xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
        conv2d(xs, weight, 1, 1, 1, 1)?.sqr()?.sum_all()
    }

    fn difference(a: &GradStore, b: &GradStore, variable: &Tensor) -> Result<f32> {
        let [a, b] = [a, b].map(|gradients| gradients.get(variable).expect("a gradient"));
        (a - b)?.abs()?.max_all()?.to_scalar()
    }

    #[test]
    fn gradients_are_those_of_candle() -> Result<()> {
        let (weight, xs) = (weight()?, images()?);
        let loss = convolved(&xs, &weight)?;
        assert_eq!(difference(&backward(&loss)?, &loss.backward()?, &weight)?, 0.0);
        Ok(())
    }

    /// The gradient is the sum of two that operations deliver and one that Candle computes.
    #[test]
    fn gradients_of_all_uses_of_a_variable_are_added() -> Result<()> {
        let (weight, xs) = (weight()?, images()?);
        let loss = (convolved(&xs, &weight)? + convolved(&(&xs * 2.0)?, &weight)?)?;
        let loss = (loss + weight.sqr()?.sum_all()?)?;
        let scale = loss.backward()?.get(&weight).unwrap().abs()?.max_all()?.to_scalar::<f32>()?;
        let difference = difference(&backward(&loss)?, &loss.backward()?, &weight)?;
        assert!(difference <= 1e-6 * scale, "{difference} of {scale}");
        Ok(())
    }

    #[test]
    fn a_weight_that_was_computed_passes_its_gradient_on() -> Result<()> {
        let (raw, xs) = (weight()?, images()?);
        let loss = convolved(&xs, &(raw.as_tensor() * 3.0)?)?;
        assert_eq!(difference(&backward(&loss)?, &loss.backward()?, &raw)?, 0.0);
        Ok(())
    }

    /// An operation whose gradient fails.
    struct Failing;

    impl candle_core::CustomOp1 for Failing {
        fn name(&self) -> &'static str {
            "failing"
        }

        fn cpu_fwd(
            &self,
            storage: &candle_core::CpuStorage,
            layout: &candle_core::Layout,
        ) -> Result<(candle_core::CpuStorage, candle_core::Shape)> {
            Ok((storage.clone(), layout.shape().clone()))
        }
    }

    #[test]
    fn after_an_error_candle_gets_its_gradients_again() -> Result<()> {
        let (weight, xs) = (weight()?, images()?);
        let failing = convolved(&xs, &weight.as_tensor().apply_op1(Failing)?)?;
        assert!(backward(&failing).is_err());
        let loss = convolved(&xs, &weight)?;
        assert!(loss.backward()?.get(&weight).is_some());
        Ok(())
    }
}
