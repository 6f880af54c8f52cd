//! A panel: two axes and the series between them.

use crate::axis::{Axis, Extent};
use crate::heatmap::Heatmap;
use crate::rich_text::RichText;
use crate::series::Series;

/// Two axes and the series between them.
#[derive(Debug, Clone)]
pub struct Panel {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) heatmap: Option<Heatmap>,
    pub(crate) series: Vec<Series>,
    pub(crate) square: bool,
}

impl Panel {
    /// An empty panel; the title usually starts with its letter, as in `(A) Variance`.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            note: String::new(),
            x: Axis::linear(""),
            y: Axis::linear(""),
            heatmap: None,
            series: Vec::new(),
            square: false,
        }
    }

    /// Adds a line below the title, in smaller type.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Sets the horizontal axis.
    pub fn x(mut self, axis: Axis) -> Self {
        self.x = axis;
        self
    }

    /// Sets the vertical axis.
    pub fn y(mut self, axis: Axis) -> Self {
        self.y = axis;
        self
    }

    /// Makes the data area a square, for two axes of the same quantity.
    pub fn square(mut self) -> Self {
        self.square = true;
        self
    }

    /// Adds a heat map below the series, with its colour bar beside the panel.
    pub fn heatmap(mut self, heatmap: Heatmap) -> Self {
        self.heatmap = Some(heatmap);
        self
    }

    /// Adds a series. The methods below are short forms for plain ones.
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a line. Its dashes are chosen to differ from those of the figure's other lines.
    pub fn line(
        self,
        label: impl Into<String>,
        xs: impl AsRef<[f64]>,
        ys: impl AsRef<[f64]>,
    ) -> Self {
        self.series(Series::line(label, xs, ys))
    }

    /// Adds points.
    pub fn points(
        self,
        label: impl Into<String>,
        xs: impl AsRef<[f64]>,
        ys: impl AsRef<[f64]>,
    ) -> Self {
        self.series(Series::points(label, xs, ys))
    }

    /// Adds a shaded band between two curves.
    pub fn band(
        self,
        label: impl Into<String>,
        xs: impl AsRef<[f64]>,
        low: impl AsRef<[f64]>,
        high: impl AsRef<[f64]>,
    ) -> Self {
        self.series(Series::band(label, xs, low, high))
    }

    /// Adds a grey dashed line across the panel at a height.
    pub fn horizontal(self, label: impl Into<String>, y: f64) -> Self {
        self.series(Series::horizontal(label, y))
    }

    /// Adds the grey dashed line `y = x`.
    pub fn diagonal(self, label: impl Into<String>) -> Self {
        self.series(Series::diagonal(label))
    }

    /// The values that the axes have to show.
    pub(crate) fn extents(&self) -> (Extent, Extent) {
        let (mut x, mut y) = (Extent::default(), Extent::default());
        for series in &self.series {
            series.extend(&mut x, &mut y);
        }
        if let Some(heatmap) = &self.heatmap {
            heatmap.extend((&mut x, self.x.scale()), (&mut y, self.y.scale()));
        }
        (x, y)
    }

    /// A description of the panel for screen readers.
    pub(crate) fn describe(&self) -> String {
        let plain = |markup: &str| RichText::parse(markup).plain();
        let mut labels: Vec<String> = Vec::new();
        labels.extend(self.heatmap.iter().map(|map| plain(map.colors().label())));
        for series in &self.series {
            let label = plain(&series.label);
            if !label.is_empty() && !labels.contains(&label) {
                labels.push(label);
            }
        }
        format!(
            "{}: {} against {}; {}.",
            plain(&self.title),
            plain(self.y.label()),
            plain(self.x.label()),
            labels.join(", ")
        )
    }
}
