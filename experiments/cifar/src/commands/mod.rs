//! What a person types: one module per command, with its arguments and what it prints.
//!
//! Each command has a function `run`. An error that it returns ends the program with exit code 1;
//! [`Interrupted`](crate::interrupt::Interrupted) ends it with
//! [`EXIT_CODE`](crate::interrupt::EXIT_CODE).

pub mod bench;
pub mod compare;
pub mod eval;
pub mod evidence;
pub mod export;
pub mod fetch;
pub mod first_look;
pub mod landscape;
pub mod predict;
pub mod report;
pub mod study;
pub mod train;

/// A failure that the command has already explained on standard error.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the reason is above")]
pub struct AlreadyReported;
