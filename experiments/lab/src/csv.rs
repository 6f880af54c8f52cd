//! Numbers for other programs: CSV that reads back to the very same floats.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::number::{round_trip, seventeen_digits};
use crate::output::OutDir;

/// One value of a CSV row.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    /// A float; how it is printed is the writer's choice.
    Float(f64),
    /// An integer.
    Integer(i64),
    /// Text, quoted where CSV asks for it.
    Text(String),
}

macro_rules! field_from {
    ($($from:ty => $to:expr),* $(,)?) => {
        $(impl From<$from> for Field {
            fn from(value: $from) -> Self {
                $to(value)
            }
        })*
    };
}

field_from! {
    f64 => Field::Float,
    f32 => |value| Field::Float(f64::from(value)),
    i64 => Field::Integer,
    i32 => |value| Field::Integer(i64::from(value)),
    u32 => |value| Field::Integer(i64::from(value)),
    String => Field::Text,
    &str => |value: &str| Field::Text(value.to_owned()),
    // Counts beyond i64 do not occur; as text they would still print right.
    usize => |value: usize| i64::try_from(value).map_or(Field::Text(value.to_string()), Field::Integer),
    u64 => |value: u64| i64::try_from(value).map_or(Field::Text(value.to_string()), Field::Integer),
    bool => |value: bool| Field::Text(value.to_string()),
}

/// Builds a CSV document: a header and rows of the same length.
///
/// ```
/// use lab::Csv;
/// let mut csv = Csv::new(["dim", "kappa", "a"]);
/// csv.row([100.into(), 0.1.into(), 0.001.into()])?;
/// assert_eq!(csv.text(), "dim,kappa,a\n100,0.1,0.001\n");
/// # Ok::<(), lab::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Csv {
    header: Vec<String>,
    rows: Vec<Vec<Field>>,
    fixed_digits: bool,
}

impl Csv {
    /// A document with these column names; floats in the shortest form that reads back exactly.
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            fixed_digits: false,
        }
    }

    /// Prints every float with 17 significant digits.
    pub fn seventeen_digits(mut self) -> Self {
        self.fixed_digits = true;
        self
    }

    /// Adds a row, which must have a value for each column.
    pub fn row(&mut self, fields: impl IntoIterator<Item = Field>) -> Result<()> {
        let fields: Vec<Field> = fields.into_iter().collect();
        if fields.len() != self.header.len() {
            return Err(Error::Row { found: fields.len(), expected: self.header.len() });
        }
        self.rows.push(fields);
        Ok(())
    }

    /// Adds a row of floats.
    pub fn floats(&mut self, values: impl IntoIterator<Item = f64>) -> Result<()> {
        self.row(values.into_iter().map(Field::Float))
    }

    /// The document.
    pub fn text(&self) -> String {
        let mut text = line(self.header.iter().map(String::as_str));
        for row in &self.rows {
            let fields: Vec<String> = row.iter().map(|field| self.print(field)).collect();
            text.push_str(&line(fields.iter().map(String::as_str)));
        }
        text
    }

    /// Writes `name` into the folder, atomically.
    pub fn save(&self, out: &OutDir, name: &str) -> Result<PathBuf> {
        out.write(name, self.text())
    }

    fn print(&self, field: &Field) -> String {
        match field {
            Field::Float(value) if self.fixed_digits => seventeen_digits(*value),
            Field::Float(value) => round_trip(*value),
            Field::Integer(value) => value.to_string(),
            Field::Text(text) => text.clone(),
        }
    }
}

/// One line of CSV (RFC 4180, but with a bare newline), quoted where needed.
pub(crate) fn line<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for (i, field) in fields.enumerate() {
        if i > 0 {
            text.push(',');
        }
        if field.contains([',', '"', '\n', '\r']) {
            text.push('"');
            text.push_str(&field.replace('"', "\"\""));
            text.push('"');
        } else {
            text.push_str(field);
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_where_csv_asks_for_it() {
        let mut csv = Csv::new(["a", "b"]);
        csv.row(["x, \"y\"".into(), "plain".into()]).unwrap();
        assert_eq!(csv.text(), "a,b\n\"x, \"\"y\"\"\",plain\n");
    }

    #[test]
    fn floats_read_back_exactly_in_both_forms() {
        let values = [std::f64::consts::PI, 1e-300, 6.02e23];
        for csv in [Csv::new(["p", "q", "r"]), Csv::new(["p", "q", "r"]).seventeen_digits()] {
            let mut csv = csv;
            csv.floats(values).unwrap();
            let text = csv.text();
            let read: Vec<f64> = text
                .lines()
                .nth(1)
                .unwrap()
                .split(',')
                .map(|field| field.parse().unwrap())
                .collect();
            assert_eq!(read, values);
        }
    }

    #[test]
    fn a_row_of_the_wrong_length_is_refused() {
        let error = Csv::new(["a", "b"]).floats([1.0]).unwrap_err();
        assert!(error.to_string().contains("1 cells"), "{error}");
    }
}
