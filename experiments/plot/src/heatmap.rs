//! Heat maps: a function of two variables as colours, with contour lines and a colour bar.

use crate::axis::{Axis, Extent, Scale, Span};
use crate::color::Color;
use crate::colormap::viridis;
use crate::contour;
use crate::draw::Frame;
use crate::error::{Error, Result};
use crate::shape::{Rect, Shape, Stroke};

/// A function of two variables on an even grid.
#[derive(Debug, Clone)]
pub struct Heatmap {
    axis: Axis,
    xs: Vec<f64>,
    ys: Vec<f64>,
    values: Vec<f64>,
    contours: usize,
}

impl Heatmap {
    /// A heat map of `values`: a row for each y, with a value for each x. `colors` is the axis of
    /// the colour bar. Values that it cannot show (NaN, or not positive on a log axis) stay white.
    pub fn new(
        colors: Axis,
        xs: impl AsRef<[f64]>,
        ys: impl AsRef<[f64]>,
        values: impl AsRef<[f64]>,
    ) -> Self {
        Self {
            axis: colors,
            xs: xs.as_ref().to_vec(),
            ys: ys.as_ref().to_vec(),
            values: values.as_ref().to_vec(),
            contours: 0,
        }
    }

    /// Draws about this many contour lines, at levels that are marked on the colour bar.
    pub fn contours(mut self, count: usize) -> Self {
        self.contours = count;
        self
    }

    pub(crate) fn colors(&self) -> &Axis {
        &self.axis
    }

    /// Reports values that do not form an even grid on these axes.
    pub(crate) fn check(&self, x: &Axis, y: &Axis) -> Result<()> {
        if is_even(&self.xs, x.scale())
            && is_even(&self.ys, y.scale())
            && self.values.len() == self.xs.len() * self.ys.len()
        {
            return Ok(());
        }
        Err(Error::Grid {
            label: self.axis.label().to_owned(),
            columns: self.xs.len(),
            rows: self.ys.len(),
            values: self.values.len(),
        })
    }

    /// Makes the axes end where the outermost cells end.
    pub(crate) fn extend(&self, x: (&mut Extent, Scale), y: (&mut Extent, Scale)) {
        for ((extent, scale), grid) in [(x, &self.xs), (y, &self.ys)] {
            let (low, high) = edges(grid, scale);
            extent.add(low);
            extent.add(high);
            extent.tight = true;
        }
    }

    /// The range of the colours.
    pub(crate) fn span(&self, panel: &str) -> Result<Span> {
        let mut extent = Extent::default();
        extent.tight = true;
        for value in &self.values {
            extent.add(*value);
        }
        self.axis.span(panel, "colour", &extent)
    }

    fn contour_levels(&self, span: Span) -> impl Iterator<Item = f64> {
        let ticks = match self.contours {
            0 => Vec::new(),
            count => self.axis.ticks(span, count).major,
        };
        let levels = ticks.into_iter().map(|(value, _)| value);
        levels.filter(move |v| *v > span.low && *v < span.high)
    }

    /// Draws cells and contour lines into the frame.
    pub(crate) fn draw(&self, frame: &Frame, span: Span) -> Shape {
        let (columns, rows) = (self.xs.len(), self.ys.len());
        let mut rgba = Vec::with_capacity(4 * columns * rows);
        // Rows of pixels start at the top, the y axis at the bottom.
        for row in self.values.chunks_exact(columns).rev() {
            for value in row {
                match span.fraction(*value).map(viridis) {
                    Some(Color(r, g, b)) => rgba.extend([r, g, b, 255]),
                    None => rgba.extend([255, 255, 255, 0]),
                }
            }
        }
        let (left, right) = edges(&self.xs, frame.x.scale);
        let (low, high) = edges(&self.ys, frame.y.scale);
        let mut shapes = Vec::new();
        if let (Some(left), Some(right), Some(bottom), Some(top)) =
            (frame.page_x(left), frame.page_x(right), frame.page_y(low), frame.page_y(high))
        {
            let area = Rect { x: left, y: top, width: right - left, height: bottom - top };
            shapes.push(Shape::Pixels { area, columns, rows, rgba });
            for level in self.contour_levels(span) {
                self.draw_contour(level, span, area, &mut shapes);
            }
        }
        Shape::Clipped { area: frame.area, shapes }
    }

