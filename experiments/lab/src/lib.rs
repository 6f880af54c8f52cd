//! What the experiments share for reporting what they found.
//!
//! An experiment ends in things a person looks at: a table in the terminal, a report to send to a
//! colleague, and the numbers behind them. Each is described once and written in every form:
//!
//! | what | described by | written as |
//! |---|---|---|
//! | table | [`Table`] | terminal, HTML, Markdown, CSV |
//! | findings | [`Claims`] of the paper, [`Checks`] of our own statements | rows of a table, exit code |
//! | report | [`Report`] | one HTML file that needs no network and no scripts |
//! | numbers | [`Csv`] | CSV that reads back to the very same floats |
//! | results of a long run | [`Journal`] | JSON lines, appended as results arrive, so that a stopped run can resume |
//!
//! Programs print with [`say!`] and [`note!`], show a [`ProgressBar`], and end with [`exit_code`]:
//! none of them panics if the output is closed or full. Figures are described with the crate
//! [`plot`], and saved by [`OutDir::save_figure`].
//!
//! Texts of tables and reports may hold `_{..}` and `^{..}`: `σ_{eff}` and `10^{-4}` become real
//! subscripts and superscripts wherever the medium has them (see [`plot::RichText`]).

mod csv;
mod error;
mod files;
mod journal;
mod number;
mod progress_bar;
mod report;
mod table;
mod terminal;
mod verdict;

pub use csv::{Csv, Field};
pub use error::{Error, Result};
pub use files::{OutDir, open_file, read_file, sync_folder, write_atomic};
pub use journal::{Entries, Journal};
pub use number::{round_trip, seventeen_digits, significant};
pub use progress_bar::ProgressBar;
pub use report::{Picture, Report, Section};
pub use table::{Align, Cell, Table, Tone};
pub use terminal::{exit_code, note_line, print_line, printable};
pub use verdict::{Check, Checks, Claim, Claims, Verdict};
