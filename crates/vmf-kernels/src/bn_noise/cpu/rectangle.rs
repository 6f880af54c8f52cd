//! How the passes with noise walk through a tensor whose slowest dimension is the position.
//!
//! Four consecutive positions of one image and channel share a Philox block, so a few positions are
//! walked abreast: the block's four normals then serve four rows that are far apart in memory, and
//! none is thrown away.

use super::super::Shape;
use super::hwnc::{SWEEP, TASK, repeats};
use crate::element::Real;
use crate::noise::{Noise, Planes};
use crate::simd::Simd;

/// Elements whose noise is made together, at most.
const TILE: usize = 1 << 13;

/// A task of the passes with noise: a range of positions by a range of images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rectangle {
    pub(super) shape: Shape,
    pub(super) first_position: usize,
    pub(super) positions: usize,
    pub(super) first_image: usize,
    pub(super) images: usize,
}

impl Rectangle {
    /// The rectangles that the tensor is cut into: positions outside, images inside.
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
        let together = Planes::preferred_positions(shape.positions);
        let row = together * shape.channels;
        let images = (TASK / row).clamp(1, shape.batch);
        let groups = (TASK / (row * images)).max(1);
        (together * groups, images)
    }

    /// Cuts a tensor's memory into the pieces of each task, one for each of its positions.
    pub(super) fn pieces<E>(shape: Shape, tensor: &mut [E]) -> Vec<Vec<&mut [E]>> {
        let (positions, images) = Self::size(shape);
        let across = shape.batch.div_ceil(images);
        let mut pieces = Vec::new();
        pieces.resize_with(shape.positions.div_ceil(positions) * across, Vec::new);
        let planes = tensor.chunks_mut(shape.batch * shape.channels);
        for (position, plane) in planes.enumerate() {
            let first = position / positions * across;
            for (column, piece) in plane.chunks_mut(images * shape.channels).enumerate() {
                pieces[first + column].push(piece);
            }
        }
        pieces
    }

    /// Where the elements of one of its positions begin in the tensor.
    #[inline(always)]
    pub(super) fn start(self, position: usize) -> usize {
        self.shape.offset(self.first_image, 0, self.first_position + position)
    }

    /// The sweeps of the rectangle, and the noise of each.
    #[inline(always)]
    pub(super) fn sweeps<'a, R: Real>(self, noise: Option<&'a Noise>) -> Sweeps<'a, R> {
        // Without noise nothing is shared between positions, and memory is read front to back.
        let together = match noise {
            Some(_) => Planes::preferred_positions(self.shape.positions),
            None => 1,
        };
        let longest = (TILE / together).clamp(16, SWEEP);
        let pitch = Planes::pitch(longest);
        Sweeps {
            rectangle: self,
            noise,
            together,
            longest,
            pitch,
            period: self.shape.channels * repeats(self.shape.channels),
            position: 0,
            at: 0,
            normals: vec![R::ZERO; together * pitch],
            scratch: vec![R::ZERO; together * pitch],
        }
    }
}

/// A walk through a rectangle: a group of positions, then along their rows.
pub(super) struct Sweeps<'a, R> {
    rectangle: Rectangle,
    noise: Option<&'a Noise>,
    together: usize,
    longest: usize,
    pub(super) pitch: usize,
    period: usize,
    position: usize,
    at: usize,
    pub(super) normals: Vec<R>,
    scratch: Vec<R>,
}

/// The same stretch of the rows of a few positions.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    /// The first position, within the rectangle, and how many.
    pub(super) position: usize,
    pub(super) positions: usize,
    /// The first element of the stretch, within the rectangle's elements of a position, and how
    /// many.
    pub(super) at: usize,
    pub(super) length: usize,
    /// Where the stretch begins in the repeated constants.
    pub(super) column: usize,
}

impl<R: Real> Sweeps<'_, R> {
    /// The next sweep; its normals are then in `normals`, `pitch` apart for each position. Without
    /// noise they are zero.
    ///
    /// `coming` is told of the sweep before its normals are made, which takes longer than to fetch
    /// its operands.
    #[inline(always)]
    pub(super) fn next<S: Simd>(&mut self, coming: impl FnOnce(&Sweep)) -> Option<Sweep> {
        let Rectangle { shape, first_position, positions, first_image, images } = self.rectangle;
        if self.at == images * shape.channels {
            self.at = 0;
            self.position += self.together;
        }
        if self.position >= positions {
            return None;
        }
        let column = self.at % self.period;
        let sweep = Sweep {
            position: self.position,
            positions: self.together.min(positions - self.position),
            at: self.at,
            length: (images * shape.channels - self.at).min(self.period - column).min(self.longest),
            column,
        };
        if let Some(noise) = self.noise {
            coming(&sweep);
            let planes = Planes {
                spatial: shape.positions,
                first_row: first_image * shape.channels + sweep.at,
                rows: sweep.length,
                first_position: first_position + sweep.position,
                positions: sweep.positions,
            };
            planes.fill::<R, S>(noise, self.pitch, &mut self.scratch, &mut self.normals);
        }
        self.at += sweep.length;
        Some(sweep)
    }
}
