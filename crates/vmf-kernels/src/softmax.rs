//! Softmax over rows, with its gradient.
//!
//! ```text
//! y_i = exp(x_i - max x) / sum_j exp(x_j - max x)          dx_i = y_i (dy_i - sum_j dy_j y_j)
//! ```
//! A row stays in the first-level cache while it is read for its maximum, for its exponentials and
//! for their sum. The backward pass needs the output alone. Elements of minus infinity get 0; a row
//! of nothing else has no softmax, and is NaN.

use crate::element::{Element, Real};
use crate::elementary::{Elementary, dot, sum};
use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Elements of a task, at least.
const TASK: usize = 1 << 13;

/// The softmax of every row of `length` elements.
pub fn forward<E: Element<Real: Elementary>>(
    length: usize,
    x: &[E],
    y: &mut [E],
) -> Result<(), Error> {
    forward_on(Isa::current(), length, x, y)
}

/// [`forward`] on a given instruction set.
pub fn forward_on<E: Element<Real: Elementary>>(
    isa: Isa,
    length: usize,
    x: &[E],
    y: &mut [E],
) -> Result<(), Error> {
    check_rows(length, x.len())?;
    check_length("y", y.len(), x.len())?;
    let task = task(length);
    y.par_chunks_mut(task)
        .by_task()
        .zip(x.par_chunks(task))
        .for_each(|(y, x)| dispatch_to(isa, Forward { length, x, y }));
    Ok(())
}

/// The gradient with respect to the input, from the output y and its gradient.
pub fn backward<E: Element<Real: Elementary>>(
    length: usize,
    y: &[E],
    dy: &[E],
    dx: &mut [E],
) -> Result<(), Error> {
    backward_on(Isa::current(), length, y, dy, dx)
}

/// [`backward`] on a given instruction set.
pub fn backward_on<E: Element<Real: Elementary>>(
    isa: Isa,
    length: usize,
    y: &[E],
    dy: &[E],
    dx: &mut [E],
) -> Result<(), Error> {
    check_rows(length, y.len())?;
    check_length("dy", dy.len(), y.len())?;
    check_length("dx", dx.len(), y.len())?;
    let task = task(length);
    dx.par_chunks_mut(task)
        .by_task()
        .zip(y.par_chunks(task))
        .zip(dy.par_chunks(task))
        .for_each(|((dx, y), dy)| dispatch_to(isa, Backward { length, y, dy, dx }));
    Ok(())
}

/// Checks that so many elements are whole rows.
pub(crate) fn check_rows(length: usize, elements: usize) -> Result<(), Error> {
    if length > 0 && elements.is_multiple_of(length) {
        return Ok(());
    }
    Err(Error::Value {
        name: "length",
        value: format!("{length} for {elements} elements"),
        requirement: "a positive divisor of the number of elements",
    })
}

/// Elements of a task: whole rows.
fn task(length: usize) -> usize {
    TASK.div_ceil(length) * length
}

struct Forward<'a, E> {
    length: usize,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element<Real: Elementary>> Kernel for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut row = vec![E::Real::ZERO; self.length];
        for (x, y) in self.x.chunks(self.length).zip(self.y.chunks_mut(self.length)) {
            for (row, x) in row.iter_mut().zip(x) {
                *row = x.to_real();
            }
            softmax_row::<E::Real, S>(&mut row);
            for (y, row) in y.iter_mut().zip(&row) {
                *y = E::from_real(*row);
            }
        }
    }
}

/// Replaces a row by its softmax.
#[inline(always)]
pub(crate) fn softmax_row<R: Elementary, S: Simd>(row: &mut [R]) {
    let largest = largest(row);
    for x in row.iter_mut() {
        *x = (*x - largest).exp_negative::<S>();
    }
    let scale = R::from_f64(sum(row, |e: R| e)).reciprocal();
    for x in row.iter_mut() {
        *x = *x * scale;
    }
}

