//! What the experiments share for showing what they found.
//!
//! An experiment ends in things a person looks at: a table in the terminal, figures, a report to
//! send to a colleague, and the numbers behind them. Each is described once and written in every
//! form:
//!
//! | what | described by | written as |
//! |---|---|---|
//! | figure | [`Figure`] of [`Panel`]s | SVG and PNG, drawn from one list of shapes |
//! | table | [`Table`] | terminal, HTML, Markdown, CSV |
//! | findings | [`Claims`] of the paper, [`Checks`] of our own statements | rows of a table, exit code |
//! | report | [`Report`] | one HTML file that needs no network and no scripts |
//! | numbers | [`Csv`] | CSV that reads back to the very same floats |
//! | results of a long run | [`Journal`] | JSON lines, one as each result comes, so that a stopped run can go on |
//!
//! Nothing here needs a system library: the font is in the crate, and the PNG is drawn in Rust.
//!
//! Texts of figures, tables and reports may hold `_{..}` and `^{..}`: `σ_{eff}` and `10^{-4}`
//! become real subscripts and superscripts wherever the medium has them (see [`RichText`]).
//!
//! ```
//! use lab::{Axis, Figure, Panel, logspace};
//!
//! let kappa = logspace(1e-1, 1e3, 60);
//! let exact: Vec<f64> = kappa.iter().map(|k| 1.0 / (1.0 + k)).collect();
//! let figure = Figure::new("One panel").panel(
//!     Panel::new("(A) Variance")
//!         .x(Axis::log("concentration κ"))
//!         .y(Axis::linear("variance σ_{u}^{2}"))
//!         .line("exact", &kappa, &exact),
//! );
//! let svg = figure.svg()?;
//! assert!(svg.starts_with("<svg"));
//! # Ok::<(), lab::Error>(())
//! ```

mod csv;
mod error;
mod figure;
mod journal;
mod number;
mod output;
mod progress;
mod report;
mod table;
mod text;
mod verdict;

pub use csv::{Csv, Field};
pub use error::{Error, Result};
pub use figure::{
    Axis, Color, Colormap, Dash, Figure, Heatmap, Legend, Marker, Panel, ReliabilityBin, Series,
};
pub use journal::{Entries, Journal};
pub use number::{linspace, logspace, round_trip, seventeen_digits, significant};
pub use output::{OutDir, write_atomic};
pub use progress::Progress;
pub use report::{Picture, Report, Section};
pub use table::{Align, Cell, Table, Tone};
pub use text::RichText;
pub use verdict::{Check, Checks, Claim, Claims, Verdict};
