//! The report: one HTML file without scripts that needs no network and no other file.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plot::{Figure, RichText, encode_png, escape, font_css};

use crate::error::{Error, Result};
use crate::files::OutDir;
use crate::table::Table;

/// A self-contained HTML page to send to a colleague.
///
/// Figures are inline SVG in two forms: a wide one, and one column for small screens. The page can
/// be printed, and follows the reader's choice of a dark theme (figures stay on white).
///
/// ```
/// use lab::{Report, Section};
/// let html = Report::new("Theory check")
///     .section(Section::new("Claims").paragraph("Run with `--dim 100`; σ_{eff} is exact."))
///     .html();
/// assert!(html.contains("<code>--dim 100</code>; σ<sub>eff</sub>"));
/// ```
#[derive(Debug, Clone)]
pub struct Report {
    title: String,
    subtitle: String,
    sections: Vec<Section>,
}

/// A heading and what belongs to it.
#[derive(Debug, Clone)]
pub struct Section {
    title: String,
    body: String,
}

impl Report {
    /// An empty report.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), subtitle: String::new(), sections: Vec::new() }
    }

    /// A line below the title.
    pub fn subtitle(mut self, subtitle: impl Into<String>) -> Self {
        self.subtitle = subtitle.into();
        self
    }

    /// Adds a section.
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// The page.
    pub fn html(&self) -> String {
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <link rel=\"icon\" href=\"data:,\">\n\
             <title>{}</title>\n<style>\n{}\n{}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{}</h1>\n",
            escape(&RichText::parse(&self.title).plain()),
            font_css(),
            include_str!("report.css"),
            inline(&self.title),
        );
        if !self.subtitle.is_empty() {
            html += &format!("<p class=\"subtitle\">{}</p>\n", inline(&self.subtitle));
        }
        html += "</header>\n";
        if self.sections.len() > 3 {
            html += &self.contents();
        }
        for (i, section) in self.sections.iter().enumerate() {
            html += &format!("<section id=\"section-{}\">\n", i + 1);
            if !section.title.is_empty() {
                html += &format!("<h2>{}</h2>\n", inline(&section.title));
            }
            html += &section.body;
            html += "</section>\n";
        }
        html + "</main>\n</body>\n</html>\n"
    }

    /// Writes the page into the folder and returns its path.
    pub fn save(&self, out: &OutDir, name: &str) -> Result<PathBuf> {
        out.write(name, self.html())
    }

    fn contents(&self) -> String {
        let mut html = String::from("<nav aria-label=\"Contents\"><ol>\n");
        for (i, section) in self.sections.iter().enumerate() {
            if !section.title.is_empty() {
                html += &format!(
                    "<li><a href=\"#section-{}\">{}</a></li>\n",
                    i + 1,
                    inline(&section.title)
                );
            }
        }
        html + "</ol></nav>\n"
    }
}

impl Section {
    /// An empty section. A section without a title continues the one before.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new() }
    }

    /// Adds a paragraph. Backticks enclose code; `_{..}` and `^{..}` are sub- and superscripts.
    pub fn paragraph(mut self, text: impl AsRef<str>) -> Self {
        self.body += &format!("<p>{}</p>\n", inline(text.as_ref()));
        self
    }

    /// Adds a smaller heading.
    pub fn heading(mut self, text: impl AsRef<str>) -> Self {
        self.body += &format!("<h3>{}</h3>\n", inline(text.as_ref()));
        self
    }

    /// Adds a list.
    pub fn list<S: AsRef<str>>(mut self, items: impl IntoIterator<Item = S>) -> Self {
        self.body += "<ul>\n";
        for item in items {
            self.body += &format!("<li>{}</li>\n", inline(item.as_ref()));
        }
        self.body += "</ul>\n";
        self
    }

    /// Adds preformatted text, such as a command or a configuration.
    pub fn preformatted(mut self, text: impl AsRef<str>) -> Self {
        self.body += &format!("<pre>{}</pre>\n", escape(text.as_ref()));
        self
    }

    /// Adds names with their values.
    pub fn key_values<K: AsRef<str>, V: AsRef<str>>(
        mut self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.body += "<dl>\n";
        for (key, value) in pairs {
            self.body += &format!(
                "<div><dt>{}</dt><dd>{}</dd></div>\n",
                inline(key.as_ref()),
                inline(value.as_ref())
            );
        }
        self.body += "</dl>\n";
        self
    }

    /// Adds a table.
    pub fn table(mut self, table: &Table) -> Self {
        self.body += &table.html();
        self
    }

    /// Adds a figure with a caption.
    pub fn figure(mut self, figure: &Figure, caption: impl AsRef<str>) -> Result<Self> {
        let (wide, narrow) = figure.inline_svgs()?;
        self.body += &format!(
            "<figure>\n<div class=\"card wide\">{wide}</div>\n<div class=\"card narrow\">{narrow}</div>\n"
        );
        let caption = caption.as_ref();
        if !caption.is_empty() {
            self.body += &format!("<figcaption>{}</figcaption>\n", inline(caption));
        }
        self.body += "</figure>\n";
        Ok(self)
    }

    /// Adds a drawing that is an SVG file already. It is embedded as an image, so its styles do not
    /// affect the page and nothing in it can run or load. On a small screen it scrolls.
    pub fn drawing(mut self, svg: &str, alternative: &str, caption: impl AsRef<str>) -> Self {
        self.body += &format!(
            "<figure>\n<div class=\"card drawing\"><img alt=\"{}\" src=\"data:image/svg+xml;base64,{}\"></div>\n",
            escape(alternative),
            STANDARD.encode(svg)
        );
        let caption = caption.as_ref();
        if !caption.is_empty() {
            self.body += &format!("<figcaption>{}</figcaption>\n", inline(caption));
        }
        self.body += "</figure>\n";
        self
    }

    /// Adds small pictures side by side, each with a caption.
    pub fn pictures(mut self, pictures: &[Picture<'_>]) -> Result<Self> {
        let mut body = String::from("<div class=\"pictures\">\n");
        for picture in pictures {
            let (width, height) = (picture.width, picture.height);
            let png = encode_png(width, height, picture.rgb).ok_or(Error::Pixels {
                width,
                height,
                found: picture.rgb.len(),
            })?;
            body += &format!(
                "<figure><img alt=\"{}\" width=\"{width}\" height=\"{height}\" \
                 src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption></figure>\n",
                escape(&RichText::parse(picture.caption).plain()),
                STANDARD.encode(png),
                inline(picture.caption).replace('\n', "<br>")
            );
        }
        self.body += &(body + "</div>\n");
        Ok(self)
    }
}

