//! The colour map of heat maps, from numbers to colours whose lightness follows the numbers.

use crate::color::Color;

/// The colour at `fraction`, 0 for the lowest value and 1 for the highest, from dark blue to yellow
/// (matplotlib's viridis). Lightness grows evenly, so it can be read in grey and with any kind of
/// colour vision.
pub(crate) fn viridis(fraction: f64) -> Color {
    let position = fraction.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
    let index = (position as usize).min(VIRIDIS.len() - 2);
    let t = position - index as f64;
    let mix = |a: u8, b: u8| (f64::from(a) * (1.0 - t) + f64::from(b) * t).round() as u8;
    let (a, b) = (VIRIDIS[index], VIRIDIS[index + 1]);
    Color(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
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

// Seventeen evenly spaced stops. Linear interpolation between them is within 6/255.
#[rustfmt::skip]
const VIRIDIS: [Color; 17] = [
    Color(68, 1, 84), Color(72, 24, 106), Color(71, 45, 123), Color(66, 64, 134), Color(59, 82, 139),
    Color(51, 99, 141), Color(44, 114, 142), Color(38, 130, 142), Color(33, 145, 140), Color(31, 160, 136),
    Color(40, 174, 128), Color(63, 188, 115), Color(94, 201, 98), Color(132, 212, 75), Color(173, 220, 48),
    Color(216, 226, 25), Color(253, 231, 37),
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
            let Color(r, g, b) = viridis(x);
            assert!(
                r.abs_diff(expected.0) <= 6
                    && g.abs_diff(expected.1) <= 6
                    && b.abs_diff(expected.2) <= 6
            );
        }
    }

    #[test]
    fn lightness_grows_along_the_map() {
        let lightness: Vec<f64> =
            (0..=50).map(|i| viridis(f64::from(i) / 50.0).luminance()).collect();
        assert!(lightness.windows(2).all(|w| w[0] < w[1]));
    }
}
