//! Ctrl-C: the first asks the program to finish its step and save, the second ends it.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// The exit code of a program that was interrupted.
pub const EXIT_CODE: u8 = 130;

/// Listens for Ctrl-C and for the signal with which systems end a program. Call it once.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_CODE.into());
        }
        eprintln!("\nstopping after this step; once more to stop at once");
    })
    .context("cannot listen for Ctrl-C")
}

/// Whether the program was asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
