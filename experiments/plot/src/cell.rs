//! One panel on the page, with its titles, axes, colour bar and legend.

use crate::axis::{Axis, Span};
use crate::color::Color;
use crate::draw::{self, Frame};
use crate::error::Result;
use crate::font::{self, Weight};
use crate::legend::{self, Entry};
use crate::panel::Panel;
use crate::rich_text::RichText;
use crate::series::Series;
use crate::shape::{Anchor, Point, Rect, Shape, Stroke, Text};
use crate::style::Look;
use crate::ticks::Ticks;
use crate::ticks::minus;

const TITLE: f64 = 18.0;
const NOTE: f64 = 15.0;
const LABEL: f64 = 16.0;
const TICK_TEXT: f64 = 14.5;
const TICK: f64 = 6.0;
const MINOR_TICK: f64 = 3.5;
/// The distance from a tick to its label.
const TICK_GAP: f64 = 5.0;
/// The distances from the tick labels to the axis label, and from there to the legend.
const LABEL_GAP: f64 = 6.0;
const LEGEND_GAP: f64 = 10.0;
/// The colour bar: its distance from the panel and its width.
const BAR: (f64, f64) = (16.0, 18.0);
/// Line height relative to the size of the text.
pub(crate) const LEADING: f64 = 1.32;
/// The distance from the data area to the label of the horizontal axis.
const TO_X_LABEL: f64 = TICK + TICK_GAP + TICK_TEXT * 1.1;
/// The space that a tick label takes along the horizontal and the vertical axis.
const TICK_ROOM: (f64, f64) = (66.0, 38.0);

/// A panel with the measures that its neighbours are aligned by.
pub(crate) struct Cell<'a> {
    panel: &'a Panel,
    title: Vec<RichText>,
    note: Vec<RichText>,
    x: (Span, Ticks),
    y: (Span, Ticks),
    colors: Option<(Span, Ticks)>,
    entries: Vec<Entry<'a>>,
    /// The space that the panel needs around its data area.
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
}

/// Where a panel is drawn.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) area: Rect,
    /// The left margin of the column, in which the labels of vertical axes are aligned.
    pub(crate) left: f64,
    /// The space for titles of the row, in which titles are aligned.
    pub(crate) top: f64,
    /// The width of the legend, which may be wider than a square data area.
    pub(crate) legend_width: f64,
}

impl<'a> Cell<'a> {
    /// Chooses the axes and ticks of a panel and measures the space that its texts need.
    pub(crate) fn measure(
        panel: &'a Panel,
        entries: Vec<Entry<'a>>,
        width: f64,
        aspect: f64,
    ) -> Result<Self> {
        let (x_data, y_data) = panel.extents();
        let x_span = panel.x.span(&panel.title, "x", &x_data)?;
        let y_span = panel.y.span(&panel.title, "y", &y_data)?;
        // The margins depend on the tick labels, and the number of ticks on the margins. Usual
        // margins break the circle.
        let bar = if panel.heatmap.is_some() { 90.0 } else { 0.0 };
        let likely_width = (width - 80.0 - bar).max(60.0);
        let likely_height = likely_width * if panel.square { 1.0 } else { aspect };
        let count = |length: f64, room: f64| ((length / room) as usize).max(4);
        let x_ticks = panel.x.ticks(x_span, count(likely_width, TICK_ROOM.0));
        let y_ticks = panel.y.ticks(y_span, count(likely_height, TICK_ROOM.1));
        let colors = match &panel.heatmap {
            None => None,
            Some(heatmap) => {
                heatmap.check(&panel.x, &panel.y)?;
                let span = heatmap.span(&panel.title)?;
                let ticks = heatmap.colors().ticks(span, count(likely_height, TICK_ROOM.1));
                Some((span, ticks))
            }
        };

        let left = TICK + TICK_GAP + widest(&y_ticks) + room_for_label(&panel.y, &y_ticks);
        let right = match (&panel.heatmap, &colors) {
            (Some(heatmap), Some((_, ticks))) => {
                let text = widest(ticks) + room_for_label(heatmap.colors(), ticks);
                BAR.0 + BAR.1 + TICK + TICK_GAP + text
            }
            // The last tick label may extend beyond the axis by half its width.
            _ => 14.0,
        };
        let title = font::wrap(&panel.title, TITLE, Weight::SemiBold, width);
        let note = font::wrap(&panel.note, NOTE, Weight::Regular, width);
        let titles = title.len() as f64 * TITLE * LEADING + note.len() as f64 * NOTE * LEADING;
        Ok(Self {
            panel,
            title,
            note,
            x: (x_span, x_ticks),
            y: (y_span, y_ticks),
            colors,
            entries,
            left,
            right,
            top: if titles > 0.0 { titles + 10.0 } else { 8.0 },
        })
    }

