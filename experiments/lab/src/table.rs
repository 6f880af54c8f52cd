//! Tables: described once, shown in the terminal, in HTML, in Markdown and as CSV.

mod markup;
mod terminal;

use std::fmt;

use plot::RichText;

use crate::error::{Error, Result};
use crate::number::significant;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left, for text.
    Left,
    /// Right, for numbers.
    Right,
}

/// The colour of a cell, by its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// All is well.
    Good,
    /// Look closer.
    Warning,
    /// Something is wrong.
    Bad,
}

/// One cell: text in markup (see [`RichText`]) and its tone.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
    numeric: bool,
}

impl Cell {
    /// A number with this many significant digits, aligned to the right.
    pub fn number(value: f64, digits: usize) -> Self {
        Self { text: significant(value, digits), tone: Tone::Plain, numeric: true }
    }

    /// Gives the cell a tone.
    pub fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    pub(crate) fn rich(&self) -> RichText {
        RichText::parse(&self.text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

macro_rules! cell_from_integer {
    ($($integer:ty),*) => {
        $(impl From<$integer> for Cell {
            fn from(value: $integer) -> Self {
                Self {
                    text: crate::number::minus(&value.to_string()),
                    tone: Tone::Plain,
                    numeric: true,
                }
            }
        })*
    };
}

cell_from_integer!(usize, u64, u32, i64, i32);

/// A number with four significant digits; see [`Cell::number`] for other precisions.
impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::number(value, 4)
    }
}

/// A table.
///
/// ```
/// use lab::Table;
/// let mut table = Table::new(["D", "error"]).caption("Largest error");
/// table.row([27.into(), 0.0381.into()])?;
/// assert!(table.markdown().contains("| 27 | 0.03810 |"));
/// # Ok::<(), lab::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Table {
    caption: String,
    header: Vec<String>,
    aligns: Vec<Option<Align>>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these column headings.
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        let header: Vec<String> = header.into_iter().map(Into::into).collect();
        Self { caption: String::new(), aligns: vec![None; header.len()], header, rows: Vec::new() }
    }

    /// Adds a line above the table that says what it shows.
    pub fn caption(mut self, caption: impl Into<String>) -> Self {
        self.caption = caption.into();
        self
    }

    /// Aligns a column. By default, columns of numbers are aligned to the right, others to the
    /// left.
    pub fn align(mut self, column: usize, align: Align) -> Self {
        if let Some(entry) = self.aligns.get_mut(column) {
            *entry = Some(align);
        }
        self
    }

    /// Adds a row, which must have a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) -> Result<()> {
        let cells: Vec<Cell> = cells.into_iter().collect();
        if cells.len() != self.header.len() {
            return Err(Error::Row { found: cells.len(), expected: self.header.len() });
        }
        self.rows.push(cells);
        Ok(())
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn alignment(&self, column: usize) -> Align {
        self.aligns[column].unwrap_or_else(|| {
            let numeric = |row: &Vec<Cell>| row[column].numeric || row[column].text.is_empty();
            if !self.rows.is_empty() && self.rows.iter().all(numeric) {
                Align::Right
            } else {
                Align::Left
            }
        })
    }

    /// The table as text with at most `width` characters per line. Long cells are wrapped.
    pub fn text(&self, width: u16) -> String {
        terminal::render(self, width, false)
    }

    /// The table as text for standard output: as wide as the terminal, with colours if it has them.
    pub fn terminal(&self) -> String {
        let terminal = console::Term::stdout();
        let width = match terminal.size_checked() {
            Some((_, columns)) => columns,
            None => terminal::WIDTH_WITHOUT_TERMINAL,
        };
        terminal::render(self, width, console::colors_enabled())
    }

    /// Prints the table to standard output, as wide as the terminal, with colours if it has them.
    pub fn print(&self) -> Result<()> {
        crate::terminal::print(&self.terminal())
    }

    /// The table as an HTML `table` element.
    pub fn html(&self) -> String {
        markup::html(self)
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        markup::markdown(self)
    }

    /// The table as CSV: headings and cells in plain text.
    pub fn csv(&self) -> String {
        markup::csv(self)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(terminal::WIDTH_WITHOUT_TERMINAL))
    }
}
