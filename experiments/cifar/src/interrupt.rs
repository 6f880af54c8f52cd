//! Ctrl-C: the first asks the program to finish its step and save, the second ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// The exit code of an interrupted program.
pub const EXIT_CODE: u8 = 130;

/// Listens for Ctrl-C and for the signal with which systems end a program, from the first call on.
pub fn listen() -> Result<()> {
    static LISTENING: AtomicBool = AtomicBool::new(false);
    if LISTENING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_CODE.into());
        }
        eprintln!("\nstopping after this step; once more to stop at once");
    })
    .context("cannot listen for Ctrl-C")
}

/// The error of work that stopped because the program was asked to.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped")]
pub struct Interrupted;

/// Returns [`Interrupted`] as an error if the program was asked to stop. This is for work that has
/// nothing to save.
pub fn check() -> Result<()> {
    if asked() {
        return Err(Interrupted.into());
    }
    Ok(())
}

/// Whether the program was asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
