//! Draws series into the data area of a panel.

use crate::axis::Span;
use crate::color::Color;
use crate::series::{Kind, Marker, Series};
use crate::shape::{Fill, Point, Rect, Shape, Stroke};
use crate::style::Look;

pub(crate) const BAND_OPACITY: f64 = 0.2;
const MARKER_RADIUS: f64 = 5.2;
const ERROR_WIDTH: f64 = 1.6;
const ERROR_CAP: f64 = 4.5;
/// Shorter steps of a curve are invisible and only make the file larger.
const FINEST_STEP: f64 = 0.3;

/// The data area of a panel and what its axes span.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) area: Rect,
    pub(crate) x: Span,
    pub(crate) y: Span,
}

impl Frame {
    pub(crate) fn page_x(&self, value: f64) -> Option<f64> {
        // A point far outside the frame only has to stay small enough for the rasterizer.
        let fraction = self.x.fraction(value)?.clamp(-50.0, 50.0);
        Some(self.area.x + fraction * self.area.width)
    }

    pub(crate) fn page_y(&self, value: f64) -> Option<f64> {
        let fraction = self.y.fraction(value)?.clamp(-50.0, 50.0);
        Some(self.area.bottom() - fraction * self.area.height)
    }

    fn point(&self, x: f64, y: f64) -> Option<Point> {
        Some((self.page_x(x)?, self.page_y(y)?))
    }

    fn contains(&self, x: f64, y: f64) -> bool {
        self.x.contains(x) && self.y.contains(y)
    }
}

/// Draws all series of a panel: areas below, then lines, then error bars, then points on top.
pub(crate) fn series(series: &[(&Series, Look)], frame: &Frame) -> Vec<Shape> {
    let mut clipped = Vec::new();
    let mut points = Vec::new();
    for (series, look) in series {
        match &series.kind {
            Kind::Band { xs, low, high } => band(frame, xs, low, high, look, &mut clipped),
            Kind::Bars { xs, bottoms, tops, width, hatched } => {
                for ((x, bottom), top) in xs.iter().zip(bottoms).zip(tops) {
                    let corners =
                        (frame.point(x - width / 2.0, *bottom), frame.point(x + width / 2.0, *top));
                    if let (Some((left, bottom)), Some((right, top))) = corners {
                        let (y, height) = (top.min(bottom), (top - bottom).abs());
                        let area = Rect { x: left, y, width: right - left, height };
                        bar(area, look.color, *hatched, &mut clipped);
                    }
                }
            }
            _ => {}
        }
    }
    for (series, look) in series {
        let stroke = Stroke { color: look.color, width: look.width, dash: look.dash.pattern() };
        match &series.kind {
            Kind::Xy { xs, ys, line: true, .. } => {
                let parts = polyline(frame, xs, ys);
                if !parts.is_empty() {
                    clipped.push(Shape::polyline(parts, stroke));
                }
            }
            Kind::Horizontal(value) => {
                if let Some(y) = frame.page_y(*value) {
                    let (left, right) = (frame.area.x, frame.area.right());
                    clipped.push(Shape::line((left, y), (right, y), stroke));
                }
            }
            Kind::Diagonal => {
                let low = frame.x.low.max(frame.y.low);
                let high = frame.x.high.min(frame.y.high);
                if let (true, Some(from), Some(to)) =
                    (low < high, frame.point(low, low), frame.point(high, high))
                {
                    clipped.push(Shape::line(from, to, stroke));
                }
            }
            _ => {}
        }
    }
    for (series, look) in series {
        if let Kind::Xy { xs, ys, errors, .. } = &series.kind {
            if let Some((low, high)) = errors {
                error_bars(frame, xs, ys, (low, high), look.color, &mut clipped);
            }
            if series.has_points() {
                for (x, y) in xs.iter().zip(ys) {
                    if let (true, Some(center)) = (frame.contains(*x, *y), frame.point(*x, *y)) {
                        points.push(marker_shape(look.marker, center, look.color));
                    }
                }
            }
        }
    }
    // Points whose centres lie in the frame are drawn whole, even on its edge.
    let mut shapes = vec![Shape::Clipped { area: frame.area, shapes: clipped }];
    shapes.extend(points);
    shapes
}

/// The parts of a curve between points that the axes cannot show.
fn polyline(frame: &Frame, xs: &[f64], ys: &[f64]) -> Vec<Vec<Point>> {
    let mut parts = Vec::new();
    let mut part: Vec<Point> = Vec::new();
    let mut skipped = None;
    for (x, y) in xs.iter().zip(ys) {
        match (frame.point(*x, *y), part.last()) {
            (Some(point), Some(last))
                if (point.0 - last.0).hypot(point.1 - last.1) < FINEST_STEP =>
            {
                skipped = Some(point);
            }
            (Some(point), _) => {
                part.push(point);
                skipped = None;
            }
            (None, _) => {
                part.extend(skipped.take());
                parts.push(std::mem::take(&mut part));
            }
        }
    }
    part.extend(skipped);
    parts.push(part);
    parts.retain(|part| part.len() > 1);
    parts
}

