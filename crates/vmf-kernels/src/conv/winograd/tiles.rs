//! Activations to and from the points: where tiles lie in the image, and the loops over their
//! channels.

use super::scheme::Scheme;
use super::transform::Constants;
use super::{corner, transform};
use crate::scratch::Shared;
use crate::simd::{Kernel, Simd, load_first, prefetch_line, store_first};
use std::mem::MaybeUninit;
use std::ops::Range;

/// An image in `[position][batch][channel]`, cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) scheme: Scheme,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) batch: usize,
    pub(super) channels: usize,
}

/// A run of images of one tile: `images` of the tile at `(row, col)`, the first of them being row
/// `first` of a chunk.
struct Run {
    row: usize,
    col: usize,
    images: Range<usize>,
    first: usize,
}

/// A pointer to read or to write.
trait Pointer: Copy {
    const NULL: Self;

    fn offset(self, by: usize) -> Self;
}

impl Pointer for *const f32 {
    const NULL: Self = std::ptr::null();

    fn offset(self, by: usize) -> Self {
        self.wrapping_add(by)
    }
}

impl Pointer for *mut f32 {
    const NULL: Self = std::ptr::null_mut();

    fn offset(self, by: usize) -> Self {
        self.wrapping_add(by)
    }
}

impl Grid {
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
                first: next - start,
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
    fn places<const SIDE: usize, P: Pointer>(
        &self,
        run: &Run,
        margin: usize,
        data: P,
    ) -> [[P; SIDE]; SIDE] {
        let outputs = self.scheme.outputs();
        let mut places = [[P::NULL; SIDE]; SIDE];
        for (i, places) in places.iter_mut().enumerate() {
            for (j, place) in places.iter_mut().enumerate() {
                let y = (outputs * run.row + i).wrapping_sub(margin);
                let x = (outputs * run.col + j).wrapping_sub(margin);
                if y < self.height && x < self.width {
                    let position = y * self.width + x;
                    *place =
                        data.offset((position * self.batch + run.images.start) * self.channels);
                }
            }
        }
        places
    }
}

/// From one point to the next, for points of `len` elements.
///
/// The extra cache line keeps the points of an element out of the same set of the cache, in which
/// they would drive each other out: the sizes of layers are multiples of large powers of two.
pub(super) fn point_stride(len: usize) -> usize {
    len.next_multiple_of(LINE) + LINE
}

/// Elements of a cache line. Tiles are transformed a line at a time, because the positions of an
/// image, too, are large powers of two apart, and a line that is left half used may be gone when
/// the other half is wanted.
const LINE: usize = 16;
/// Registers of a cache line, at most: those of the baseline's four lanes.
const MAX_PARTS: usize = 4;

/// How far ahead of the transform lines are asked for: the 36 streams of a tile are more than the
/// processor follows.
const AHEAD: usize = 8 * LINE;

/// Where transformed rows go: `[point][panel][row][width]`, a panel being `width` channels.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    pub(super) width: usize,
    /// Rows of a panel.
    pub(super) rows: usize,
    /// From one point to the next.
    pub(super) point: usize,
    /// How many points.
    points: usize,
}

impl Packing {
    /// One panel of all channels for `rows` rows: each point is a row-major matrix.
    pub(super) fn plain(scheme: Scheme, channels: usize, rows: usize) -> Self {
        Packing::panels(scheme, channels, channels, rows)
    }

    /// Panels of `width` channels for `rows` rows.
    pub(super) fn panels(scheme: Scheme, channels: usize, width: usize, rows: usize) -> Self {
        Packing {
            width,
            rows,
            point: point_stride(channels.next_multiple_of(width) * rows),
            points: scheme.points(),
        }
    }

    /// Elements of all points.
    pub(super) fn len(&self) -> usize {
        self.points * self.point
    }
}

/// Transforms some rows of the input (`B^T x B`) or of the output gradient (`A dy A^T`).
pub(super) struct Forward<'a> {
    pub(super) grid: Grid,
    pub(super) data: &'a [f32],
    /// Whether `data` is an output gradient, the tiles of which have no margin.
    pub(super) gradient: bool,
    pub(super) rows: Range<usize>,
    pub(super) packing: Packing,
    pub(super) to: Shared<'a>,
    /// The row of the packing at which to begin.
    pub(super) first: usize,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: rows and channels of the result are divided among the tasks.
        unsafe {
            let c = Constants::<S::F32>::new();
            match (self.grid.scheme, self.gradient) {
                (Scheme::Tiles, false) => self.tiles::<S, 6, 6>(1, transform::input, c),
                (Scheme::Tiles, true) => self.tiles::<S, 4, 6>(0, transform::output_gradient, c),
                (Scheme::Corner, false) => self.tiles::<S, 2, 3>(0, corner::input, c),
                (Scheme::Corner, true) => self.tiles::<S, 2, 3>(0, corner::output_gradient, c),
            }
        }
    }
}

