//! Figures: panels in rows and columns, written as SVG and PNG from one description.
//!
//! A [`Figure`] is laid out into a page of shapes (`layout`), and the page is written by `svg` or
//! drawn by `raster`. Both see the same shapes and the same font, so the two files show the same
//! picture.

mod axis;
mod cell;
mod color;
mod colormap;
mod contour;
mod draw;
mod heatmap;
mod layout;
mod legend;
mod panel;
pub(crate) mod raster;
mod reliability;
mod series;
mod shape;
mod style;
pub(crate) mod svg;
mod ticks;

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::output::OutDir;
use crate::text::RichText;

pub use axis::Axis;
pub use color::Color;
pub use colormap::Colormap;
pub use heatmap::Heatmap;
pub use panel::Panel;
pub use reliability::ReliabilityBin;
pub use series::{Dash, Marker, Series};

/// Where the legend stands. It never covers data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Legend {
    /// Shared below the panels if one panel has all the labels, else one below each panel.
    #[default]
    Auto,
    /// One for all panels, below them.
    Below,
    /// One for all panels, to their right.
    Beside,
    /// One for each panel, below it.
    PerPanel,
    /// None.
    Hidden,
}

/// Panels in rows and columns.
#[derive(Debug, Clone)]
pub struct Figure {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) columns: Option<usize>,
    pub(crate) width: f64,
    pub(crate) aspect: Option<f64>,
    pub(crate) legend: Legend,
}

impl Figure {
    /// Width at which text sizes are chosen.
    const WIDTH: f64 = 1200.0;
    /// Width of the one-column form for small screens.
    const NARROW: f64 = 480.0;

    /// A figure without panels yet. An empty title takes no room.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            subtitle: String::new(),
            panels: Vec::new(),
            columns: None,
            width: Self::WIDTH,
            aspect: None,
            legend: Legend::Auto,
        }
    }

    /// A line below the title: the settings, the number of draws.
    pub fn subtitle(mut self, subtitle: impl Into<String>) -> Self {
        self.subtitle = subtitle.into();
        self
    }

    /// Adds a panel; panels fill the rows from left to right.
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// Panels in a row. Without it: one panel alone, up to four in two columns, more in three.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = Some(columns.max(1));
        self
    }

    /// Width in pixels at scale 1; text keeps its size, so a wider figure has smaller text on a
    /// page.
    pub fn width(mut self, width: f64) -> Self {
        self.width = width;
        self
    }

    /// Height of the data area of a panel relative to its width.
    pub fn aspect(mut self, aspect: f64) -> Self {
        self.aspect = Some(aspect);
        self
    }

    /// Where the legend stands.
    pub fn legend(mut self, legend: Legend) -> Self {
        self.legend = legend;
        self
    }

    /// The title, in markup.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The figure as an SVG file that brings its fonts along.
    pub fn svg(&self) -> Result<String> {
        Ok(self.write(&self.page()?, svg::Use::File))
    }

    /// The figure as SVG elements for an HTML page: as wide as asked for, and in one narrow column.
    pub(crate) fn inline_svgs(&self) -> Result<(String, String)> {
        let wide = self.page()?;
        let narrow = layout::compose(self, Self::NARROW, 1)?;
        Ok((self.write(&wide, svg::Use::Inline), self.write(&narrow, svg::Use::Inline)))
    }

    /// The figure as PNG, `scale` pixels for each unit: 1 for a screen, 2 for print.
    pub fn png(&self, scale: f64) -> Result<Vec<u8>> {
        let page = self.page()?;
        raster::draw(&page, scale).ok_or_else(|| Error::Figure {
            figure: self.title.clone(),
            reason: format!(
                "at scale {scale} it would be {:.0} x {:.0} pixels; 1 to 16384 are possible",
                page.width * scale,
                page.height * scale
            ),
        })
    }

    /// Writes `name.svg` and `name.png` (two pixels per unit) and returns their paths.
    pub fn save(&self, out: &OutDir, name: &str) -> Result<[PathBuf; 2]> {
        let svg = self.svg()?;
        let png = self.png(2.0)?;
        Ok([out.write(format!("{name}.svg"), svg)?, out.write(format!("{name}.png"), png)?])
    }

    fn page(&self) -> Result<shape::Page> {
        let columns = self.columns.unwrap_or(match self.panels.len() {
            0 | 1 => 1,
            2..=4 => 2,
            _ => 3,
        });
        layout::compose(self, self.width, columns)
    }

    fn write(&self, page: &shape::Page, purpose: svg::Use) -> String {
        let plain = |markup: &str| RichText::parse(markup).plain();
        let panels: Vec<String> = self.panels.iter().map(Panel::describe).collect();
        svg::write(page, &plain(&self.title), &panels.join(" "), purpose)
    }
}
