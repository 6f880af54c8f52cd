//! How the passes with pooling walk through a tensor in HWNC; README.md draws it.
//!
//! Pooling windows lie side by side, so the image falls into bands, each the image rows that one
//! row of windows covers.

use super::rows::{TASK, pieces};
use crate::pool::PoolShape;

/// A task: one band of a range of images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pool: PoolShape,
    /// Which row of windows.
    row: usize,
    first_image: usize,
    images: usize,
}

impl Band {
    /// The bands that the tensor is cut into: rows of windows in the outer loop, images in the
    /// inner one.
    pub(super) fn tasks(pool: PoolShape) -> Vec<Band> {
        let images = Self::most_images(&pool);
        let of_row = |row| {
            let blocks = (0..pool.batch).step_by(images);
            blocks.map(move |first_image| Band {
                pool,
                row,
                first_image,
                images: images.min(pool.batch - first_image),
            })
        };
        (0..pool.output()[0]).flat_map(of_row).collect()
    }

    fn most_images(pool: &PoolShape) -> usize {
        let image = pool.window[0] * pool.input[1] * pool.channels;
        (TASK / image).clamp(1, pool.batch)
    }

    /// Cuts the memory of a tensor of the output's shape into the pieces of each task.
    pub(super) fn pieces_of_output<'a, T>(
        pool: &PoolShape,
        tensor: &'a mut [T],
    ) -> Vec<Vec<&'a mut [T]>> {
        Self::pieces(pool, pool.output()[1], tensor)
    }

    /// The same for a tensor of the input's shape. The positions below the last row of windows go
    /// with the last band.
    pub(super) fn pieces_of_input<'a, T>(
        pool: &PoolShape,
        tensor: &'a mut [T],
    ) -> Vec<Vec<&'a mut [T]>> {
        Self::pieces(pool, pool.window[0] * pool.input[1], tensor)
    }

    /// `positions` is the number that a band has in the tensor.
    fn pieces<'a, T>(
        pool: &PoolShape,
        positions: usize,
        tensor: &'a mut [T],
    ) -> Vec<Vec<&'a mut [T]>> {
        let (bands, images) = (pool.output()[0], Self::most_images(pool));
        let band = |position: usize| (position / positions).min(bands - 1);
        pieces(tensor, [pool.batch, pool.channels], images, bands, band)
    }

    /// Positions of the band that windows may cover: its height times the width of the image.
    #[inline(always)]
    pub(super) fn positions(&self) -> usize {
        self.pool.window[0] * self.pool.input[1]
    }

    /// Positions of the whole image.
    #[inline(always)]
    pub(super) fn image_positions(&self) -> usize {
        self.pool.input[0] * self.pool.input[1]
    }

    /// The first of its positions, counted in the image.
    #[inline(always)]
    pub(super) fn first_position(&self) -> usize {
        self.row * self.positions()
    }

    /// The first of its planes, counted in the batch. A plane is one channel of one image.
    #[inline(always)]
    pub(super) fn first_plane(&self) -> usize {
        self.first_image * self.pool.channels
    }

    /// Its planes: the elements that it has of each position.
    #[inline(always)]
    pub(super) fn planes(&self) -> usize {
        self.images * self.pool.channels
    }

    /// Windows of the band.
    #[inline(always)]
    pub(super) fn windows(&self) -> usize {
        self.pool.output()[1]
    }

    /// Where the elements of a position, counted from the band's first, begin in the input.
    #[inline(always)]
    pub(super) fn input(&self, position: usize) -> usize {
        (self.first_position() + position) * self.pool.batch * self.pool.channels
            + self.first_plane()
    }

    /// Where the elements of a window begin in the output.
    #[inline(always)]
    pub(super) fn output(&self, window: usize) -> usize {
        let position = self.row * self.windows() + window;
        position * self.pool.batch * self.pool.channels + self.first_plane()
    }

    /// The elements of the first window: each with its number in the window, which argmax is given
    /// in, and its position, counted from the band's first. Those of other windows are
    /// [`window_start`](Band::window_start) further on.
    #[inline(always)]
    pub(super) fn first_window(&self) -> Vec<(u8, usize)> {
        let ([height, width], across) = (self.pool.window, self.pool.input[1]);
        (0..height * width).map(|i| (i as u8, i / width * across + i % width)).collect()
    }

    /// The first position of a window.
    #[inline(always)]
    pub(super) fn window_start(&self, window: usize) -> usize {
        window * self.pool.window[1]
    }

    /// The window that covers a position, and which of the window's elements the position is.
    #[inline(always)]
    pub(super) fn window_of(&self, position: usize) -> Option<(usize, u8)> {
        let [height, width] = self.pool.window;
        let (y, x) = (position / self.pool.input[1], position % self.pool.input[1]);
        let covered = y < height && x / width < self.windows();
        covered.then(|| (x / width, (y * width + x % width) as u8))
    }
}