/// A small picture for a report, such as an image of a data set.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Three bytes per pixel, row by row.
    pub rgb: &'a [u8],
    /// The text below it. A newline breaks the line.
    pub caption: &'a str,
}

/// Text as HTML: code between backticks, sub- and superscripts elsewhere.
fn inline(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((code, after)) = after.split_once('`') else {
            break;
        };
        html += &RichText::parse(before).html();
        html += &format!("<code>{}</code>", escape(code));
        rest = after;
    }
    html + &RichText::parse(rest).html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plot::{Axis, Panel};

    fn report() -> Report {
        let figure = Figure::new("F & <G>").panel(
            Panel::new("(A)").x(Axis::log("κ")).y(Axis::linear("y")).line(
                "a < b",
                [1.0, 10.0],
                [1.0, 2.0],
            ),
        );
        let mut table = Table::new(["x"]);
        table.row(["<td>".into()]).unwrap();
        Report::new("Title <script>")
            .subtitle("sub & title")
            .section(
                Section::new("One `code`")
                    .paragraph("x < y and σ_{eff} ` unpaired")
                    .key_values([("<key>", "\"value\"")])
                    .list(["a", "b & c"])
                    .preformatted("cargo run <x>")
                    .table(&table)
                    .figure(&figure, "caption & more")
                    .unwrap(),
            )
            .section(Section::new(""))
            .section(Section::new("Two"))
            .section(
                Section::new("Three")
                    .pictures(&[Picture {
                        width: 1,
                        height: 1,
                        rgb: &[1, 2, 3],
                        caption: "cat > dog",
                    }])
                    .unwrap()
                    .drawing("<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "a \"drawing\"", "<c>"),
            )
    }

    #[test]
    fn the_page_is_well_formed_and_nothing_leaks() {
        let html = report().html();
        // Except for the doctype and void elements the page is XML: a strict parser finds any stray
        // bracket.
        let xml = html.replace("<!DOCTYPE html>", "").replace("<br>", "<br/>");
        let xml = close_void_elements(&xml);
        let document = roxmltree::Document::parse(&xml).unwrap();
        assert!(document.descendants().all(|node| !node.has_tag_name("script")));
        let svgs = document
            .descendants()
            .filter(|node| node.tag_name().name() == "svg")
            .filter(|node| node.attribute("role") == Some("img"));
        assert_eq!(svgs.count(), 2, "one wide and one narrow");
    }

    fn close_void_elements(html: &str) -> String {
        let mut closed = String::new();
        let mut rest = html;
        while let Some(at) =
            ["<meta", "<link", "<img"].iter().filter_map(|tag| rest.find(tag)).min()
        {
            let end = at + rest[at..].find('>').unwrap();
            closed += &rest[..end];
            closed += "/>";
            rest = &rest[end + 1..];
        }
        closed + rest
    }

    #[test]
    fn the_page_asks_nobody_for_anything() {
        let html = report().html();
        for reference in ["src=\"http", "href=\"http", "url(http", "@import", "<script"] {
            assert!(!html.contains(reference), "{reference}");
        }
    }

    #[test]
    fn a_drawing_is_kept_as_it_is() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"><script/></svg>";
        let html = Report::new("").section(Section::new("").drawing(svg, "", "")).html();
        let (_, rest) = html.split_once("data:image/svg+xml;base64,").unwrap();
        let (data, _) = rest.split_once('"').unwrap();
        assert_eq!(STANDARD.decode(data).unwrap(), svg.as_bytes());
        assert!(!html.contains("<script"));
    }

    #[test]
    fn pictures_of_the_wrong_size_are_refused() {
        let picture = Picture { width: 2, height: 2, rgb: &[0; 11], caption: "" };
        assert!(Section::new("").pictures(&[picture]).is_err());
    }
}