impl Forward<'_> {
    /// # Safety
    /// No other thread touches the rows written.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const SIDE: usize, const POINTS: usize>(
        &self,
        margin: usize,
        matrix: fn([S::F32; SIDE], Constants<S::F32>) -> [S::F32; POINTS],
        c: Constants<S::F32>,
    ) {
        let (channels, p) = (self.grid.channels, self.packing);
        assert_eq!(self.data.len(), self.grid.len());
        assert!(self.first + self.rows.len() <= p.rows && p.points == POINTS * POINTS);
        let to = self.to.at(0, p.len());
        for run in self.grid.runs(self.rows.clone()) {
            let from = self.grid.places::<SIDE, _>(&run, margin, self.data.as_ptr());
            for image in 0..run.images.len() {
                let row = (self.first + run.first + image) * p.width;
                for panel in (0..channels).step_by(p.width) {
                    let width = p.width.min(channels - panel);
                    for channel in (0..width).step_by(LINE) {
                        let offset = image * channels + panel + channel;
                        let count = width - channel;
                        // SAFETY: a place is that of the run's first image, and `offset` stays
                        // within the run's images, so the reads are inside
                        // `data`; row and channel are inside the panel, so the writes are
                        // inside the packing, in rows of our own. Both are cut at the panel's last
                        // channel.
                        unsafe {
                            let to = to.add(panel * p.rows + row + channel);
                            if count >= LINE {
                                to_points::<S, SIDE, POINTS>(
                                    &from, offset, to, p.point, LINE, matrix, c,
                                );
                            } else {
                                to_points::<S, SIDE, POINTS>(
                                    &from, offset, to, p.point, count, matrix, c,
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Transforms `count <= LINE` channels of a tile: `from[i][j] + offset` to `to + (POINTS i + j)
/// point`.
///
/// # Safety
/// Every place that is not null and every point can be read, and written, for `count` elements.
#[inline(always)]
unsafe fn to_points<S: Simd, const SIDE: usize, const POINTS: usize>(
    from: &[[*const f32; SIDE]; SIDE],
    offset: usize,
    to: *mut f32,
    point: usize,
    count: usize,
    matrix: fn([S::F32; SIDE], Constants<S::F32>) -> [S::F32; POINTS],
    c: Constants<S::F32>,
) {
    // Not initialized: clearing it costs as much as a quarter of the arithmetic.
    let mut columns = [MaybeUninit::<[[S::F32; SIDE]; POINTS]>::uninit(); MAX_PARTS];
    for j in 0..SIDE {
        for (part, columns) in columns[..LINE / S::LANES].iter_mut().enumerate() {
            let first = part * S::LANES;
            let mut column = [c.zero; SIDE];
            for i in 0..SIDE {
                if !from[i][j].is_null() {
                    if part == 0 {
                        prefetch_line(from[i][j].wrapping_add(offset + AHEAD));
                    }
                    // SAFETY: the caller's contract; `load_first` reads nothing past `count`.
                    column[i] = unsafe {
                        load_first::<S>(
                            from[i][j].wrapping_add(offset + first),
                            count.saturating_sub(first),
                        )
                    };
                }
            }
            let column = matrix(column, c);
            for i in 0..POINTS {
                // SAFETY: inside the array, and a plain value replaces no other.
                unsafe { (*columns.as_mut_ptr())[i][j] = column[i] };
            }
        }
    }
    for i in 0..POINTS {
        for (part, columns) in columns[..LINE / S::LANES].iter().enumerate() {
            let first = part * S::LANES;
            // SAFETY: every column was written above.
            let row = matrix(unsafe { columns.assume_init_ref() }[i], c);
            for j in 0..POINTS {
                // SAFETY: as above.
                unsafe {
                    store_first::<S>(
                        row[j],
                        to.wrapping_add((POINTS * i + j) * point + first),
                        count.saturating_sub(first),
                    );
                }
            }
        }
    }
}

/// Transforms rows of products back: `y = A^T m A`.
pub(super) struct Backward<'a> {
    pub(super) grid: Grid,
    /// `[point][row][width]`
    pub(super) products: &'a [f32],
    pub(super) width: usize,
    /// From one point to the next.
    pub(super) point: usize,
    pub(super) rows: Range<usize>,
    /// The channels of the result that the columns are.
    pub(super) channels: Range<usize>,
    pub(super) to: Shared<'a>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        // SAFETY: rows and channels of the result are divided among the tasks.
        unsafe {
            let c = Constants::<S::F32>::new();
            match self.grid.scheme {
                Scheme::Tiles => self.tiles::<S, 6, 4>(transform::output, c),
                Scheme::Corner => self.tiles::<S, 3, 2>(corner::output, c),
            }
        }
    }
}

impl Backward<'_> {
    /// # Safety
    /// As [`Forward::tiles`], for the channels written.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const POINTS: usize, const SIDE: usize>(
        &self,
        matrix: fn([S::F32; POINTS], Constants<S::F32>) -> [S::F32; SIDE],
        c: Constants<S::F32>,
    ) {
        let (grid, cols) = (self.grid, self.channels.len());
        assert!(cols <= self.width && self.channels.end <= grid.channels);
        assert!(
            (POINTS * POINTS - 1) * self.point + self.rows.len() * self.width
                <= self.products.len()
        );
        let base = self.to.at(0, grid.len());
        for run in grid.runs(self.rows.clone()) {
            let to = grid.places::<SIDE, _>(&run, 0, base);
            for image in 0..run.images.len() {
                let row = self.products[(run.first + image) * self.width..].as_ptr();
                for channel in (0..cols).step_by(LINE) {
                    let offset = image * grid.channels + self.channels.start + channel;
                    let count = cols - channel;
                    // SAFETY: the reads are inside `products` by the assertion above; the writes
                    // are to elements of the run's images that exist, in
                    // channels of our own. Both are cut at the last channel.
                    unsafe {
                        let from = row.add(channel);
                        if count >= LINE {
                            from_points::<S, POINTS, SIDE>(
                                from, self.point, &to, offset, LINE, matrix, c,
                            );
                        } else {
                            from_points::<S, POINTS, SIDE>(
                                from, self.point, &to, offset, count, matrix, c,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Transforms `count <= LINE` channels of a tile back: `from + (POINTS i + j) point` to `to[i][j] +
/// offset`.
///
/// # Safety
/// As [`to_points`], the other way round.
#[inline(always)]
unsafe fn from_points<S: Simd, const POINTS: usize, const SIDE: usize>(
    from: *const f32,
    point: usize,
    to: &[[*mut f32; SIDE]; SIDE],
    offset: usize,
    count: usize,
    matrix: fn([S::F32; POINTS], Constants<S::F32>) -> [S::F32; SIDE],
    c: Constants<S::F32>,
) {
    let mut columns = [MaybeUninit::<[[S::F32; POINTS]; SIDE]>::uninit(); MAX_PARTS];
    for j in 0..POINTS {
        for (part, columns) in columns[..LINE / S::LANES].iter_mut().enumerate() {
            let first = part * S::LANES;
            let mut column = [c.zero; POINTS];
            for i in 0..POINTS {
                // SAFETY: the caller's contract; `load_first` reads nothing past `count`.
                column[i] = unsafe {
                    load_first::<S>(
                        from.wrapping_add((POINTS * i + j) * point + first),
                        count.saturating_sub(first),
                    )
                };
            }
            let column = matrix(column, c);
            for i in 0..SIDE {
                // SAFETY: inside the array, and a plain value replaces no other.
                unsafe { (*columns.as_mut_ptr())[i][j] = column[i] };
            }
        }
    }
    for i in 0..SIDE {
        for (part, columns) in columns[..LINE / S::LANES].iter().enumerate() {
            let first = part * S::LANES;
            // SAFETY: every column was written above.
            let row = matrix(unsafe { columns.assume_init_ref() }[i], c);
            for j in 0..SIDE {
                if !to[i][j].is_null() {
                    // SAFETY: as above.
                    unsafe {
                        store_first::<S>(
                            row[j],
                            to[i][j].wrapping_add(offset + first),
                            count.saturating_sub(first),
                        );
                    }
                }
            }
        }
    }
}
