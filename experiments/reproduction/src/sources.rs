//! What a mark in a document asks for, made from the results it names.

use std::path::Path;

use anyhow::{Context, Result, bail};
use csv::{Reader, StringRecord};
use lab::{Align, Cell, Table};

/// The table that a mark asks for, as Markdown. Paths are relative to the project's `root`.
pub(crate) fn table(root: &Path, mark: &str) -> Result<String> {
    let words: Vec<&str> = mark.split_whitespace().collect();
    let table = match words.as_slice() {
        ["csv", file] => csv(&root.join(file)),
        ["spread", file, columns @ ..] => spread(&root.join(file), columns),
        _ => bail!("{mark:?} names no table: say `csv FILE` or `spread FILE COLUMN=DIGITS ..`"),
    };
    Ok(table.with_context(|| format!("table {mark}"))?.markdown())
}

fn open(path: &Path) -> Result<Reader<std::fs::File>> {
    Reader::from_path(path).with_context(|| format!("cannot read {}", path.display()))
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

/// A column of a table: a column of the file as it is, or its numbers rounded, with their deviation where there is one.
struct Column {
    name: String,
    digits: Option<usize>,
    mean: usize,
    deviation: Option<usize>,
}

impl Column {
    /// The column that `name` or `name=digits` asks for.
    fn parse(text: &str, header: &StringRecord) -> Result<Self> {
        let (name, digits) = match text.split_once('=') {
            Some((name, digits)) => {
                let digits = digits.parse().ok();
                (
                    name,
                    Some(digits.with_context(|| format!("{text}: how many digits?"))?),
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
            text.parse()
                .with_context(|| format!("{text:?} is no number"))
        };
        let mut text = format!("{:.digits$}", number(mean)?);
        let deviation = self.deviation.map(|place| &record[place]);
        if let Some(deviation) = deviation.filter(|deviation| !deviation.is_empty()) {
            text += &format!(" ± {:.digits$}", number(deviation)?);
        }
        Ok(text.into())
    }
}

/// Some columns of a CSV file. `accuracy=3` shows the column `accuracy` with three digits, and beside it `accuracy_deviation`.
fn spread(path: &Path, columns: &[&str]) -> Result<Table> {
    let mut reader = open(path)?;
    let header = reader.headers()?.clone();
    let columns = columns
        .iter()
        .map(|column| Column::parse(column, &header))
        .collect::<Result<Vec<_>>>()?;
    let mut table = Table::new(columns.iter().map(|column| column.name.as_str()));
    for (place, _) in columns
        .iter()
        .enumerate()
        .filter(|(_, c)| c.digits.is_some())
    {
        table = table.align(place, Align::Right);
    }
    for record in reader.records() {
        let record = record?;
        let cells = columns.iter().map(|column| column.cell(&record));
        table.row(cells.collect::<Result<Vec<_>>>()?)?;
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
        assert!(
            rows[0].contains("0.043 ± 0.001") && rows[0].contains("5.6"),
            "{markdown}"
        );
        assert!(
            rows[1].contains("0.100") && !rows[1].contains('±'),
            "{markdown}"
        );
        let error = format!("{:#}", made("spread scores.csv acc").unwrap_err());
        assert!(error.contains("\"acc\" among network, ece"), "{error}");
        assert!(made("spread scores.csv network=2").is_err());
    }
}