/// The largest element. A NaN is passed over, and makes the sum of the exponentials NaN later.
#[inline(always)]
fn largest<R: Real>(row: &[R]) -> R {
    const PARTS: usize = 16;
    let larger = |a: R, b: R| if b > a { b } else { a };
    let mut parts = [R::NEG_INFINITY; PARTS];
    let (whole, rest) = row.as_chunks::<PARTS>();
    for x in whole {
        for (part, x) in parts.iter_mut().zip(x) {
            *part = larger(*part, *x);
        }
    }
    parts.iter().chain(rest).fold(R::NEG_INFINITY, |a, &b| larger(a, b))
}

struct Backward<'a, E> {
    length: usize,
    y: &'a [E],
    dy: &'a [E],
    dx: &'a mut [E],
}

impl<E: Element<Real: Elementary>> Kernel for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let length = self.length;
        let (mut y_row, mut dy_row) = (vec![E::Real::ZERO; length], vec![E::Real::ZERO; length]);
        let rows = self.y.chunks(length).zip(self.dy.chunks(length));
        for ((y, dy), dx) in rows.zip(self.dx.chunks_mut(length)) {
            for ((y_row, dy_row), (y, dy)) in
                y_row.iter_mut().zip(&mut dy_row).zip(y.iter().zip(dy))
            {
                (*y_row, *dy_row) = (y.to_real(), dy.to_real());
            }
            let mean = E::Real::from_f64(dot::<_, S>(&y_row, &dy_row));
            for (dx, (y, dy)) in dx.iter_mut().zip(y_row.iter().zip(&dy_row)) {
                *dx = E::from_real(*y * (*dy - mean));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, assert_close, with_threads};

    fn naive(length: usize, x: &[f32]) -> Vec<f64> {
        x.chunks(length)
            .flat_map(|row| {
                let e: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
                let total: f64 = e.iter().sum();
                e.into_iter().map(move |e| e / total)
            })
            .collect()
    }

    #[test]
    fn rows_match_the_definition_on_every_instruction_set() {
        let mut rng = Rng::new(3);
        for isa in Isa::available() {
            for (rows, length) in [(1, 1), (3, 2), (7, 17), (64, 64), (5, 1000), (300, 65)] {
                let x: Vec<f32> = rng.normals(rows * length).iter().map(|x| 5.0 * x).collect();
                let dy = rng.normals(rows * length);
                let (mut y, mut dx) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
                forward_on(isa, length, &x, &mut y).unwrap();
                let expected = naive(length, &x);
                assert_close(&y, &expected, 1e-6, &format!("{isa:?} {rows}x{length}"));
                backward_on(isa, length, &y, &dy, &mut dx).unwrap();
                let rows = expected.chunks(length).zip(dy.chunks(length));
                let gradient: Vec<f64> = rows
                    .flat_map(|(y, dy)| {
                        let mean: f64 = y.iter().zip(dy).map(|(y, dy)| y * f64::from(*dy)).sum();
                        y.iter().zip(dy).map(move |(y, dy)| y * (f64::from(*dy) - mean))
                    })
                    .collect();
                // y is right to 1e-6, and so is the gradient in units of dy.
                for (found, expected) in dx.iter().zip(&gradient) {
                    assert!((f64::from(*found) - expected).abs() < 4e-6, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn large_logits_and_masks_are_no_trouble() {
        let x = [1e30f32, 1e30, f32::NEG_INFINITY, -1e30];
        let mut y = [0.0; 4];
        forward(4, &x, &mut y).unwrap();
        assert_eq!(y, [0.5, 0.5, 0.0, 0.0]);
        forward(4, &[f32::NAN, 0.0, 0.0, 0.0], &mut y).unwrap();
        assert!(y.iter().all(|y| y.is_nan()));
    }

    #[test]
    fn bits_do_not_depend_on_threads_and_wrong_lengths_are_errors() {
        let x = Rng::new(4).normals(500 * 65);
        let run = |threads| {
            with_threads(threads, || {
                let mut y = vec![0.0; x.len()];
                forward(65, &x, &mut y).unwrap();
                y
            })
        };
        assert_eq!(run(1), run(3));
        assert!(forward(0, &x, &mut x.clone()).is_err());
        assert!(forward(64, &x[..65], &mut [0.0; 65]).is_err());
        assert!(forward(65, &x[..65], &mut [0.0; 64]).is_err());
    }
}
