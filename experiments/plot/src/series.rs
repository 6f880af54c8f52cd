//! Series: data with a label and a style.

use crate::axis::Extent;
use crate::color::Color;
use crate::error::{Error, Result};

/// The dash pattern of a line, which tells it from others without colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    /// Unbroken.
    Solid,
    /// Dashes.
    Dashed,
    /// Dots.
    Dotted,
    /// Dash, dot.
    DashDot,
    /// Long dashes.
    LongDash,
}

impl Dash {
    pub(crate) const CYCLE: [Self; 5] =
        [Self::Solid, Self::Dashed, Self::DashDot, Self::Dotted, Self::LongDash];

    pub(crate) fn pattern(self) -> &'static [f64] {
        match self {
            Self::Solid => &[],
            Self::Dashed => &[8.0, 5.0],
            Self::Dotted => &[2.4, 4.0],
            Self::DashDot => &[9.0, 4.0, 2.4, 4.0],
            Self::LongDash => &[16.0, 5.0],
        }
    }
}

/// The shape of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A triangle that points up.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// A triangle that points down.
    TriangleDown,
    /// A diagonal cross.
    Cross,
}

impl Marker {
    pub(crate) const CYCLE: [Self; 6] = [
        Self::Circle,
        Self::Square,
        Self::Triangle,
        Self::Diamond,
        Self::TriangleDown,
        Self::Cross,
    ];
}

/// What a series draws.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Xy {
        xs: Vec<f64>,
        ys: Vec<f64>,
        /// Lower and upper ends of the error bars.
        errors: Option<(Vec<f64>, Vec<f64>)>,
        line: bool,
        points: bool,
    },
    Band {
        xs: Vec<f64>,
        low: Vec<f64>,
        high: Vec<f64>,
    },
    Bars {
        xs: Vec<f64>,
        bottoms: Vec<f64>,
        tops: Vec<f64>,
        /// The width on the x axis.
        width: f64,
        hatched: bool,
    },
    Horizontal(f64),
    Diagonal,
}

/// Data with a label and a style.
///
/// Colour, dashes and marker that are not set are chosen by the figure. A label has the same ones
/// in every panel, and different labels differ in all three, so that they can be told apart without
/// colour.
#[derive(Debug, Clone)]
pub struct Series {
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) color: Option<Color>,
    pub(crate) dash: Option<Dash>,
    pub(crate) marker: Option<Marker>,
    pub(crate) width: Option<f64>,
}

impl Series {
    fn new(label: impl Into<String>, kind: Kind) -> Self {
        Self { label: label.into(), kind, color: None, dash: None, marker: None, width: None }
    }

    /// A line through points. It is interrupted at points that are not finite.
    pub fn line(label: impl Into<String>, xs: impl AsRef<[f64]>, ys: impl AsRef<[f64]>) -> Self {
        Self::xy(label, xs, ys, true, false)
    }

    /// Points.
    pub fn points(label: impl Into<String>, xs: impl AsRef<[f64]>, ys: impl AsRef<[f64]>) -> Self {
        Self::xy(label, xs, ys, false, true)
    }

    /// Points joined by a line.
    pub fn line_points(
        label: impl Into<String>,
        xs: impl AsRef<[f64]>,
        ys: impl AsRef<[f64]>,
    ) -> Self {
        Self::xy(label, xs, ys, true, true)
    }

    fn xy(
        label: impl Into<String>,
        xs: impl AsRef<[f64]>,
        ys: impl AsRef<[f64]>,
        line: bool,
        points: bool,
    ) -> Self {
        let kind = Kind::Xy {
            xs: xs.as_ref().to_vec(),
            ys: ys.as_ref().to_vec(),
            errors: None,
            line,
            points,
        };
        Self::new(label, kind)
    }

    /// A shaded band between two curves. It has the colour of the line with the same label.
    pub fn band(
        label: impl Into<String>,
        xs: impl AsRef<[f64]>,
        low: impl AsRef<[f64]>,
        high: impl AsRef<[f64]>,
    ) -> Self {
        let kind = Kind::Band {
            xs: xs.as_ref().to_vec(),
            low: low.as_ref().to_vec(),
            high: high.as_ref().to_vec(),
        };
        Self::new(label, kind)
    }

    /// Bars from `bottoms` to `tops`, each `width` wide on the x axis. Hatched bars leave visible
    /// what lies below them.
    pub(crate) fn bars(
        label: &str,
        xs: &[f64],
        (bottoms, tops): (&[f64], &[f64]),
        width: f64,
        hatched: bool,
    ) -> Self {
        let (xs, bottoms, tops) = (xs.to_vec(), bottoms.to_vec(), tops.to_vec());
        Self::new(label, Kind::Bars { xs, bottoms, tops, width, hatched })
    }

    /// A line across the panel at a height.
    pub fn horizontal(label: impl Into<String>, y: f64) -> Self {
        Self::new(label, Kind::Horizontal(y)).reference()
    }

