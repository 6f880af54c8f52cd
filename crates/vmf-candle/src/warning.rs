//! Warnings that are heard.

use std::fmt::Display;
use std::io::Write;
use tracing::dispatcher::get_default;
use tracing::subscriber::NoSubscriber;

/// Warns through `tracing`. A program that has not set up a subscriber would not see that, so there
/// the warning goes to standard error.
pub(crate) fn warn(message: impl Display) {
    if get_default(|dispatch| dispatch.is::<NoSubscriber>()) {
        // If standard error is gone too, there is no place left to say anything.
        let _ = writeln!(std::io::stderr(), "warning: {message}");
    } else {
        tracing::warn!("{message}");
    }
}
