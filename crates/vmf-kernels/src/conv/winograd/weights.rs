//! The transforms of weights to points, and of the points' sums to weight gradients, element by
//! element.

// A closure that is marked `#[inline(always)]` is compiled for the instruction set of its caller. A
// function that is passed by name need not be.
#![allow(clippy::redundant_closure)]

use super::scheme::Scheme;
use super::transform::{Constants, transform_tile};
use super::{corner, transform};
use crate::simd::{Kernel, Simd, Vector};

/// Which of the two transforms.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// `G w Gᵀ`: nine taps to the points.
    Weights {
        /// Whether the kernel is rotated by half a turn first.
        rotated: bool,
    },
    /// `Gᵀ u G`: the points to nine taps.
    Gradient,
}

/// Transforms `len` elements, each of which has its taps, or points, some stride apart.
pub(super) struct WeightTransform<'a> {
    pub(super) scheme: Scheme,
    pub(super) kind: Kind,
    /// The numbers, and the stride from one tap or point to the next.
    pub(super) from: (&'a [f32], usize),
    pub(super) to: (&'a mut [f32], usize),
    pub(super) len: usize,
}

impl Kernel for WeightTransform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let c = Constants::<S::F32>::new();
        match (self.kind, self.scheme) {
            (Kind::Weights { .. }, Scheme::Tiles) => self.elements::<S, 3, 6>(
                #[inline(always)]
                |w| transform::weights(w, c),
            ),
            (Kind::Weights { .. }, Scheme::Corner) => self.elements::<S, 3, 3>(
                #[inline(always)]
                |w| corner::weights(w),
            ),
            (Kind::Gradient, Scheme::Tiles) => self.elements::<S, 6, 3>(
                #[inline(always)]
                |u| transform::weight_gradient(u, c),
            ),
            (Kind::Gradient, Scheme::Corner) => self.elements::<S, 3, 3>(
                #[inline(always)]
                |u| corner::weight_gradient(u),
            ),
        }
    }
}

impl WeightTransform<'_> {
    #[inline(always)]
    fn elements<S: Simd, const FROM: usize, const TO: usize>(
        self,
        matrix: impl Fn([S::F32; FROM]) -> [S::F32; TO] + Copy,
    ) {
        let ((from, from_stride), (to, to_stride)) = (self.from, self.to);
        assert!(self.len <= from_stride.min(to_stride) && self.len.is_multiple_of(S::LANES));
        assert!(from.len() >= FROM * FROM * from_stride && to.len() >= TO * TO * to_stride);
        let rotated = matches!(self.kind, Kind::Weights { rotated: true });
        let (from, to) = (from.as_ptr(), to.as_mut_ptr());
        for at in (0..self.len).step_by(S::LANES) {
            transform_tile::<S, FROM, TO>(
                1,
                matrix,
                #[inline(always)]
                |i, j, _| {
                    let place = FROM * i + j;
                    let place = if rotated { FROM * FROM - 1 - place } else { place };
                    // SAFETY: the assertions above; `len` is made of whole registers.
                    unsafe { S::F32::load(from.add(place * from_stride + at)) }
                },
                #[inline(always)]
                |i, j, _, x| {
                    // SAFETY: as above.
                    unsafe { x.store(to.add((TO * i + j) * to_stride + at)) }
                },
            );
        }
    }
}