    /// The line `y = x`.
    pub fn diagonal(label: impl Into<String>) -> Self {
        Self::new(label, Kind::Diagonal).reference()
    }

    fn reference(self) -> Self {
        self.color(Color::GREY).dash(Dash::Dashed).stroke_width(1.6)
    }

    /// Adds symmetric error bars: half their length for each point.
    pub fn errors(mut self, half: impl AsRef<[f64]>) -> Self {
        if let Kind::Xy { ys, errors, .. } = &mut self.kind {
            let half = half.as_ref();
            // A wrong number of them is reported when the figure is drawn.
            let end = |sign: f64| {
                half.iter()
                    .enumerate()
                    .map(|(i, h)| ys.get(i).map_or(f64::NAN, |y| y + sign * h))
                    .collect()
            };
            *errors = Some((end(-1.0), end(1.0)));
        }
        self
    }

    /// Sets the colour.
    pub fn color(mut self, color: Color) -> Self {
        self.color = Some(color);
        self
    }

    /// Sets the dash pattern.
    pub fn dash(mut self, dash: Dash) -> Self {
        self.dash = Some(dash);
        self
    }

    /// Sets the marker. A line becomes a line with points.
    pub fn marker(mut self, marker: Marker) -> Self {
        self.marker = Some(marker);
        if let Kind::Xy { points, .. } = &mut self.kind {
            *points = true;
        }
        self
    }

    /// Sets the width of the line, in units of a figure 1200 wide.
    pub fn stroke_width(mut self, width: f64) -> Self {
        self.width = Some(width);
        self
    }

    /// Whether the dash pattern is visible: as dashes of a line or as hatching of bars.
    pub(crate) fn has_dashes(&self) -> bool {
        self.has_line() || matches!(self.kind, Kind::Bars { .. })
    }

    pub(crate) fn has_line(&self) -> bool {
        matches!(self.kind, Kind::Xy { line: true, .. } | Kind::Horizontal(_) | Kind::Diagonal)
    }

    pub(crate) fn has_points(&self) -> bool {
        matches!(self.kind, Kind::Xy { points: true, .. })
    }

    /// Returns an error if the columns differ in length.
    pub(crate) fn check(&self) -> Result<()> {
        let check = |what, found: &[f64], xs: &[f64]| {
            if found.len() == xs.len() {
                Ok(())
            } else {
                Err(Error::Lengths {
                    series: self.label.clone(),
                    what,
                    found: found.len(),
                    expected: xs.len(),
                })
            }
        };
        match &self.kind {
            Kind::Xy { xs, ys, errors, .. } => {
                check("y", ys, xs)?;
                if let Some((low, high)) = errors {
                    check("the errors", low, xs)?;
                    check("the errors", high, xs)?;
                }
                Ok(())
            }
            Kind::Band { xs, low, high } => {
                check("the lower edge", low, xs)?;
                check("the upper edge", high, xs)
            }
            Kind::Bars { .. } | Kind::Horizontal(_) | Kind::Diagonal => Ok(()),
        }
    }

    /// Adds the values of the series to the extents of the axes.
    pub(crate) fn extend(&self, x: &mut Extent, y: &mut Extent) {
        let add = |extent: &mut Extent, values: &[f64]| {
            for value in values {
                extent.add(*value);
            }
        };
        match &self.kind {
            Kind::Xy { xs, ys, errors, .. } => {
                // A point that one axis cannot show must not stretch the other.
                for (i, (px, py)) in xs.iter().zip(ys).enumerate() {
                    if px.is_finite() && py.is_finite() {
                        x.add(*px);
                        y.add(*py);
                        if let Some((low, high)) = errors {
                            y.add(low.get(i).copied().unwrap_or(*py));
                            y.add(high.get(i).copied().unwrap_or(*py));
                        }
                    }
                }
            }
            Kind::Band { xs, low, high } => {
                add(x, xs);
                add(y, low);
                add(y, high);
            }
            Kind::Bars { xs, bottoms, tops, width, .. } => {
                for value in xs {
                    x.add(value - width / 2.0);
                    x.add(value + width / 2.0);
                }
                add(y, tops);
                add(y, bottoms);
            }
            Kind::Horizontal(value) => y.add(*value),
            Kind::Diagonal => {}
        }
    }

    /// Whether the series has at least one value that could be drawn.
    pub(crate) fn has_data(&self) -> bool {
        let some =
            |a: &[f64], b: &[f64]| a.iter().zip(b).any(|(a, b)| a.is_finite() && b.is_finite());
        match &self.kind {
            Kind::Xy { xs, ys, .. } => some(xs, ys),
            Kind::Band { xs, low, .. } => some(xs, low),
            Kind::Bars { xs, tops, .. } => some(xs, tops),
            Kind::Horizontal(value) => value.is_finite(),
            Kind::Diagonal => true,
        }
    }
}
