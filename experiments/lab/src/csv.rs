//! Numbers for other programs: CSV that reads back to the very same floats.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::files::OutDir;
use crate::number::round_trip;

/// One value of a CSV row, as text. Floats have the shortest form that reads back exactly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field(String);

macro_rules! field_from {
    ($($from:ty => $to:expr),* $(,)?) => {
        $(impl From<$from> for Field {
            fn from(value: $from) -> Self {
                Self($to(value))
            }
        })*
    };
}

field_from! {
    f64 => round_trip,
    // An empty field stands for a number that does not exist.
    Option<f64> => |value: Option<f64>| value.map(round_trip).unwrap_or_default(),
    i32 => |value: i32| value.to_string(),
    u32 => |value: u32| value.to_string(),
    u64 => |value: u64| value.to_string(),
    usize => |value: usize| value.to_string(),
    bool => |value: bool| value.to_string(),
    &str => str::to_owned,
    String => |value| value,
}

impl AsRef<[u8]> for Field {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A CSV document: a header and rows of the same length.
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
    records: Vec<Vec<Field>>,
}

impl Csv {
    /// A document with these column names.
    pub fn new<F: Into<Field>>(header: impl IntoIterator<Item = F>) -> Self {
        Self { records: vec![header.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row, which must have a value for each column.
    pub fn row(&mut self, fields: impl IntoIterator<Item = Field>) -> Result<()> {
        let fields: Vec<Field> = fields.into_iter().collect();
        let (found, expected) = (fields.len(), self.records[0].len());
        if found != expected {
            return Err(Error::Row { found, expected });
        }
        self.records.push(fields);
        Ok(())
    }

    /// The document.
    pub fn text(&self) -> String {
        text(&self.records)
    }

    /// Writes `name` into the folder, atomically.
    pub fn save(&self, out: &OutDir, name: &str) -> Result<PathBuf> {
        out.write(name, self.text())
    }
}

/// Records of text as CSV, quoted where needed.
pub(crate) fn text<R, F>(records: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item = F>,
    F: AsRef<[u8]>,
{
    let mut writer = csv::Writer::from_writer(Vec::new());
    for record in records {
        writer.write_record(record).expect("memory takes records of equal lengths");
    }
    let bytes = writer.into_inner().expect("memory can be flushed");
    String::from_utf8(bytes).expect("text stays text when it is quoted")
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
    fn floats_read_back_exactly_and_missing_ones_are_empty() {
        let values = [std::f64::consts::PI, 1e-300, 6.02e23];
        let mut csv = Csv::new(["p", "q", "r"]);
        csv.row(values.map(Field::from)).unwrap();
        csv.row([Some(2.0), None, Some(-0.5)].map(Field::from)).unwrap();
        let text = csv.text();
        let lines: Vec<&str> = text.lines().collect();
        let read: Vec<f64> = lines[1].split(',').map(|field| field.parse().unwrap()).collect();
        assert_eq!(read, values);
        assert_eq!(lines[2], "2,,-0.5");
    }

    #[test]
    fn a_row_of_the_wrong_length_is_refused() {
        let error = Csv::new(["a", "b"]).row([1.0.into()]).unwrap_err();
        assert!(error.to_string().contains("1 cells"), "{error}");
    }
}
