//! Colour maps from numbers to colours whose lightness follows the numbers.

use crate::color::Color;

/// A colour map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Colormap {
    /// Dark blue to yellow (matplotlib's viridis). Lightness grows evenly, so it can be read in
    /// grey and with any kind of colour vision.
    #[default]
    Viridis,
    /// Blue through white to red (ColorBrewer's RdBu), for values on both sides of zero.
    Diverging,
}

impl Colormap {
    /// The colour at `fraction`, 0 for the lowest value and 1 for the highest.
    pub(crate) fn at(self, fraction: f64) -> Color {
        let stops: &[Color; 17] = match self {
            Self::Viridis => &VIRIDIS,
            Self::Diverging => &DIVERGING,
        };
        let position = fraction.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
        let index = (position as usize).min(stops.len() - 2);
        let t = position - index as f64;
        let mix = |a: u8, b: u8| (f64::from(a) * (1.0 - t) + f64::from(b) * t).round() as u8;
        let (a, b) = (stops[index], stops[index + 1]);
        Color(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
    }
}

impl Color {
    /// Relative luminance as in WCAG, 0 for black and 1 for white.
    pub(crate) fn luminance(self) -> f64 {
        let linear = |channel: u8| {
            let c = f64::from(channel) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(self.0) + 0.7152 * linear(self.1) + 0.0722 * linear(self.2)
    }
}

// Seventeen evenly spaced stops of matplotlib's maps: between them a straight line is within 6/255.
#[rustfmt::skip]
const VIRIDIS: [Color; 17] = [
    Color(68, 1, 84), Color(72, 24, 106), Color(71, 45, 123), Color(66, 64, 134), Color(59, 82, 139),
    Color(51, 99, 141), Color(44, 114, 142), Color(38, 130, 142), Color(33, 145, 140), Color(31, 160, 136),
    Color(40, 174, 128), Color(63, 188, 115), Color(94, 201, 98), Color(132, 212, 75), Color(173, 220, 48),
    Color(216, 226, 25), Color(253, 231, 37),
];
#[rustfmt::skip]
const DIVERGING: [Color; 17] = [
    Color(5, 48, 97), Color(23, 82, 144), Color(42, 113, 178), Color(63, 142, 192), Color(107, 172, 209),
    Color(155, 201, 224), Color(194, 221, 236), Color(224, 236, 243), Color(247, 246, 246), Color(251, 229, 216),
    Color(251, 204, 180), Color(245, 170, 137), Color(228, 128, 102), Color(208, 85, 72), Color(186, 40, 50),
    Color(147, 14, 38), Color(103, 0, 31),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viridis_is_matplotlib_s_between_the_stops_too() {
        // matplotlib.colormaps["viridis"](x), times 255.
        for (x, expected) in
            [(0.1, Color(72, 36, 117)), (0.33, Color(49, 103, 142)), (0.77, Color(105, 205, 91))]
        {
            let Color(r, g, b) = Colormap::Viridis.at(x);
            assert!(
                r.abs_diff(expected.0) <= 6
                    && g.abs_diff(expected.1) <= 6
                    && b.abs_diff(expected.2) <= 6
            );
        }
    }

    #[test]
    fn lightness_grows_along_viridis_and_peaks_amid_the_diverging_map() {
        let lightness = |map: Colormap| -> Vec<f64> {
            (0..=50).map(|i| map.at(f64::from(i) / 50.0).luminance()).collect()
        };
        assert!(lightness(Colormap::Viridis).windows(2).all(|w| w[0] < w[1]));
        let diverging = lightness(Colormap::Diverging);
        assert!(diverging[..26].windows(2).all(|w| w[0] < w[1]));
        assert!(diverging[25..].windows(2).all(|w| w[0] > w[1]));
    }
}
