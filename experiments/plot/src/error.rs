//! Why a figure cannot be drawn.

/// The result of drawing a figure.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a figure cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The columns of a series differ in length.
    #[error(
        "series \"{series}\": {what} has {found} values, but x has {expected}; give one value for each x"
    )]
    Lengths {
        /// The series' label.
        series: String,
        /// The column that does not fit.
        what: &'static str,
        /// How many values it has.
        found: usize,
        /// How many it should have.
        expected: usize,
    },
    /// A panel has neither a point that could be drawn nor a range.
    #[error(
        "panel \"{panel}\": the {axis} axis has no finite value to show{hint}; add data or set the axis' range"
    )]
    NothingToDraw {
        /// The panel's title.
        panel: String,
        /// `x`, `y` or `colour`.
        axis: &'static str,
        /// A possible reason.
        hint: &'static str,
    },
    /// A range that is empty or cannot be shown.
    #[error("axis \"{axis}\": the range {low} to {high} is not allowed; {rule}")]
    Range {
        /// The axis' label.
        axis: String,
        /// The lower end as given.
        low: f64,
        /// The upper end as given.
        high: f64,
        /// What is allowed.
        rule: &'static str,
    },
    /// A heat map whose values do not form the grid of its axes.
    #[error(
        "heat map \"{label}\": {columns} x and {rows} y need {} values, but {values} were given; \
         both axes need at least two increasing, evenly spaced values", columns * rows
    )]
    Grid {
        /// The colour bar's label.
        label: String,
        /// The number of x.
        columns: usize,
        /// The number of y.
        rows: usize,
        /// The number of values.
        values: usize,
    },
    /// A figure with no panels, or of a size that cannot be drawn.
    #[error("figure \"{figure}\" cannot be drawn: {reason}")]
    Figure {
        /// The figure's title.
        figure: String,
        /// Why not.
        reason: String,
    },
}
