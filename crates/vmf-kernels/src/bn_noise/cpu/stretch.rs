//! How the passes walk through a tensor whose channels are planes.
//!
//! Logical order is memory order here, so noise is made in tiles that take no notice of where
//! planes end, and each tile is consumed in runs that do.

use super::super::Shape;
use super::accumulate::{Accumulator, Part};
use crate::element::Real;
use crate::noise::{Noise, fill_run};
use crate::simd::Simd;
use std::ops::Range;

/// Elements of a task: enough to pay for starting one, and small enough for the second-level cache.
const TASK: usize = 1 << 16;
/// Elements whose noise is made together; also the longest stretch that is summed in the working
/// precision.
const TILE: usize = 1 << 10;

/// How many planes make a task: whole images, or an equal part of the channels of one image.
pub(super) fn planes_per_task(shape: Shape) -> usize {
    let planes = (TASK / shape.positions).max(1);
    let channels = shape.channels;
    if planes >= channels {
        planes / channels * channels
    } else {
        (1..=planes).rev().find(|part| channels.is_multiple_of(*part)).unwrap_or(1)
    }
}

/// A task's stretch of the tensor: it begins with the first element of a plane.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) shape: Shape,
    pub(super) first_plane: usize,
    pub(super) planes: usize,
}

impl Stretch {
    pub(super) fn task(shape: Shape, task: usize) -> Self {
        let planes = planes_per_task(shape);
        let first_plane = task * planes;
        Self { shape, first_plane, planes: planes.min(shape.batch * shape.channels - first_plane) }
    }

    pub(super) fn first_channel(self) -> usize {
        self.first_plane % self.shape.channels
    }

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
    normals: Vec<R>,
}

impl<'a, R: Real> Tile<'a, R> {
    #[inline(always)]
    pub(super) fn new(noise: Option<&'a Noise>) -> Self {
        Self { noise, normals: vec![R::ZERO; TILE] }
    }

    #[inline(always)]
    pub(super) fn run<S: Simd>(&mut self, stretch: Stretch, run: &Run) -> &[R] {
        if let (Some(noise), 0) = (self.noise, run.tile.start) {
            let elements = stretch.elements();
            let first = elements.start + run.elements.start;
            let length = (elements.end - first).min(TILE);
            fill_run::<R, S>(noise, first as u64, &mut self.normals[..length]);
        }
        &self.normals[run.tile.clone()]
    }
}
