//! Legends: a swatch for each label.

use crate::cell::LEADING;
use crate::draw::{self, marker_shape};
use crate::font::{self, Weight};
use crate::panel::Panel;
use crate::rich_text::RichText;
use crate::series::{Kind, Series};
use crate::shape::{Fill, Point, Rect, Shape, Stroke, Text};
use crate::style::{Look, Looks};

const SIZE: f64 = 15.5;
const SWATCH: f64 = 36.0;
const SWATCH_GAP: f64 = 9.0;
const ENTRY_GAP: f64 = 30.0;
const ROW: f64 = 26.0;

/// A label with all series that have it.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    markup: String,
    label: &'a str,
    parts: Vec<(&'a Series, Look)>,
}

impl Entry<'_> {
    pub(crate) fn width(&self) -> f64 {
        let text = font::width(&RichText::parse(&self.markup), SIZE, Weight::Regular);
        SWATCH + SWATCH_GAP + text
    }
}

/// Entries side by side, each with its text broken into lines.
#[derive(Debug)]
pub(crate) struct Row<'e, 'a> {
    entries: Vec<(&'e Entry<'a>, Vec<RichText>)>,
    width: f64,
}

impl Row<'_, '_> {
    fn height(&self) -> f64 {
        let lines = self.entries.iter().map(|(_, lines)| lines.len()).max();
        ROW + SIZE * LEADING * lines.unwrap_or(1).saturating_sub(1) as f64
    }
}

/// The height of rows one below the other.
pub(crate) fn height(rows: &[Row<'_, '_>]) -> f64 {
    rows.iter().map(Row::height).sum()
}

/// Collects the labels of these panels (numbered as in the figure), each once.
pub(crate) fn entries<'a>(
    panels: impl Iterator<Item = (usize, &'a Panel)>,
    looks: &Looks,
) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for (p, panel) in panels {
        for (s, series) in panel.series.iter().enumerate() {
            if series.label.is_empty() {
                continue;
            }
            let part = (series, looks.of(p, s, series));
            match entries.iter_mut().find(|entry| entry.label == series.label) {
                Some(entry) => entry.parts.push(part),
                None => entries.push(Entry {
                    markup: String::new(),
                    label: &series.label,
                    parts: vec![part],
                }),
            }
        }
    }
    for entry in &mut entries {
        let empty = entry.parts.iter().all(|(series, _)| !series.has_data());
        let suffix = if empty { " (no data)" } else { "" };
        entry.markup = format!("{}{suffix}", entry.label);
    }
    entries
}

/// Breaks entries into rows no wider than `limit`. A label that is wider than that is broken into
/// lines.
pub(crate) fn rows<'e, 'a>(entries: &'e [Entry<'a>], limit: f64) -> Vec<Row<'e, 'a>> {
    let mut rows: Vec<Row<'e, 'a>> = Vec::new();
    for entry in entries {
        let text_limit = limit - SWATCH - SWATCH_GAP;
        let lines = font::wrap(&entry.markup, SIZE, Weight::Regular, text_limit);
        let width = entry.width().min(limit);
        match rows.last_mut() {
            Some(row) if row.width + ENTRY_GAP + width <= limit => {
                row.width += ENTRY_GAP + width;
                row.entries.push((entry, lines));
            }
            _ => rows.push(Row { entries: vec![(entry, lines)], width }),
        }
    }
    rows
}

/// Draws rows of entries, each row centred on `center` if given, else starting at `x`.
pub(crate) fn draw(
    rows: &[Row<'_, '_>],
    (x, y): Point,
    center: Option<f64>,
    shapes: &mut Vec<Shape>,
) {
    let mut y = y;
    for row in rows {
        let mut at = center.map_or(x, |center| center - row.width / 2.0);
        let middle = y + ROW / 2.0;
        for (entry, lines) in &row.entries {
            swatch(entry, (at, middle), shapes);
            for (i, line) in lines.iter().enumerate() {
                let baseline = middle + SIZE * (0.36 + LEADING * i as f64);
                let text = Text::new((at + SWATCH + SWATCH_GAP, baseline), line.clone(), SIZE);
                shapes.push(Shape::Text(text));
            }
            at += entry.width() + ENTRY_GAP;
        }
        y += row.height();
    }
}

fn swatch(entry: &Entry<'_>, (x, y): Point, shapes: &mut Vec<Shape>) {
    let area = |height: f64| Rect { x, y: y - height / 2.0, width: SWATCH, height };
    // Areas first, so that lines and points stay on top of them.
    for (series, look) in &entry.parts {
        match &series.kind {
            Kind::Band { .. } => {
                let fill = Fill { color: look.color, opacity: draw::BAND_OPACITY };
                shapes.push(Shape::rect(area(15.0), Some(fill), None));
            }
            Kind::Bars { hatched, .. } => {
                draw::bar(area(13.0), look.color, *hatched, shapes);
            }
            _ => {}
        }
    }
    let mut drawn = (false, false);
    for (series, look) in &entry.parts {
        if series.has_line() && !drawn.0 {
            drawn.0 = true;
            let stroke = Stroke { color: look.color, width: look.width, dash: look.dash.pattern() };
            shapes.push(Shape::line((x, y), (x + SWATCH, y), stroke));
        }
        if series.has_points() && !drawn.1 {
            drawn.1 = true;
            let center = (x + SWATCH / 2.0, y);
            if matches!(&series.kind, Kind::Xy { errors: Some(_), .. }) {
                let stroke = Stroke::solid(look.color, 1.6);
                shapes.push(Shape::line((center.0, y - 10.0), (center.0, y + 10.0), stroke));
            }
            shapes.push(marker_shape(look.marker, center, look.color));
        }
    }
}
