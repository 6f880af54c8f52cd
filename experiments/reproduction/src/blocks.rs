//! Marked places in a Markdown document, whose text a program writes.

use anyhow::{Result, bail};

const BEGIN: &str = "<!-- table ";
const CLOSE: &str = " -->";
const END: &str = "<!-- end of table -->";

/// The document with the text of every marked place replaced by `table`, which is given the text of
/// the mark.
///
/// ```
/// let text = "# A\n<!-- table two -->\nold\n<!-- end of table -->\nB\n";
/// let filled = reproduction::blocks::fill(text, |mark| Ok(format!("| {mark} |\n"))).unwrap();
/// assert_eq!(filled, "# A\n<!-- table two -->\n| two |\n<!-- end of table -->\nB\n");
/// ```
pub fn fill(text: &str, mut table: impl FnMut(&str) -> Result<String>) -> Result<String> {
    let mut filled = String::new();
    let mut open: Option<usize> = None;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let trimmed = line.trim();
        let mark = trimmed.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(CLOSE));
        match (mark, open) {
            (Some(_), Some(begin)) => bail!(
                "the table of line {begin} has no end before line {number}: close it with {END}"
            ),
            (Some(mark), None) => {
                open = Some(number);
                filled += line;
                filled += table(mark.trim())?.trim_end();
                filled += "\n";
            }
            (None, Some(_)) if trimmed == END => {
                open = None;
                filled += line;
            }
            (None, Some(_)) => {}
            (None, None) if trimmed == END => {
                bail!("line {number} ends a table that has not begun")
            }
            (None, None) => filled += line,
        }
    }
    match open {
        Some(begin) => bail!("the table of line {begin} has no end: close it with {END}"),
        None => Ok(filled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_with_new(text: &str) -> Result<String> {
        fill(text, |mark| Ok(format!("new {mark}\n\n")))
    }

    #[test]
    fn only_marked_places_change() {
        let text = "a\n<!-- table x y -->\nold\nold\n<!-- end of table -->\nb";
        let filled = fill_with_new(text).unwrap();
        assert_eq!(filled, "a\n<!-- table x y -->\nnew x y\n<!-- end of table -->\nb");
        assert_eq!(fill_with_new(&filled).unwrap(), filled);
        assert_eq!(fill_with_new("no marks\n").unwrap(), "no marks\n");
    }

    #[test]
    fn marks_that_do_not_pair_are_named_by_line() {
        for (text, word) in [
            ("<!-- table x -->\nold\n", "line 1 has no end"),
            ("\n<!-- table x -->\n<!-- table y -->\n", "line 2 has no end before line 3"),
            ("<!-- end of table -->\n", "line 1 ends"),
        ] {
            let error = fill_with_new(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
