//! The transforms of activations to points, and of products to outputs: where tiles lie in the
//! image, and the loops over their channels.

// A closure that is marked `#[inline(always)]` is compiled for the instruction set of its caller. A
// function that is passed by name need not be.
#![allow(clippy::redundant_closure)]

use super::scheme::Scheme;
use super::transform::{Constants, transform_tile};
use super::{corner, transform};
use crate::conv::shape::ConvShape;
use crate::parallel::Shared;
use crate::simd::{Kernel, Simd, Vector, load_first, prefetch_line, store_first};
use std::ops::Range;

/// An image in `[position][batch][channel]`, cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) scheme: Scheme,
    height: usize,
    width: usize,
    batch: usize,
    pub(super) channels: usize,
}

/// Some images of one tile.
struct Run {
    /// The tile's place in the grid.
    row: usize,
    col: usize,
    images: Range<usize>,
    /// Rows that come before the run's first.
    before: usize,
}

impl Grid {
    pub(super) fn new(shape: &ConvShape, channels: usize) -> Self {
        let ([height, width], batch) = (shape.input, shape.batch);
        Grid { scheme: Scheme::of(shape), height, width, batch, channels }
    }

    /// Rows of the transformed activations: tiles times images.
    pub(super) fn rows(&self) -> usize {
        self.height.div_ceil(self.scheme.outputs()) * self.tiles_across() * self.batch
    }

    fn tiles_across(&self) -> usize {
        self.width.div_ceil(self.scheme.outputs())
    }

    /// Divides rows, which are ordered by tile and then by image, at the borders of tiles.
    fn runs(&self, rows: Range<usize>) -> impl Iterator<Item = Run> {
        let (batch, across) = (self.batch, self.tiles_across());
        let start = rows.start;
        let mut next = start;
        std::iter::from_fn(move || {
            if next >= rows.end {
                return None;
            }
            let (tile, image) = (next / batch, next % batch);
            let count = (batch - image).min(rows.end - next);
            let run = Run {
                row: tile / across,
                col: tile % across,
                images: image..image + count,
                before: next - start,
            };
            next += count;
            Some(run)
        })
    }

    /// Elements of the tensor.
    fn len(&self) -> usize {
        self.height * self.width * self.batch * self.channels
    }

    /// Where a tile's `SIDE x SIDE` elements are in `data`, for the run's first image and the first
    /// channel; null outside the image. The tile begins `margin` above and left of its outputs.
    #[inline(always)]
    fn places<const SIDE: usize>(
        &self,
        run: &Run,
        margin: usize,
        data: *mut f32,
    ) -> [[*mut f32; SIDE]; SIDE] {
        let outputs = self.scheme.outputs();
        let mut places = [[std::ptr::null_mut(); SIDE]; SIDE];
        for (i, places) in places.iter_mut().enumerate() {
            for (j, place) in places.iter_mut().enumerate() {
                let y = (outputs * run.row + i).wrapping_sub(margin);
                let x = (outputs * run.col + j).wrapping_sub(margin);
                if y < self.height && x < self.width {
                    let position = y * self.width + x;
                    let image = position * self.batch + run.images.start;
                    *place = data.wrapping_add(image * self.channels);
                }
            }
        }
        places
    }
}

/// From one point to the next, for points of `len` elements.
///
/// The extra cache line keeps the points of an element out of the same set of the cache, from which
/// they would evict each other: the sizes of layers are multiples of large powers of two.
pub(super) fn point_stride(len: usize) -> usize {
    len.next_multiple_of(LINE) + LINE
}

/// Elements of a cache line. Tiles are transformed a line at a time, because the positions of an
/// image are large powers of two apart as well, and a line that is left half used may be evicted
/// before the other half is wanted.
const LINE: usize = 16;

/// How far ahead of the transform lines are prefetched: a tile has 36 streams, more than the
/// processor's own prefetcher follows.
const AHEAD: usize = 8 * LINE;

/// Where transformed rows go: `[point][panel][row][width]`, a panel being `width` channels.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    width: usize,
    /// Rows of a panel.
    rows: usize,
    pub(super) point_stride: usize,
    points: usize,
}

impl Packing {
    /// One panel of all channels: each point is a row-major matrix.
    pub(super) fn row_major(grid: Grid, rows: usize) -> Self {
        Packing::panels(grid, grid.channels, rows)
    }

