//! The two ways to cut an image into tiles.

use crate::conv::shape::ConvShape;

/// Which products a tile goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// F(4x4, 3x3): tiles of 4x4 outputs through 36 points, see [`transform`](super::transform).
    Tiles,
    /// An image of 2x2, or less, as one tile through 9 points, see [`corner`](super::corner).
    Corner,
}

impl Scheme {
    /// The scheme for images of this size.
    pub(super) fn of(shape: &ConvShape) -> Self {
        match shape.input {
            [0..=2, 0..=2] => Scheme::Corner,
            _ => Scheme::Tiles,
        }
    }

    /// Rows, and columns, of outputs in a tile.
    pub(super) fn outputs(self) -> usize {
        match self {
            Scheme::Tiles => 4,
            Scheme::Corner => 2,
        }
    }

    /// Points of a transformed tile.
    pub(super) fn points(self) -> usize {
        match self {
            Scheme::Tiles => 36,
            Scheme::Corner => 9,
        }
    }
}