fn band(
    frame: &Frame,
    xs: &[f64],
    low: &[f64],
    high: &[f64],
    look: &Look,
    shapes: &mut Vec<Shape>,
) {
    let fill = Fill { color: look.color, opacity: BAND_OPACITY };
    let mut lower: Vec<Point> = Vec::new();
    let mut upper: Vec<Point> = Vec::new();
    let mut finish = |lower: &mut Vec<Point>, upper: &mut Vec<Point>| {
        if lower.len() > 1 {
            let mut outline = std::mem::take(lower);
            outline.extend(upper.drain(..).rev());
            shapes.push(Shape::polygon(outline, Some(fill), None));
        } else {
            lower.clear();
            upper.clear();
        }
    };
    for ((x, low), high) in xs.iter().zip(low).zip(high) {
        // A band that reaches below zero on a logarithmic axis is filled down to the frame.
        let bottom = frame.page_y(*low).or_else(|| {
            (low.is_finite() && *low <= 0.0).then_some(frame.area.bottom() + frame.area.height)
        });
        match (frame.page_x(*x), bottom, frame.page_y(*high)) {
            (Some(x), Some(bottom), Some(top)) => {
                lower.push((x, bottom));
                upper.push((x, top));
            }
            _ => finish(&mut lower, &mut upper),
        }
    }
    finish(&mut lower, &mut upper);
}

/// A bar: filled, or hatched so that what lies below it stays visible.
pub(crate) fn bar(area: Rect, color: Color, hatched: bool, shapes: &mut Vec<Shape>) {
    if !hatched {
        let edge = Stroke::solid(Color::WHITE, 1.0);
        shapes.push(Shape::rect(area, Some(color.into()), Some(edge)));
        return;
    }
    if area.height < 0.5 {
        return;
    }
    let fill = Fill { color, opacity: 0.18 };
    shapes.push(Shape::rect(area, Some(fill), Some(Stroke::solid(color, 1.2))));
    // The lines x + y = c inside the bar.
    const GAP: f64 = 7.0;
    let mut parts = Vec::new();
    let mut c = ((area.x + area.y) / GAP).ceil() * GAP;
    while c < area.right() + area.bottom() {
        let from_x = (c - area.bottom()).max(area.x);
        let to_x = (c - area.y).min(area.right());
        if from_x < to_x {
            parts.push(vec![(from_x, c - from_x), (to_x, c - to_x)]);
        }
        c += GAP;
    }
    if !parts.is_empty() {
        shapes.push(Shape::polyline(parts, Stroke::solid(color, 1.0)));
    }
}

fn error_bars(
    frame: &Frame,
    xs: &[f64],
    ys: &[f64],
    (low, high): (&[f64], &[f64]),
    color: Color,
    shapes: &mut Vec<Shape>,
) {
    let mut parts = Vec::new();
    for (i, (x, y)) in xs.iter().zip(ys).enumerate() {
        let Some((x, _)) = frame.point(*x, *y) else {
            continue;
        };
        let Some(top) = frame.page_y(high[i]) else {
            continue;
        };
        match frame.page_y(low[i]) {
            Some(bottom) => {
                parts.push(vec![(x, bottom), (x, top)]);
                parts.push(vec![(x - ERROR_CAP, bottom), (x + ERROR_CAP, bottom)]);
            }
            // An error bar that reaches below zero on a logarithmic axis ends at the frame without
            // a cap.
            None if low[i].is_finite() => parts.push(vec![(x, frame.area.bottom()), (x, top)]),
            None => continue,
        }
        parts.push(vec![(x - ERROR_CAP, top), (x + ERROR_CAP, top)]);
    }
    if !parts.is_empty() {
        shapes.push(Shape::polyline(parts, Stroke::solid(color, ERROR_WIDTH)));
    }
}

/// A marker with a white rim that separates it from its neighbours.
pub(crate) fn marker_shape(marker: Marker, (x, y): Point, color: Color) -> Shape {
    let rim = Some(Stroke::solid(Color::WHITE, 1.0));
    let fill = Some(color.into());
    let r = MARKER_RADIUS;
    let polygon = |corners: &[Point]| {
        let corners = corners.iter().map(|(dx, dy)| (x + dx * r, y + dy * r)).collect();
        Shape::polygon(corners, fill, rim)
    };
    match marker {
        Marker::Circle => Shape::Circle { center: (x, y), radius: r, fill, stroke: rim },
        Marker::Square => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        Marker::Triangle => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        Marker::Diamond => polygon(&[(0.0, -1.3), (1.1, 0.0), (0.0, 1.3), (-1.1, 0.0)]),
        Marker::TriangleDown => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        Marker::Cross => {
            let d = 0.85 * r;
            Shape::polyline(
                vec![vec![(x - d, y - d), (x + d, y + d)], vec![(x - d, y + d), (x + d, y - d)]],
                Stroke::solid(color, 2.6),
            )
        }
    }
}
