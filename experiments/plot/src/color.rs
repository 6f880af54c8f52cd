//! Colours that can be told apart with any kind of colour vision.

/// A colour.
///
/// The named ones are Okabe and Ito's ("Color Universal Design", 2008), chosen to stay distinct
/// under every common form of colour blindness. Their yellow is left out: it does not show on white
/// paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    /// Blue.
    pub const BLUE: Self = Self(0x00, 0x72, 0xB2);
    /// Vermilion.
    pub const VERMILION: Self = Self(0xD5, 0x5E, 0x00);
    /// Bluish green.
    pub const GREEN: Self = Self(0x00, 0x9E, 0x73);
    /// Reddish purple.
    pub const PURPLE: Self = Self(0xCC, 0x79, 0xA7);
    /// Orange.
    pub const ORANGE: Self = Self(0xE6, 0x9F, 0x00);
    /// Sky blue.
    pub const SKY: Self = Self(0x56, 0xB4, 0xE9);
    /// Nearly black: measured data, and text.
    pub const INK: Self = Self(0x1F, 0x24, 0x30);
    /// Grey: references that data are compared with.
    pub const GREY: Self = Self(0x7A, 0x80, 0x8C);

    pub(crate) const WHITE: Self = Self(0xFF, 0xFF, 0xFF);
    pub(crate) const GRID: Self = Self(0xE7, 0xE9, 0xED);
    pub(crate) const MUTED: Self = Self(0x5A, 0x61, 0x6E);

    /// The order in which series without a colour of their own get one.
    pub(crate) const CYCLE: [Self; 7] = [
        Self::BLUE,
        Self::VERMILION,
        Self::GREEN,
        Self::PURPLE,
        Self::ORANGE,
        Self::SKY,
        Self::INK,
    ];

    /// `#rrggbb`.
    pub fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}
