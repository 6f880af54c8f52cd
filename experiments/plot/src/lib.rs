//! Scientific figures as SVG and PNG, drawn from one description.
//!
//! A [`Figure`] is a grid of [`Panel`]s, and a panel is two [`Axis`] values with the [`Series`] or
//! the [`Heatmap`] between them. `layout` measures every label with the font itself and places the
//! panels on a page of shapes; `svg` writes that page and `raster` paints it. Both read the same
//! shapes and the same outlines of letters, so the two files show the same picture. The fonts are
//! part of the crate: nothing depends on what the machine has installed.
//!
//! Texts may hold `_{..}` and `^{..}`: `σ_{eff}` and `10^{-4}` become real subscripts and
//! superscripts (see [`RichText`]).
//!
//! ```
//! use plot::{Axis, Figure, Panel, logspace};
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
//! # Ok::<(), plot::Error>(())
//! ```

mod axis;
mod cell;
mod color;
mod colormap;
mod contour;
mod draw;
mod error;
mod figure;
mod font;
mod grid;
mod heatmap;
mod layout;
mod legend;
mod panel;
mod raster;
mod reliability;
mod rich_text;
mod series;
mod shape;
mod style;
mod svg;
mod ticks;

pub use axis::Axis;
pub use color::Color;
pub use error::{Error, Result};
pub use figure::{Figure, Legend};
pub use font::css as font_css;
pub use grid::{linspace, logspace};
pub use heatmap::Heatmap;
pub use panel::Panel;
pub use raster::encode_png;
pub use reliability::ReliabilityBin;
pub use rich_text::{RichText, escape};
pub use series::{Dash, Marker, Series};
