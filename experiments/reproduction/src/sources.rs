//! Makes the table that a mark in a document describes.

use std::path::Path;

use anyhow::{Context, Result, bail};
use csv::{Reader, StringRecord};
use lab::{Align, Cell, Table};
use serde_json::Value;

/// The table of a mark, as Markdown. Paths are relative to the project's `root`.
pub(crate) fn table(root: &Path, mark: &str) -> Result<String> {
    let words: Vec<&str> = mark.split_whitespace().collect();
    let table = match words.as_slice() {
        ["csv", file] => csv(&root.join(file)),
        ["spread", file, columns @ ..] => spread(&root.join(file), columns),
        ["landscapes", files @ ..] if !files.is_empty() => landscapes(root, files),
        _ => bail!(
            "{mark:?} names no table: say `csv FILE`, `spread FILE COLUMN=DIGITS ..` or `landscapes FILE ..`"
        ),
    };
    Ok(table.with_context(|| format!("table {mark}"))?.markdown())
}

fn open(path: &Path) -> Result<Reader<std::fs::File>> {
    Ok(Reader::from_reader(lab::open_file(path)?))
}

/// The rows of a CSV file.
fn csv(path: &Path) -> Result<Table> {
    let mut reader = open(path)?;
    let mut table = Table::new(reader.headers()?);
    for record in reader.records() {
        table.row(record?.iter().map(Cell::from))?;
    }
    Ok(table)
}

/// A column of a table: a column of the file as it is, or its numbers rounded and followed by their
/// deviation.
struct Column {
    name: String,
    digits: Option<usize>,
    mean: usize,
    deviation: Option<usize>,
}

impl Column {
    /// Parses `name` or `name=digits`.
    fn parse(text: &str, header: &StringRecord) -> Result<Self> {
        let (name, digits) = match text.split_once('=') {
            Some((name, digits)) => {
                let digits = digits.parse().ok().filter(|digits| *digits <= 17);
                (
                    name,
                    Some(digits.with_context(|| format!("{text}: 0 to 17 digits are possible"))?),
                )
            }
            None => (text, None),
        };
        let place = |name: &str| header.iter().position(|column| column == name);
        let mean = place(name).with_context(|| {
            let columns: Vec<&str> = header.iter().collect();
            format!("there is no column {name:?} among {}", columns.join(", "))
        })?;
        Ok(Self {
            name: name.replace('_', " "),
            digits,
            mean,
            deviation: place(&format!("{name}_deviation")),
        })
    }

    fn cell(&self, record: &StringRecord) -> Result<Cell> {
        let mean = &record[self.mean];
        let Some(digits) = self.digits.filter(|_| !mean.is_empty()) else {
            return Ok(mean.into());
        };
        let number = |text: &str| -> Result<f64> {
            text.parse().with_context(|| format!("{text:?} is not a number"))
        };
        let mut text = format!("{:.digits$}", number(mean)?);
        let deviation = self.deviation.map(|place| &record[place]);
        if let Some(deviation) = deviation.filter(|deviation| !deviation.is_empty()) {
            text += &format!(" ± {:.digits$}", number(deviation)?);
        }
        Ok(text.into())
    }
}

/// Some columns of a CSV file. `accuracy=3` shows `accuracy ± accuracy_deviation` with three
/// digits.
fn spread(path: &Path, columns: &[&str]) -> Result<Table> {
    let mut reader = open(path)?;
    let header = reader.headers()?.clone();
    let columns =
        columns.iter().map(|column| Column::parse(column, &header)).collect::<Result<Vec<_>>>()?;
    let mut table = Table::new(columns.iter().map(|column| column.name.as_str()));
    for (place, _) in columns.iter().enumerate().filter(|(_, c)| c.digits.is_some()) {
        table = table.align(place, Align::Right);
    }
    for record in reader.records() {
        let record = record?;
        let cells = columns.iter().map(|column| column.cell(&record));
        table.row(cells.collect::<Result<Vec<_>>>()?)?;
    }
    Ok(table)
}

