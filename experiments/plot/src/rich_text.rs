//! Text with subscripts and superscripts, for every medium.

use std::fmt::Write;

/// Where a piece of text stands relative to the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Normal,
    Sub,
    Super,
}

/// Text in which `_{..}` marks a subscript and `^{..}` a superscript.
///
/// Everything else is plain text, including a bare `_` or `^`.
///
/// ```
/// use plot::RichText;
/// let text = RichText::parse("σ_{eff} < 10^{−4}");
/// assert_eq!(text.html(), "σ<sub>eff</sub> &lt; 10<sup>−4</sup>");
/// assert_eq!(text.plain(), "σ_eff < 10⁻⁴");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RichText {
    spans: Vec<(Script, String)>,
}

impl RichText {
    /// Parses the markup. A mark without its closing brace is plain text.
    pub fn parse(markup: &str) -> Self {
        let mut spans = Vec::new();
        let mut rest = markup;
        let mut normal = String::new();
        while let Some(at) = rest.find(['_', '^']) {
            let (before, from_mark) = rest.split_at(at);
            normal.push_str(before);
            let script = if from_mark.starts_with('_') { Script::Sub } else { Script::Super };
            let inner = from_mark[1..].strip_prefix('{').and_then(|inner| inner.split_once('}'));
            if let Some((inner, after)) = inner {
                if !normal.is_empty() {
                    spans.push((Script::Normal, std::mem::take(&mut normal)));
                }
                if !inner.is_empty() {
                    spans.push((script, inner.to_owned()));
                }
                rest = after;
            } else {
                normal.push_str(&from_mark[..1]);
                rest = &from_mark[1..];
            }
        }
        normal.push_str(rest);
        if !normal.is_empty() {
            spans.push((Script::Normal, normal));
        }
        Self { spans }
    }

    pub(crate) fn spans(&self) -> &[(Script, String)] {
        &self.spans
    }

    /// The text as HTML, escaped.
    pub fn html(&self) -> String {
        let mut html = String::new();
        for (script, text) in &self.spans {
            let text = escape(text);
            // Writing to a String cannot fail.
            let _ = match script {
                Script::Normal => write!(html, "{text}"),
                Script::Sub => write!(html, "<sub>{text}</sub>"),
                Script::Super => write!(html, "<sup>{text}</sup>"),
            };
        }
        html
    }

    /// The text for a terminal: Unicode superscripts and subscripts where they exist.
    pub fn plain(&self) -> String {
        let mut plain = String::new();
        for (script, text) in &self.spans {
            match script {
                Script::Normal => plain.push_str(text),
                Script::Sub => match each(text, subscript) {
                    Some(text) => plain.push_str(&text),
                    None => {
                        plain.push('_');
                        plain.push_str(text);
                    }
                },
                Script::Super => match each(text, superscript) {
                    Some(text) => plain.push_str(&text),
                    None => {
                        plain.push('^');
                        plain.push_str(text);
                    }
                },
            }
        }
        plain
    }
}

fn each(text: &str, map: fn(char) -> Option<char>) -> Option<String> {
    text.chars().map(map).collect()
}

fn superscript(c: char) -> Option<char> {
    Some(match c {
        '0' => '⁰',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '4'..='9' => char::from_u32('⁴' as u32 + (c as u32 - '4' as u32))?,
        '+' => '⁺',
        '-' | '−' => '⁻',
        'n' => 'ⁿ',
        _ => return None,
    })
}

fn subscript(c: char) -> Option<char> {
    Some(match c {
        '0'..='9' => char::from_u32('₀' as u32 + (c as u32 - '0' as u32))?,
        '+' => '₊',
        '-' | '−' => '₋',
        _ => return None,
    })
}

/// Escapes text for HTML and XML, for content and for quoted attributes.
///
/// Control characters that XML forbids become the replacement character, so that a stray byte in a
/// label cannot make a whole figure unreadable.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(c),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => {
                escaped.push('\u{fffd}');
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_without_braces_are_plain_text() {
        for text in ["sigma_eff", "a^b", "open _{brace", "end_", "", "_", "x_^{"] {
            assert_eq!(RichText::parse(text).plain(), text);
        }
    }

    #[test]
    fn scripts_fall_back_where_unicode_has_none() {
        let text = RichText::parse("κ_{eff}^{2} x^{a/b} N_{10}");
        assert_eq!(text.plain(), "κ_eff² x^a/b N₁₀");
        assert_eq!(text.html(), "κ<sub>eff</sub><sup>2</sup> x<sup>a/b</sup> N<sub>10</sub>");
    }

    #[test]
    fn escaping_leaves_nothing_a_parser_could_act_on() {
        let nasty = "<script>alert('x')</script> & \"q\" \u{0}\u{b}";
        let escaped = escape(nasty);
        assert_eq!(
            escaped,
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;q&quot; \u{fffd}\u{fffd}"
        );
        let document = format!("<a b=\"{escaped}\">{escaped}</a>");
        let parsed = roxmltree::Document::parse(&document).unwrap();
        assert!(parsed.root_element().text().unwrap().starts_with("<script>"));
    }
}
