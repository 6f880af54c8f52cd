//! Lays a figure out on a page.
//!
//! The data areas of a row are aligned at top and bottom, those of a column at left and right.
//! Every margin fits the widest label of its row or column, which is measured with the font itself.

use crate::cell::{Cell, LEADING, Place, text_lines};
use crate::color::Color;
use crate::error::{Error, Result};
use crate::figure::{Figure, Legend};
use crate::font::{self, Weight};
use crate::legend;
use crate::panel::Panel;
use crate::shape::{Page, Point, Rect, Shape};
use crate::style::Looks;

/// The margin around the figure, for a page and for a small screen.
const MARGIN: (f64, f64) = (28.0, 16.0);
const GAP: (f64, f64) = (40.0, 34.0);
const LEGEND_GAP: f64 = 20.0;
const TITLE: (f64, Weight, Color) = (25.0, Weight::SemiBold, Color::INK);
const SUBTITLE: (f64, Weight, Color) = (16.0, Weight::Regular, Color::MUTED);
/// Wider panels of a single column are flat, so that they fit on a screen.
const FLAT_FROM: f64 = 800.0;

/// Lays the figure out with this width and this number of columns.
pub(crate) fn compose(figure: &Figure, width: f64, columns: usize) -> Result<Page> {
    check(figure, width)?;
    let margin = if width < FLAT_FROM { MARGIN.1 } else { MARGIN.0 };
    let columns = columns.clamp(1, figure.panels.len());
    let legend = place_legend(figure);
    let looks = Looks::assign(&figure.panels, legend != Legend::PerPanel);
    let inner = width - 2.0 * margin;

    let mut shapes = Vec::new();
    let mut y = margin;
    for (markup, style) in [(&figure.title, TITLE), (&figure.subtitle, SUBTITLE)] {
        let (size, weight, color) = style;
        let lines = font::wrap(markup, size, weight, inner);
        text_lines(&lines, size, weight, color, (margin, y), &mut shapes);
        y += lines.len() as f64 * size * LEADING;
    }
    if y > margin {
        y += 14.0;
    }

    let grid = Grid::measure(figure, &looks, legend == Legend::PerPanel, inner, columns)?;
    let mut height = grid.draw(figure, &looks, (margin, y), &mut shapes);
    if legend == Legend::Below {
        let entries = legend::entries(figure.panels.iter().enumerate(), &looks);
        let rows = legend::rows(&entries, inner);
        if !rows.is_empty() {
            let at = (margin, height + LEGEND_GAP);
            legend::draw(&rows, at, Some(width / 2.0), &mut shapes);
            height += LEGEND_GAP + legend::height(&rows);
        }
    }
    Ok(Page { width, height: height + margin, shapes })
}

fn check(figure: &Figure, width: f64) -> Result<()> {
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        series.check()?;
    }
    if figure.panels.is_empty() {
        return fail(figure, "it has no panels");
    }
    if !(200.0..=10_000.0).contains(&width) {
        return fail(figure, "its width must lie between 200 and 10000");
    }
    if figure.aspect.is_some_and(|a| !(0.05..=20.0).contains(&a)) {
        return fail(figure, "its aspect must lie between 0.05 and 20");
    }
    Ok(())
}

fn fail<T>(figure: &Figure, reason: &str) -> Result<T> {
    Err(Error::Figure { figure: figure.title.clone(), reason: reason.to_owned() })
}

/// All panels share a legend if one of them has every label; else each panel has its own.
fn place_legend(figure: &Figure) -> Legend {
    if figure.legend != Legend::Auto {
        return figure.legend;
    }
    let labels = |panel: &Panel| -> Vec<String> {
        let labels = panel.series.iter().map(|series| series.label.clone());
        labels.filter(|label| !label.is_empty()).collect()
    };
    let all: Vec<String> = figure.panels.iter().flat_map(labels).collect();
    let complete = figure.panels.iter().any(|panel| {
        let own = labels(panel);
        all.iter().all(|label| own.contains(label))
    });
    if complete { Legend::Below } else { Legend::PerPanel }
}

/// The panels in rows and columns, measured.
struct Grid<'a> {
    cells: Vec<Cell<'a>>,
    columns: usize,
    cell_width: f64,
    /// Width and height of every data area.
    plot: (f64, f64),
}

impl<'a> Grid<'a> {
    fn measure(
        figure: &'a Figure,
        looks: &Looks,
        legends: bool,
        width: f64,
        columns: usize,
    ) -> Result<Self> {
        let cell_width = (width - GAP.0 * (columns - 1) as f64) / columns as f64;
        let aspect = figure.aspect.unwrap_or(match columns {
            _ if figure.panels.iter().all(|panel| panel.square) => 1.0,
            1 if width > FLAT_FROM => 0.5,
            _ => 0.7,
        });
        let mut cells = Vec::with_capacity(figure.panels.len());
        for (p, panel) in figure.panels.iter().enumerate() {
            let entries = if legends {
                legend::entries(std::iter::once((p, panel)), looks)
            } else {
                Vec::new()
            };
            cells.push(Cell::measure(panel, entries, cell_width, aspect)?);
        }
        let mut grid = Self { cells, columns, cell_width, plot: (0.0, 0.0) };
        let plot_width = (0..columns)
            .map(|c| {
                cell_width - grid.margin(c, |cell| cell.left) - grid.margin(c, |cell| cell.right)
            })
            .fold(f64::INFINITY, f64::min);
        if plot_width < 40.0 {
            return fail(figure, "its panels are too narrow for their labels; use fewer columns");
        }
        grid.plot = (plot_width, plot_width * aspect);
        Ok(grid)
    }

    /// The margin of a column: the largest that one of its panels needs.
    fn margin(&self, column: usize, side: fn(&Cell<'_>) -> f64) -> f64 {
        let cells = self.cells.iter().skip(column).step_by(self.columns);
        cells.map(side).fold(0.0, f64::max)
    }

    /// Draws the panels from (`x`, `y`) downwards; returns where they end.
    fn draw(&self, figure: &Figure, looks: &Looks, (x, y): Point, shapes: &mut Vec<Shape>) -> f64 {
        let (width, height) = self.plot;
        let mut y = y;
        for (r, row) in self.cells.chunks(self.columns).enumerate() {
            if r > 0 {
                y += GAP.1;
            }
            let top = row.iter().map(|cell| cell.top).fold(0.0, f64::max);
            let bottoms = row.iter().map(|cell| cell.bottom(width));
            let bottom = bottoms.fold(0.0, f64::max);
            for (c, cell) in row.iter().enumerate() {
                let left = self.margin(c, |cell| cell.left);
                let side = width.min(height);
                let (width, height) = if cell.is_square() { (side, side) } else { self.plot };
                let place = Place {
                    area: Rect {
                        x: x + c as f64 * (self.cell_width + GAP.0) + left,
                        y: y + top,
                        width,
                        height,
                    },
                    left,
                    top,
                    legend_width: self.plot.0,
                };
                let p = r * self.columns + c;
                let series = figure.panels[p].series.iter().enumerate();
                let looks: Vec<_> =
                    series.map(|(s, series)| (series, looks.of(p, s, series))).collect();
                cell.draw(&looks, place, shapes);
            }
            y += top + height + bottom;
        }
        y
    }
}
