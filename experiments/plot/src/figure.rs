//! The figure: panels in rows and columns.

use crate::error::{Error, Result};
use crate::layout;
use crate::panel::Panel;
use crate::raster;
use crate::rich_text::RichText;
use crate::shape::Page;
use crate::svg;

/// Where the legend is. It never covers data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Legend {
    /// One below all panels if one of them has every label, else one below each panel.
    #[default]
    Auto,
    /// One for all panels, below them.
    Below,
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
    /// The width that the sizes of text are chosen for.
    const WIDTH: f64 = 1200.0;
    /// The width of the one-column form for small screens.
    const NARROW: f64 = 480.0;

    /// A figure without panels. An empty title takes no space.
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

    /// Adds a line below the title, such as the settings of the experiment.
    pub fn subtitle(mut self, subtitle: impl Into<String>) -> Self {
        self.subtitle = subtitle.into();
        self
    }

    /// Adds a panel; panels fill the rows from left to right.
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// Sets the number of panels per row. The default is 1 for one panel, 2 for up to four panels
    /// and 3 for more.
    pub fn columns(mut self, columns: usize) -> Self {
        self.columns = Some(columns.max(1));
        self
    }

    /// Sets the width in pixels at scale 1. Text keeps its size, so the text of a wider figure
    /// looks smaller on a page.
    pub fn width(mut self, width: f64) -> Self {
        self.width = width;
        self
    }

    /// Sets the height of a panel's data area relative to its width.
    pub fn aspect(mut self, aspect: f64) -> Self {
        self.aspect = Some(aspect);
        self
    }

    /// Sets where the legend is.
    pub fn legend(mut self, legend: Legend) -> Self {
        self.legend = legend;
        self
    }

    /// The figure as an SVG file with its fonts embedded.
    pub fn svg(&self) -> Result<String> {
        Ok(self.write(&self.page()?, svg::Use::File))
    }

    /// The figure as two SVG elements for an HTML page that has [`font_css`](crate::font_css): one
    /// as wide as the figure, and one with all panels in a narrow column.
    pub fn inline_svgs(&self) -> Result<(String, String)> {
        let wide = self.page()?;
        let narrow = layout::compose(self, Self::NARROW, 1)?;
        Ok((self.write(&wide, svg::Use::Inline), self.write(&narrow, svg::Use::Inline)))
    }

    /// The figure as PNG with `scale` pixels per unit: 1 for a screen, 2 for print.
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

    fn page(&self) -> Result<Page> {
        let columns = self.columns.unwrap_or(match self.panels.len() {
            0 | 1 => 1,
            2..=4 => 2,
            _ => 3,
        });
        layout::compose(self, self.width, columns)
    }

    fn write(&self, page: &Page, purpose: svg::Use) -> String {
        let plain = |markup: &str| RichText::parse(markup).plain();
        let panels: Vec<String> = self.panels.iter().map(Panel::describe).collect();
        svg::write(page, &plain(&self.title), &panels.join(" "), purpose)
    }
}
