//! A table for the terminal: aligned, wrapped, coloured only where colour is welcome.

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ContentArrangement, ContentLineStyle, LineStyle,
    TableStyle,
};
use plot::RichText;

use super::{Align, Table, Tone};
use crate::terminal::printable;

/// The width of files and pipes, which have none of their own.
pub(crate) const WIDTH_WITHOUT_TERMINAL: u16 = 120;

const COLUMNS: ContentLineStyle = ContentLineStyle::none().junction(' ');
const STYLE: TableStyle = TableStyle::new()
    .header_lines(COLUMNS)
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(COLUMNS);

pub(crate) fn render(table: &Table, width: u16, color: bool) -> String {
    let plain = |markup: &str| printable(&RichText::parse(markup).plain()).into_owned();
    let mut grid = comfy_table::Table::new();
    grid.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    grid.force_no_tty().style_text_only();
    if color {
        grid.enforce_styling();
    }
    grid.set_header(
        table.header.iter().map(|text| Cell::new(plain(text)).add_attribute(Attribute::Bold)),
    );
    for row in &table.rows {
        grid.add_row(row.iter().map(|cell| toned(Cell::new(plain(&cell.text)), cell.tone)));
    }
    let last = table.header.len().saturating_sub(1);
    for (i, column) in grid.column_iter_mut().enumerate() {
        column.set_padding((0, if i < last { 2 } else { 0 }));
        column.set_cell_alignment(match table.alignment(i) {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        });
    }
    // Blank lines tell rows apart where cells are wrapped.
    if grid.lines().count() > table.rows.len() + 2 {
        grid.style_mut().row_separator = LineStyle::none().fill(' ');
    }
    let mut text = plain(&table.caption);
    if !text.is_empty() {
        text.push('\n');
    }
    text + &grid.trim_fmt() + "\n"
}

fn toned(cell: Cell, tone: Tone) -> Cell {
    match tone {
        Tone::Plain => cell,
        Tone::Good => cell.fg(Color::DarkGreen),
        Tone::Warning => cell.fg(Color::DarkYellow),
        Tone::Bad => cell.fg(Color::DarkRed).add_attribute(Attribute::Bold),
    }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::super::Cell;
    use super::{Table, Tone, render};

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
        assert!(colored.contains("\u{1b}[38;5;2mholds"), "{colored:?}");
        assert_eq!(console::strip_ansi_codes(&colored), table().text(80));
    }

    #[test]
    fn control_characters_of_cells_do_not_reach_the_terminal() {
        let mut table = Table::new(["layer\u{1b}[2J"]).caption("\u{7}");
        table.row(["a\u{9b}31m".into()]).unwrap();
        let text = table.text(80);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("layer\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn words_longer_than_a_column_are_cut_and_none_is_lost() {
        let mut table = Table::new(["a"]);
        table.row(["abcdefgh κκκκ ij".into()]).unwrap();
        assert_eq!(table.text(3), "a\n───\nabc\ndef\ngh\nκκκ\nκ\nij\n");
    }
}
