//! A drawing as a list of shapes, from which both SVG and PNG are written.

use crate::color::Color;
use crate::font::Weight;
use crate::rich_text::RichText;

/// A point on the page, y downwards.
pub(crate) type Point = (f64, f64);

/// An upright rectangle on the page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rect {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Rect {
    pub(crate) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.y + self.height
    }

    pub(crate) fn center_x(&self) -> f64 {
        self.x + self.width / 2.0
    }

    pub(crate) fn center_y(&self) -> f64 {
        self.y + self.height / 2.0
    }
}

/// A filled area's colour and opacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fill {
    pub(crate) color: Color,
    pub(crate) opacity: f64,
}

impl From<Color> for Fill {
    fn from(color: Color) -> Self {
        Self { color, opacity: 1.0 }
    }
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stroke {
    pub(crate) color: Color,
    pub(crate) width: f64,
    /// Lengths of dashes and gaps; empty for a solid line.
    pub(crate) dash: &'static [f64],
}

impl Stroke {
    pub(crate) fn solid(color: Color, width: f64) -> Self {
        Self { color, width, dash: &[] }
    }
}

/// Which part of a text is at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A line of text, its baseline at a position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Text {
    pub(crate) at: Point,
    pub(crate) text: RichText,
    pub(crate) size: f64,
    pub(crate) weight: Weight,
    pub(crate) color: Color,
    pub(crate) anchor: Anchor,
    /// Degrees, clockwise, about the position.
    pub(crate) rotate: f64,
}

impl Text {
    pub(crate) fn new(at: Point, text: RichText, size: f64) -> Self {
        Self {
            at,
            text,
            size,
            weight: Weight::Regular,
            color: Color::INK,
            anchor: Anchor::Start,
            rotate: 0.0,
        }
    }

    pub(crate) fn weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    pub(crate) fn color(mut self, color: Color) -> Self {
        self.color = color;
        self
    }

    pub(crate) fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }

    pub(crate) fn rotate(mut self, degrees: f64) -> Self {
        self.rotate = degrees;
        self
    }
}

/// One thing on the page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// Lines or polygons of one style.
    Path {
        parts: Vec<Vec<Point>>,
        closed: bool,
        fill: Option<Fill>,
        stroke: Option<Stroke>,
    },
    Circle {
        center: Point,
        radius: f64,
        fill: Option<Fill>,
        stroke: Option<Stroke>,
    },
    Text(Text),
    /// A grid of RGBA pixels, each drawn as a crisp rectangle.
    Pixels {
        area: Rect,
        columns: usize,
        rows: usize,
        rgba: Vec<u8>,
    },
    /// Shapes that are cut at the edges of the area.
    Clipped {
        area: Rect,
        shapes: Vec<Shape>,
    },
}

impl Shape {
    pub(crate) fn line(from: Point, to: Point, stroke: Stroke) -> Self {
        Self::polyline(vec![vec![from, to]], stroke)
    }

    pub(crate) fn polyline(parts: Vec<Vec<Point>>, stroke: Stroke) -> Self {
        Self::Path { parts, closed: false, fill: None, stroke: Some(stroke) }
    }

    pub(crate) fn polygon(points: Vec<Point>, fill: Option<Fill>, stroke: Option<Stroke>) -> Self {
        Self::Path { parts: vec![points], closed: true, fill, stroke }
    }

    pub(crate) fn rect(area: Rect, fill: Option<Fill>, stroke: Option<Stroke>) -> Self {
        Self::polygon(
            vec![
                (area.x, area.y),
                (area.right(), area.y),
                (area.right(), area.bottom()),
                (area.x, area.bottom()),
            ],
            fill,
            stroke,
        )
    }
}

/// A finished drawing: shapes on a white page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Page {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) shapes: Vec<Shape>,
}
