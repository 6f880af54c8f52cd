//! How the passes with noise walk through a tensor in HWNC; README.md draws it.
//!
//! Four consecutive positions of one plane share a Philox block. A few positions are therefore
//! walked abreast: the four normals of a block then serve four rows that are far apart in memory,
//! and none is thrown away.

use super::rows::{TASK, longest_sweep, pieces, repeats};
use crate::element::Real;
use crate::layout::Shape;
use crate::noise::{Noise, Planes};
use crate::simd::Simd;

/// A task: a range of positions by a range of images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rectangle {
    shape: Shape,
    first_position: usize,
    positions: usize,
    first_image: usize,
    images: usize,
}

impl Rectangle {
    /// The rectangles that the tensor is cut into: positions in the outer loop, images in the inner
    /// one.
    pub(super) fn tasks(shape: Shape) -> Vec<Rectangle> {
        let (positions, images) = Self::size(shape);
        let mut tasks = Vec::new();
        for first_position in (0..shape.positions).step_by(positions) {
            for first_image in (0..shape.batch).step_by(images) {
                tasks.push(Self {
                    shape,
                    first_position,
                    positions: positions.min(shape.positions - first_position),
                    first_image,
                    images: images.min(shape.batch - first_image),
                });
            }
        }
        tasks
    }

    /// Positions and images of a full rectangle.
    fn size(shape: Shape) -> (usize, usize) {
        let abreast = Planes::preferred_positions(shape.positions);
        let elements = abreast * shape.channels;
        let images = (TASK / elements).clamp(1, shape.batch);
        let groups = (TASK / (elements * images)).max(1);
        (abreast * groups, images)
    }

    /// Cuts the memory of a tensor into the pieces of each task.
    pub(super) fn pieces<E>(shape: Shape, tensor: &mut [E]) -> Vec<Vec<&mut [E]>> {
        let (positions, images) = Self::size(shape);
        let task_rows = shape.positions.div_ceil(positions);
        let sizes = [shape.batch, shape.channels];
        pieces(tensor, sizes, images, task_rows, |position| position / positions)
    }

    /// Where the elements of one of its positions begin in the tensor.
    #[inline(always)]
    pub(super) fn start(self, position: usize) -> usize {
        self.shape.offset(self.first_image, 0, self.first_position + position)
    }

    /// The sweeps of the rectangle, and the noise of each.
    #[inline(always)]
    pub(super) fn sweeps<'a, R: Real>(self, noise: Option<&'a Noise>) -> Sweeps<'a, R> {
        // Without noise positions share nothing, and memory is read from front to back.
        let abreast = match noise {
            Some(_) => Planes::preferred_positions(self.shape.positions),
            None => 1,
        };
        let longest = longest_sweep(abreast);
        let pitch = Planes::pitch(longest);
        Sweeps {
            rectangle: self,
            noise,
            abreast,
            longest,
            pitch,
            period: self.shape.channels * repeats(self.shape.channels),
            position: 0,
            at: 0,
            z: vec![R::ZERO; abreast * pitch],
            scratch: vec![R::ZERO; abreast * pitch],
        }
    }
}

/// A walk through a rectangle: along the rows of the first few positions, then of the next few.
pub(super) struct Sweeps<'a, R> {
    rectangle: Rectangle,
    noise: Option<&'a Noise>,
    abreast: usize,
    longest: usize,
    pitch: usize,
    period: usize,
    position: usize,
    at: usize,
    z: Vec<R>,
    scratch: Vec<R>,
}

/// The same columns of a few positions.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    /// The first position, within the rectangle, and how many.
    pub(super) position: usize,
    pub(super) positions: usize,
    /// The first element, within what the rectangle has of a position, and how many.
    pub(super) at: usize,
    pub(super) length: usize,
    /// Where the first element is in the repeated constants.
    pub(super) column: usize,
}

impl<R: Real> Sweeps<'_, R> {
    /// The next sweep, whose normals can then be read by [`z`](Sweeps::z).
    ///
    /// `coming` is told of the sweep before its normals are made. Making them takes longer than to
    /// fetch the operands of the sweep, so this is the time to prefetch those.
    #[inline(always)]
    pub(super) fn next<S: Simd>(&mut self, coming: impl FnOnce(&Sweep)) -> Option<Sweep> {
        let Rectangle { shape, first_position, positions, first_image, images } = self.rectangle;
        if self.at == images * shape.channels {
            self.at = 0;
            self.position += self.abreast;
        }
        if self.position >= positions {
            return None;
        }
        let column = self.at % self.period;
        let sweep = Sweep {
            position: self.position,
            positions: self.abreast.min(positions - self.position),
            at: self.at,
            length: (images * shape.channels - self.at).min(self.period - column).min(self.longest),
            column,
        };
        if let Some(noise) = self.noise {
            coming(&sweep);
            let planes = Planes {
                plane_len: shape.positions,
                first_plane: first_image * shape.channels + sweep.at,
                planes: sweep.length,
                first_position: first_position + sweep.position,
                positions: sweep.positions,
            };
            planes.fill::<R, S>(noise, self.pitch, &mut self.scratch, &mut self.z);
        }
        self.at += sweep.length;
        Some(sweep)
    }

    /// The normals of one position of the sweep that [`next`](Sweeps::next) returned last; zeros
    /// without noise.
    #[inline(always)]
    pub(super) fn z(&self, sweep: &Sweep, position: usize) -> &[R] {
        &self.z[position * self.pitch..][..sweep.length]
    }
}