    fn draw_contour(&self, level: f64, span: Span, area: Rect, shapes: &mut Vec<Shape>) {
        let (columns, rows) = (self.xs.len(), self.ys.len());
        let cell = (area.width / columns as f64, area.height / rows as f64);
        let parts: Vec<_> = contour::lines(&self.values, columns, level)
            .into_iter()
            .map(|line| {
                line.into_iter()
                    // A grid point is the centre of its cell.
                    .map(|(i, j)| (area.x + (i + 0.5) * cell.0, area.bottom() - (j + 0.5) * cell.1))
                    .collect()
            })
            .collect();
        if !parts.is_empty() {
            shapes.push(Shape::polyline(parts, line_on(level, span)));
        }
    }

    /// Draws the colours of the bar, with a mark at each contour's level.
    pub(crate) fn draw_bar(&self, area: Rect, span: Span, shapes: &mut Vec<Shape>) {
        const STEPS: usize = 256;
        let rgba = (0..STEPS)
            .flat_map(|i| {
                let Color(r, g, b) = viridis(1.0 - (i as f64 + 0.5) / STEPS as f64);
                [r, g, b, 255]
            })
            .collect();
        shapes.push(Shape::Pixels { area, columns: 1, rows: STEPS, rgba });
        for level in self.contour_levels(span) {
            if let Some(fraction) = span.fraction(level).filter(|f| (0.0..=1.0).contains(f)) {
                let y = area.bottom() - fraction * area.height;
                let stroke = line_on(level, span);
                shapes.push(Shape::line((area.x, y), (area.right(), y), stroke));
            }
        }
    }
}

/// White lines on dark colours, dark lines on light ones.
fn line_on(level: f64, span: Span) -> Stroke {
    let dark = span.fraction(level).is_some_and(|f| viridis(f).luminance() < 0.3);
    Stroke::solid(if dark { Color::WHITE } else { Color::INK }, 1.5)
}

/// The outer edges of cells that are centred on the points of an even grid.
fn edges(grid: &[f64], scale: Scale) -> (f64, f64) {
    let (Some(first), Some(last)) = (grid.first(), grid.last()) else {
        return (f64::NAN, f64::NAN);
    };
    let steps = (grid.len().saturating_sub(1)).max(1) as f64;
    match scale {
        Scale::Linear => {
            let half = (last - first) / steps / 2.0;
            (first - half, last + half)
        }
        Scale::Log => {
            let half = (last / first).powf(0.5 / steps);
            (first / half, last * half)
        }
    }
}

fn is_even(grid: &[f64], scale: Scale) -> bool {
    let place = |x: &f64| match scale {
        Scale::Linear => *x,
        Scale::Log => x.ln(),
    };
    let [first, .., last] = grid else {
        return false;
    };
    let step = (place(last) - place(first)) / (grid.len() - 1) as f64;
    step.is_finite()
        && step > 0.0
        && grid.windows(2).all(|pair| {
            let gap = place(&pair[1]) - place(&pair[0]);
            (gap - step).abs() <= 1e-3 * step
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::{linspace, logspace};

    #[test]
    fn grids_must_be_even_on_their_axis() {
        assert!(is_even(&linspace(-1.5, 1.5, 51), Scale::Linear));
        assert!(!is_even(&linspace(1.0, 2.0, 9), Scale::Log));
        assert!(is_even(&logspace(1e-3, 1e3, 9), Scale::Log));
        for bad in [&[][..], &[1.0], &[2.0, 1.0], &[0.0, f64::NAN], &[0.0, 0.0]] {
            assert!(!is_even(bad, Scale::Linear), "{bad:?}");
        }
    }

    #[test]
    fn cells_are_centred_on_their_points() {
        assert_eq!(edges(&[0.0, 1.0, 2.0], Scale::Linear), (-0.5, 2.5));
        let (low, high) = edges(&[1.0, 100.0], Scale::Log);
        assert!((low - 0.1).abs() < 1e-12 && (high - 1000.0).abs() < 1e-9);
    }

    #[test]
    fn values_that_are_no_grid_are_refused() {
        let map = Heatmap::new(Axis::linear("z"), [0.0, 1.0], [0.0, 1.0], [0.0; 5]);
        let axis = Axis::linear("");
        let error = map.check(&axis, &axis).unwrap_err().to_string();
        assert!(error.contains("need 4 values, but 5"), "{error}");
    }
}
