//! How the passes walk through a tensor in NCHW; README.md draws it.
//!
//! The logical order of the elements is their order in memory here. Noise is therefore made in
//! tiles that ignore where planes end, and each tile is consumed in runs that do not cross such an
//! end.

use super::accumulate::{Accumulator, Part};
use crate::element::Real;
use crate::layout::Shape;
use crate::noise::{Noise, fill_run};
use crate::simd::Simd;
use rayon::prelude::*;
use std::ops::Range;

/// Elements of a task: enough to pay for starting one, and few enough for the second-level cache.
const TASK: usize = 1 << 16;
/// Elements whose noise is made together; also the longest run that is summed in the working
/// precision.
const TILE: usize = 1 << 10;

/// A task: consecutive planes, where a plane is one channel of one image.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    shape: Shape,
    first_plane: usize,
    planes: usize,
}

impl Stretch {
    /// The stretches that the tensor is cut into, in the order of memory.
    pub(super) fn tasks(shape: Shape) -> impl IndexedParallelIterator<Item = Stretch> {
        let (all, most) = (shape.batch * shape.channels, Self::most_planes(shape));
        (0..all.div_ceil(most)).into_par_iter().map(move |task| {
            let first_plane = task * most;
            Self { shape, first_plane, planes: most.min(all - first_plane) }
        })
    }

    /// Elements of every stretch but the last.
    pub(super) fn most_elements(shape: Shape) -> usize {
        Self::most_planes(shape) * shape.positions
    }

    /// Planes of every stretch but the last: whole images, or an equal part of the channels of one
    /// image.
    fn most_planes(shape: Shape) -> usize {
        let planes = (TASK / shape.positions).max(1);
        let channels = shape.channels;
        if planes >= channels {
            planes / channels * channels
        } else {
            (1..=planes).rev().find(|part| channels.is_multiple_of(*part)).unwrap_or(1)
        }
    }

    fn first_channel(self) -> usize {
        self.first_plane % self.shape.channels
    }

    /// Where its elements are in the tensor.
    pub(super) fn elements(self) -> Range<usize> {
        let start = self.first_plane * self.shape.positions;
        start..start + self.planes * self.shape.positions
    }

    /// An empty accumulator for each channel that the stretch touches.
    pub(super) fn part<A: Accumulator>(self) -> Part<A> {
        Part {
            first_channel: self.first_channel(),
            channels: vec![A::default(); self.planes.min(self.shape.channels)],
        }
    }

    /// The stretch, in runs of at most [`TILE`] elements that share a channel and a tile.
    pub(super) fn runs(self) -> Runs {
        Runs {
            stretch: self,
            at: 0,
            channel: self.first_channel(),
            left_in_plane: self.shape.positions,
        }
    }
}

/// Consecutive elements of one channel, and where they are in the stretch and in their tile.
pub(super) struct Run {
    pub(super) channel: usize,
    pub(super) elements: Range<usize>,
    tile: Range<usize>,
}

pub(super) struct Runs {
    stretch: Stretch,
    at: usize,
    channel: usize,
    left_in_plane: usize,
}

impl Iterator for Runs {
    type Item = Run;

    #[inline(always)]
    fn next(&mut self) -> Option<Run> {
        let shape = self.stretch.shape;
        let length = self.stretch.planes * shape.positions;
        if self.at == length {
            return None;
        }
        let in_tile = self.at % TILE;
        let run = self.left_in_plane.min(TILE - in_tile);
        let item = Run {
            channel: self.channel,
            elements: self.at..self.at + run,
            tile: in_tile..in_tile + run,
        };
        self.at += run;
        self.left_in_plane -= run;
        if self.left_in_plane == 0 {
            self.left_in_plane = shape.positions;
            self.channel += 1;
            if self.channel == shape.channels {
                self.channel = 0;
            }
        }
        Some(item)
    }
}

/// The normals of one tile, made when its first run comes up. Without noise they are zero.
pub(super) struct Tile<'a, R> {
    noise: Option<&'a Noise>,
    z: Vec<R>,
}

impl<'a, R: Real> Tile<'a, R> {
    #[inline(always)]
    pub(super) fn new(noise: Option<&'a Noise>) -> Self {
        Self { noise, z: vec![R::ZERO; TILE] }
    }

    /// The normals of a run.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&mut self, stretch: Stretch, run: &Run) -> &[R] {
        if let (Some(noise), 0) = (self.noise, run.tile.start) {
            let elements = stretch.elements();
            let first = elements.start + run.elements.start;
            let length = (elements.end - first).min(TILE);
            fill_run::<R, S>(noise, first as u64, &mut self.z[..length]);
        }
        &self.z[run.tile.clone()]
    }
}
