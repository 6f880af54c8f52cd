//! A table for the terminal: aligned, wrapped, coloured only where colour is welcome.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use plot::RichText;

use super::{Align, Cell, Table, Tone};

/// Files and pipes have no width of their own.
pub(crate) const WIDTH_WITHOUT_TERMINAL: usize = 120;
const GAP: &str = "   ";
/// Narrower than this a column of text cannot be read.
const NARROWEST: usize = 12;

pub(crate) fn render(table: &Table, width: usize, color: bool) -> String {
    let plain = |markup: &str| RichText::parse(markup).plain();
    let header: Vec<String> = table.header.iter().map(|text| plain(text)).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|cell| plain(&cell.text)).collect()).collect();
    let widths = column_widths(&header, &rows, width);
    let wrapped_rows: Vec<Vec<Vec<String>>> = rows
        .iter()
        .map(|row| row.iter().zip(&widths).map(|(cell, w)| wrap(cell, *w)).collect())
        .collect();
    let multiline = wrapped_rows.iter().flatten().any(|lines| lines.len() > 1);

    let mut text = String::new();
    if !table.caption.is_empty() {
        for line in wrap(&plain(&table.caption), width.max(NARROWEST)) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    let header: Vec<Vec<String>> = header.iter().zip(&widths).map(|(h, w)| wrap(h, *w)).collect();
    push_row(table, &header, &widths, None, color, &mut text);
    let rule: usize = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
    text.push_str(&"─".repeat(rule));
    text.push('\n');
    for (i, (row, cells)) in wrapped_rows.iter().zip(&table.rows).enumerate() {
        // Rows of several lines need air between them to be told apart.
        if i > 0 && multiline {
            text.push('\n');
        }
        push_row(table, row, &widths, Some(cells), color, &mut text);
    }
    text
}

/// Natural widths if they fit; else the widest columns give way until the table does.
fn column_widths(header: &[String], rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, heading)| {
            rows.iter()
                .map(|row| longest_line(&row[column]))
                .chain([longest_line(heading)])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let available = width.saturating_sub(GAP.len() * widths.len().saturating_sub(1));
    while widths.iter().sum::<usize>() > available {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => break,
        }
    }
    widths
}

fn longest_line(text: &str) -> usize {
    text.lines().map(UnicodeWidthStr::width).max().unwrap_or(0)
}

fn push_row(
    table: &Table,
    row: &[Vec<String>],
    widths: &[usize],
    cells: Option<&Vec<Cell>>,
    color: bool,
    text: &mut String,
) {
    let height = row.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..height {
        let mut out = String::new();
        for (column, (lines, width)) in row.iter().zip(widths).enumerate() {
            if column > 0 {
                out.push_str(GAP);
            }
            let content = lines.get(line).map_or("", String::as_str);
            let padding = " ".repeat(width.saturating_sub(content.width()));
            let tone = cells.map_or(Tone::Plain, |cells| cells[column].tone);
            let content = match cells {
                None if color => console::style(content).bold().force_styling(true).to_string(),
                Some(_) if color => colored(content, tone),
                _ => content.to_owned(),
            };
            match table.alignment(column) {
                Align::Left => out += &(content + &padding),
                Align::Right => out += &(padding + &content),
            }
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
}

fn colored(content: &str, tone: Tone) -> String {
    let style = console::style(content).force_styling(true);
    match tone {
        Tone::Plain => return content.to_owned(),
        Tone::Good => style.green(),
        Tone::Warning => style.yellow(),
        Tone::Bad => style.red().bold(),
    }
    .to_string()
}

/// Breaks text at spaces into lines of at most `width` columns; a longer word is cut.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let mut word = word;
            if !line.is_empty() && line.width() + 1 + word.width() <= width {
                line.push(' ');
                line.push_str(word);
                continue;
            }
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            while word.width() > width {
                let cut = cut_at(word, width);
                lines.push(word[..cut].to_owned());
                word = &word[cut..];
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

/// The byte at which `word` reaches `width` columns; at least one character in.
fn cut_at(word: &str, width: usize) -> usize {
    let mut used = 0;
    for (at, c) in word.char_indices() {
        used += c.width().unwrap_or(0);
        if used > width && at > 0 {
            return at;
        }
    }
    word.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["claim", "κ^{2}", "verdict"]).caption("Claims");
        table
            .row([
                "the interpolant is tight everywhere".into(),
                Cell::number(12.5, 3),
                Cell::from("holds").tone(Tone::Good),
            ])
            .unwrap();
        table.row(["short".into(), Cell::number(-3.0, 3), "no".into()]).unwrap();
        table
    }

    #[test]
    fn columns_line_up_and_numbers_keep_right() {
        let expected = "\
Claims
claim                                    κ²   verdict
─────────────────────────────────────────────────────
the interpolant is tight everywhere    12.5   holds
short                                 −3.00   no
";
        assert_eq!(table().text(80), expected);
    }

    #[test]
    fn long_cells_wrap_to_the_width() {
        let text = table().text(40);
        assert!(text.lines().all(|line| line.width() <= 40), "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.contains(&"interpolant") && words.contains(&"everywhere"));
    }

    #[test]
    fn colour_appears_only_when_asked_for() {
        assert!(!table().text(80).contains('\u{1b}'));
        let colored = render(&table(), 80, true);
        assert!(colored.contains("\u{1b}[32mholds"), "{colored:?}");
        assert_eq!(console::strip_ansi_codes(&colored), table().text(80));
    }

    #[test]
    fn words_longer_than_a_column_are_cut_and_none_is_lost() {
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 3), [""]);
        assert_eq!(wrap("κκκκ", 2), ["κκ", "κκ"]);
    }
}
