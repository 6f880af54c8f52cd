//! Axes: their labels, their ranges, and where a value lies on them.

use crate::error::{Error, Result};
use crate::ticks::{self, Ticks};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    Log,
}

/// An axis of a panel.
#[derive(Debug, Clone)]
pub struct Axis {
    label: String,
    scale: Scale,
    range: Option<(f64, f64)>,
    include: Vec<f64>,
    integers_only: bool,
}

impl Axis {
    fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale, range: None, include: Vec::new(), integers_only: false }
    }

    /// A linear axis. The label names the quantity and its unit.
    pub fn linear(label: impl Into<String>) -> Self {
        Self::new(label, Scale::Linear)
    }

    /// A logarithmic axis. Values that are not positive are not shown.
    pub fn log(label: impl Into<String>) -> Self {
        Self::new(label, Scale::Log)
    }

    /// Shows exactly this range. The default is the range of the data with a margin.
    pub fn range(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }

    /// Extends the axis to this value if the data do not reach it.
    pub fn include(mut self, value: f64) -> Self {
        self.include.push(value);
        self
    }

    /// Puts ticks at whole numbers only, for epochs, layers and counts.
    pub fn integers(mut self) -> Self {
        self.integers_only = true;
        self
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn scale(&self) -> Scale {
        self.scale
    }

    /// The range of the axis, given the data it has to show.
    pub(crate) fn span(&self, panel: &str, which: &'static str, data: &Extent) -> Result<Span> {
        let span = |low, high| Span { scale: self.scale, low, high };
        if let Some((low, high)) = self.range {
            let rule = if !low.is_finite() || !high.is_finite() || low >= high {
                "it must be finite and increasing"
            } else if self.scale == Scale::Log && low <= 0.0 {
                "a logarithmic axis starts above zero"
            } else if !(high - low).is_finite() {
                "it is too wide"
            } else {
                return Ok(span(low, high));
            };
            return Err(Error::Range { axis: self.label.clone(), low, high, rule });
        }
        let mut extent = data.clone();
        for value in &self.include {
            extent.add(*value);
        }
        let Some((low, high)) = extent.range(self.scale) else {
            return Err(Error::NothingToDraw {
                panel: panel.to_owned(),
                axis: which,
                hint: match self.scale {
                    Scale::Linear => "",
                    Scale::Log => " (a logarithmic axis shows positive values only)",
                },
            });
        };
        let (low, high) = match self.scale {
            _ if extent.tight && low < high => (low, high),
            Scale::Linear => padded(low, high),
            Scale::Log => {
                let (low, high) = padded(low.log10(), high.log10());
                (10f64.powf(low).max(f64::MIN_POSITIVE), 10f64.powf(high).min(f64::MAX))
            }
        };
        if !(high - low).is_finite() {
            return Err(Error::Range {
                axis: self.label.clone(),
                low,
                high,
                rule: "it is too wide; set a smaller range or use a logarithmic axis",
            });
        }
        Ok(span(low, high))
    }

    /// The ticks for an axis that spans `span` and has room for about `count` labels.
    pub(crate) fn ticks(&self, span: Span, count: usize) -> Ticks {
        match self.scale {
            Scale::Linear => ticks::linear(span.low, span.high, count, self.integers_only),
            Scale::Log => ticks::log(span.low, span.high, count),
        }
    }
}

/// Adds a margin on both sides so that no point lies on the frame, also around a single value.
fn padded(low: f64, high: f64) -> (f64, f64) {
    const ROOM: f64 = 0.04;
    let magnitude = low.abs().max(high.abs());
    // In a narrower range, neighbouring ticks would be the same float.
    if high - low <= 1e-12 * magnitude || high == low {
        let half = if magnitude > 0.0 { 0.1 * magnitude } else { 1.0 };
        (low - half, high + half)
    } else {
        let room = ROOM * (high - low);
        (low - room, high + room)
    }
}

/// The values an axis has to show.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extent {
    all: Option<(f64, f64)>,
    positive: Option<(f64, f64)>,
    /// The axis ends exactly where the data end, as under a heat map.
    pub(crate) tight: bool,
}

impl Extent {
    pub(crate) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        let widen = |range: Option<(f64, f64)>| match range {
            None => Some((value, value)),
            Some((low, high)) => Some((low.min(value), high.max(value))),
        };
        self.all = widen(self.all);
        if value > 0.0 {
            self.positive = widen(self.positive);
        }
    }

    fn range(&self, scale: Scale) -> Option<(f64, f64)> {
        match scale {
            Scale::Linear => self.all,
            Scale::Log => self.positive,
        }
    }
}

/// The range of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    pub(crate) scale: Scale,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Span {
    /// Where a value lies, from 0 at the low end to 1 at the high end. `None` for a value that the
    /// scale cannot show.
    pub(crate) fn fraction(&self, value: f64) -> Option<f64> {
        if !value.is_finite() {
            return None;
        }
        match self.scale {
            Scale::Linear => Some((value - self.low) / (self.high - self.low)),
            Scale::Log if value > 0.0 => {
                let (low, high) = (self.low.ln(), self.high.ln());
                Some((value.ln() - low) / (high - low))
            }
            Scale::Log => None,
        }
    }

    pub(crate) fn contains(&self, value: f64) -> bool {
        value >= self.low && value <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(values: &[f64]) -> Extent {
        let mut extent = Extent::default();
        for value in values {
            extent.add(*value);
        }
        extent
    }

    #[test]
    fn a_single_value_gets_room() {
        for (axis, value) in [
            (Axis::linear("y"), 0.0),
            (Axis::linear("y"), -3.0),
            (Axis::log("y"), 1.0),
            (Axis::log("y"), 1e-5),
        ] {
            let span = axis.span("p", "y", &extent(&[value])).unwrap();
            assert!(span.low < value && value < span.high, "{span:?}");
            let fraction = span.fraction(value).unwrap();
            assert!((fraction - 0.5).abs() < 1e-9, "{fraction}");
        }
    }

    #[test]
    fn nothing_finite_is_an_error_that_names_the_panel() {
        let error = Axis::linear("y")
            .span("(A)", "y", &extent(&[f64::NAN, f64::INFINITY]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("(A)"), "{error}");
        let error = Axis::log("y").span("(B)", "y", &extent(&[-1.0, 0.0])).unwrap_err().to_string();
        assert!(error.contains("positive values only"), "{error}");
    }

    #[test]
    fn bad_ranges_are_refused() {
        let data = extent(&[1.0]);
        for axis in [
            Axis::linear("y").range(1.0, 1.0),
            Axis::linear("y").range(2.0, 1.0),
            Axis::linear("y").range(f64::NAN, 1.0),
            Axis::log("y").range(0.0, 1.0),
            Axis::linear("y").range(-1.7e308, 1.7e308),
        ] {
            assert!(axis.span("p", "y", &data).is_err());
        }
    }

    #[test]
    fn fractions_on_a_log_axis_are_even_in_decades() {
        let span = Axis::log("x").range(1e-2, 1e2).span("p", "x", &extent(&[])).unwrap();
        for (value, fraction) in [(1e-2, 0.0), (1e-1, 0.25), (1.0, 0.5), (1e2, 1.0)] {
            assert!((span.fraction(value).unwrap() - fraction).abs() < 1e-12);
        }
        assert_eq!(span.fraction(-1.0), None);
        let wide = Axis::log("x").range(1e-300, 1e300).span("p", "x", &extent(&[])).unwrap();
        assert!((wide.fraction(1.0).unwrap() - 0.5).abs() < 1e-12);
    }
}
