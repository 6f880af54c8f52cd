//! The embedded font: the widths of texts and the outlines of letters.
//!
//! Texts are set in Inter; the few mathematical signs it lacks come from DejaVu Sans. Both are
//! subsets of a few tens of kilobytes, made by `fonts/subset.sh`.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tiny_skia::PathBuilder;
use ttf_parser::{Face, GlyphId, OutlineBuilder};

use crate::rich_text::{RichText, Script};

/// The weight of the letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    Regular,
    SemiBold,
}

/// A piece of a line of text, placed relative to the line's start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    pub(crate) text: String,
    pub(crate) x: f64,
    /// Positive is downwards, as in SVG.
    pub(crate) dy: f64,
    pub(crate) size: f64,
}

/// The font family of SVG and HTML, with substitutes for viewers that block embedded fonts.
pub(crate) const FAMILY: &str = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif";

/// Size of sub- and superscripts relative to the text, and their shifts.
const SCRIPT_SIZE: f64 = 0.72;
const SUPER_SHIFT: f64 = -0.38;
const SUB_SHIFT: f64 = 0.22;

macro_rules! face {
    ($name:ident, $file:literal) => {
        static $name: LazyLock<Face<'static>> = LazyLock::new(|| {
            Face::parse(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/fonts/", $file)), 0)
                .expect("the font in the crate is a font")
        });
    };
}

face!(REGULAR, "Inter-Regular.subset.otf");
face!(SEMI_BOLD, "Inter-SemiBold.subset.otf");
face!(SIGNS, "DejaVuSans.subset.ttf");

fn glyph(c: char, weight: Weight) -> (&'static Face<'static>, GlyphId) {
    let text: &'static Face<'static> = match weight {
        Weight::Regular => &REGULAR,
        Weight::SemiBold => &SEMI_BOLD,
    };
    if let Some(id) = text.glyph_index(c) {
        return (text, id);
    }
    match SIGNS.glyph_index(c) {
        Some(id) => (&SIGNS, id),
        // Glyph 0 is the box that stands for a missing letter.
        None => (text, GlyphId(0)),
    }
}

fn advance(c: char, size: f64, weight: Weight) -> f64 {
    let (face, id) = glyph(c, weight);
    let units = face.glyph_hor_advance(id).unwrap_or(0);
    f64::from(units) / f64::from(face.units_per_em()) * size
}

fn width_of_plain(text: &str, size: f64, weight: Weight) -> f64 {
    text.chars().map(|c| advance(c, size, weight)).sum()
}

/// Places the spans of a line one after the other; returns them with the total width.
pub(crate) fn place(text: &RichText, size: f64, weight: Weight) -> (Vec<Placed>, f64) {
    let mut x = 0.0;
    let mut placed = Vec::with_capacity(text.spans().len());
    for (script, span) in text.spans() {
        let (size, dy) = match script {
            Script::Normal => (size, 0.0),
            Script::Sub => (size * SCRIPT_SIZE, size * SUB_SHIFT),
            Script::Super => (size * SCRIPT_SIZE, size * SUPER_SHIFT),
        };
        let width = width_of_plain(span, size, weight);
        placed.push(Placed { text: span.clone(), x, dy, size });
        x += width;
    }
    (placed, x)
}

/// The width of a line of text.
pub(crate) fn width(text: &RichText, size: f64, weight: Weight) -> f64 {
    place(text, size, weight).1
}

/// Adds the outlines of `text`, whose baseline starts at (`x`, `y`), to a path.
pub(crate) fn outline(
    text: &str,
    (x, y): (f64, f64),
    size: f64,
    weight: Weight,
    path: &mut PathBuilder,
) {
    let mut x = x;
    for c in text.chars() {
        let (face, id) = glyph(c, weight);
        let scale = size / f64::from(face.units_per_em());
        face.outline_glyph(id, &mut Pen { path, x, y, scale });
        x += advance(c, size, weight);
    }
}

/// Draws a letter on the page. Its outline is in font units with y upwards; the page has y
/// downwards.
struct Pen<'a> {
    path: &'a mut PathBuilder,
    x: f64,
    y: f64,
    scale: f64,
}

impl Pen<'_> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        ((self.x + f64::from(x) * self.scale) as f32, (self.y - f64::from(y) * self.scale) as f32)
    }
}

impl OutlineBuilder for Pen<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

/// Breaks markup at spaces into lines no wider than `limit`. A single word that is wider stays
/// whole.
pub(crate) fn wrap(markup: &str, size: f64, weight: Weight, limit: f64) -> Vec<RichText> {
    let mut lines: Vec<String> = Vec::new();
    for word in markup.split_whitespace() {
        match lines.last_mut() {
            Some(line)
                if width(&RichText::parse(&format!("{line} {word}")), size, weight) <= limit =>
            {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| RichText::parse(line)).collect()
}

/// The `@font-face` rules that embed the fonts in a document.
pub fn css() -> &'static str {
    static CSS: LazyLock<String> = LazyLock::new(|| {
        let face = |weight: u32, bytes: &[u8]| {
            format!(
                "@font-face{{font-family:Inter;font-weight:{weight};\
                 src:url(data:font/woff2;base64,{}) format(\"woff2\")}}",
                STANDARD.encode(bytes)
            )
        };
        face(400, include_bytes!("../fonts/Inter-Regular.subset.woff2"))
            + &face(600, include_bytes!("../fonts/Inter-SemiBold.subset.woff2"))
    });
    &CSS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_an_experiment_is_likely_to_use_is_there() {
        let signs = "AZaz09 κσμβερλθ ΔΣ ±×÷−·…–—≈≠≤≥∞√∑∏∫∂∇∈∝∥⟨⟩→←ℝ∼≡≪≫⋅∘ℓ⁰⁻₀éüñ°%‖";
        for c in signs.chars() {
            for weight in [Weight::Regular, Weight::SemiBold] {
                assert_ne!(glyph(c, weight).1, GlyphId(0), "{c} is missing");
            }
        }
    }

    #[test]
    fn widths_add_up_and_scale_with_size() {
        let measure = |text: &str, size| width(&RichText::parse(text), size, Weight::Regular);
        assert!((measure("ab", 10.0) - measure("a", 10.0) - measure("b", 10.0)).abs() < 1e-9);
        assert!((measure("kappa", 20.0) - 2.0 * measure("kappa", 10.0)).abs() < 1e-9);
        assert!(measure("10^{4}", 10.0) < measure("104", 10.0));
    }

    #[test]
    fn wrapping_keeps_every_word_and_the_limit() {
        let text = "the quick brown fox jumps over the lazy dog";
        let lines = wrap(text, 10.0, Weight::Regular, 80.0);
        assert!(lines.len() > 2);
        let joined: Vec<String> = lines.iter().map(RichText::plain).collect();
        assert_eq!(joined.join(" "), text);
        for line in &lines {
            assert!(width(line, 10.0, Weight::Regular) <= 80.0);
        }
    }
}
