//! Printing that survives a closed or full standard output, and that shows control characters as
//! text.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::error::{Error, Result};

/// Prints a line to standard output. Where `println!` panics, this returns [`Error::Stdout`].
///
/// A reader that closes the pipe has seen enough: that is no error, and the program goes on to
/// write its files. Control characters are escaped by [`printable`].
#[macro_export]
macro_rules! say {
    () => { $crate::say!("") };
    ($($argument:tt)*) => { $crate::print_line(format_args!($($argument)*)) };
}

/// Prints a line to standard error. If that fails there is nowhere left to say so.
#[macro_export]
macro_rules! note {
    ($($argument:tt)*) => { $crate::note_line(format_args!($($argument)*)) };
}

#[doc(hidden)]
pub fn print_line(line: Arguments<'_>) -> Result<()> {
    print(&format!("{}\n", printable(&line.to_string())))
}

#[doc(hidden)]
pub fn note_line(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", printable(&line.to_string()));
}

pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Stdout(error)),
        _ => Ok(()),
    }
}

/// The text with control characters escaped, except for newlines and tabs.
///
/// Paths and the names in a checkpoint come from elsewhere. Printed as they are, they could move
/// the cursor, change colours or reverse the direction of text.
///
/// ```
/// assert_eq!(lab::printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let acts = |c: char| match c {
        '\n' | '\t' => false,
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::new();
    for c in text.chars() {
        if acts(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Turns the result of a program into its exit code, and prints an error with its causes to
/// standard error.
///
/// An error because the reader of the output closed the pipe is a success.
pub fn exit_code<E>(result: std::result::Result<ExitCode, E>) -> ExitCode
where
    E: Into<Box<dyn std::error::Error>>,
{
    let error = match result {
        Ok(code) => return code,
        Err(error) => error.into(),
    };
    let mut message = String::from("error");
    let mut cause = Some(error.as_ref());
    while let Some(error) = cause {
        let io_error = error.downcast_ref::<io::Error>();
        if io_error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        // Some errors already say what caused them.
        let text = error.to_string();
        if !message.ends_with(&text) {
            message += &format!(": {text}");
        }
        cause = error.source();
    }
    note!("{message}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped_and_other_text_is_not() {
        for text in ["", "κ = 10⁻⁴\n\tσ", "日本"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
        let nasty = "\u{1b}[31m\r\u{7}\u{9b}\u{7f}\u{202e}";
        assert!(!printable(nasty).contains(|c: char| !c.is_ascii_graphic()), "{nasty:?}");
        assert_eq!(printable("a\r\u{202e}b\n"), "a\\r\\u{202e}b\n");
    }
}