    /// Panels of `width` channels.
    pub(super) fn panels(grid: Grid, width: usize, rows: usize) -> Self {
        let point_stride = point_stride(grid.channels.next_multiple_of(width) * rows);
        Packing { width, rows, point_stride, points: grid.scheme.points() }
    }

    /// Elements of all points.
    pub(super) fn len(&self) -> usize {
        self.points * self.point_stride
    }
}

/// What is transformed to points.
#[derive(Clone, Copy)]
pub(super) enum Activations<'a> {
    /// The input of a product, by `Bᵀ x B`.
    Input(&'a [f32]),
    /// The output gradient, by `A dy Aᵀ`.
    OutputGradient(&'a [f32]),
}

/// Transforms some rows of activations to points.
pub(super) struct ActivationTransform<'a> {
    pub(super) grid: Grid,
    pub(super) data: Activations<'a>,
    pub(super) rows: Range<usize>,
    pub(super) packing: Packing,
    /// No other task writes the same rows of the packing.
    pub(super) to: Shared<'a>,
    /// The row of the packing at which to begin.
    pub(super) first: usize,
}

impl Kernel for ActivationTransform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let c = Constants::<S::F32>::new();
        match (self.data, self.grid.scheme) {
            (Activations::Input(x), Scheme::Tiles) => self.tiles::<S, 6, 6>(
                x,
                1,
                #[inline(always)]
                |x| transform::input(x, c),
            ),
            (Activations::Input(x), Scheme::Corner) => self.tiles::<S, 2, 3>(
                x,
                0,
                #[inline(always)]
                |x| corner::input(x),
            ),
            (Activations::OutputGradient(g), Scheme::Tiles) => self.tiles::<S, 4, 6>(
                g,
                0,
                #[inline(always)]
                |g| transform::output_gradient(g, c),
            ),
            (Activations::OutputGradient(g), Scheme::Corner) => self.tiles::<S, 2, 3>(
                g,
                0,
                #[inline(always)]
                |g| corner::output_gradient(g),
            ),
        }
    }
}

impl ActivationTransform<'_> {
    #[inline(always)]
    fn tiles<S: Simd, const SIDE: usize, const POINTS: usize>(
        &self,
        data: &[f32],
        margin: usize,
        matrix: impl Fn([S::F32; SIDE]) -> [S::F32; POINTS] + Copy,
    ) {
        let (channels, p) = (self.grid.channels, self.packing);
        assert_eq!(data.len(), self.grid.len());
        assert!(self.first + self.rows.len() <= p.rows && p.points == POINTS * POINTS);
        let to = self.to.at(0, p.len());
        for run in self.grid.runs(self.rows.clone()) {
            let from = self.grid.places::<SIDE>(&run, margin, data.as_ptr().cast_mut());
            for image in 0..run.images.len() {
                let row = (self.first + run.before + image) * p.width;
                for panel in (0..channels).step_by(p.width) {
                    let width = p.width.min(channels - panel);
                    for channel in (0..width).step_by(LINE) {
                        let offset = image * channels + panel + channel;
                        let to = to.wrapping_add(panel * p.rows + row + channel);
                        let count = width - channel;
                        // SAFETY: a place is that of the run's first image, and `offset` stays
                        // within the run's images, so the reads are inside `data`; row and channel
                        // are inside the panel, so the writes are inside the packing, in rows of
                        // our own. Both end at the panel's last channel.
                        unsafe {
                            match count >= LINE {
                                true => self.line::<S, _, _>(&from, offset, to, LINE, matrix),
                                false => self.line::<S, _, _>(&from, offset, to, count, matrix),
                            }
                        }
                    }
                }
            }
        }
    }

    /// Transforms `count <= LINE` channels of a tile, `from[i][j] + offset`, and writes point
    /// `(i, j)` to `to + (POINTS i + j) point_stride`.
    ///
    /// # Safety
    /// Every place that is not null can be read, and every point written, for `count` elements.
    #[inline(always)]
    unsafe fn line<S: Simd, const SIDE: usize, const POINTS: usize>(
        &self,
        from: &[[*mut f32; SIDE]; SIDE],
        offset: usize,
        to: *mut f32,
        count: usize,
        matrix: impl Fn([S::F32; SIDE]) -> [S::F32; POINTS] + Copy,
    ) {
        transform_tile::<S, SIDE, POINTS>(
            LINE / S::LANES,
            matrix,
            #[inline(always)]
            |i, j, register| {
                if from[i][j].is_null() {
                    return S::F32::splat(0.0);
                }
                let from = from[i][j].wrapping_add(offset);
                if register == 0 {
                    prefetch_line(from.wrapping_add(AHEAD));
                }
                let first = register * S::LANES;
                // SAFETY: the caller's contract; nothing past `count` is read.
                unsafe { load_first::<S>(from.wrapping_add(first), count.saturating_sub(first)) }
            },
            #[inline(always)]
            |i, j, register, x| {
                let first = register * S::LANES;
                let to = to.wrapping_add((POINTS * i + j) * self.packing.point_stride + first);
                // SAFETY: the caller's contract; nothing past `count` is written.
                unsafe { store_first::<S>(x, to, count.saturating_sub(first)) }
            },
        );
    }
}

