//! Packing: matrices copied into panels, which the micro-kernel reads front to back.

use super::Matrix;
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use crate::transpose::{Rows, transpose};
use rayon::prelude::*;

/// Columns that are transposed at a time, so that the cache lines written to stay in cache.
const BLOCK: usize = 32;
/// Columns between one that is packed and one that is prefetched, where rows need no transposition.
const AHEAD: usize = 4;

/// Copies matrices of one shape into panels of `width` rows each:
/// `[matrix][panel][tap][column][row of the panel]`, the last panel of a matrix padded with zeros.
pub(crate) fn pack(isa: Isa, matrices: &[Matrix], width: usize) -> Scratch {
    let [m, ..] = matrices else { return Scratch::default() };
    let (panels, len) = (m.rows.div_ceil(width), panel_len(m, width));
    let mut packed = Scratch::take(matrices.len() * panels * len);
    if len > 0 {
        packed.par_chunks_mut(len).by_task().enumerate().for_each(|(index, to)| {
            pack_panel(isa, matrices[index / panels], width, index % panels, to);
        });
    }
    packed
}

/// Elements of a panel.
pub(crate) fn panel_len(m: &Matrix, width: usize) -> usize {
    m.taps * m.cols * width
}

/// Packs one panel, `[tap][column][row of the panel]`.
pub(crate) fn pack_panel(isa: Isa, m: Matrix, width: usize, panel: usize, to: &mut [f32]) {
    let first = panel * width;
    let m = m.part(first, width.min(m.rows - first), 0, m.cols);
    dispatch_to(isa, PackPanel { m, width, to });
}

struct PackPanel<'a> {
    m: Matrix<'a>,
    width: usize,
    to: &'a mut [f32],
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let PackPanel { m, width, to } = self;
        if m.taps == 1 && m.row_stride == 1 {
            return copy_columns::<S>(m, width, to);
        }
        if m.rows < width {
            to.fill(0.0);
        }
        // Either the columns of a row lie together, or the rows of a column: a run of numbers in
        // memory is `[column][tap]` of one row, or `[tap]` of one row of one column.
        let (block, row_stride, ahead) = match m.col_stride == m.taps {
            true => (BLOCK.min(m.cols), m.row_stride, BLOCK * m.taps),
            false => (1, m.taps, AHEAD * m.col_stride),
        };
        let places: Vec<usize> =
            (0..block * m.taps).map(|j| (j % m.taps * m.cols + j / m.taps) * width).collect();
        for col in (0..m.cols).step_by(block) {
            let places = &places[..block.min(m.cols - col) * m.taps];
            let data = &m.data[col * m.col_stride..];
            let rows = Rows { data, count: m.rows, stride: row_stride, ahead };
            transpose::<S>(rows, places, &mut to[col * width..]);
        }
    }
}

/// Packs a matrix whose columns are contiguous.
#[inline(always)]
fn copy_columns<S: Simd>(m: Matrix, width: usize, to: &mut [f32]) {
    // The padding is written register by register along with the copy: to clear the panel first
    // would cost as much as the copy.
    let padded = m.rows - m.rows % S::LANES;
    for (col, to) in to.chunks_exact_mut(width).enumerate() {
        if m.rows < width {
            let mut registers = to[padded..].chunks_exact_mut(S::LANES);
            registers.by_ref().for_each(|register| register.fill(0.0));
            if !width.is_multiple_of(S::LANES) {
                registers.into_remainder().fill(0.0);
            }
        }
        to[..m.rows].copy_from_slice(&m.data[col * m.col_stride..][..m.rows]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    /// Matrices and weights of a convolution, with rows or columns that lie together.
    #[test]
    fn panels_hold_every_element_and_zeros() {
        let mut rng = Rng::new(9);
        for isa in Isa::available() {
            for (rows, cols, taps, width) in
                [(1, 1, 1, 4), (21, 50, 1, 48), (13, 70, 9, 6), (40, 3, 5, 16), (6, 1, 9, 6)]
            {
                let data = rng.normals(rows * cols * taps);
                let m = Matrix::with_taps(&data, rows, cols, taps);
                for m in [m, m.transposed()] {
                    let packed = pack(isa, &[m, m], width);
                    let (panels, len) = (m.rows.div_ceil(width), panel_len(&m, width));
                    assert_eq!(packed.len(), 2 * panels * len);
                    for (i, &found) in packed.iter().enumerate() {
                        let (panel, within) = (i / len % panels, i % len);
                        let (tap, col) = (within / (m.cols * width), within / width % m.cols);
                        let row = panel * width + within % width;
                        let at = row * m.row_stride + col * m.col_stride + tap;
                        let expected = if row < m.rows { data[at] } else { 0.0 };
                        assert_eq!(found, expected, "{isa:?} {rows}x{cols}x{taps} in {width}");
                    }
                }
            }
        }
    }
}
