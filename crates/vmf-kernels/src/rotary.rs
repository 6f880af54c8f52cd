//! Rotary position embedding (Su et al., 2021), with its gradient.
//!
//! The two halves of a head, x1 and x2, are the coordinates of `dim / 2` points in the plane. Point
//! i of the token at position t is turned by the angle `t theta_i`:
//! ```text
//! y1 = x1 cos - x2 sin,    y2 = x1 sin + x2 cos
//! ```
//! The gradient is turned back by the same angle.

use crate::element::{Element, Real};
use crate::error::{Error, check_length};
use crate::parallel::ByTask;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use rayon::prelude::*;

/// Elements of a task, at least.
const TASK: usize = 1 << 13;

/// The shape (sequences, tokens, heads, dim) of what is turned, in this order in memory. With the
/// heads in front of the tokens, they count as sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Positions in a sequence.
    pub tokens: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Elements of a head, an even number.
    pub dim: usize,
}

/// In which direction to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As the definition says.
    Forward,
    /// Back: the gradient with respect to x from that of y.
    Backward,
}

/// Turns x. `cos` and `sin` are tables (tokens, dim / 2).
pub fn rotate<E: Element>(
    shape: &Shape,
    direction: Direction,
    [cos, sin]: [&[E::Real]; 2],
    x: &[E],
    y: &mut [E],
) -> Result<(), Error> {
    let Shape { tokens, heads, dim } = *shape;
    let row = heads * dim;
    if row == 0 || !dim.is_multiple_of(2) || tokens == 0 || !x.len().is_multiple_of(tokens * row) {
        return Err(Error::Value {
            name: "shape",
            value: format!("{shape:?} for {} elements", x.len()),
            requirement: "sequences of whole tokens, with an even dim",
        });
    }
    check_length("cos", cos.len(), tokens * dim / 2)?;
    check_length("sin", sin.len(), tokens * dim / 2)?;
    check_length("y", y.len(), x.len())?;
    let (isa, rows) = (Isa::current(), TASK.div_ceil(row));
    y.par_chunks_mut(rows * row).by_task().zip(x.par_chunks(rows * row)).enumerate().for_each(
        |(task, (y, x))| {
            let first = task * rows;
            dispatch_to(isa, Turn { shape: *shape, direction, cos, sin, first, x, y });
        },
    );
    Ok(())
}

/// The angles `t theta_i` with `theta_i = base^(-2 i / dim)`, as tables of cosines and sines
/// (tokens, dim / 2). The customary base is 10,000.
pub fn tables(tokens: usize, dim: usize, base: f64) -> [Vec<f64>; 2] {
    let half = dim / 2;
    let angle = |i: usize| {
        let (t, i) = ((i / half.max(1)) as f64, (i % half.max(1)) as f64);
        t * base.powf(-2.0 * i / dim as f64)
    };
    [f64::cos, f64::sin].map(|f| (0..tokens * half).map(|i| f(angle(i))).collect())
}

struct Turn<'a, E: Element> {
    shape: Shape,
    direction: Direction,
    cos: &'a [E::Real],
    sin: &'a [E::Real],
    /// The number of the first row, all tokens of all sequences counted.
    first: usize,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Kernel for Turn<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Shape { tokens, heads, dim } = self.shape;
        let half = dim / 2;
        let sign = E::Real::from_f64(match self.direction {
            Direction::Forward => 1.0,
            Direction::Backward => -1.0,
        });
        let rows = self.x.chunks(heads * dim).zip(self.y.chunks_mut(heads * dim));
        for (number, (x, y)) in rows.enumerate() {
            let token = (self.first + number) % tokens;
            let (cos, sin) = (&self.cos[token * half..][..half], &self.sin[token * half..][..half]);
            for (x, y) in x.chunks(dim).zip(y.chunks_mut(dim)) {
                let ((x1, x2), (y1, y2)) = (x.split_at(half), y.split_at_mut(half));
                let points = x1.iter().zip(x2).zip(cos.iter().zip(sin));
                for ((y1, y2), ((x1, x2), (cos, sin))) in y1.iter_mut().zip(y2).zip(points) {
                    let (x1, x2, sin) = (x1.to_real(), x2.to_real(), *sin * sign);
                    *y1 = E::from_real(x1.mul_add::<S>(*cos, -(x2 * sin)));
                    *y2 = E::from_real(x1.mul_add::<S>(sin, x2 * *cos));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    /// Scores of turned queries and keys depend on the distance of their tokens alone.
    #[test]
    fn products_depend_on_the_distance_alone() {
        let shape = Shape { tokens: 7, heads: 3, dim: 10 };
        let head: Vec<f64> = Rng::new(1).normals(10).iter().map(|&x| f64::from(x)).collect();
        let other: Vec<f64> = Rng::new(2).normals(10).iter().map(|&x| f64::from(x)).collect();
        let everywhere = |head: &[f64]| head.repeat(2 * 7 * 3);
        let [cos, sin] = tables(7, 10, 100.0);
        let turned = |head: &[f64]| {
            let (x, mut y) = (everywhere(head), vec![0.0; 2 * 7 * 3 * 10]);
            rotate(&shape, Direction::Forward, [&cos, &sin], &x, &mut y).unwrap();
            y
        };
        let (q, k) = (turned(&head), turned(&other));
        let at = |y: &[f64], sequence: usize, token: usize, head: usize| {
            y[((sequence * 7 + token) * 3 + head) * 10..][..10].to_vec()
        };
        let score = |i: usize, j: usize, sequence: usize, head: usize| -> f64 {
            let (q, k) = (at(&q, sequence, i, head), at(&k, sequence, j, head));
            q.iter().zip(k).map(|(q, k)| q * k).sum()
        };
        for distance in 0..5 {
            let expected = score(distance, 0, 0, 0);
            for start in 0..7 - distance {
                for (sequence, head) in [(0, 0), (1, 2)] {
                    let found = score(start + distance, start, sequence, head);
                    assert!((found - expected).abs() < 1e-12, "{distance} {start}");
                }
            }
        }
        assert!((score(1, 0, 0, 0) - score(2, 0, 0, 0)).abs() > 1e-3);
    }

    #[test]
    fn backward_undoes_forward_and_wrong_shapes_are_errors() {
        let shape = Shape { tokens: 100, heads: 4, dim: 8 };
        let tables = tables(100, 8, 1e4).map(|t| t.iter().map(|&x| x as f32).collect::<Vec<_>>());
        let tables = [&*tables[0], &*tables[1]];
        let x = Rng::new(3).normals(3 * 100 * 32);
        let (mut y, mut back) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
        rotate(&shape, Direction::Forward, tables, &x, &mut y).unwrap();
        rotate(&shape, Direction::Backward, tables, &y, &mut back).unwrap();
        assert!(x.iter().zip(&back).all(|(x, b)| (x - b).abs() < 2e-6));
        assert_eq!(x[..32], y[..32], "the first token stays");
        let odd = Shape { dim: 7, ..shape };
        assert!(rotate(&odd, Direction::Forward, tables, &x, &mut y).is_err());
        assert!(rotate(&shape, Direction::Forward, tables, &x[..40], &mut y).is_err());
    }
}