/// How well `kappa (1 - cos theta)` describes the loss around trained weights: a row for each
/// `landscape.json`.
fn landscapes(root: &Path, files: &[&str]) -> Result<Table> {
    let header = [
        "layer",
        "correlation, 1D and 2D",
        "fitted kappa, 1D and 2D",
        "beta M kappa / N",
        "explained by the angle",
        "by the radius",
        "level set at 50 %",
    ];
    let mut table = Table::new(header);
    for file in files {
        let found: Value = serde_json::from_slice(&lab::read_file(root.join(file))?)
            .with_context(|| file.to_string())?;
        let number = |path: &str, digits: usize| -> Result<String> {
            let value = found.pointer(path).and_then(Value::as_f64);
            let value = value.with_context(|| format!("{file} has no number {path}"))?;
            Ok(format!("{value:.digits$}"))
        };
        let both = |name: &str, digits: usize| -> Result<String> {
            let of = |family: &str| number(&format!("/{family}/{name}"), digits);
            Ok(format!("{}, {}", of("1d")?, of("2d")?))
        };
        // The second of the three level sets. Its radius says little where few directions reach it.
        let level = "/2d/level_sets/1";
        let reached = found.pointer(&format!("{level}/reached"));
        let reached =
            reached.and_then(Value::as_f64).with_context(|| format!("{file} has no level sets"))?;
        let level_set = if reached < 1.0 {
            format!("reached in {:.0} % of directions", 100.0 * reached)
        } else {
            let spread = found.pointer(&format!("{level}/spread"));
            let spread = spread.and_then(Value::as_f64).unwrap_or(f64::NAN);
            let radius = number(&format!("{level}/radius"), 3)?;
            format!("{radius} ± {:.0} %", 100.0 * spread)
        };
        let row = [
            found["layer"].as_str().unwrap_or("–").to_string(),
            both("correlation", 3)?,
            both("kappa", 2)?,
            number("/posterior/slope", 3).unwrap_or_else(|_| "–".into()),
            number("/1d/explained", 3)?,
            number("/2d/explained", 3)?,
            level_set,
        ];
        table.row(row.map(Cell::from))?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_stand_beside_their_deviation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scores.csv");
        let text = "network,ece,ece_deviation,ratio\nvmf,0.04251,0.00149,5.64\nmap,0.1,,\n";
        std::fs::write(path, text).unwrap();
        let made = |mark: &str| table(folder.path(), mark);
        let markdown = made("spread scores.csv network ece=3 ratio=1").unwrap();
        let rows: Vec<&str> = markdown.lines().skip(2).collect();
        assert!(rows[0].contains("0.043 ± 0.001") && rows[0].contains("5.6"), "{markdown}");
        assert!(rows[1].contains("0.100") && !rows[1].contains('±'), "{markdown}");
        let error = format!("{:#}", made("spread scores.csv acc").unwrap_err());
        assert!(error.contains("\"acc\" among network, ece"), "{error}");
        assert!(made("spread scores.csv network=2").is_err());
        // Formatting with this many digits would panic.
        let error = format!("{:#}", made("spread scores.csv ece=70000").unwrap_err());
        assert!(error.contains("0 to 17 digits"), "{error}");
    }

    #[test]
    fn a_landscape_is_a_row_and_a_missing_number_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let family = r#"{"correlation": 0.9571, "kappa": 3.849, "explained": 0.5, "level_sets": [{},
            {"radius": 0.7761, "spread": 0.281, "reached": 1.0}, {}]}"#;
        let text = format!(
            r#"{{"layer": "features.0", "posterior": null, "1d": {family}, "2d": {family}}}"#
        );
        std::fs::write(folder.path().join("a.json"), text).unwrap();
        std::fs::write(folder.path().join("b.json"), "{}").unwrap();
        let markdown = table(folder.path(), "landscapes a.json").unwrap();
        let row = markdown.lines().last().unwrap();
        for cell in ["features.0", "0.957, 0.957", "3.85, 3.85", "–", "0.776 ± 28 %"] {
            assert!(row.contains(cell), "{cell}: {row}");
        }
        let error = format!("{:#}", table(folder.path(), "landscapes b.json").unwrap_err());
        assert!(error.contains("b.json"), "{error}");
    }
}