    /// The space that the panel needs below a data area of this width.
    pub(crate) fn bottom(&self, plot_width: f64) -> f64 {
        let rows = legend::rows(&self.entries, plot_width);
        let legend = if rows.is_empty() { 0.0 } else { LEGEND_GAP + legend::height(&rows) };
        TO_X_LABEL + room_for_label(&self.panel.x, &self.x.1) + legend
    }

    /// Whether the data area is to be a square.
    pub(crate) fn is_square(&self) -> bool {
        self.panel.square
    }

    /// Draws the panel with its series.
    pub(crate) fn draw(&self, looks: &[(&Series, Look)], place: Place, shapes: &mut Vec<Shape>) {
        let area = place.area;
        let frame = Frame { area, x: self.x.0, y: self.y.0 };
        let (x, y) = (area.x - place.left, area.y - place.top);
        let note_y = y + self.title.len() as f64 * TITLE * LEADING;
        text_lines(&self.title, TITLE, Weight::SemiBold, Color::INK, (x, y), shapes);
        text_lines(&self.note, NOTE, Weight::Regular, Color::MUTED, (x, note_y), shapes);

        match (&self.panel.heatmap, &self.colors) {
            (Some(heatmap), Some((span, _))) => shapes.push(heatmap.draw(&frame, *span)),
            _ => self.draw_grid(&frame, shapes),
        }
        shapes.extend(draw::series(looks, &frame));
        self.draw_x_axis(&frame, shapes);
        self.draw_y_axis(&frame, place.left, shapes);
        self.draw_color_bar(area, shapes);

        let rows = legend::rows(&self.entries, place.legend_width);
        let label = room_for_label(&self.panel.x, &self.x.1);
        let legend_y = area.bottom() + TO_X_LABEL + label + LEGEND_GAP;
        legend::draw(&rows, (area.x, legend_y), None, shapes);
    }

    fn draw_grid(&self, frame: &Frame, shapes: &mut Vec<Shape>) {
        let area = frame.area;
        let xs = self.x.1.major.iter().filter_map(|(value, _)| frame.page_x(*value));
        let mut parts: Vec<_> = xs.map(|x| vec![(x, area.y), (x, area.bottom())]).collect();
        let ys = self.y.1.major.iter().filter_map(|(value, _)| frame.page_y(*value));
        parts.extend(ys.map(|y| vec![(area.x, y), (area.right(), y)]));
        shapes.push(Shape::polyline(parts, Stroke::solid(Color::GRID, 1.2)));
    }

    fn draw_x_axis(&self, frame: &Frame, shapes: &mut Vec<Shape>) {
        let area = frame.area;
        let bottom = area.bottom();
        let ticks = &self.x.1;
        let mut lines = vec![vec![(area.x, bottom), (area.right(), bottom)]];
        for (value, length) in all_ticks(ticks) {
            if let Some(x) = frame.page_x(value) {
                lines.push(vec![(x, bottom), (x, bottom + length)]);
            }
        }
        shapes.push(Shape::polyline(lines, Stroke::solid(Color::MUTED, 1.2)));
        for (value, label) in &ticks.major {
            let Some(x) = frame.page_x(*value) else {
                continue;
            };
            let at = (x, bottom + TICK + TICK_GAP + TICK_TEXT * 0.8);
            let text = Text::new(at, RichText::parse(label), TICK_TEXT);
            shapes.push(Shape::Text(text.anchor(Anchor::Middle).color(Color::MUTED)));
        }
        let at = (area.center_x(), bottom + TO_X_LABEL + LABEL_GAP + LABEL * 0.8);
        shapes.push(Shape::Text(label_text(at, &self.panel.x, ticks, area.width)));
    }

