//! A table as HTML, Markdown and CSV.

use plot::RichText;

use super::{Align, Table, Tone};
use crate::csv;

pub(crate) fn html(table: &Table) -> String {
    let class = |column: usize| match table.alignment(column) {
        Align::Left => "",
        Align::Right => " class=\"number\"",
    };
    // The wrapper scrolls where the table is wider than the screen.
    let mut html = String::from("<div class=\"table\"><table>\n");
    if !table.caption.is_empty() {
        let caption = RichText::parse(&table.caption).html();
        html += &format!("<caption>{caption}</caption>\n");
    }
    html += "<thead><tr>";
    for (column, heading) in table.header.iter().enumerate() {
        let heading = RichText::parse(heading).html();
        html += &format!("<th scope=\"col\"{}>{heading}</th>", class(column));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        html += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let text = cell.rich().html().replace('\n', "<br>");
            let text = match tone_class(cell.tone) {
                Some(tone) => format!("<span class=\"tone {tone}\">{text}</span>"),
                None => text,
            };
            html += &format!("<td{}>{text}</td>", class(column));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

fn tone_class(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Good => Some("good"),
        Tone::Warning => Some("warning"),
        Tone::Bad => Some("bad"),
    }
}

pub(crate) fn markdown(table: &Table) -> String {
    let cell = |markup: &str| {
        // Markdown is also read as text, and needs no escaped apostrophes.
        let text = RichText::parse(markup).html().replace("&#39;", "'");
        text.replace('|', "\\|").replace('\n', "<br>")
    };
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = String::new();
    if !table.caption.is_empty() {
        text += &format!("{}\n\n", cell(&table.caption));
    }
    text += &line(table.header.iter().map(|heading| cell(heading)).collect());
    text += "|";
    for column in 0..table.header.len() {
        text += match table.alignment(column) {
            Align::Left => "---|",
            Align::Right => "--:|",
        };
    }
    text += "\n";
    for row in &table.rows {
        text += &line(row.iter().map(|c| cell(&c.text)).collect());
    }
    text
}

pub(crate) fn csv(table: &Table) -> String {
    // Programs that read CSV expect the ASCII minus.
    let plain = |markup: &str| RichText::parse(markup).plain().replace('−', "-");
    let header = table.header.iter().map(|heading| plain(heading)).collect::<Vec<_>>();
    let rows = table.rows.iter().map(|row| row.iter().map(|cell| plain(&cell.text)).collect());
    csv::text([header].into_iter().chain(rows))
}

#[cfg(test)]
mod tests {
    use super::super::Cell;
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["a < b", "n"]).caption("κ & σ_{eff}");
        table.row([Cell::from("<b>|\"x\"").tone(Tone::Bad), (-2).into()]).unwrap();
        table
    }

    #[test]
    fn html_is_well_formed_and_escaped() {
        let html = html(&table());
        let document = roxmltree::Document::parse(&html).unwrap();
        let text: String = document
            .descendants()
            .filter(|node| node.has_tag_name("td"))
            .flat_map(|node| node.descendants().filter_map(|n| n.text()).next())
            .collect();
        assert_eq!(text, "<b>|\"x\"−2");
        assert!(html.contains("κ &amp; σ<sub>eff</sub>"), "{html}");
        assert!(html.contains("class=\"tone bad\""));
    }

    #[test]
    fn markdown_escapes_pipes_and_csv_quotes() {
        assert!(markdown(&Table::new(["it's"])).starts_with("| it's |"));
        assert!(markdown(&table()).contains("| &lt;b&gt;\\|&quot;x&quot; | −2 |"));
        assert_eq!(csv(&table()), "a < b,n\n\"<b>|\"\"x\"\"\",-2\n");
    }
}
