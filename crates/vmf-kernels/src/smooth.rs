//! Smooth activations with their gradients.
//!
//! ```text
//! gelu(x) = x Phi(x)              gelu'(x) = Phi(x) + x phi(x)
//! silu(x) = x s,  s = 1 / (1 + exp(-x))        silu'(x) = s (1 + x (1 - s))
//! ```
//! GELU is the exact one, not its approximation by `tanh`. The backward pass computes everything
//! again from x.

use crate::element::{Element, Real};
use crate::elementary::Elementary;
use crate::error::{Error, check_length};
use crate::normal_cdf::NormalCdf;
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Elements of a task.
const TASK: usize = 1 << 13;

/// Which activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smooth {
    /// `x Phi(x)`, with the normal distribution function.
    Gelu,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// The activation of every element.
pub fn forward<E: Element<Real: Elementary>>(
    activation: Smooth,
    x: &[E],
    y: &mut [E],
) -> Result<(), Error> {
    check_length("y", y.len(), x.len())?;
    let isa = Isa::current();
    y.par_chunks_mut(TASK)
        .by_task()
        .zip(x.par_chunks(TASK))
        .for_each(|(y, x)| dispatch_to(isa, Forward { activation, x, y }));
    Ok(())
}

/// The gradient with respect to x.
pub fn backward<E: Element<Real: Elementary>>(
    activation: Smooth,
    x: &[E],
    dy: &[E],
    dx: &mut [E],
) -> Result<(), Error> {
    check_length("dy", dy.len(), x.len())?;
    check_length("dx", dx.len(), x.len())?;
    let isa = Isa::current();
    dx.par_chunks_mut(TASK)
        .by_task()
        .zip(x.par_chunks(TASK))
        .zip(dy.par_chunks(TASK))
        .for_each(|((dx, x), dy)| dispatch_to(isa, Backward { activation, x, dy, dx }));
    Ok(())
}

struct Forward<'a, E> {
    activation: Smooth,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element<Real: Elementary>> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let elements = self.y.iter_mut().zip(self.x);
        match self.activation {
            Smooth::Gelu => elements.for_each(|(y, x)| {
                let x = x.to_real();
                let step = E::Real::from_f64(if x < E::Real::ZERO { 0.0 } else { 1.0 });
                *y = E::from_real(x * near(x, x.cdf::<S>(), step));
            }),
            Smooth::Silu => elements.for_each(|(y, x)| {
                let x = x.to_real();
                *y = E::from_real(x * logistic::<_, S>(x).0);
            }),
        }
    }
}

struct Backward<'a, E> {
    activation: Smooth,
    x: &'a [E],
    dy: &'a [E],
    dx: &'a mut [E],
}

impl<E: Element<Real: Elementary>> Kernel for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let elements = self.dx.iter_mut().zip(self.x.iter().zip(self.dy));
        match self.activation {
            Smooth::Gelu => elements.for_each(|(dx, (x, dy))| {
                let x = x.to_real();
                let step = E::Real::from_f64(if x < E::Real::ZERO { 0.0 } else { 1.0 });
                let pdf = near(x, x.pdf::<S>(), E::Real::ZERO);
                let cdf = near(x, x.cdf::<S>(), step);
                let slope = x.mul_add::<S>(pdf, cdf);
                *dx = E::from_real(dy.to_real() * slope);
            }),
            Smooth::Silu => elements.for_each(|(dx, (x, dy))| {
                let x = x.to_real();
                let (s, rest) = logistic::<_, S>(x);
                let slope = (x * rest).mul_add::<S>(s, s);
                *dx = E::from_real(dy.to_real() * slope);
            }),
        }
    }
}

/// `value` up to a distance of 14 from 0, and `limit` beyond. The normal distribution function and
/// its density are tiny there, but not 0, and x may be large.
#[inline(always)]
fn near<R: Elementary>(x: R, value: R, limit: R) -> R {
    const END: f64 = 14.0;
    if x > R::from_f64(END) || x < R::from_f64(-END) { limit } else { value }
}

/// `s = 1 / (1 + exp(-x))` and `1 - s`, neither by a subtraction that cancels.
#[inline(always)]
fn logistic<R: Elementary, S: Simd>(x: R) -> (R, R) {
    let one = R::from_f64(1.0);
    let e = (if x < R::ZERO { x } else { -x }).exp_negative::<S>();
    let large = (one + e).reciprocal();
    let small = e * large;
    if x < R::ZERO { (small, large) } else { (large, small) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmf_core::expected::normal::{cdf, pdf};

    #[test]
    fn values_and_slopes_are_those_of_the_definition() {
        let x: Vec<f64> = (-4000..=4000).map(|i| f64::from(i) * 0.005).collect();
        let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        for activation in [Smooth::Gelu, Smooth::Silu] {
            let value = |x: f64| match activation {
                Smooth::Gelu => x * cdf(x),
                Smooth::Silu => x * logistic(x),
            };
            let slope = |x: f64| match activation {
                Smooth::Gelu => cdf(x) + x * pdf(x),
                Smooth::Silu => logistic(x) * (1.0 + x * logistic(-x)),
            };
            let (mut y, mut dx) = (vec![0f64; x.len()], vec![0f64; x.len()]);
            forward(activation, &x, &mut y).unwrap();
            backward(activation, &x, &vec![1.0; x.len()], &mut dx).unwrap();
            let (mut y32, mut dx32) = (vec![0f32; x.len()], vec![0f32; x.len()]);
            forward(activation, &single, &mut y32).unwrap();
            backward(activation, &single, &vec![1.0; x.len()], &mut dx32).unwrap();
            for i in 0..x.len() {
                let at = f64::from(single[i]);
                assert!((y[i] - value(x[i])).abs() < 2e-14, "{activation:?}({})", x[i]);
                assert!((dx[i] - slope(x[i])).abs() < 2e-14, "{activation:?}'({})", x[i]);
                let scale = at.abs().max(1.0);
                assert!((f64::from(y32[i]) - value(at)).abs() < 6e-7 * scale, "{at}");
                assert!((f64::from(dx32[i]) - slope(at)).abs() < 3e-6, "{at}");
            }
        }
    }

    #[test]
    fn far_out_it_is_the_relu() {
        let x = [-1e30f32, -200.0, 200.0, 1e30];
        for activation in [Smooth::Gelu, Smooth::Silu] {
            let (mut y, mut dx) = ([f32::NAN; 4], [f32::NAN; 4]);
            forward(activation, &x, &mut y).unwrap();
            backward(activation, &x, &[1.0; 4], &mut dx).unwrap();
            assert!(y[0].abs() < 1e-6 && y[1].abs() < 1e-6 && y[2..] == x[2..], "{y:?}");
            assert!(dx[0].abs() < 1e-6 && dx[1].abs() < 1e-6 && dx[2..] == [1.0; 2], "{dx:?}");
        }
        assert!(forward(Smooth::Gelu, &x, &mut [0.0; 3]).is_err());
    }
}