    fn draw_y_axis(&self, frame: &Frame, left: f64, shapes: &mut Vec<Shape>) {
        let area = frame.area;
        let ticks = &self.y.1;
        let mut lines = vec![vec![(area.x, area.y), (area.x, area.bottom())]];
        for (value, length) in all_ticks(ticks) {
            if let Some(y) = frame.page_y(value) {
                lines.push(vec![(area.x, y), (area.x - length, y)]);
            }
        }
        shapes.push(Shape::polyline(lines, Stroke::solid(Color::MUTED, 1.2)));
        for (value, label) in &ticks.major {
            let Some(y) = frame.page_y(*value) else {
                continue;
            };
            let at = (area.x - TICK - TICK_GAP, y + TICK_TEXT * 0.36);
            let text = Text::new(at, RichText::parse(label), TICK_TEXT);
            shapes.push(Shape::Text(text.anchor(Anchor::End).color(Color::MUTED)));
        }
        let at = (area.x - left + LABEL * 0.85, area.center_y());
        let text = label_text(at, &self.panel.y, ticks, area.height);
        shapes.push(Shape::Text(text.rotate(-90.0)));
    }

    fn draw_color_bar(&self, panel: Rect, shapes: &mut Vec<Shape>) {
        let (Some(heatmap), Some((span, ticks))) = (&self.panel.heatmap, &self.colors) else {
            return;
        };
        let bar = Rect { x: panel.right() + BAR.0, y: panel.y, width: BAR.1, height: panel.height };
        heatmap.draw_bar(bar, *span, shapes);
        let at = |value: f64| span.fraction(value).map(|f| bar.bottom() - f * bar.height);
        let lines = all_ticks(ticks)
            .filter_map(|(value, length)| Some((at(value)?, length)))
            .map(|(y, length)| vec![(bar.right(), y), (bar.right() + length, y)])
            .collect();
        shapes.push(Shape::polyline(lines, Stroke::solid(Color::MUTED, 1.2)));
        for (value, label) in &ticks.major {
            if let Some(y) = at(*value) {
                let at = (bar.right() + TICK + TICK_GAP, y + TICK_TEXT * 0.36);
                let text = Text::new(at, RichText::parse(label), TICK_TEXT);
                shapes.push(Shape::Text(text.color(Color::MUTED)));
            }
        }
        let text_x = bar.right() + TICK + TICK_GAP + widest(ticks) + LABEL_GAP;
        let at = (text_x + LABEL * 0.85, bar.center_y());
        let text = label_text(at, heatmap.colors(), ticks, bar.height);
        shapes.push(Shape::Text(text.rotate(-90.0)));
    }
}

/// Sets lines of text one below the other, from the top at `y`.
pub(crate) fn text_lines(
    lines: &[RichText],
    size: f64,
    weight: Weight,
    color: Color,
    (x, y): (f64, f64),
    shapes: &mut Vec<Shape>,
) {
    for (i, line) in lines.iter().enumerate() {
        let baseline = y + size * (0.95 + LEADING * i as f64);
        let text = Text::new((x, baseline), line.clone(), size);
        shapes.push(Shape::Text(text.weight(weight).color(color)));
    }
}

/// Major and minor ticks with the lengths of their lines.
fn all_ticks(ticks: &Ticks) -> impl Iterator<Item = (f64, f64)> {
    let major = ticks.major.iter().map(|(value, _)| (*value, TICK));
    major.chain(ticks.minor.iter().map(|value| (*value, MINOR_TICK)))
}

fn widest(ticks: &Ticks) -> f64 {
    let width = |label: &str| font::width(&RichText::parse(label), TICK_TEXT, Weight::Regular);
    ticks.major.iter().map(|(_, label)| width(label)).fold(0.0, f64::max)
}

/// The label of the axis, with the power of ten that its tick labels leave out.
fn axis_label(axis: &Axis, ticks: &Ticks) -> RichText {
    match ticks.factor {
        None => RichText::parse(axis.label()),
        Some(power) => {
            let factor = format!("{} (×10^{{{}}})", axis.label(), minus(&power.to_string()));
            RichText::parse(factor.trim_start())
        }
    }
}

/// The label of the axis, in smaller type if it is longer than the axis.
fn label_text(at: Point, axis: &Axis, ticks: &Ticks, length: f64) -> Text {
    let label = axis_label(axis, ticks);
    let width = font::width(&label, LABEL, Weight::Regular);
    let size = LABEL * (1.1 * length / width.max(1.0)).clamp(0.75, 1.0);
    Text::new(at, label, size).anchor(Anchor::Middle)
}

fn room_for_label(axis: &Axis, ticks: &Ticks) -> f64 {
    if axis_label(axis, ticks).spans().is_empty() { 0.0 } else { LABEL_GAP + LABEL * LEADING }
}
