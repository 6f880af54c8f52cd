//! Requests to stop: Ctrl-C, and the signals of a system that ends programs or of a terminal that is
//! closed.
//!
//! The first Ctrl-C asks the program to finish its step and save, the second ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use crate::terminal;

static ASKED: AtomicBool = AtomicBool::new(false);

/// The exit code of an interrupted program.
pub const EXIT_CODE: u8 = 130;

/// Listens for requests to stop. Without this call they end the program at once, so a program that
/// can be continued must call it before it creates any file.
pub fn listen() -> Result<()> {
    static LISTENING: AtomicBool = AtomicBool::new(false);
    if LISTENING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_CODE.into());
        }
        terminal::note("\nstopping after this step; press Ctrl-C again to stop at once");
    })
    .context("cannot listen for Ctrl-C")?;
    #[cfg(unix)]
    signals::listen().context("cannot listen for signals")?;
    Ok(())
}

/// The signals that ask a program to stop without a person at the keyboard.
#[cfg(unix)]
mod signals {
    use std::ffi::c_int;
    use std::io;
    use std::sync::atomic::Ordering;

    /// A repeated signal has no further effect, unlike a repeated Ctrl-C: when a terminal is closed,
    /// both the kernel and the shell may send a hang-up.
    extern "C" fn on_signal(_: c_int) {
        super::ASKED.store(true, Ordering::SeqCst);
    }

    pub(super) fn listen() -> io::Result<()> {
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: all zeros is a valid value of this plain structure.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the structure is ours to write.
            check(unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) })?;
            // `nohup` starts a program with this signal ignored, so that it outlives the terminal.
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let handler: extern "C" fn(c_int) = on_signal;
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: the handler only stores to an atomic, which is allowed at any moment.
            check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
        }
        Ok(())
    }

    fn check(code: c_int) -> io::Result<()> {
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
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