/// Transforms some rows of products to outputs: `y = Aᵀ m A`.
pub(super) struct OutputTransform<'a> {
    pub(super) grid: Grid,
    /// `[point][row][column]`
    pub(super) products: &'a [f32],
    pub(super) row_stride: usize,
    pub(super) point_stride: usize,
    pub(super) rows: Range<usize>,
    /// The channels of the result that the columns are.
    pub(super) channels: Range<usize>,
    /// No other task writes these channels of these rows.
    pub(super) to: Shared<'a>,
}

impl Kernel for OutputTransform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let c = Constants::<S::F32>::new();
        match self.grid.scheme {
            Scheme::Tiles => self.tiles::<S, 6, 4>(
                #[inline(always)]
                |m| transform::output(m, c),
            ),
            Scheme::Corner => self.tiles::<S, 3, 2>(
                #[inline(always)]
                |m| corner::output(m),
            ),
        }
    }
}

impl OutputTransform<'_> {
    #[inline(always)]
    fn tiles<S: Simd, const POINTS: usize, const SIDE: usize>(
        &self,
        matrix: impl Fn([S::F32; POINTS]) -> [S::F32; SIDE] + Copy,
    ) {
        let (grid, cols) = (self.grid, self.channels.len());
        assert!(cols <= self.row_stride && self.channels.end <= grid.channels);
        let last_point = (POINTS * POINTS - 1) * self.point_stride;
        assert!(last_point + self.rows.len() * self.row_stride <= self.products.len());
        let base = self.to.at(0, grid.len());
        for run in grid.runs(self.rows.clone()) {
            let to = grid.places::<SIDE>(&run, 0, base);
            for image in 0..run.images.len() {
                let row = self.products[(run.before + image) * self.row_stride..].as_ptr();
                for channel in (0..cols).step_by(LINE) {
                    let offset = image * grid.channels + self.channels.start + channel;
                    let from = row.wrapping_add(channel);
                    let count = cols - channel;
                    // SAFETY: the reads are inside `products` by the assertion above; the writes
                    // are to elements of the run's images that exist, in channels of our own. Both
                    // end at the last channel.
                    unsafe {
                        match count >= LINE {
                            true => self.line::<S, _, _>(from, &to, offset, LINE, matrix),
                            false => self.line::<S, _, _>(from, &to, offset, count, matrix),
                        }
                    }
                }
            }
        }
    }

    /// Transforms `count <= LINE` channels of a tile, `from + (POINTS i + j) point_stride`, and
    /// writes output `(i, j)` to `to[i][j] + offset`.
    ///
    /// # Safety
    /// Every point can be read, and every place that is not null written, for `count` elements.
    #[inline(always)]
    unsafe fn line<S: Simd, const POINTS: usize, const SIDE: usize>(
        &self,
        from: *const f32,
        to: &[[*mut f32; SIDE]; SIDE],
        offset: usize,
        count: usize,
        matrix: impl Fn([S::F32; POINTS]) -> [S::F32; SIDE] + Copy,
    ) {
        transform_tile::<S, POINTS, SIDE>(
            LINE / S::LANES,
            matrix,
            #[inline(always)]
            |i, j, register| {
                let first = register * S::LANES;
                let from = from.wrapping_add((POINTS * i + j) * self.point_stride + first);
                // SAFETY: the caller's contract; nothing past `count` is read.
                unsafe { load_first::<S>(from, count.saturating_sub(first)) }
            },
            #[inline(always)]
            |i, j, register, x| {
                if !to[i][j].is_null() {
                    let first = register * S::LANES;
                    let to = to[i][j].wrapping_add(offset + first);
                    // SAFETY: the caller's contract; nothing past `count` is written.
                    unsafe { store_first::<S>(x, to, count.saturating_sub(first)) }
                }
            },
        );
    }
}
